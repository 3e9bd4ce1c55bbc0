"""The client's arithmetic of control variates, free of any framework: numpy arrays or torch tensors.

FedMoSWA (arXiv 2507.20016) and SCAFFOLD (arXiv 1910.06378) correct each local gradient by m - c_i, where c_i
is what the client's own gradients were when it last took part and m what all clients' were.
"""

from typing import Any

import numpy as np

from hexad.core.errors import InputError
from hexad.core.validation import check_range
from hexad.federated.fedswa.averaging import Arrays, check_alike, check_finite


def zeros_like(arrays: Arrays) -> dict[str, Any]:
    """Zeros of the same names, shapes and kinds."""
    return {name: array * 0 for name, array in arrays.items()}


def correction(m: Arrays, c: Arrays) -> dict[str, Any]:
    """m - c_i, added to every local gradient of the round.

    Raises:
        InputError: names, shapes, kinds of numbers or devices of `c` are not those of `m`.
    """
    check_alike("the stored control variate", c, m, "the server's m")
    return {name: m[name] - c[name] for name in m}


def next_variate(c: Arrays, m: Arrays, delta: Arrays, lr_sum: float) -> dict[str, Any]:
    """The client's new control variate, option II: c_i+ = c_i - m - delta / sum of eta_k.

    With plain SGD it equals the mean of the local gradients along the path, weighted by the rates.

    Args:
        c: c_i, as it was used in this round.
        m: as the server sent it.
        delta: y_K - theta, how far the client went.
        lr_sum: the rates of the steps taken, summed; not K times the first.

    Raises:
        InputError: `lr_sum` is not above 0, `delta` is not finite, or the arrays do not fit together.
    """
    check_range("lr_sum", lr_sum, 0, low_open=True)
    check_alike("the client's update", delta, m, "the server's m")
    check_finite("the client's update", delta)
    scale = 1 / lr_sum
    return {name: c[name] - m[name] - delta[name] * scale for name in m}


class VariateMemory:
    """The last two control variates of a client, each with the round it was made in.

    Two, because the server may never have counted the last: its reply was late, or the server went back to a
    checkpoint. What the server did not count did not happen; `at` goes back to the one before.

    Attributes:
        versions: (round, variate) pairs, oldest first.
    """

    def __init__(self, versions: list[tuple[int, dict[str, np.ndarray]]] | None = None) -> None:
        self.versions = versions or []

    def at(self, counted: int) -> tuple[int, dict[str, np.ndarray]] | None:
        """The newest version that is no newer than round `counted`, or None."""
        return next((version for version in reversed(self.versions) if version[0] <= counted), None)

    def remember(self, made: int, variate: dict[str, np.ndarray], counted: int) -> None:
        """Store what was made in round `made`, beside the version that it was made from.

        Raises:
            InputError: the round is no later than the one that the server counted.
        """
        if made <= counted:
            raise InputError(f"round {made} comes after round {counted}; the server counts rounds wrongly")
        base = self.at(counted)
        self.versions = ([base] if base is not None else []) + [(made, variate)]
