"""Stage 1: an embedding in which Euclidean distance is the discounted number of steps between states.

Source: Baek et al., ICML 2025, arXiv 2506.07744, and the authors' code; the value of reaching g from s is
V(s, g) = -|psi(s) - psi(g)|, learned by action-free implicit Q-learning. With a discount γ a distance of d
steps comes out as (1 - γ^d) / (1 - γ), at most 1 / (1 - γ).
"""

import copy
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from hexad.core.errors import InputError
from hexad.core.validation import check_count, check_flag, check_range
from hexad.rl_graph.gas.fitting import FitConfig, Progress, fit
from hexad.rl_graph.gas.networks import (
    ROWS,
    Perceptrons,
    Scaler,
    as_rows,
    check_hidden,
    follow,
    weights_digest,
)
from hexad.rl_graph.gas.trajectories import Trajectories, TrajectoryTensors

CLAMP = 1e-6
"""Squared distances are at least this, since the root has no finite gradient at 0."""


@dataclass(frozen=True)
class TemporalConfig:
    """The embedding. Defaults are those of the paper's state-based tasks.

    Args:
        latent_dim: numbers of the embedding.
        hidden: numbers of each hidden layer.
        gamma: discount; .995 for giant mazes in the paper.
        expectile: near 1 the fastest way seen counts; the paper has .999, and .95 for pixels and humanoids.
        polyak: share by which the slow copy follows, each step.
        p_trajectory: share of goals that are later states of the same trajectory.
        p_random: share of goals that are states from anywhere.
        p_current: share of goals that are the state itself.
        standardize: shift and scale each number of an observation by the data's mean and deviation.
        fit: how it is trained.
    """

    latent_dim: int = 32
    hidden: tuple[int, ...] = (512, 512, 512)
    gamma: float = 0.99
    expectile: float = 0.999
    polyak: float = 0.005
    p_trajectory: float = 0.625
    p_random: float = 0.375
    p_current: float = 0.0
    standardize: bool = True
    fit: FitConfig = field(default_factory=FitConfig)

    def __post_init__(self) -> None:
        check_count("latent_dim", self.latent_dim)
        object.__setattr__(self, "hidden", check_hidden(self.hidden))
        check_range("gamma", self.gamma, 0, 1, low_open=True, high_open=True)
        check_range("expectile", self.expectile, 0, 1, low_open=True, high_open=True)
        check_range("polyak", self.polyak, 0, 1, low_open=True)
        check_flag("standardize", self.standardize)
        shares = [check_range(name, getattr(self, name), 0, 1) for name in SHARES]
        if abs(sum(shares) - 1) > 1e-9:
            raise InputError(f"p_trajectory, p_random and p_current are {shares}; they must add up to 1")


SHARES = ("p_trajectory", "p_random", "p_current")


def latent_value(
    s: Float[Tensor, "*batch latent"], g: Float[Tensor, "*batch latent"]
) -> Float[Tensor, "*batch"]:
    """V(s, g) = -sqrt(max(|s - g|², 1e-6)) of two embedded states."""
    return -(s - g).square().sum(-1).clamp_min(CLAMP).sqrt()


def temporal_loss(
    value: Float[Tensor, "2 batch"],
    slow_value: Float[Tensor, "2 batch"],
    slow_next: Float[Tensor, "2 batch"],
    success: Bool[Tensor, " batch"],
    gamma: float,
    expectile: float,
) -> Float[Tensor, ""]:
    """The loss of both copies: each regresses on its own slow copy's target, by the advantage's sign.

    Args:
        value: V_i(s, g), with gradient.
        slow_value: the slow copies' V_i(s, g).
        slow_next: the slow copies' V_i(s', g).
        success: whether s is the goal; the reward is 0 there and -1 elsewhere, and nothing follows.
        gamma: discount.
        expectile: weight of errors where the advantage is not negative; 1 - expectile elsewhere.
    """
    reward = success.float() - 1
    discount = gamma * (1 - success.float())
    target = (reward + discount * slow_next).detach()
    advantage = (reward + discount * slow_next.amin(0) - slow_value.mean(0)).detach()
    weight = (expectile - (advantage < 0).float()).abs()
    return (weight * (target - value).square()).mean(1).sum()


class _Trainee(nn.Module):
    """The network, its slow copy and its loss as one module that is checkpointed."""

    def __init__(self, network: Perceptrons, config: TemporalConfig) -> None:
        super().__init__()
        self.network, self.config = network, config
        self.slow = copy.deepcopy(network).requires_grad_(False)

    def forward(
        self,
        s: Float[Tensor, "batch obs_dim"],
        after: Float[Tensor, "batch obs_dim"],
        g: Float[Tensor, "batch obs_dim"],
        success: Bool[Tensor, " batch"],
    ) -> Float[Tensor, ""]:
        """The loss; the slow copy takes in the last step's weights first."""
        follow(self.slow, self.network, self.config.polyak)
        at, to = self.network(torch.cat([s, g])).chunk(2, dim=1)
        with torch.no_grad():
            slow_at, slow_to, slow_after = self.slow(torch.cat([s, g, after])).chunk(3, dim=1)
        return temporal_loss(
            latent_value(at, to),
            latent_value(slow_at, slow_to),
            latent_value(slow_after, slow_to),
            success,
            self.config.gamma,
            self.config.expectile,
        )


class TemporalDistance:
    """An embedding of observations whose distances are discounted numbers of steps.

    Args:
        obs_dim: numbers in an observation.
        config: see `TemporalConfig`.

    Attributes:
        data: digest of the trajectories it was trained on, "" before that.
        losses_: the loss of each step, once fitted.
    """

    def __init__(self, obs_dim: int, config: TemporalConfig = TemporalConfig()) -> None:
        self.obs_dim, self.config = check_count("obs_dim", obs_dim), config
        sizes = (obs_dim, *config.hidden, config.latent_dim)
        self.network = Perceptrons(2, sizes, generator=config.fit.generator())
        self.scaler = Scaler(obs_dim)
        self.data = ""
        self.losses_: Float[np.ndarray, " steps"] = np.zeros(0)

    def fit(
        self, data: Trajectories, *, folder: str | Path | None = None, progress: Progress | None = None
    ) -> Self:
        """Train on all transitions; the same call goes on where an interrupted one stopped.

        Args:
            data: the trajectories.
            folder: of checkpoints; None keeps none.
            progress: called as `progress(fraction, "loss 1.23")`.

        Raises:
            InputError: observations of another size, or as `hexad.core.training.train`.
        """
        if data.obs_dim != self.obs_dim:
            raise InputError(f"observations of {data.source} have {data.obs_dim} numbers, not {self.obs_dim}")
        if self.config.standardize:
            self.scaler.fit(data.observations)
        elif data.observations.dtype == np.float64:
            raise InputError(
                f"observations of {data.source} lose their variation in float32; standardize them, or "
                "subtract their offset"
            )
        tensors, config = data.tensors(), self.config.fit
        scaled = self.scaler(tensors.observations)

        def draw() -> tuple[Tensor, ...]:
            t = tensors.draw_moves(config.batch_size)
            goal = self.draw_goals(tensors, t)
            return scaled[t], scaled[t + 1], scaled[goal], t == goal

        trainee = _Trainee(self.network, self.config)
        settings: dict[str, Any] = {key: value for key, value in asdict(self.config).items() if key != "fit"}
        identity = settings | {"stage": "temporal distance", "data": data.digest}
        parameters = list(self.network.parameters())
        self.losses_ = fit(trainee, parameters, draw, config, identity, folder, progress)
        self.data = data.digest
        return self

    def draw_goals(self, data: TrajectoryTensors, t: Int[Tensor, " batch"]) -> Int[Tensor, " batch"]:
        """A goal for each state: a later one of its trajectory, one from anywhere, or itself."""
        future = data.draw_future(t, self.config.gamma)
        anywhere = torch.randint(len(data.observations), t.shape)
        kind = torch.rand(t.shape)
        goal = torch.where(kind < self.config.p_trajectory, future, anywhere)
        return torch.where(kind < 1 - self.config.p_current, goal, t) if self.config.p_current else goal

    @torch.no_grad()
    def encode(
        self, observations: Float[np.ndarray, "states obs_dim"]
    ) -> Float[np.ndarray, "states latent_dim"]:
        """Embed observations with the first copy: phi(s).

        Raises:
            InputError: another shape than (states, obs_dim), or numbers that are not finite.
        """
        rows = as_rows(observations, self.obs_dim, "observations", self.scaler.dtype)
        parts = [self.network(self.scaler(part), slice(0, 1))[0] for part in rows.split(ROWS)]
        found = torch.cat(parts).numpy()
        if not np.isfinite(found).all():
            raise InputError(
                "observations are too far from those of the training: they embed to no finite numbers"
            )
        return found

    def distance(
        self, s: Float[np.ndarray, "states obs_dim"], g: Float[np.ndarray, "states obs_dim"]
    ) -> Float[np.ndarray, " states"]:
        """The discounted number of steps from each s to its g.

        Raises:
            InputError: as `encode`, or different numbers of rows.
        """
        at, to = self.encode(s), self.encode(g)
        if len(at) != len(to):
            raise InputError(f"{len(at)} states and {len(to)} goals; there must be as many")
        return np.linalg.norm(at - to, axis=1)

    def modules(self) -> nn.ModuleDict:
        """All that is saved: the network and the scale of observations."""
        return nn.ModuleDict({"network": self.network, "scaler": self.scaler})

    @property
    def digest(self) -> str:
        """A hash of weights and scale, by which a graph and a policy know their embedding."""
        return weights_digest(self.modules().state_dict())
