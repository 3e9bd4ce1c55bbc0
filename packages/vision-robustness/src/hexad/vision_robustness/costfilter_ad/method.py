"""The light face of CostFilter-AD: what it is, without importing it."""

from hexad.core.methods import Method

METHOD = Method(
    name="costfilter-ad",
    title="CostFilter-AD: anomaly detection by filtering matching cost volumes",
    paper=(
        'Z. Zhang, M. Cai, H. Wang, Y. Wu, T. Chai, X. Zhu, "CostFilter-AD: Enhancing Anomaly Detection '
        'through Matching Cost Filtering", ICML 2025, arXiv 2505.01476'
    ),
    claim=(
        "A 3-D U-Net over the matching costs of a frozen anomaly detector, guided by the image's features, "
        "sharpens the detector's anomaly maps: pixel AP rises."
    ),
    tags=("anomaly-detection", "industrial-inspection", "segmentation", "cost-volume", "plug-in"),
    study="hexad.vision_robustness.costfilter_ad.study:STUDY",
    commands="hexad.vision_robustness.costfilter_ad.commands:app",
)
