"""The loop of PGS and EPGS, one step at a time: ask for points, tell their values."""

import math
from collections import deque
from typing import Any

import numpy as np
from jaxtyping import Float
from scipy.optimize import OptimizeResult

from hexad.core.errors import InputError
from hexad.rl_graph.gs_poweropt.box import AnyBounds, Boundary, Box, box_of
from hexad.rl_graph.gs_poweropt.settings import Baseline, NanPolicy, Scale, Settings, Transform
from hexad.rl_graph.gs_poweropt.weighting import (
    EssWatch,
    effective_samples,
    log_weights,
    weights,
    without_failures,
)

AVERAGED = 50
"""Last iterates whose mean is `x_mean`."""

AnyRng = int | np.random.Generator | np.random.SeedSequence | None


def point_of(x: Float[np.ndarray, " d"]) -> str:
    """A point in an error's one line, its middle left out where it is long."""
    text = np.array2string(x, threshold=8, edgeitems=3, precision=6, separator=", ", max_line_width=10_000)
    return " ".join(text.split())


def start_of(x0: Any) -> Float[np.ndarray, " d"]:
    """x0 as a vector of its own.

    Raises:
        InputError: it is not one-dimensional, empty, or holds no finite numbers.
    """
    try:
        start = np.array(x0, dtype=np.float64)
    except (TypeError, ValueError):
        raise InputError(f"x0 must be a vector of numbers, not {type(x0).__name__}") from None
    if start.ndim != 1 or not start.size:
        raise InputError(f"x0 has the shape {start.shape}; give a vector of one dimension")
    if not np.isfinite(start).all():
        place = int(np.argmin(np.isfinite(start)))
        raise InputError(f"x0[{place}] is {start[place]}; all of x0 must be finite")
    return start


def generator_of(rng: AnyRng) -> np.random.Generator:
    """A generator from a seed, as `numpy.random.default_rng` makes it, or an `InputError`."""
    try:
        return np.random.default_rng(rng)
    except (TypeError, ValueError) as error:
        raise InputError(
            f"rng is {rng!r}; give a seed of at least 0 or a numpy Generator ({error})"
        ) from None


class GSPower:
    """Minimise by asking for values: `ask` gives points, `tell` takes the values of fun there.

        search = GSPower(x0, sigma=0.5)
        for _ in range(1000):
            X = search.ask()              # (popsize, d)
            search.tell([fun(x) for x in X])
        print(search.result.x)

    Settings are those of `hexad.rl_graph.gs_poweropt.Settings`. After each `tell`, `mean` is the iterate
    mu_t, `x` and `fun` the best point told so far.

    Args:
        x0: where mu starts, (d,).
        transform: `"exp"` (EPGS) or `"power"` (PGS).
        power: N.
        sigma: standard deviation of the samples.
        popsize: K, samples in a step.
        learning_rate: length of the first step.
        decay: steps after which the length is half; `inf` for a constant one.
        normalize: divide the gradient by its norm.
        baseline: `"mean"`, or `"none"` for the paper's update.
        shift: with `"power"`, f = shift - fun.
        scale: None or `"std"`.
        nan_policy: `"raise"` or `"worst"`.
        x_scale: typical size of each variable, one number or (d,): sigma and learning_rate are in its units.
        bounds: `scipy.optimize.Bounds`, or a (min, max) for each variable, None for no bound.
        boundary: `"clip"` samples onto the box or `"reflect"` them; mu itself is put back to the nearest
            point of the box.
        rng: seed or `numpy.random.Generator`. The same seed and values give the same path.

    Raises:
        InputError: x0 is not a finite vector, or a setting or bound makes no sense.
    """

    def __init__(
        self,
        x0: Any,
        *,
        transform: Transform = "exp",
        power: float = 2.0,
        sigma: float = 1.0,
        popsize: int = 100,
        learning_rate: float = 0.1,
        decay: float = 1000.0,
        normalize: bool = True,
        baseline: Baseline = "mean",
        shift: float | None = None,
        scale: Scale = None,
        nan_policy: NanPolicy = "raise",
        x_scale: Any = 1.0,
        bounds: AnyBounds = None,
        boundary: Boundary = "clip",
        rng: AnyRng = None,
    ) -> None:
        self.settings = Settings(
            transform,
            power,
            sigma,
            popsize,
            learning_rate,
            decay,
            normalize,
            baseline,
            shift,
            scale,
            nan_policy,
        )
        self.mean: Float[np.ndarray, " d"] = start_of(x0)
        self.x_scale = _x_scale_of(x_scale, self.mean)
        self.box: Box | None = box_of(bounds, self.mean, boundary)
        self.rng = generator_of(rng)
        self.x: Float[np.ndarray, " d"] = self.mean.copy()
        self.fun = math.inf
        self.nit = self.nfev = self.stalls = 0
        self.ess = math.nan
        """Effective samples of the last step, of `popsize`."""
        self.last_iterates: deque[Float[np.ndarray, " d"]] = deque(maxlen=AVERAGED)
        self._noise: Float[np.ndarray, "K d"] = np.empty((self.settings.popsize, len(self.mean)))
        self._asked: Float[np.ndarray, "K d"] | None = None
        self._before: Any = None
        """State of the generator before what is asked for was drawn."""
        self._watch = EssWatch(self.settings)

    def ask(self) -> Float[np.ndarray, "K d"]:
        """The points of the next step, one a row; the same ones until they are told."""
        if self._asked is None:
            self._before = self.rng.bit_generator.state
            self.rng.standard_normal(out=self._noise)
            self._asked = self._points(self._noise)
        return self._asked

    def _points(self, noise: Float[np.ndarray, "*K d"]) -> Float[np.ndarray, "*K d"]:
        X = noise * (self.settings.sigma * self.x_scale)
        X += self.mean
        return X if self.box is None else self.box.inside(X)

    def tell(self, values: Any) -> None:
        """Take the values of fun at the points of `ask`, (K,), and make a step.

        Warns:
            OptimizeWarning: a single sample has had nearly all the weight for 20 steps.

        Raises:
            InputError: there was no `ask`, the number of values is another one, a value is NaN or inf (unless
                `nan_policy="worst"`) or -inf, f is not positive with `"power"`. The step is then not made.
        """
        if self._asked is None:
            raise InputError("tell() comes after ask(): there are no points to which these values belong")
        told = np.asarray(values)
        if told.shape != (self.settings.popsize,) or told.dtype.kind not in "fiub":
            raise InputError(
                f"tell() wants {self.settings.popsize} real numbers, one a point, and got {told.dtype} of "
                f"shape {told.shape}"
            )
        told = told.astype(np.float64, copy=False)
        usable, failed = without_failures(told, self.settings)
        if failed is not None:
            # From the noise, as fun may have written into the array it was given.
            hint = "" if told[failed] == -np.inf else "; mend fun there, or pass nan_policy='worst'"
            raise InputError(f"fun is {told[failed]} at {point_of(self._points(self._noise[failed]))}{hint}")
        moved, ess, x, fun = None, math.nan, self.x, self.fun
        if np.isfinite(usable).all():
            logs = log_weights(usable, self.settings)
            best = int(np.argmin(usable))
            if usable[best] < fun:
                x, fun = self._points(self._noise[best]), float(usable[best])
            ess = effective_samples(logs)
            moved = self._step(logs)
        # All at once, so that Ctrl-C finds a state from which one can go on.
        self._asked = None
        self.x, self.fun, self.ess = x, fun, ess
        self.mean = self.mean if moved is None else moved
        self.nfev, self.nit, self.stalls = self.nfev + len(told), self.nit + 1, self.stalls + (moved is None)
        self.last_iterates.append(self.mean)
        self._watch(ess)

    def _step(self, logs: Float[np.ndarray, " K"]) -> Float[np.ndarray, " d"] | None:
        """mu + alpha_t g / ||g||; None where there is no direction."""
        w = weights(logs, self.settings.baseline)
        total = np.exp(logs).sum()
        largest = np.abs(w).max()
        if largest == 0:
            return None
        # Of order one, so that the norm of a tiny gradient does not vanish.
        g = (w / largest) @ self._noise
        norm = float(np.linalg.norm(g))
        if norm == 0 or not math.isfinite(norm):
            return None
        settings = self.settings
        factor = 1 / norm if settings.normalize else largest / (settings.sigma * total)
        moved = self.mean + self.settings.step_length(self.nit) * factor * (self.x_scale * g)
        return moved if self.box is None else self.box.nearest(moved)

    def consider(self, x: Float[np.ndarray, " d"], value: float) -> None:
        """Take a point evaluated elsewhere, by one more evaluation; it is kept if it is the best."""
        self.nfev += 1
        if value < self.fun:
            self.x, self.fun = x.copy(), float(value)

    @property
    def x_mean(self) -> Float[np.ndarray, " d"]:
        """The mean of the last 50 iterates."""
        return np.mean(self.last_iterates, axis=0) if self.last_iterates else self.mean.copy()

    @property
    def result(self) -> OptimizeResult:
        """The state so far: what `minimize_gspower` returns, without how the run ended."""
        return OptimizeResult(
            x=self.x.copy(),
            fun=self.fun,
            x_mean=self.x_mean,
            nit=self.nit,
            nfev=self.nfev,
            ess=self.ess,
            stalls=self.stalls,
            step_length=self.settings.step_length(max(self.nit - 1, 0)),
            accuracy=self.settings.accuracy,
        )

    def state_dict(self) -> dict[str, Any]:
        """All that a later run needs to go on exactly: arrays, numbers, and the generator's state.

        Points that are asked for and not yet told are no part of it; they are asked for again.
        """
        iterates = np.array(self.last_iterates) if self.last_iterates else np.empty((0, len(self.mean)))
        counts = {"nit": self.nit, "nfev": self.nfev, "stalls": self.stalls, "low_steps": self._watch.steps}
        return {
            "mean": self.mean.copy(),
            "x": self.x.copy(),
            "fun": self.fun,
            "ess": self.ess,
            "last_iterates": iterates,
            "rng": self.rng.bit_generator.state if self._asked is None else self._before,
            **counts,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a state of `state_dict`, of a search with the same settings.

        Raises:
            InputError: it is of another number of variables, or no such state.
        """
        try:
            mean = np.array(state["mean"], dtype=np.float64)
            if mean.shape != self.mean.shape:
                raise InputError(f"the state has {mean.size} variables and x0 {self.mean.size}")
            x, iterates = np.array(state["x"], dtype=np.float64), np.array(state["last_iterates"])
            self.rng.bit_generator.state = state["rng"]
            self.fun, self.ess = float(state["fun"]), float(state["ess"])
            self.nit, self.nfev, self.stalls = (int(state[name]) for name in ("nit", "nfev", "stalls"))
            self._watch.steps = int(state["low_steps"])
        except (KeyError, TypeError) as error:
            raise InputError(f"this is no state of GSPower ({error})") from None
        self.mean, self.x = mean, x
        self.last_iterates = deque(iterates, maxlen=AVERAGED)
        self._asked = None


def _x_scale_of(x_scale: Any, x0: Float[np.ndarray, " d"]) -> Float[np.ndarray, "..."]:
    try:
        sizes = np.array(x_scale, dtype=np.float64)
    except (TypeError, ValueError):
        raise InputError(f"x_scale must be a number or {len(x0)} of them, not {x_scale!r}") from None
    if sizes.shape not in ((), x0.shape):
        raise InputError(f"x_scale has the shape {sizes.shape}; give one number or {len(x0)}, one a variable")
    if not (np.isfinite(sizes) & (sizes > 0)).all():
        raise InputError("x_scale must be finite and above 0 in all variables")
    return sizes
