"""The baseline GCBC: goal-conditioned behaviour cloning on goals taken from each trajectory's own future.

Source: Lynch et al., CoRL 2019; Ghosh et al., ICLR 2021; as in OGBench (Park et al., ICLR 2025), a Gaussian
of deviation 1 whose goals are drawn geometrically from the future.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from hexad.core.errors import InputError
from hexad.core.validation import check_count, check_range
from hexad.rl_graph.gas.fitting import FitConfig, Progress, fit
from hexad.rl_graph.gas.networks import Perceptrons, Scaler, as_rows, check_hidden
from hexad.rl_graph.gas.policy import LAST_SCALE
from hexad.rl_graph.gas.trajectories import Trajectories


@dataclass(frozen=True)
class CloningConfig:
    """The baseline; defaults are OGBench's.

    Args:
        hidden: numbers of each hidden layer.
        gamma: goals lie k steps ahead with probability (1 - gamma) gamma^(k - 1), at most at the end.
        fit: how it is trained.
    """

    hidden: tuple[int, ...] = (512, 512, 512)
    gamma: float = 0.99
    fit: FitConfig = field(default_factory=FitConfig)

    def __post_init__(self) -> None:
        object.__setattr__(self, "hidden", check_hidden(self.hidden))
        check_range("gamma", self.gamma, 0, 1, low_open=True, high_open=True)


class _Trainee(nn.Module):
    def __init__(self, network: Perceptrons) -> None:
        super().__init__()
        self.network = network

    def forward(
        self, inputs: Float[Tensor, "batch twice_obs_dim"], actions: Float[Tensor, "batch act_dim"]
    ) -> Float[Tensor, ""]:
        """Minus the log-density of the actions, without its constant."""
        return (self.network(inputs)[0] - actions).square().sum(1).mean() / 2


class GoalCloning:
    """A policy pi(s, g) that imitates what led from s to g.

    Args:
        obs_dim: numbers in an observation.
        act_dim: numbers in an action, each in [-1, 1].
        config: see `CloningConfig`.

    Attributes:
        losses_: the loss of each step, once fitted.
    """

    def __init__(self, obs_dim: int, act_dim: int, config: CloningConfig = CloningConfig()) -> None:
        self.obs_dim, self.act_dim = check_count("obs_dim", obs_dim), check_count("act_dim", act_dim)
        self.config = config
        self.network = Perceptrons(
            1,
            (2 * obs_dim, *config.hidden, act_dim),
            layer_norm=False,
            generator=config.fit.generator(),
            last_scale=LAST_SCALE,
        )
        self.scaler = Scaler(obs_dim)
        self.losses_: Float[np.ndarray, " steps"] = np.zeros(0)

    def fit(
        self, data: Trajectories, *, folder: str | Path | None = None, progress: Progress | None = None
    ) -> Self:
        """Train on all transitions; the same call goes on where an interrupted one stopped.

        Raises:
            InputError: other sizes, or as `hexad.core.training.train`.
        """
        if (data.obs_dim, data.act_dim) != (self.obs_dim, self.act_dim):
            raise InputError(
                f"observations and actions of {data.source} have {data.obs_dim} and {data.act_dim} numbers; "
                f"the policy is for {self.obs_dim} and {self.act_dim}"
            )
        self.scaler.fit(data.observations)
        tensors, config = data.tensors(), self.config.fit
        scaled = self.scaler(tensors.observations)

        def draw() -> tuple[Tensor, ...]:
            t = tensors.draw_moves(config.batch_size)
            goal = tensors.draw_future(t, self.config.gamma)
            return torch.cat([scaled[t], scaled[goal]], 1), tensors.actions[t]

        settings: dict[str, Any] = {key: value for key, value in asdict(self.config).items() if key != "fit"}
        identity = settings | {"stage": "goal cloning", "data": data.digest}
        parameters = list(self.network.parameters())
        self.losses_ = fit(_Trainee(self.network), parameters, draw, config, identity, folder, progress)
        return self

    @torch.no_grad()
    def act(
        self, observations: Float[np.ndarray, "n obs_dim"], goals: Float[np.ndarray, "n obs_dim"]
    ) -> Float[np.ndarray, "n act_dim"]:
        """The mode of pi(s, g), clipped to [-1, 1]."""
        dtype = self.scaler.dtype
        s = as_rows(observations, self.obs_dim, "observations", dtype)
        g = as_rows(goals, self.obs_dim, "goals", dtype)
        if len(s) != len(g):
            raise InputError(f"{len(s)} observations and {len(g)} goals; there must be as many")
        return self.network(torch.cat([self.scaler(s), self.scaler(g)], 1))[0].clamp(-1, 1).numpy()

    def controller(
        self, goals: Float[np.ndarray, "episodes obs_dim"]
    ) -> Callable[[Float[np.ndarray, "episodes obs_dim"]], Float[np.ndarray, "episodes act_dim"]]:
        """Begin episodes side by side: what comes back maps their observations to actions."""
        return lambda observations: self.act(observations, goals)
