"""Flow matching: which x_t the network sees, which velocity it regresses on, and at which times.

Objectives (Cao et al., ICML 2025, section 3 and its baselines): `avg` regresses on the velocity averaged over
all rotations; `cond_ot` on X - x0 for one rotation; `kabsch` on X - x0 with X turned onto the noise.
"""

from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from hexad.core.errors import InputError
from hexad.core.validation import check_choice
from hexad.science_ml.avgflow.batching import MoleculeBatch
from hexad.science_ml.avgflow.rotations import random_rotations
from hexad.science_ml.avgflow.targets import (
    Mask,
    Points,
    averaged_velocity,
    centre,
    check_sigmas,
    integration_interpolant,
    kabsch_target,
)

Objective = Literal["avg", "cond_ot", "kabsch"]
Interpolant = Literal["random_rotation", "ode", "linear"]
Times = Literal["uniform", "mixed"]

T_MAX = 0.999
"""Times of training end here, as the authors', since (xbar - x) / (1 - t) ends at 1."""


class Velocity(Protocol):
    """A network of this package: `(x, t, batch) -> v`, positions and velocities of shape (batch, n, 3)."""

    def __call__(self, x: Tensor, t: Tensor, batch: MoleculeBatch) -> Tensor:
        """The velocity at x and t."""
        ...


@dataclass(frozen=True)
class FlowMatcher:
    """The loss of flow matching on conformers.

    Args:
        objective: see the module's docstring.
        interpolant: what x_t is. `random_rotation`: (1 - t) x0 + t X Q with Q from the Haar measure; `ode`:
            the exact field integrated from x0 (the authors' choice for networks that are not equivariant; the
            same law at every t, but 19 evaluations of the target); `linear`: (1 - t) x0 + t X, for
            equivariant networks alone. `kabsch` has an interpolant of its own, the line from x0 to the turned
            X.
        times: `uniform` in [0, 0.999), or `mixed`: one in ten uniform, the others Beta(1.9, 1).
        sigma0: deviation of the noise in Angstrom.
        sigma1: deviation about the conformer at t = 1; the baselines need 0.
    """

    objective: Objective = "avg"
    interpolant: Interpolant = "random_rotation"
    times: Times = "uniform"
    sigma0: float = 1.0
    sigma1: float = 0.0

    def __post_init__(self) -> None:
        check_choice("objective", self.objective, ("avg", "cond_ot", "kabsch"))
        check_choice("interpolant", self.interpolant, ("random_rotation", "ode", "linear"))
        check_choice("times", self.times, ("uniform", "mixed"))
        check_sigmas(self.sigma0, self.sigma1)
        if self.objective != "avg" and self.interpolant == "ode":
            raise InputError(
                f"interpolant 'ode' follows the averaged field; objective {self.objective!r} has none"
            )
        if self.objective != "avg" and self.sigma1:
            raise InputError(
                f"objective {self.objective!r} is a straight line to the conformer; it needs sigma1=0"
            )

    def sample_times(self, count: int, like: Tensor) -> Float[Tensor, " count"]:
        """Times for `count` molecules, from torch's global generator, on the device and dtype of `like`."""
        t = torch.rand(count, dtype=like.dtype, device=like.device)
        if self.times == "mixed":
            # Beta(1.9, 1) has the distribution function t^1.9, inverted here.
            late = torch.rand_like(t) < 0.9
            t = torch.where(late, t ** (1 / 1.9), t)
        return t * T_MAX

    @torch.no_grad()
    def draw(
        self,
        X: Points | Float[Tensor, "batch k n 3"],
        mask: Mask,
        weights: Float[Tensor, "batch k"] | None = None,
        t: Float[Tensor, " batch"] | None = None,
    ) -> tuple[Float[Tensor, " batch"], Points, Points]:
        """Draw t and x_t and give the regression target: `(t, x_t, u)`.

        Args:
            X: conformers, one a molecule or k.
            mask: true where there is an atom.
            weights: of the k conformers; those of weight 0 are padding.
            t: drawn where None.
        """
        X = centre(X.unsqueeze(1) if X.ndim == 3 else X, mask.unsqueeze(1))
        t = self.sample_times(len(X), X) if t is None else t
        chosen = X[:, 0]
        if X.shape[1] > 1:
            even = torch.ones(X.shape[:2], device=X.device) if weights is None else weights
            place = torch.multinomial(even.float(), 1)
            chosen = X.gather(1, place[:, :, None, None].expand(-1, 1, *X.shape[2:])).squeeze(1)
        x0 = self.noise(mask, chosen)
        if self.interpolant == "random_rotation" and self.objective != "kabsch":
            chosen = chosen @ random_rotations(len(X), dtype=X.dtype, device=X.device)
        elif self.objective == "kabsch":
            chosen = kabsch_target(x0, chosen, mask)
        time = t[:, None, None]
        if self.objective != "avg":
            return t, (1 - time) * x0 + time * chosen, chosen - x0
        if self.interpolant == "ode":
            x = integration_interpolant(x0, X, t, weights, mask, sigma0=self.sigma0, sigma1=self.sigma1)
        else:
            sigma = (1 - time) + time * (self.sigma1 / self.sigma0)
            x = sigma * x0 + time * chosen
        return t, x, averaged_velocity(x, X, t, weights, mask, sigma0=self.sigma0, sigma1=self.sigma1)

    def noise(self, mask: Bool[Tensor, "batch n"], like: Tensor) -> Points:
        """Centred Gaussian noise x0 of deviation sigma0 where the mask is true."""
        return self.sigma0 * centre(torch.randn(*mask.shape, 3, dtype=like.dtype, device=like.device), mask)

    def loss(
        self,
        model: Velocity,
        batch: MoleculeBatch,
        X: Points | Float[Tensor, "batch k n 3"],
        weights: Float[Tensor, "batch k"] | None = None,
    ) -> Float[Tensor, ""]:
        """Mean over molecules of sum over atoms |v - u|^2 / atoms, at random times."""
        t, x, u = self.draw(X, batch.mask, weights)
        return velocity_loss(model(x, t, batch), u, batch.mask)


def velocity_loss(v: Points, u: Points, mask: Mask) -> Float[Tensor, ""]:
    """Mean over molecules of sum over atoms |v - u|^2 / atoms."""
    squares = (v - u).square().sum(-1) * mask
    return (squares.sum(1) / mask.sum(1)).mean()
