"""What the arms of the study of GAS measure: success in OGBench's point mazes from generated data."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from filelock import FileLock
from jaxtyping import Float
from scipy.stats import spearmanr

from hexad.core.files import atomic_path, writable_folder
from hexad.core.studies import Measurement, Trial
from hexad.rl_graph.gas.agent import GAS, GASConfig, Stage
from hexad.rl_graph.gas.evaluation import Controller, Evaluation, Start, evaluate
from hexad.rl_graph.gas.fitting import FitConfig, Progress
from hexad.rl_graph.gas.goal_cloning import CloningConfig, GoalCloning
from hexad.rl_graph.gas.graph import StitchGraph
from hexad.rl_graph.gas.mazes import Kind, Maze, cell_distances, generate_pointmaze
from hexad.rl_graph.gas.navigation import Navigator
from hexad.rl_graph.gas.policy import PolicyConfig
from hexad.rl_graph.gas.readers import load_ogbench_npz, write_ogbench_npz
from hexad.rl_graph.gas.temporal import TemporalConfig
from hexad.rl_graph.gas.trajectories import Trajectories

METHOD, NO_TE, NO_GRAPH, RAW, CLONING = "gas", "no-te", "no-graph", "raw-graph", "gcbc"
PAIRS = 4000
"""Pairs of states at which the embedding is compared with the true distance."""
DATA_SEED = 1000
"""Added to the seed of a trial for its data, so that no episode of the evaluation shares a generator."""


@dataclass(frozen=True)
class Case:
    """A maze with data of one kind, and what it is given.

    Args:
        name: in the tables.
        maze: size of the maze.
        kind: of the data.
        episodes: of data.
        tdr_steps: of the embedding's training.
        policy_steps: of the policy's; GCBC gets the sum of both.
        gamma: discount of the embedding.
        alpha: weight of behaviour cloning in the policy.
    """

    name: str
    maze: Maze
    kind: Kind
    episodes: int
    tdr_steps: int
    policy_steps: int
    gamma: float = 0.99
    alpha: float = 1.0


@dataclass(frozen=True)
class Config:
    """Size of the study and the settings that all cases share.

    Args:
        cases: see `Case`.
        episodes: of each of the five tasks.
        max_steps: of an episode.
        hidden: numbers of each of three hidden layers.
        batch_size: transitions a step.
        learning_rate: of all networks.
        polyak: of the embedding's slow copy and the slow critics.
        expectile: of the embedding.
        horizon: H.
        te_threshold: of the method.
        cloning_gamma: how far ahead GCBC's goals lie.
    """

    cases: tuple[Case, ...]
    episodes: int = 10
    max_steps: int = 1000
    hidden: int = 128
    batch_size: int = 128
    learning_rate: float = 1e-3
    polyak: float = 0.02
    expectile: float = 0.95
    horizon: float = 8.0
    te_threshold: float = 0.9
    cloning_gamma: float = 0.99


def measure(trial: Trial) -> Iterator[Measurement]:
    """Success of the trial's arm in every case; what is trained is shared with the other arms of the seed."""
    torch.set_num_threads(1)
    config: Config = trial.config
    for place, case in enumerate(config.cases):

        def tell(fraction: float, note: str, place: int = place, case: Case = case) -> None:
            trial.progress((place + fraction) / len(config.cases), f"{case.name}: {note}")

        home = writable_folder(trial.folder.parents[1] / "stages" / f"{case.name}-{trial.seed}")
        # Arms that run side by side wait for the one that trains what they share.
        with FileLock(home / ".lock"):
            data = load_data(case, trial.seed, home, tell)
            if trial.arm == CLONING:
                start, graph = fit_cloning(case, config, trial.seed, home, data, tell).controller, None
            else:
                agent = fit_agent(case, config, trial.seed, home, data, tell)
                start, graph = plan(trial.arm, agent, data)
        found = evaluate(
            start,
            f"pointmaze-{case.maze}-v0",
            episodes=config.episodes,
            max_steps=config.max_steps,
            seed=trial.seed,
            progress=lambda fraction, note, tell=tell: tell(0.8 + 0.2 * fraction, note),
        )
        for task, share in found.by_task().items():
            yield Measurement("success", 100 * share, f"{case.name}/task {task}")
        yield Measurement("moves", float(found.steps.mean()), case.name)
        if graph is not None:
            yield Measurement("nodes", len(graph.nodes), case.name)
            yield Measurement("kept", 100 * graph.kept, case.name)
        if trial.arm == METHOD:
            yield Measurement("spearman", embedding_quality(case, agent, data), case.name)
            if trial.seed == 0:
                keep_traces(writable_folder(trial.folder) / f"{case.name}.npz", agent.graph_, found)


def load_data(case: Case, seed: int, home: Path, tell: Progress) -> Trajectories:
    """The data of a case and seed, generated once."""
    path = home / "data.npz"
    if not path.is_file():
        made = generate_pointmaze(
            case.maze,
            case.kind,
            case.episodes,
            seed=DATA_SEED + seed,
            progress=lambda fraction, note: tell(0.05 * fraction, note),
        )
        write_ogbench_npz(path, made)
    return load_ogbench_npz(path)


def agent_config(case: Case, config: Config, seed: int) -> GASConfig:
    """The settings of GAS in a case."""

    def fit(steps: int) -> FitConfig:
        return FitConfig(steps, config.batch_size, config.learning_rate, seed, accelerator="cpu")

    hidden = (config.hidden,) * 3
    return GASConfig(
        TemporalConfig(
            hidden=hidden,
            gamma=case.gamma,
            expectile=config.expectile,
            polyak=config.polyak,
            fit=fit(case.tdr_steps),
        ),
        PolicyConfig(hidden=hidden, alpha=case.alpha, polyak=config.polyak, fit=fit(case.policy_steps)),
        config.horizon,
        config.te_threshold,
    )


def fit_agent(case: Case, config: Config, seed: int, home: Path, data: Trajectories, tell: Progress) -> GAS:
    """GAS in all stages, resumed where another arm, or an interrupted one, left it."""
    begins = {"tdr": 0.05, "graph": 0.55, "policy": 0.6}
    shares = {"tdr": 0.5, "graph": 0.05, "policy": 0.2}

    def show(stage: Stage, fraction: float, note: str) -> None:
        tell(begins[stage] + shares[stage] * fraction, f"{stage} {note}")

    return GAS(agent_config(case, config, seed)).fit(data, folder=home / "gas", progress=show)


def fit_cloning(
    case: Case, config: Config, seed: int, home: Path, data: Trajectories, tell: Progress
) -> GoalCloning:
    """GCBC with as many steps as the embedding and the policy of GAS take together."""
    fit = FitConfig(
        case.tdr_steps + case.policy_steps, config.batch_size, config.learning_rate, seed, accelerator="cpu"
    )
    cloning = GoalCloning(
        data.obs_dim, data.act_dim, CloningConfig((config.hidden,) * 3, config.cloning_gamma, fit)
    )
    return cloning.fit(
        data,
        folder=home / "gcbc",
        progress=lambda fraction, note: tell(0.05 + 0.75 * fraction, f"gcbc {note}"),
    )


def plan(arm: str, agent: GAS, data: Trajectories) -> tuple[Start, StitchGraph | None]:
    """What an arm does with the embedding and the policy of GAS, and the graph it plans on."""
    temporal, policy, graph = agent.temporal_, agent.policy_, agent.graph_
    assert temporal is not None
    assert policy is not None
    config = agent.config
    if arm == METHOD:
        return agent.controller, graph
    if arm == NO_GRAPH:
        return agent.straight_controller, None
    if arm == RAW:
        return _raw(agent, data)
    latents = temporal.encode(data.observations)
    graph = StitchGraph.build(latents, data.ends, config.horizon, te_threshold=-1)

    def start(goals: Float[np.ndarray, "episodes obs_dim"]) -> Controller:
        navigator = Navigator(graph, temporal.encode, goals, latch=config.latch)
        return lambda observations: policy.act(observations, navigator.update(observations))

    return start, graph


def _raw(agent: GAS, data: Trajectories) -> tuple[Start, StitchGraph]:
    """The whole pipeline on raw coordinates; the policy still needs directions of the embedding.

    The horizon is the way that a trajectory makes in H steps at its mean speed.
    """
    temporal, policy = agent.temporal_, agent.policy_
    assert temporal is not None
    assert policy is not None
    moves = np.flatnonzero(~data.terminals)
    stride = np.linalg.norm(data.observations[moves + 1] - data.observations[moves], axis=1).mean()
    config = agent.config
    steps = max(1, round(config.horizon))
    graph = StitchGraph.build(data.observations, data.ends, float(stride) * steps, config.te_threshold)

    def start(goals: Float[np.ndarray, "episodes obs_dim"]) -> Controller:
        navigator = Navigator(graph, np.asarray, goals, latch=config.latch)

        def act(observations: Float[np.ndarray, "episodes obs_dim"]) -> Float[np.ndarray, "episodes act_dim"]:
            navigator.update(observations)
            directions = temporal.encode(navigator.subgoals) - temporal.encode(observations)
            return policy.act(observations, directions)

        return act

    return start, graph


def embedding_quality(case: Case, agent: GAS, data: Trajectories) -> float:
    """Spearman's correlation of latent distance with the cells of the shortest way; for reporting only."""
    temporal = agent.temporal_
    assert temporal is not None
    pairs = np.random.default_rng(0).integers(len(data), size=(2, PAIRS))
    s, g = data.observations[pairs[0]], data.observations[pairs[1]]
    return float(spearmanr(temporal.distance(s, g), cell_distances(case.maze, s, g)).statistic)


def keep_traces(path: Path, graph: StitchGraph | None, found: Evaluation) -> None:
    """Keep the first episode of each task, and the nodes, for the figures."""
    assert graph is not None
    assert graph.observations is not None
    tasks, first = np.unique(found.tasks, return_index=True)
    with atomic_path(path) as temporary, temporary.open("wb") as file:
        np.savez_compressed(
            file,
            tasks=tasks,
            nodes=graph.observations,
            traces=found.traces[:, first],
            steps=found.steps[first],
            goals=found.goals[first],
            success=found.success[first],
        )
