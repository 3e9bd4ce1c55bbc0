"""Stage 3: one low-level policy that moves in any direction of the embedding, trained on all transitions.

Source: Baek et al., ICML 2025, and the authors' code: a skill is a unit vector z of the embedding, its reward
the way made along it; values by implicit Q-learning, the actor by DDPG with behaviour cloning.
"""

import copy
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional

from hexad.core.errors import InputError
from hexad.core.validation import check_count, check_range
from hexad.rl_graph.gas.efficiency import first_crossing
from hexad.rl_graph.gas.fitting import FitConfig, Progress, fit
from hexad.rl_graph.gas.networks import Perceptrons, Scaler, as_rows, check_hidden, follow
from hexad.rl_graph.gas.temporal import TemporalDistance
from hexad.rl_graph.gas.trajectories import Trajectories

LAST_SCALE = 0.01
"""Variance of the actor's last layer: it begins near the action 0."""


@dataclass(frozen=True)
class PolicyConfig:
    """The low-level policy. Defaults are those of the paper's antmaze `stitch` and `navigate` tasks.

    Args:
        hidden: numbers of each hidden layer of actor, critics and value.
        gamma: discount.
        expectile: of the value, towards the better actions.
        alpha: weight of behaviour cloning; 1 for `navigate` and `stitch` data, .01 for `explore`, 10 for
            kitchens.
        polyak: share by which the slow critics follow, each step.
        fit: how it is trained.
    """

    hidden: tuple[int, ...] = (512, 512, 512)
    gamma: float = 0.99
    expectile: float = 0.7
    alpha: float = 1.0
    polyak: float = 0.005
    fit: FitConfig = field(default_factory=FitConfig)

    def __post_init__(self) -> None:
        object.__setattr__(self, "hidden", check_hidden(self.hidden))
        check_range("gamma", self.gamma, 0, 1, low_open=True, high_open=True)
        check_range("expectile", self.expectile, 0, 1, low_open=True, high_open=True)
        check_range("alpha", self.alpha, 0)
        check_range("polyak", self.polyak, 0, 1, low_open=True)


def skill_reward(
    latent: Float[Tensor, "*batch latent"],
    latent_next: Float[Tensor, "*batch latent"],
    skill: Float[Tensor, "*batch latent"],
) -> Float[Tensor, "*batch"]:
    """<phi(s') - phi(s), z>: over a trajectory it adds up to <phi(last) - phi(first), z>."""
    return ((latent_next - latent) * skill).sum(-1)


def value_loss(
    value: Float[Tensor, " batch"], slow_q: Float[Tensor, "2 batch"], expectile: float
) -> Float[Tensor, ""]:
    """Expectile regression of V(s, z) on the smaller of the slow critics."""
    advantage = slow_q.detach().amin(0) - value
    weight = (expectile - (advantage.detach() < 0).float()).abs()
    return (weight * advantage.square()).mean()


def actor_loss(
    q: Float[Tensor, " batch"],
    mode: Float[Tensor, "batch act_dim"],
    actions: Float[Tensor, "batch act_dim"],
    alpha: float,
) -> Float[Tensor, ""]:
    """DDPG with behaviour cloning: -mean(Q) / |Q| - alpha mean(log pi), pi a Gaussian of deviation 1.

    The constant of the Gaussian's density is left out.
    """
    log_density = -(actions - mode).square().sum(-1) / 2
    return -q.mean() / (q.detach().abs().mean() + 1e-6) - alpha * log_density.mean()


class _Networks(nn.Module):
    """Actor, critics and value over scaled observations and a skill."""

    def __init__(self, obs_dim: int, act_dim: int, latent_dim: int, config: PolicyConfig) -> None:
        super().__init__()
        generator, hidden = config.fit.generator(), config.hidden
        state = obs_dim + latent_dim
        self.actor = Perceptrons(
            1, (state, *hidden, act_dim), layer_norm=False, generator=generator, last_scale=LAST_SCALE
        )
        self.value = Perceptrons(1, (state, *hidden, 1), generator=generator)
        self.critics = Perceptrons(2, (state + act_dim, *hidden, 1), generator=generator)


class _Trainee(nn.Module):
    """The networks, the slow critics and the three losses, none of which reaches another's network."""

    def __init__(self, networks: _Networks, config: PolicyConfig) -> None:
        super().__init__()
        self.networks, self.config = networks, config
        self.slow = copy.deepcopy(networks.critics).requires_grad_(False)

    def forward(
        self,
        s: Float[Tensor, "batch obs_dim"],
        after: Float[Tensor, "batch obs_dim"],
        actions: Float[Tensor, "batch act_dim"],
        reward: Float[Tensor, " batch"],
        skill: Float[Tensor, "batch latent"],
        direction: Float[Tensor, "batch latent"],
    ) -> Float[Tensor, ""]:
        """The loss of a batch; the slow critics take in the last step's weights first."""
        networks = self.networks
        follow(self.slow, networks.critics, self.config.polyak)
        state, taken = torch.cat([s, skill], 1), torch.cat([s, skill, actions], 1)
        with torch.no_grad():
            slow_q = self.slow(taken)[..., 0]
            target = reward + self.config.gamma * networks.value(torch.cat([after, skill], 1))[0, :, 0]
        value = value_loss(networks.value(state)[0, :, 0], slow_q, self.config.expectile)
        critic = (networks.critics(taken)[..., 0] - target).square().mean(1).sum()
        mode = networks.actor(torch.cat([s, direction], 1))[0]
        frozen = {name: weight.detach() for name, weight in networks.critics.named_parameters()}
        chosen = torch.cat([s, direction, mode.clamp(-1, 1)], 1)
        q = functional_call(networks.critics, frozen, (chosen,))[..., 0].amin(0)
        return value + critic + actor_loss(q, mode, actions, self.config.alpha)


class SkillPolicy:
    """A policy that follows unit vectors of an embedding.

    Args:
        obs_dim: numbers in an observation.
        act_dim: numbers in an action, each in [-1, 1].
        latent_dim: numbers of the embedding.
        config: see `PolicyConfig`.

    Attributes:
        encoder: digest of the embedding it was trained with, "" before that.
        horizon: H it was trained with, 0 before that.
        losses_: the sum of the losses of each step, once fitted.
    """

    def __init__(
        self, obs_dim: int, act_dim: int, latent_dim: int, config: PolicyConfig = PolicyConfig()
    ) -> None:
        self.obs_dim, self.act_dim = check_count("obs_dim", obs_dim), check_count("act_dim", act_dim)
        self.latent_dim, self.config = check_count("latent_dim", latent_dim), config
        self.networks = _Networks(obs_dim, act_dim, latent_dim, config)
        self.scaler = Scaler(obs_dim)
        self.encoder, self.horizon = "", 0.0
        self.losses_: Float[np.ndarray, " steps"] = np.zeros(0)

    def fit(
        self,
        data: Trajectories,
        temporal: TemporalDistance,
        horizon: float,
        *,
        folder: str | Path | None = None,
        progress: Progress | None = None,
    ) -> Self:
        """Train on all transitions; the same call goes on where an interrupted one stopped.

        Args:
            data: the trajectories, all of them: efficiency plays no part here.
            temporal: the embedding, which is not changed.
            horizon: H; the actor's directions lead to states at most so far away.
            folder: of checkpoints; None keeps none.
            progress: called as `progress(fraction, "loss 1.23")`.

        Raises:
            InputError: observations, actions or embedding of other sizes, or as `hexad.core.training.train`.
        """
        sizes = (data.obs_dim, data.act_dim, temporal.config.latent_dim)
        if sizes != (self.obs_dim, self.act_dim, self.latent_dim):
            raise InputError(
                f"observations, actions and embedding have {sizes} numbers; the policy is for "
                f"{(self.obs_dim, self.act_dim, self.latent_dim)}"
            )
        check_range("horizon", horizon, 0, low_open=True)
        self.scaler = copy.deepcopy(temporal.scaler)
        self.encoder, self.horizon = temporal.digest, float(horizon)
        embedded = temporal.encode(data.observations)
        crossing = torch.from_numpy(first_crossing(embedded, data.ends, horizon))
        latents, tensors, config = torch.from_numpy(embedded), data.tensors(), self.config.fit
        scaled = self.scaler(tensors.observations)

        def draw() -> tuple[Tensor, ...]:
            t = tensors.draw_moves(config.batch_size)
            skill = functional.normalize(torch.randn(len(t), self.latent_dim), dim=1)
            goal = torch.minimum(tensors.draw_future(t, self.config.gamma), crossing[t])
            direction = functional.normalize(latents[goal] - latents[t], dim=1)
            reward = skill_reward(latents[t], latents[t + 1], skill)
            return scaled[t], scaled[t + 1], tensors.actions[t], reward, skill, direction

        settings: dict[str, Any] = {key: value for key, value in asdict(self.config).items() if key != "fit"}
        identity = settings | {
            "stage": "policy", "data": data.digest, "embedding": self.encoder, "horizon": float(horizon)
        }  # fmt: skip
        parameters = list(self.networks.parameters())
        trainee = _Trainee(self.networks, self.config)
        self.losses_ = fit(trainee, parameters, draw, config, identity, folder, progress)
        return self

    @torch.no_grad()
    def act(
        self,
        observations: Float[np.ndarray, "n obs_dim"],
        directions: Float[np.ndarray, "n latent"],
    ) -> Float[np.ndarray, "n act_dim"]:
        """The mode of pi(s, z), clipped to [-1, 1], for directions of any length, which are normalised.

        Raises:
            InputError: shapes that do not fit, or numbers that are not finite.
        """
        rows = as_rows(observations, self.obs_dim, "observations", self.scaler.dtype)
        skills = functional.normalize(as_rows(directions, self.latent_dim, "directions"), dim=1)
        if len(rows) != len(skills):
            raise InputError(f"{len(rows)} observations and {len(skills)} directions; there must be as many")
        return self.networks.actor(torch.cat([self.scaler(rows), skills], 1))[0].clamp(-1, 1).numpy()

    def modules(self) -> nn.ModuleDict:
        """All that is saved: the networks and the scale of observations."""
        return nn.ModuleDict({"networks": self.networks, "scaler": self.scaler})
