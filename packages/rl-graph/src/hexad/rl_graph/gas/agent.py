"""GAS whole: embedding, graph and policy fitted from trajectories, and an agent that goes to a goal.

Source: Baek et al., "Graph-Assisted Stitching for Offline Hierarchical Reinforcement Learning", ICML 2025,
arXiv 2506.07744.
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
from jaxtyping import Float

from hexad.core.errors import InputError
from hexad.core.files import writable_folder, write_json
from hexad.core.validation import check_count, check_folder, check_path, check_range
from hexad.rl_graph.gas.graph import StitchGraph
from hexad.rl_graph.gas.navigation import LATCH, Navigator
from hexad.rl_graph.gas.policy import PolicyConfig, SkillPolicy
from hexad.rl_graph.gas.run_folder import (
    check_encoder,
    check_parts,
    check_run,
    describe_policy,
    drop_stale,
    note_policy,
    policy_checkpoints,
    read_config,
)
from hexad.rl_graph.gas.saving import (
    FORMAT,
    load_graph,
    load_policy,
    load_temporal,
    save_graph,
    save_policy,
    save_temporal,
)
from hexad.rl_graph.gas.temporal import TemporalConfig, TemporalDistance
from hexad.rl_graph.gas.trajectories import Trajectories

Stage = Literal["tdr", "graph", "policy"]
STAGES: tuple[Stage, ...] = ("tdr", "graph", "policy")


@dataclass(frozen=True)
class GASConfig:
    """The whole method. Defaults are those of the paper's antmaze tasks.

    Args:
        temporal: the embedding.
        policy: the low-level policy.
        horizon: H, the temporal distance threshold in discounted steps; 8 for antmazes, 48 for scenes and
            kitchens, 32 for humanoid mazes, 24 for pixels.
        te_threshold: states of less temporal efficiency make no nodes; .99 for states, .9 for kitchens and
            pixels, -1 for no filter.
        latch: a path of so many nodes, the goal among them, leads straight to the goal; 1 for kitchens.
    """

    temporal: TemporalConfig = field(default_factory=TemporalConfig)
    policy: PolicyConfig = field(default_factory=PolicyConfig)
    horizon: float = 8.0
    te_threshold: float = 0.99
    latch: int = LATCH

    def __post_init__(self) -> None:
        check_range("horizon", self.horizon, 0, low_open=True)
        check_range("te_threshold", self.te_threshold, -1, 1)
        check_count("latch", self.latch)
        farthest = 1 / (1 - self.temporal.gamma)
        if self.horizon >= farthest:
            raise InputError(
                f"horizon {self.horizon:g} is out of reach: with gamma {self.temporal.gamma:g} no distance "
                f"exceeds {farthest:g}; lower the horizon or raise gamma"
            )


class GAS:
    """An agent that reaches goals across a data set none of whose trajectories goes all the way.

        agent = GAS(config).fit(read_trajectories("data.npz"), folder="run")
        action = agent.predict(observation, goal)

    Args:
        config: see `GASConfig`.

    Attributes:
        temporal_: the embedding, once fitted.
        graph_: the graph.
        policy_: the low-level policy.
    """

    def __init__(self, config: GASConfig = GASConfig()) -> None:
        self.config = config
        self.temporal_: TemporalDistance | None = None
        self.graph_: StitchGraph | None = None
        self.policy_: SkillPolicy | None = None
        self._navigator: Navigator | None = None
        self._goal: np.ndarray = np.empty(0)

    def fit(
        self,
        data: Trajectories,
        *,
        folder: str | Path | None = None,
        stages: tuple[Stage, ...] = STAGES,
        progress: Callable[[Stage, float, str], None] | None = None,
    ) -> Self:
        """Fit the stages in their order: tdr (the embedding), graph, policy.

        With a folder each stage is saved when it is done, checkpoints lie in `checkpoints/`, and the same
        call goes on where an interrupted one stopped. More steps of the embedding train it further; graph and
        policy belong to their embedding, so those of the old one are dropped then, with a warning.

        Args:
            data: the trajectories. States of trajectories shorter than H are all kept, with a warning.
            folder: where to save to; None saves nothing.
            stages: leave stages out; graph and policy need an embedding, fitted here before or in the folder.
            progress: called as `progress("tdr", fraction, "loss 1.23")`.

        Raises:
            InputError: a stage without an embedding, a folder whose run cannot go on with these settings or
                data (nothing is written then), or as the stages themselves.
        """
        home = None if folder is None else check_path(folder, "run folder")
        self.check_stages(data, home, stages)
        self.check_lengths(data)
        self._navigator = None
        if home is not None:
            writable_folder(home, "run folder")

        def tell(stage: Stage) -> Callable[[float, str], None] | None:
            return None if progress is None else lambda fraction, note: progress(stage, fraction, note)

        if "tdr" in stages:
            temporal = TemporalDistance(data.obs_dim, self.config.temporal)
            checkpoints = None if home is None else home / "checkpoints" / "tdr"
            temporal.fit(data, folder=checkpoints, progress=tell("tdr"))
            if self.temporal_ is None or self.temporal_.digest != temporal.digest:
                self.graph_ = self.policy_ = None
            self.temporal_ = temporal
        temporal = self.temporal_
        assert temporal is not None
        if home is not None:
            dropped = drop_stale(home, temporal.digest)
            if dropped:
                warnings.warn(
                    f"the embedding in {home} changed: {', '.join(dropped)} of the old one dropped",
                    stacklevel=2,
                )
            if "tdr" in stages or not (home / "temporal.safetensors").is_file():
                save_temporal(home / "temporal.safetensors", temporal)
                np.save(home / "temporal-losses.npy", temporal.losses_)
        if "graph" in stages:
            self.graph_ = StitchGraph.build(
                temporal.encode(data.observations),
                data.ends,
                self.config.horizon,
                self.config.te_threshold,
                encoder=temporal.digest,
                observations=data.observations,
                progress=tell("graph"),
            )
            if home is not None:
                save_graph(home / "graph.npz", self.graph_)
                self._save_config(home)
        if "policy" in stages:
            policy = SkillPolicy(data.obs_dim, data.act_dim, temporal.config.latent_dim, self.config.policy)
            horizon, checkpoints = self.config.horizon, None
            if home is not None:
                note_policy(home, describe_policy(self.config.policy, horizon, temporal.digest))
                checkpoints = policy_checkpoints(home)
            self.policy_ = policy.fit(data, temporal, horizon, folder=checkpoints, progress=tell("policy"))
            if home is not None:
                save_policy(home / "policy.safetensors", policy)
                np.save(home / "policy-losses.npy", policy.losses_)
        if home is not None and not (home / "agent.json").is_file():
            self._save_config(home)
        return self

    def check_stages(self, data: Trajectories, home: Path | None, stages: tuple[Stage, ...]) -> None:
        """Refuse what `fit` cannot do, before anything is written; read the embedding if it is only needed.

        Raises:
            InputError: see `fit`.
        """
        unknown = set(stages) - set(STAGES)
        if unknown or not stages:
            raise InputError(f"stages are {stages}; name some of {', '.join(STAGES)}")
        if (data.observations == data.observations[0]).all():
            raise InputError(
                f"all observations of {data.source} are the same; there is nothing to learn from"
            )
        saved = None if home is None else home / "temporal.safetensors"
        if "tdr" not in stages:
            there = saved is not None and saved.is_file()
            if self.temporal_ is None:
                if not there:
                    raise InputError("graph and policy need the embedding; fit the stage tdr first")
                self.temporal_ = load_temporal(saved)
            elif there and load_temporal(saved).digest != self.temporal_.digest:
                raise InputError(f"{home} holds another embedding than this agent's; name another folder")
            self.config = replace(self.config, temporal=self.temporal_.config)
            if self.temporal_.data != data.digest:
                raise InputError(
                    f"the embedding was trained on other data ({self.temporal_.data or 'unknown'}) than "
                    f"{data.source} ({data.digest}); give the same data, or train all stages on these"
                )
        if home is not None:
            settings = self.config
            check_run(home, data.digest, settings.temporal, settings.policy, settings.horizon, stages)

    def check_lengths(self, data: Trajectories) -> None:
        """Warn of trajectories that are shorter than the horizon."""
        lengths = np.diff(np.concatenate([[-1], data.last_states])) - 1
        short = int((lengths < round(self.config.horizon)).sum())
        if short:
            warnings.warn(
                f"{short} of {len(lengths)} trajectories are shorter than horizon {self.config.horizon:g}; "
                "all their states are kept",
                stacklevel=3,
            )

    def navigate(self, goals: Float[np.ndarray, "episodes obs_dim"]) -> Navigator:
        """Begin episodes that run side by side, each with its goal; pass the result to `act`.

        Raises:
            InputError: the graph is not fitted, or goals of another shape.
        """
        if self.temporal_ is None or self.graph_ is None or self.policy_ is None:
            raise InputError("the agent is not fitted in all stages (tdr, graph, policy)")
        self._check_parts()
        return Navigator(self.graph_, self.temporal_.encode, goals, latch=self.config.latch)

    def act(
        self, observations: Float[np.ndarray, "episodes obs_dim"], navigator: Navigator
    ) -> Float[np.ndarray, "episodes act_dim"]:
        """The next action of each episode of `navigate`."""
        if self.policy_ is None:
            raise InputError("the agent has no policy; fit the stage policy first")
        return self.policy_.act(observations, navigator.update(observations))

    def controller(
        self, goals: Float[np.ndarray, "episodes obs_dim"]
    ) -> Callable[[Float[np.ndarray, "episodes obs_dim"]], Float[np.ndarray, "episodes act_dim"]]:
        """Begin episodes side by side: what comes back maps their observations to actions."""
        navigator = self.navigate(goals)
        return lambda observations: self.act(observations, navigator)

    def straight_controller(
        self, goals: Float[np.ndarray, "episodes obs_dim"]
    ) -> Callable[[Float[np.ndarray, "episodes obs_dim"]], Float[np.ndarray, "episodes act_dim"]]:
        """As `controller`, without the graph: the policy heads for phi(goal), to see what the graph adds."""
        if self.temporal_ is None or self.policy_ is None:
            raise InputError("the agent has no embedding or no policy; fit the stages tdr and policy first")
        self._check_parts()
        navigator = Navigator(None, self.temporal_.encode, goals)
        return lambda observations: self.act(observations, navigator)

    def _check_parts(self) -> None:
        """Refuse a graph or a policy of another embedding, and two of different horizons."""
        assert self.temporal_ is not None
        digest = self.temporal_.digest
        for name, part in (("the graph", self.graph_), ("the policy", self.policy_)):
            if part is not None:
                check_encoder(name, part.encoder, digest)
        if self.graph_ and self.policy_ and self.graph_.horizon != self.policy_.horizon:
            raise InputError(
                f"the graph was made with horizon {self.graph_.horizon:g} and the policy with "
                f"{self.policy_.horizon:g}; fit both with the same"
            )

    def predict(
        self, observation: Float[np.ndarray, " obs_dim"], goal: Float[np.ndarray, " obs_dim"]
    ) -> Float[np.ndarray, " act_dim"]:
        """The next action of one episode. It keeps its path; another goal, or `reset`, begins a new one.

        Raises:
            InputError: the agent is not fitted, or an observation or goal of another shape.
        """
        observation, goal = np.asarray(observation), np.asarray(goal)
        if observation.ndim != 1 or goal.shape != observation.shape:
            raise InputError(
                f"observation has shape {observation.shape} and goal {goal.shape}; both must be (obs_dim,)"
            )
        if self._navigator is None or not np.array_equal(goal, self._goal):
            self._navigator, self._goal = self.navigate(goal[None]), goal.copy()
        return self.act(observation[None], self._navigator)[0]

    def reset(self) -> None:
        """Begin a new episode: `predict` forgets its path."""
        self._navigator = None

    def save(self, folder: str | Path) -> None:
        """Write the stages that are fitted, `agent.json` last.

        Raises:
            InputError: nothing is fitted, or the folder cannot be written.
        """
        if self.temporal_ is None:
            raise InputError("nothing is fitted; call fit before save")
        home = writable_folder(folder)
        save_temporal(home / "temporal.safetensors", self.temporal_)
        if self.graph_ is not None:
            save_graph(home / "graph.npz", self.graph_)
        if self.policy_ is not None:
            save_policy(home / "policy.safetensors", self.policy_)
        self._save_config(home)

    def _save_config(self, home: Path) -> None:
        described: dict[str, Any] = {"format": FORMAT, "horizon": self.config.horizon}
        described |= {"te_threshold": self.config.te_threshold, "latch": self.config.latch}
        write_json(home / "agent.json", described | {"embedding": self.temporal_ and self.temporal_.digest})

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """Read what `save`, or `fit` with a folder, wrote.

        Raises:
            InputError: files are missing, damaged or of another format, or the parts do not belong together:
                their embedding, horizon or te_threshold differ.
        """
        home = check_folder(folder, "run")
        for name in ("temporal.safetensors", "graph.npz", "policy.safetensors"):
            if not (home / name).exists():
                raise InputError(f"run {home} has no {name} (it does not exist); train that stage first")
        agent = cls.load_without_graph(home)
        graph, policy, temporal = load_graph(home / "graph.npz"), agent.policy_, agent.temporal_
        assert policy is not None
        assert temporal is not None
        described = read_config(home / "agent.json")
        check_parts(home, temporal.digest, graph, policy, described)
        agent.config = GASConfig(
            temporal.config, policy.config, graph.horizon, graph.te_threshold, described["latch"]
        )
        agent.graph_ = graph
        return agent

    @classmethod
    def load_without_graph(cls, folder: str | Path) -> Self:
        """Read embedding and policy alone, for `straight_controller`.

        Raises:
            InputError: as `load`.
        """
        home = check_folder(folder, "run")
        agent = cls()
        agent.temporal_ = temporal = load_temporal(home / "temporal.safetensors")
        agent.policy_ = policy = load_policy(home / "policy.safetensors")
        check_encoder(home / "policy.safetensors", policy.encoder, temporal.digest)
        agent.config = GASConfig(temporal.config, policy.config, policy.horizon)
        return agent
