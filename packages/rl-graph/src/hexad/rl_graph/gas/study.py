"""Does a graph over an embedding of temporal distance stitch short trajectories together?"""

import importlib.util

from hexad.core.studies import Arm, Claim, Figure, Metric, Preset, Study

# Said when the study is loaded, not after the first data have been made.
for _needed in ("gymnasium", "ogbench"):
    if importlib.util.find_spec(_needed) is None:
        raise ModuleNotFoundError(f"No module named {_needed!r}", name=_needed)

from hexad.rl_graph.gas.study_arms import (  # noqa: E402 - once the simulator is known to be there
    CLONING,
    METHOD,
    NO_GRAPH,
    NO_TE,
    RAW,
    Case,
    Config,
    measure,
)
from hexad.rl_graph.gas.study_figures import draw_success, draw_traces  # noqa: E402

CLAIMS = (
    Claim(
        "medium-reached",
        "In the medium maze GAS reaches at least 80 % of the goals",
        metric="success",
        arm=METHOD,
        direction="at least",
        threshold=80,
        cases="medium/*",
        presets=("quick", "full"),
    ),
    Claim(
        "medium-graph",
        "and at least 30 points more than the same policy without the graph",
        metric="success",
        arm=METHOD,
        baseline=NO_GRAPH,
        direction="at least",
        threshold=30,
        cases="medium/*",
        presets=("quick", "full"),
    ),
    Claim(
        "medium-cloning",
        "and at least 30 points more than GCBC",
        metric="success",
        arm=METHOD,
        baseline=CLONING,
        direction="at least",
        threshold=30,
        cases="medium/*",
        presets=("full",),
    ),
    Claim(
        "large-reached",
        "In the large maze GAS reaches at least 50 % of the goals",
        metric="success",
        arm=METHOD,
        direction="at least",
        threshold=50,
        cases="large/*",
        presets=("full",),
    ),
    Claim(
        "large-graph",
        "and at least 30 points more than the same policy without the graph",
        metric="success",
        arm=METHOD,
        baseline=NO_GRAPH,
        direction="at least",
        threshold=30,
        cases="large/*",
        presets=("full",),
    ),
    Claim(
        "giant-graph",
        "In the giant maze GAS reaches at least 30 points more than the same policy without the graph",
        metric="success",
        arm=METHOD,
        baseline=NO_GRAPH,
        direction="at least",
        threshold=30,
        cases="giant/*",
        presets=("full",),
    ),
    Claim(
        "efficiency-noisy",
        "On noisy exploration of the large maze the filter by temporal efficiency adds at least 5 points",
        metric="success",
        arm=METHOD,
        baseline=NO_TE,
        direction="at least",
        threshold=5,
        cases="explore/*",
        presets=("full",),
    ),
    Claim(
        "efficiency-clean",
        "and costs at most 5 points on clean data in the medium maze",
        metric="success",
        arm=METHOD,
        baseline=NO_TE,
        direction="at least",
        threshold=-5,
        cases="medium/*",
        presets=("full",),
    ),
    Claim(
        "embedding",
        "Latent distance follows the true one with a rank correlation of at least 0.9, the mean of all cases",
        metric="spearman",
        arm=METHOD,
        direction="at least",
        threshold=0.9,
        presets=("full",),
    ),
)

STUDY = Study(
    name="gas",
    question=(
        "Does a graph over an embedding of temporal distance take a low-level policy to goals that no "
        "trajectory of the data reaches, and does the filter by temporal efficiency help?"
    ),
    arms=(
        Arm(METHOD, "GAS", "method", measure),
        Arm(NO_TE, "GAS without the filter by temporal efficiency", "ablation", measure),
        Arm(NO_GRAPH, "The same policy straight to the goal", "ablation", measure),
        Arm(RAW, "Graph on raw coordinates", "ablation", measure),
        Arm(CLONING, "GCBC", "baseline", measure),
    ),
    metrics=(
        Metric("success", "Success", "%", better="higher", digits=1),
        Metric("moves", "Moves an episode", better="lower", digits=0),
        Metric("spearman", "Rank correlation with the true distance", better="higher"),
        Metric("nodes", "Nodes", digits=0),
        Metric("kept", "States kept", "%", digits=1),
    ),
    claims=CLAIMS,
    presets={
        "tiny": Preset(
            Config(
                (Case("medium", "medium", "stitch", episodes=20, tdr_steps=40, policy_steps=20),),
                episodes=1,
                max_steps=20,
                hidden=16,
                batch_size=32,
            ),
            seeds=1,
        ),
        "quick": Preset(
            Config(
                (Case("medium", "medium", "stitch", episodes=200, tdr_steps=3000, policy_steps=1500),),
                episodes=5,
                max_steps=500,
            ),
            seeds=1,
        ),
        "full": Preset(
            Config(
                (
                    Case("medium", "medium", "stitch", 300, tdr_steps=6000, policy_steps=6000),
                    Case("explore", "large", "explore", 50, tdr_steps=12_000, policy_steps=6000, alpha=0.01),
                    Case("large", "large", "stitch", 500, tdr_steps=16_000, policy_steps=8000),
                    Case("giant", "giant", "stitch", 800, tdr_steps=30_000, policy_steps=10_000, gamma=0.995),
                )
            ),
            seeds=4,
        ),
    },
    figures=(
        Figure("success", "Success by maze", draw_success),
        Figure("traces", "GAS, seed 0: nodes and the way of one episode of each task", draw_traces),
    ),
    notes=(
        "Cases are maze/task; five tasks of OGBench's pointmaze environments, ten episodes each (five in "
        "quick), at most 1000 moves (500), the same starts and goals for all arms of a seed. Observations "
        "are the two coordinates. Data are generated in the same simulator as OGBench's own: medium, large "
        "and giant are `stitch` data (200 moves, goals four cells away, noise of deviation 0.5; 300, 500 "
        "and 800 episodes where OGBench has 5000); explore is the large maze with 50 episodes of 500 moves "
        "in random directions that change each 10 moves, noise 1. Networks are of three layers of 128, Adam"
        " at 1e-3, batches of 128, Polyak 0.02, expectile 0.95, H = 8, threshold 0.9 (the paper: 512, 3e-4,"
        " 1024, 0.005, 0.999, 8, 0.99 and a million steps); gamma 0.99, giant 0.995. All arms but GCBC "
        "share embedding and policy, so they differ in planning alone. GCBC has the same network size and "
        "as many steps as the embedding and the policy together; gamma of its goals 0.99 was the best of "
        "0.9, 0.95, 0.98 and 0.99 on medium and large, and its rate better than 3e-4, at a seed that no "
        "preset uses, as were all other settings chosen. The graph on raw coordinates has the way of H "
        "steps at the data's mean speed as its horizon; its policy still heads for sub-goals in the "
        "embedding. A point's position is near to an ideal embedding, so this is a strong arm here and says"
        " nothing of ants. The rank correlation is Spearman's, of latent distance and cells of the shortest"
        " way, over 4000 pairs of states; nothing is trained or chosen by it in a trial. Moves count "
        "episodes that fail as the limit. The paper's figures are of ants."
    ),
)
