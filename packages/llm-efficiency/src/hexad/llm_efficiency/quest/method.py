"""What is known of QuEST without importing torch."""

from hexad.core.methods import Method

METHOD = Method(
    name="quest",
    title="QuEST: quantisation-aware training with 1 to 4 bits for weights and activations",
    paper=(
        "Panferov, Chen, Tabesh, Castro, Nikdan, Alistarh. QuEST: Stable Training of LLMs with 1-Bit "
        "Weights and Activations. ICML 2025, arXiv 2502.05003"
    ),
    claim=(
        "A Hadamard transform before an MSE-fitted grid and a trust mask on the gradient make training "
        "stable down to one bit for weights and activations, better than straight-through or learned scales."
    ),
    tags=("quantisation", "training", "qat", "low bit", "transformers", "language models"),
    study="hexad.llm_efficiency.quest.study:STUDY",
    commands="hexad.llm_efficiency.quest.commands:app",
)
