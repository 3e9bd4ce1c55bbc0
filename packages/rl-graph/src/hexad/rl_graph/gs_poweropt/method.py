"""The light face of GS-PowerOpt: what it is, without importing it."""

from hexad.core.methods import Method

METHOD = Method(
    name="gs-poweropt",
    title="GS-PowerOpt: global optimisation by smoothing a power-transformed objective",
    paper=(
        'C. Xu, "Global Optimization with a Power-Transformed Objective and Gaussian Smoothing", '
        "ICML 2025 (PMLR 267:69189), arXiv 2412.05204"
    ),
    claim=(
        "Raising an objective to a power before it is smoothed by a Gaussian of fixed width moves the "
        "smoothed maximum to the global one, so that one loop of stochastic ascent finds it."
    ),
    tags=("global-optimisation", "black-box", "zeroth-order", "evolution-strategies", "scipy"),
    study="hexad.rl_graph.gs_poweropt.study:STUDY",
    commands="hexad.rl_graph.gs_poweropt.commands:app",
)
