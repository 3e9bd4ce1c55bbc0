"""The light face of GAS: what it is, without importing it."""

from hexad.core.methods import Method

METHOD = Method(
    name="gas",
    title="GAS: offline goal-reaching by graph-assisted stitching",
    paper=(
        'S. Baek, T. Park, J. Park, S. Oh, Y. Kim, "Graph-Assisted Stitching for Offline Hierarchical '
        'Reinforcement Learning", ICML 2025, arXiv 2506.07744'
    ),
    claim=(
        "A graph over states embedded by temporal distance stitches short trajectories together, so that one "
        "low-level policy reaches goals that no trajectory of the data reaches."
    ),
    tags=("offline-rl", "goal-conditioned", "graph", "planning", "gymnasium", "ogbench", "minari"),
    study="hexad.rl_graph.gas.study:STUDY",
    commands="hexad.rl_graph.gas.commands:app",
)
