"""The light face of ShuffleMamba: what it is, without importing it."""

from hexad.core.methods import Method

METHOD = Method(
    name="shufflemamba",
    title="ShuffleMamba: stochastic layer-wise shuffle for Vision Mamba",
    paper=(
        'Z. Huang, H. Chen, J. Li, J. Lan, H. Zhu, W. Wang, L. Wang, "Stochastic Layer-Wise Shuffle for '
        'Improving Vision Mamba Training", ICML 2025 (PMLR 267), arXiv 2408.17081'
    ),
    claim=(
        "Running each layer, more often the deeper it lies, on randomly permuted tokens while training "
        "regularises a Vision Mamba at almost no cost."
    ),
    tags=("vision-mamba", "state-space-model", "regularisation", "image-classification", "timm"),
    study="hexad.vision_robustness.shufflemamba.study:STUDY",
    commands="hexad.vision_robustness.shufflemamba.commands:app",
)
