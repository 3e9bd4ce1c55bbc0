"""The light face of LAION-C: what it is, without importing it."""

from hexad.core.methods import Method

METHOD = Method(
    name="laion-c",
    title="LAION-C: distortions that are new to web-scale vision models",
    paper=(
        'F. Li, T. Klein, W. Brendel, R. Geirhos, R. S. Zimmermann, "LAION-C: An Out-of-Distribution '
        'Benchmark for Web-Scale Vision Models", ICML 2025, arXiv 2506.16950'
    ),
    claim=(
        "Six unnatural distortions at five intensities lower a classifier's superclass accuracy far more "
        "than the corruptions of ImageNet-C do."
    ),
    tags=("robustness", "out-of-distribution", "corruptions", "image-classification", "benchmark"),
    study="hexad.vision_robustness.laion_c.study:STUDY",
    commands="hexad.vision_robustness.laion_c.commands:app",
)
