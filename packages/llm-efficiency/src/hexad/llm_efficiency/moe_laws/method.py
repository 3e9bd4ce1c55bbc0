"""What is known of the joint MoE scaling laws without importing NumPy."""

from hexad.core.methods import Method

METHOD = Method(
    name="moe-laws",
    title="Joint scaling laws for dense and mixture-of-experts models, and plans by them",
    paper=(
        "Ludziejewski, Pióro, Krajewski, Stefaniak, Krutul, Małaśnicki, Cygan, Sankowski, Adamczewski, "
        "Miłoś, Jaszczur. Joint MoE Scaling Laws: Mixture of Experts Can Be Memory Efficient. ICML 2025, "
        "arXiv 2502.05172"
    ),
    claim=(
        "One formula in active parameters, tokens and experts predicts the loss of dense and MoE models, so "
        "that the best model under a budget of compute, memory and inference can be computed."
    ),
    tags=("scaling laws", "mixture of experts", "planning", "pre-training", "compute", "memory"),
    study="hexad.llm_efficiency.moe_laws.study:STUDY",
    commands="hexad.llm_efficiency.moe_laws.commands:app",
)
