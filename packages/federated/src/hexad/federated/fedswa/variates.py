"""The client's arithmetic of control variates, free of any framework: numpy arrays or torch tensors.

FedMoSWA (arXiv 2507.20016) and SCAFFOLD (arXiv 1910.06378) correct each local gradient by m - c_i, where c_i
is what the client's own gradients were when it last took part and m what all clients' were.
"""

from typing import Any

import numpy as np

from hexad.core.validation import check_range
from hexad.federated.fedswa.averaging import Arrays, check_alike, check_finite


def zeros_like(arrays: Arrays) -> dict[str, Any]:
    """Zeros of the same names, shapes and kinds."""
    return {
        name: array.new_zeros(array.shape) if hasattr(array, "new_zeros") else np.zeros_like(array)
        for name, array in arrays.items()
    }


def correction(m: Arrays, c: Arrays) -> dict[str, Any]:
    """m - c_i, added to every local gradient of the round.

    Raises:
        InputError: names, shapes, kinds of numbers or devices of `c` are not those of `m`, or one of them
            is not finite.
    """
    check_alike("the stored control variate", c, m, "the server's m")
    check_finite("the stored control variate", c)
    check_finite("the server's m", m)
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
        InputError: `lr_sum` is not above 0, something is not finite, or the arrays do not fit together.
    """
    check_range("lr_sum", lr_sum, 0, low_open=True)
    for what, arrays in (("the control variate", c), ("the server's m", m), ("the client's update", delta)):
        check_alike(what, arrays, m, "the server's m")
        check_finite(what, arrays)
    scale = 1 / lr_sum
    return {name: c[name] - m[name] - delta[name] * scale for name in m}
