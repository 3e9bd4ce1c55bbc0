"""Calling the objective: point by point, in batches, or by workers; and callbacks of SciPy's kind."""

import inspect
import os
import pickle
import signal
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from jaxtyping import Float
from scipy.optimize import OptimizeResult

from hexad.core.errors import InputError
from hexad.rl_graph.gs_poweropt.arguments import array_of
from hexad.rl_graph.gs_poweropt.settings import count_of

MapLike = Callable[..., Iterable[Any]]
Vectorized = bool | Literal["rows"]


@dataclass(frozen=True)
class Objective:
    """fun with its further arguments; it pickles if they do.

    Attributes:
        fun: fun(x, *args) of one point x (d,), a number; or of a batch.
        args: handed to every call.
    """

    fun: Callable[..., Any]
    args: tuple[Any, ...]

    def __call__(self, x: Float[np.ndarray, " d"]) -> float:
        """The value at one point.

        Raises:
            InputError: it is not one real number.
        """
        given = self.fun(x, *self.args)
        value = array_of(given)
        if value.size != 1 or value.dtype.kind not in "fiub":
            raise InputError(
                f"fun must return one real number, and gave {_kind(given, value)}; if it takes batches of "
                "points, pass vectorized"
            )
        return float(value.reshape(()))

    def batch(self, X: Float[np.ndarray, "K d"], rows: bool) -> Float[np.ndarray, " K"]:
        """The values at the rows of `X`, which fun sees as columns unless `rows`.

        Raises:
            InputError: fun gives another number of values than there are points.
        """
        given = self.fun(X if rows else X.T, *self.args)
        values = array_of(given)
        if values.shape != (len(X),) or values.dtype.kind not in "fiub":
            count, d = X.shape
            form = f"({count}, {d}), one point a row" if rows else f"({d}, {count}), one point a column"
            raise InputError(
                f"a vectorized fun is given an array of shape {form}, and must return {count} real numbers; "
                f"it gave {_kind(given, values)}"
            )
        # A copy: fun may use the same array for its values again.
        return values.astype(np.float64)


def _kind(given: Any, array: np.ndarray) -> str:
    if array.dtype.kind == "O":
        return f"a value of type {type(given).__name__}"
    return f"{array.dtype} of shape {array.shape}"


_in_worker: Objective | None = None


def _begin_worker(pickled: bytes) -> None:
    # Ctrl-C is for the process that has the results.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    global _in_worker
    _in_worker = pickle.loads(pickled)


def _call_in_worker(x: Float[np.ndarray, " d"]) -> float:
    assert _in_worker is not None
    return _in_worker(x)


@contextmanager
def evaluator(
    objective: Objective, vectorized: Vectorized, workers: int | MapLike
) -> Generator[Callable[[Float[np.ndarray, "K d"]], Float[np.ndarray, " K"]]]:
    """Yield a function from points (K, d) to values (K,).

    Args:
        objective: what to call.
        vectorized: False; True for fun of (d, K), as in `scipy.optimize.differential_evolution`; `"rows"` for
            fun of (K, d).
        workers: processes (-1: as many as cores), or a map-like callable.

    Raises:
        InputError: workers is neither, is combined with vectorized, or fun cannot be sent to processes.
    """
    if vectorized not in (False, True, "rows"):
        raise InputError(f"vectorized is {vectorized!r}; it must be False, True or 'rows'")
    if not callable(objective.fun):
        raise InputError(f"fun must be a function, not {type(objective.fun).__name__}")
    if not callable(workers):
        workers = (os.cpu_count() or 1) if workers == -1 else count_of("workers", workers)
    if vectorized and workers != 1:
        raise InputError("workers call fun point by point and vectorized in batches; choose one of them")
    if vectorized:
        yield _batches(objective, vectorized == "rows")
    elif callable(workers):
        mapped: Any = workers
        yield lambda X: _mapped(mapped, objective, X)
    elif workers == 1:
        yield lambda X: _one_by_one(objective, X)
    else:
        try:
            pickled = pickle.dumps(objective)
        except Exception as error:
            raise InputError(
                f"fun cannot be sent to {workers} processes ({error}); define it at the top of a module, or "
                "pass workers=1 or a map of threads"
            ) from None
        pool = ProcessPoolExecutor(workers, initializer=_begin_worker, initargs=(pickled,))
        try:
            yield lambda X: _pooled(pool, X, workers)
        finally:
            pool.shutdown(cancel_futures=True)


def _one_by_one(objective: Objective, X: Float[np.ndarray, "K d"]) -> Float[np.ndarray, " K"]:
    values: list[float] = []
    try:
        for x in X.copy():  # as fun may write into what it is given
            values.append(objective(x))
    except KeyboardInterrupt as stop:
        vars(stop)["values"] = values  # for `loop.take_unfinished`
        raise
    return np.array(values, dtype=np.float64)


def _mapped(workers: MapLike, objective: Objective, X: Float[np.ndarray, "K d"]) -> Float[np.ndarray, " K"]:
    given = workers(objective, [*X.copy()])
    try:
        values = np.array([*given], dtype=np.float64)
    except TypeError:
        if isinstance(given, Iterable):
            raise
        raise InputError(
            f"workers must be map-like and give the values in their order, not {type(given).__name__}"
        ) from None
    if values.shape != (len(X),):
        raise InputError(f"workers gave values of shape {values.shape} for {len(X)} points; give one each")
    return values


def _pooled(pool: ProcessPoolExecutor, X: Float[np.ndarray, "K d"], workers: int) -> Float[np.ndarray, " K"]:
    try:
        values = [*pool.map(_call_in_worker, X, chunksize=-(-len(X) // (4 * workers)))]
    except BrokenProcessPool:
        raise InputError(
            "a worker process died: fun ended it, memory ran out, or its exception cannot be pickled; "
            "workers=1 shows which"
        ) from None
    return np.array(values, dtype=np.float64)


def _batches(
    objective: Objective, rows: bool
) -> Callable[[Float[np.ndarray, "K d"]], Float[np.ndarray, " K"]]:
    checked = False

    def evaluate(X: Float[np.ndarray, "K d"]) -> Float[np.ndarray, " K"]:
        nonlocal checked
        # Where K = d, values summed along the wrong axis would pass for right ones; an uneven split shows it.
        split = len(X) == X.shape[1] > 1 and not checked
        parts = [X[:-1], X[-1:]] if split else [X]
        values = np.concatenate([objective.batch(part, rows) for part in parts])
        checked = checked or split
        return values

    return evaluate


def callback_of(callback: Callable[..., Any] | None) -> Callable[[OptimizeResult], bool] | None:
    """A function that tells a user's callback how it stands, and says whether it asked to stop.

    As in `scipy.optimize.minimize`: a callback whose one parameter is called `intermediate_result` gets an
    `OptimizeResult` by that name, any other one the best point; either may raise StopIteration.
    """
    if callback is None:
        return None
    if not callable(callback):
        raise InputError(f"callback must be a function, not {type(callback).__name__}")
    try:
        parameters = set(inspect.signature(callback).parameters)
    except (TypeError, ValueError):  # of some functions that are not written in Python
        parameters = set()
    by_name = parameters == {"intermediate_result"}

    def tell(state: OptimizeResult) -> bool:
        try:
            if by_name:
                callback(intermediate_result=state)
            else:
                callback(state.x)
        except StopIteration:
            return True
        return False

    return tell
