"""Graph-Assisted Stitching: agents for distant goals from short, reward-free trajectories.

`GAS(config).fit(read_trajectories("data.npz"))` fits an embedding (`TemporalDistance`), a graph over it
(`StitchGraph`) and a low-level policy (`SkillPolicy`); `.predict(observation, goal)` acts. MuJoCo is needed
for OGBench's mazes alone. Source: Baek et al., ICML 2025, arXiv 2506.07744.
"""

from typing import TYPE_CHECKING

from hexad.core.lazy import lazy_exports

if TYPE_CHECKING:
    from hexad.rl_graph.gas.agent import GAS, GASConfig
    from hexad.rl_graph.gas.clustering import Clusters, cluster_states
    from hexad.rl_graph.gas.efficiency import first_crossing, temporal_efficiency
    from hexad.rl_graph.gas.evaluation import Evaluation, evaluate
    from hexad.rl_graph.gas.figures import Walk, draw_maze, walk, write_animation
    from hexad.rl_graph.gas.fitting import FitConfig
    from hexad.rl_graph.gas.goal_cloning import CloningConfig, GoalCloning
    from hexad.rl_graph.gas.graph import PathTree, StitchGraph
    from hexad.rl_graph.gas.mazes import cell_distances, generate_pointmaze, make_maze
    from hexad.rl_graph.gas.navigation import Navigator
    from hexad.rl_graph.gas.policy import PolicyConfig, SkillPolicy, skill_reward
    from hexad.rl_graph.gas.readers import (
        from_minari,
        load_ogbench_npz,
        read_trajectories,
        write_ogbench_npz,
    )
    from hexad.rl_graph.gas.temporal import TemporalConfig, TemporalDistance, temporal_loss
    from hexad.rl_graph.gas.trajectories import Trajectories

_HOMES = {
    "GAS": "agent",
    "CloningConfig": "goal_cloning",
    "Clusters": "clustering",
    "Evaluation": "evaluation",
    "FitConfig": "fitting",
    "GASConfig": "agent",
    "GoalCloning": "goal_cloning",
    "Navigator": "navigation",
    "PathTree": "graph",
    "PolicyConfig": "policy",
    "SkillPolicy": "policy",
    "StitchGraph": "graph",
    "TemporalConfig": "temporal",
    "TemporalDistance": "temporal",
    "Trajectories": "trajectories",
    "Walk": "figures",
    "cell_distances": "mazes",
    "cluster_states": "clustering",
    "draw_maze": "figures",
    "evaluate": "evaluation",
    "first_crossing": "efficiency",
    "from_minari": "readers",
    "generate_pointmaze": "mazes",
    "load_ogbench_npz": "readers",
    "make_maze": "mazes",
    "read_trajectories": "readers",
    "skill_reward": "policy",
    "temporal_efficiency": "efficiency",
    "temporal_loss": "temporal",
    "walk": "figures",
    "write_animation": "figures",
    "write_ogbench_npz": "readers",
}

__all__ = [
    "GAS",
    "CloningConfig",
    "Clusters",
    "Evaluation",
    "FitConfig",
    "GASConfig",
    "GoalCloning",
    "Navigator",
    "PathTree",
    "PolicyConfig",
    "SkillPolicy",
    "StitchGraph",
    "TemporalConfig",
    "TemporalDistance",
    "Trajectories",
    "Walk",
    "cell_distances",
    "cluster_states",
    "draw_maze",
    "evaluate",
    "first_crossing",
    "from_minari",
    "generate_pointmaze",
    "load_ogbench_npz",
    "make_maze",
    "read_trajectories",
    "skill_reward",
    "temporal_efficiency",
    "temporal_loss",
    "walk",
    "write_animation",
    "write_ogbench_npz",
]

__getattr__, __dir__ = lazy_exports(__name__, _HOMES)
