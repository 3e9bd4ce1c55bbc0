"""Bounds: SciPy's two ways of giving them, and what becomes of samples outside."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from jaxtyping import Float
from scipy.optimize import Bounds

from hexad.core.errors import InputError
from hexad.core.validation import check_choice

Boundary = Literal["clip", "reflect"]
INFINITE = 1e20
"""Bounds as far away as this are none."""
AnyBounds = Bounds | Sequence[tuple[float | None, float | None]] | None


@dataclass(frozen=True)
class Box:
    """lower <= x <= upper in each variable.

    Samples are never redrawn: fun is taken to go on outside the box, with its value at the nearest point of
    the box (`"clip"`) or mirrored at its faces (`"reflect"`). It is evaluated inside alone.
    """

    lower: Float[np.ndarray, " d"]
    upper: Float[np.ndarray, " d"]
    boundary: Boundary

    def nearest(self, x: Float[np.ndarray, " d"]) -> Float[np.ndarray, " d"]:
        """The nearest point of the box."""
        return np.clip(x, self.lower, self.upper)

    def inside(self, X: Float[np.ndarray, "*K d"]) -> Float[np.ndarray, "*K d"]:
        """Where fun is evaluated for samples `X`."""
        if self.boundary == "reflect":
            # Only what lies outside: a point inside would lose digits to wide bounds.
            X = np.where(self.nearest(X) == X, X, self._mirrored(X))
        return np.clip(X, self.lower, self.upper)

    def too_narrow(self, deviations: Float[np.ndarray, "..."]) -> str:
        """What to say where samples of these standard deviations mostly miss the box; else nothing."""
        width = self.upper - self.lower
        deviations = np.broadcast_to(deviations, width.shape)
        if not (deviations > width / 2).any():
            return ""
        place = int(np.argmax(deviations / width))
        return (
            f"sigma * x_scale is {deviations[place]:.3g} in variable {place}, whose bounds are "
            f"{width[place]:.3g} apart, so that many samples fall outside; take a tenth of the width, as "
            "sigma=0.1 with x_scale=upper - lower does"
        )

    def _mirrored(self, X: Float[np.ndarray, "*K d"]) -> Float[np.ndarray, "*K d"]:
        low, high = np.isfinite(self.lower), np.isfinite(self.upper)
        lower, upper = np.where(low, self.lower, 0.0), np.where(high, self.upper, 0.0)
        width = np.where(low & high, upper - lower, 1.0)
        folded = np.mod(X - lower, 2 * width)
        both = lower + np.minimum(folded, 2 * width - folded)
        return np.select(
            [low & high, low & ~high, high & ~low],
            [both, lower + np.abs(X - lower), upper - np.abs(upper - X)],
            X,
        )


def box_of(bounds: AnyBounds | Any, x0: Float[np.ndarray, " d"], boundary: Boundary) -> Box | None:
    """The box of `bounds`, `scipy.optimize.Bounds` or a sequence of (min, max); None where there is none.

    A bound of 1e20 or beyond is none.

    Raises:
        InputError: lengths do not fit, a lower bound is not below its upper one, x0 lies outside.
    """
    check_choice("boundary", boundary, ("clip", "reflect"))
    if bounds is None:
        return None
    try:
        if isinstance(bounds, Bounds):
            lower, upper = (np.broadcast_to(side, x0.shape) for side in (bounds.lb, bounds.ub))
        else:
            pairs = [(low, high) for low, high in bounds]
            if len(pairs) != len(x0):
                raise InputError(f"bounds has {len(pairs)} pairs and x0 {len(x0)} variables; give one each")
            lower = np.array([-np.inf if low is None else low for low, _ in pairs])
            upper = np.array([np.inf if high is None else high for _, high in pairs])
        lower, upper = lower.astype(float), upper.astype(float)
    except InputError:
        raise
    except (TypeError, ValueError):
        raise InputError(
            f"bounds must be scipy.optimize.Bounds or one (min, max) for each of {len(x0)} variables"
        ) from None
    for wrong, what in (
        (~(lower < upper), "the lower bound must be below the upper one"),
        (~((lower <= x0) & (x0 <= upper)), "x0 must lie within"),
    ):
        if wrong.any():
            place = int(np.argmax(wrong))
            raise InputError(
                f"bounds of variable {place} are ({lower[place]:g}, {upper[place]:g}) and x0[{place}] is "
                f"{x0[place]:g}; {what}"
            )
    return Box(
        np.where(lower <= -INFINITE, -np.inf, lower), np.where(upper >= INFINITE, np.inf, upper), boundary
    )
