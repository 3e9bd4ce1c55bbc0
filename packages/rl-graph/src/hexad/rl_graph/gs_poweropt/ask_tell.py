"""The loop of PGS and EPGS, one step at a time: ask for points, tell their values."""

import math
import warnings
from collections import deque
from typing import Any

import numpy as np
from jaxtyping import Float
from scipy.optimize import OptimizeResult, OptimizeWarning

from hexad.core.errors import InputError
from hexad.rl_graph.gs_poweropt.arguments import (
    AnyRng,
    array_of,
    generator_of,
    point_of,
    vector_of,
    x_scale_of,
)
from hexad.rl_graph.gs_poweropt.box import AnyBounds, Boundary, Box, box_of
from hexad.rl_graph.gs_poweropt.settings import Baseline, NanPolicy, Scale, Settings, Transform
from hexad.rl_graph.gs_poweropt.states import checked_state, settings_of
from hexad.rl_graph.gs_poweropt.weighting import (
    EssWatch,
    effective_samples,
    log_weights,
    weights,
    without_failures,
)

AVERAGED = 50
"""Last iterates whose mean is `x_mean`."""


class GSPower:
    """Minimise by asking for values: `ask` gives points, `tell` takes the values of fun there.

        search = GSPower(x0, sigma=0.5)
        for _ in range(1000):
            X = search.ask()              # (popsize, d)
            search.tell([fun(x) for x in X])
        print(search.result.x)

    Settings are those of `hexad.rl_graph.gs_poweropt.Settings`. After each `tell`, `mean` is the iterate
    mu_t, `x` and `fun` the best point told so far. x0 itself is not among what is asked for: where the best
    point shall not be worse than the start, `consider(x0, fun(x0))`.

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

    Warns:
        OptimizeWarning: sigma is more than half of the width between the bounds of a variable.

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
        self._mean: Float[np.ndarray, " d"] = vector_of(x0)
        self.x_scale = x_scale_of(x_scale, self._mean)
        self.box: Box | None = box_of(bounds, self._mean, boundary)
        self.rng = generator_of(rng)
        self._x: Float[np.ndarray, " d"] = self._mean
        self.fun = math.inf
        self.nit = self.nfev = self.stalls = 0
        self.ess = math.nan
        """Effective samples of the last step, of `popsize`."""
        self.last_iterates: deque[Float[np.ndarray, " d"]] = deque(maxlen=AVERAGED)
        try:
            self._noise: Float[np.ndarray, "K d"] = np.empty((self.settings.popsize, len(self._mean)))
        except (MemoryError, ValueError) as error:
            raise InputError(
                f"{self.settings.popsize} samples of {len(self._mean)} variables are too many for the memory "
                f"({error}); lower popsize"
            ) from None
        self._asked = False
        self._before: Any = None
        """State of the generator before what is asked for was drawn."""
        self._watch = EssWatch(self.settings)
        if self.box is not None and (wide := self.box.too_narrow(self.settings.sigma * self.x_scale)):
            warnings.warn(wide, OptimizeWarning, stacklevel=3)

    @property
    def mean(self) -> Float[np.ndarray, " d"]:
        """The iterate mu_t, a copy."""
        return self._mean.copy()

    @property
    def x(self) -> Float[np.ndarray, " d"]:
        """The best point told so far, a copy; x0 before there is one."""
        return self._x.copy()

    def ask(self) -> Float[np.ndarray, "K d"]:
        """The points of the next step, one a row; the same ones until they are told, in an array of yours."""
        if not self._asked:
            self._before = self.rng.bit_generator.state
            self.rng.standard_normal(out=self._noise)
            self._asked = True
        return self._points(self._noise)

    def _points(self, noise: Float[np.ndarray, "*K d"]) -> Float[np.ndarray, "*K d"]:
        X = noise * (self.settings.sigma * self.x_scale)
        X += self._mean
        return X if self.box is None else self.box.inside(X)

    def tell(self, values: Any) -> None:
        """Take the values of fun at the points of `ask`, (K,), and make a step.

        Warns:
            OptimizeWarning: a single sample has had nearly all the weight for 20 steps.

        Raises:
            InputError: there was no `ask`, the number of values is another one, a value is NaN or inf (unless
                `nan_policy="worst"`) or -inf, f is not positive with `"power"`. The step is then not made.
        """
        if not self._asked:
            raise InputError("tell() comes after ask(): there are no points to which these values belong")
        told = array_of(values)
        if told.shape != (self.settings.popsize,) or told.dtype.kind not in "fiub":
            raise InputError(
                f"tell() wants {self.settings.popsize} real numbers, one a point, and got {told.dtype} of "
                f"shape {told.shape}"
            )
        told = told.astype(np.float64, copy=False)
        usable, failed = without_failures(told, self.settings)
        if failed is not None:
            raise _failure(told[failed], self._points(self._noise[failed]))
        moved, ess, x, fun = None, math.nan, self._x, self.fun
        if np.isfinite(usable).all():
            logs = log_weights(usable, self.settings)
            best = int(np.argmin(usable))
            if usable[best] < fun:
                x, fun = self._points(self._noise[best]), float(usable[best])
            ess = effective_samples(logs)
            moved = self._step(logs)
        # All at once, so that Ctrl-C finds a state from which one can go on.
        self._asked = False
        self._x, self.fun, self.ess = x, fun, ess
        self._mean = self._mean if moved is None else moved
        self.nfev, self.nit, self.stalls = self.nfev + len(told), self.nit + 1, self.stalls + (moved is None)
        self.last_iterates.append(self._mean)
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
        moved = self._mean + self.settings.step_length(self.nit) * factor * (self.x_scale * g)
        return moved if self.box is None else self.box.nearest(moved)

    def consider(self, x: Any, value: float) -> None:
        """Take a point evaluated elsewhere, by one more evaluation; it is kept if it is the best.

        Raises:
            InputError: x is no point of the search's variables within the bounds; the value is no real
                number, or NaN or inf (unless `nan_policy="worst"`), or -inf.
        """
        point, told = vector_of(x, "x"), array_of(value)
        if point.shape != self._mean.shape:
            raise InputError(f"x has {len(point)} variables and the search {len(self._mean)}")
        if self.box is not None and not np.array_equal(self.box.nearest(point), point):
            raise InputError(f"x = {point_of(point)} lies outside the bounds; evaluate within them")
        if told.size != 1 or told.dtype.kind not in "fiub":
            raise InputError(f"value must be one real number, not {told.dtype} of shape {told.shape}")
        number = float(told.reshape(()))
        if number == -math.inf or (self.settings.nan_policy == "raise" and not math.isfinite(number)):
            raise _failure(number, point)
        self.nfev += 1
        if number < self.fun:
            self._x, self.fun = point, number

    @property
    def x_mean(self) -> Float[np.ndarray, " d"]:
        """The mean of the last 50 iterates."""
        if not self.last_iterates:
            return self.mean
        average = np.mean(self.last_iterates, axis=0)
        # A mean may be rounded to just outside.
        return average if self.box is None else self.box.nearest(average)

    @property
    def accuracy(self) -> float | Float[np.ndarray, " d"]:
        """sigma / sqrt(K) times x_scale: an array where x_scale is one."""
        accuracy = self.settings.accuracy * self.x_scale
        return accuracy if self.x_scale.ndim else float(accuracy)

    @property
    def moves_on(self) -> bool:
        """Whether the last iterates still went one way, farther than a walk at random would have gone."""
        if len(self.last_iterates) < 3:
            return False
        path = np.array(self.last_iterates) / self.x_scale
        steps = np.linalg.norm(np.diff(path, axis=0), axis=1)
        # n steps at random come 1 / sqrt(n) of their length away, four deviations more in one case of 1e4.
        share = (1 + 4 / math.sqrt(2 * len(self._mean))) / math.sqrt(len(steps))
        return bool(np.linalg.norm(path[-1] - path[0]) > share * steps.sum() > 0)

    @property
    def result(self) -> OptimizeResult:
        """The state so far: what `minimize_gspower` returns, without how the run ended."""
        return OptimizeResult(
            x=self.x,
            fun=self.fun,
            x_mean=self.x_mean,
            nit=self.nit,
            nfev=self.nfev,
            ess=self.ess,
            stalls=self.stalls,
            step_length=self.settings.step_length(max(self.nit - 1, 0)),
            accuracy=self.accuracy,
        )

    def state_dict(self) -> dict[str, Any]:
        """All that a later run needs to go on exactly: arrays, numbers, settings, the generator's state.

        Points that are asked for and not yet told are no part of it; they are asked for again. It pickles;
        for JSON turn `mean`, `x` and `last_iterates` into lists, which `load_state_dict` takes too.
        """
        iterates = np.array(self.last_iterates) if self.last_iterates else np.empty((0, len(self._mean)))
        counts = {"nit": self.nit, "nfev": self.nfev, "stalls": self.stalls, "low_steps": self._watch.steps}
        return {
            "settings": settings_of(self),
            "mean": self.mean,
            "x": self.x,
            "fun": self.fun,
            "ess": self.ess,
            "last_iterates": iterates,
            "rng": self._before if self._asked else self.rng.bit_generator.state,
            **counts,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a state of `state_dict`, of a search with the same settings.

        Raises:
            InputError: it is no such state, damaged, of other settings, or of another kind of generator. The
                search is then as before.
        """
        checked = checked_state(state, self, AVERAGED)
        try:
            self.rng.bit_generator.state = checked["rng"]
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            kind = type(self.rng.bit_generator).__name__
            raise InputError(
                f"the state's rng is none of a {kind}, which this search has ({error}); give an rng of the "
                "kind that made the state"
            ) from None
        self._mean, self._x = checked["mean"], checked["x"]
        self.fun, self.ess = checked["fun"], checked["ess"]
        self.nit, self.nfev, self.stalls = checked["nit"], checked["nfev"], checked["stalls"]
        self._watch.steps = checked["low_steps"]
        self.last_iterates = deque(checked["last_iterates"], maxlen=AVERAGED)
        self._asked = False


def _failure(value: float, point: Float[np.ndarray, " d"]) -> InputError:
    hint = "" if value == -math.inf else "; mend fun there, or pass nan_policy='worst'"
    return InputError(f"fun is {value} at {point_of(point)}{hint}")
