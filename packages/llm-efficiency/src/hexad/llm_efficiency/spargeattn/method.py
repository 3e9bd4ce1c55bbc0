"""What is known of SpargeAttn without importing torch."""

from hexad.core.methods import Method

METHOD = Method(
    name="spargeattn",
    title="SpargeAttn: training-free sparse attention with a two-stage online filter",
    paper=(
        "Zhang, Xiang, Huang, Wei, Xi, Zhu, Chen. SpargeAttention: Accurate and Training-free Sparse "
        "Attention Accelerating Any Model Inference. ICML 2025, arXiv 2502.18137"
    ),
    claim=(
        "Tiles of the attention map that matter can be predicted from q and k alone, so any model runs "
        "a several times faster attention at the same end-to-end quality, without training."
    ),
    tags=("attention", "sparse", "inference", "long context", "transformers", "training-free"),
    study="hexad.llm_efficiency.spargeattn.study:STUDY",
    commands="hexad.llm_efficiency.spargeattn.commands:app",
)
