"""The server's arithmetic on named arrays, free of any framework: numpy arrays or torch tensors.

Equations of FedSWA and FedMoSWA (Liu et al., ICML 2025, arXiv 2507.20016) and of SCAFFOLD (Karimireddy et
al., ICML 2020, arXiv 1910.06378). Nothing is changed in place.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from hexad.core.errors import InputError
from hexad.core.validation import check_count, check_range

Arrays = Mapping[str, Any]
"""Names to numpy arrays or to torch tensors, of any shape."""

BUFFERS = ("running_mean", "running_var", "num_batches_tracked")
"""Last parts of names that batch normalisation gives to what is no parameter."""


def is_floating(array: Any) -> bool:
    """Whether an array or a tensor holds real numbers."""
    floating = getattr(array, "is_floating_point", None)
    return floating() if floating is not None else np.issubdtype(array.dtype, np.floating)


def is_finite(array: Any) -> bool:
    """Whether an array or a tensor is free of NaN and infinities."""
    return bool(array.isfinite().all()) if hasattr(array, "isfinite") else bool(np.isfinite(array).all())


def trainable_names(theta: Arrays) -> list[str]:
    """Names of the arrays that are parameters, where nobody says: real, and no buffers of a batch norm."""
    return [
        name for name, array in theta.items() if is_floating(array) and name.split(".")[-1] not in BUFFERS
    ]


def check_arrays(what: str, arrays: Arrays) -> None:
    """Refuse (`InputError`) what is no mapping of names to numpy arrays or torch tensors."""
    if not isinstance(arrays, Mapping):
        raise InputError(f"{what} is a {type(arrays).__name__}; pass a mapping of names to arrays")
    for name, array in arrays.items():
        if not (hasattr(array, "shape") and hasattr(array, "dtype")):
            raise InputError(
                f"{name!r} in {what} is a {type(array).__name__}; pass numpy arrays or torch tensors"
            )


def check_alike(
    what: str,
    given: Arrays,
    wanted: Arrays,
    of: str,
    parts: Sequence[str] = ("shape", "dtype", "device"),
) -> None:
    """Refuse arrays whose names, shapes, kinds of numbers or devices are not those of `wanted`.

    Args:
        what: what the arrays are, for the message.
        given: the arrays.
        wanted: those they must resemble.
        of: what those are, for the message.
        parts: in what they must agree.

    Raises:
        InputError: they differ, or are no arrays.
    """
    check_arrays(what, given)
    check_arrays(of, wanted)
    missing, extra = sorted(wanted.keys() - given.keys()), sorted(given.keys() - wanted.keys())
    if missing or extra:
        parts = [f"lacks {missing[:3]}"] * bool(missing) + [f"has the unknown {extra[:3]}"] * bool(extra)
        raise InputError(f"{what} {' and '.join(parts)}; send the names of {of}, no more and no less")
    for name, array in wanted.items():
        other = given[name]
        if hasattr(other, "isfinite") != hasattr(array, "isfinite"):
            raise InputError(
                f"{name!r} is a {type(other).__name__} in {what} and a {type(array).__name__} in {of}; "
                "use numpy arrays or torch tensors, not both"
            )
        for part in parts:
            mine, theirs = getattr(other, part, None), getattr(array, part, None)
            # numpy before 2 knows no device. (`None in (mine, theirs)` would find a float64 equal to None.)
            if mine is not None and theirs is not None and mine != theirs:
                raise InputError(
                    f"{part} of {name!r} in {what} is {mine} and that of {of} {theirs}; they must agree"
                )


def check_finite(what: str, arrays: Arrays) -> None:
    """Refuse (`InputError`) arrays that hold NaN or infinities."""
    for name, array in arrays.items():
        if is_floating(array) and not is_finite(array):
            raise InputError(f"{name!r} in {what} is not finite; lower the learning rate or clip gradients")


def weighted_mean(items: Iterable[Arrays], weights: Sequence[float]) -> dict[str, Any]:
    """The mean of updates, holding one at a time: sum of w_i x_i / sum of w_i.

    Args:
        items: the updates, all of the same names and shapes.
        weights: one for each, not negative and not all 0.

    Returns:
        the mean by name; of float16 and bfloat16, which lose a sum's digits, in float32.

    Raises:
        InputError: there is none, the weights are no weights or not as many, the updates have different
            names or shapes, or one is not finite.
    """
    shares = _shares(weights)
    mean: dict[str, Any] = {}
    number = 0
    for number, arrays in enumerate(items, 1):
        what = f"update {number}"
        check_alike(what, arrays, mean or arrays, "update 1", ("shape", "device"))
        check_finite(what, arrays)
        if number > len(shares):
            break
        share = shares[number - 1]
        for name, array in arrays.items():
            part = _wide(array) * share
            mean[name] = part if name not in mean else mean[name] + part
    if number != len(shares):
        some = "more" if number > len(shares) else str(number)
        raise InputError(f"{len(shares)} weights for {some} updates; give each update one weight")
    return mean


def _shares(weights: Sequence[float]) -> list[float]:
    """Weights as shares of their sum."""
    values = [float(check_range("a weight", weight, 0)) for weight in weights]
    total = float(sum(values))
    if total <= 0 or not np.isfinite(total):
        raise InputError(f"weights are {values[:5]}; they must be at least 0 and not all 0")
    return [weight / total for weight in values]


def _wide(array: Any) -> Any:
    """The array, in float32 if its own kind has fewer digits."""
    if not is_floating(array) or array.dtype.itemsize >= 4:
        return array
    return array.float() if hasattr(array, "float") else np.asarray(array).astype(np.float32)


def _like(array: Any, wanted: Any) -> Any:
    """The array with the kind of numbers of `wanted`; whole numbers are rounded to, not cut."""
    if not is_floating(wanted):
        array = array.round()
    return array.to(wanted.dtype) if hasattr(array, "to") else np.asarray(array).astype(wanted.dtype)


def extrapolate(theta: Arrays, mean: Arrays, alpha: float, parameters: Collection[str]) -> dict[str, Any]:
    """FedSWA's server step: theta <- theta + alpha (v - theta), v the mean of the clients' models.

    An alpha above 1 goes beyond the mean, below 1 it lags behind. What is not in `parameters` (running
    statistics, counters) becomes the mean itself: extrapolated variances could be negative.

    Args:
        theta: the global model that the round began with.
        mean: v, of the same names.
        alpha: above 0.
        parameters: names that are extrapolated.

    Raises:
        InputError: alpha is not above 0, names or shapes differ, something is not finite (or would be after
            the step), or theta lacks a parameter.
    """
    check_range("server_alpha", alpha, 0, low_open=True)
    check_alike("mean", mean, theta, "theta", ("shape", "device"))
    check_finite("theta", theta)
    check_finite("mean", mean)
    if isinstance(parameters, str):
        raise InputError(f"parameters is the string {parameters!r}; pass a list of names")
    unknown = sorted(set(parameters) - theta.keys())
    if unknown:
        raise InputError(f"parameters names {unknown[:3]}, which theta lacks; use names of its arrays")
    # At alpha = 1 the mean itself, not theta + (mean - theta), so that FedAvg comes out to the last bit.
    with np.errstate(over="ignore"):
        moved = {
            name: _like(
                mean[name]
                if alpha == 1 or name not in parameters
                else _wide(array) + alpha * (_like(mean[name], _wide(array)) - _wide(array)),
                array,
            )
            for name, array in theta.items()
        }
    check_finite("the model after the server's step", moved)
    return moved


def _check_update(variate: Arrays, update: Arrays) -> None:
    check_alike("the mean update", update, variate, "the server's variate", ("shape", "device"))
    check_finite("the server's variate", variate)
    check_finite("the mean update", update)


def update_momentum(m: Arrays, mean_u: Arrays, gamma: float) -> dict[str, Any]:
    """FedMoSWA's m <- m + gamma mean(u_i), u_i = c_i+ - m: an average of fresh variates over rounds.

    Raises:
        InputError: gamma is outside [0, 1], names or shapes differ, or something is not finite.
    """
    check_range("gamma", gamma, 0, 1)
    _check_update(m, mean_u)
    return {name: _like(array + gamma * mean_u[name], array) for name, array in m.items()}


def update_scaffold(
    c: Arrays, mean_difference: Arrays, participants: int, clients: int, clients_before: int | None = None
) -> dict[str, Any]:
    """SCAFFOLD's c <- c + (s / M) mean(c_i+ - c_i): c stays the mean of all clients' variates.

    Args:
        c: the server's variate.
        mean_difference: mean over the participants of c_i+ - c_i.
        participants: s, how many took part.
        clients: M, how many there are.
        clients_before: M in the round before, if it was another: c is then a mean over others than before,
            of which those who joined have the variate 0.

    Raises:
        InputError: more take part than there are, names or shapes differ, or something is not finite.
    """
    check_count("participants", participants)
    check_count("clients", clients, participants)
    _check_update(c, mean_difference)
    share = participants / clients
    if clients_before is not None and clients_before != clients:
        check_count("clients_before", clients_before)
        c = {name: _like(array * (clients_before / clients), array) for name, array in c.items()}
    return {name: _like(array + share * mean_difference[name], array) for name, array in c.items()}
