"""Stage 2, first half: which states lie on an efficient way, told from the embedding alone.

Source: Baek et al., ICML 2025, section on temporal efficiency, and the authors' code.
"""

import numpy as np
from jaxtyping import Float, Int

from hexad.core.errors import InputError
from hexad.core.validation import check_range
from hexad.rl_graph.gas.trajectories import is_real

BLOCK = 65_536
"""States whose crossing is looked for at a time: bounds the memory of the differences."""


def check_latents(latents: Float[np.ndarray, "states latent"]) -> Float[np.ndarray, "states latent"]:
    """The embedded states as an array of finite numbers, else `InputError`."""
    array = np.asarray(latents)
    if array.ndim != 2 or len(array) == 0 or not is_real(array):
        raise InputError(
            f"latents are {array.dtype} of shape {array.shape}; they must be (states > 0, latent)"
        )
    if not np.isfinite(array).all():
        raise InputError("latents hold numbers that are not finite; the embedding diverged or was not fitted")
    return array


def check_ends(ends: Int[np.ndarray, " states"], states: int) -> Int[np.ndarray, " states"]:
    """For each state the index of its trajectory's last state, else `InputError`."""
    array = np.asarray(ends)
    if array.shape != (states,) or not np.issubdtype(array.dtype, np.integer):
        raise InputError(f"ends are {array.dtype} of shape {array.shape}; they must be {states} indices")
    if (array < np.arange(states)).any() or (array >= states).any() or (np.diff(array) < 0).any():
        raise InputError("ends must not lie before their states, must not decrease, and must be states")
    if (array[array] != array).any():
        raise InputError("ends contradict each other; the end of a trajectory must be its own end")
    return array


def first_crossing(
    latents: Float[np.ndarray, "states latent"], ends: Int[np.ndarray, " states"], distance: float
) -> Int[np.ndarray, " states"]:
    """For each state the first later one of its trajectory at that latent distance or farther.

    Where none is so far it is the trajectory's last state, which for that state itself is itself.

    Args:
        latents: embedded states, trajectory after trajectory.
        ends: for each state the index of the last state of its trajectory.
        distance: in the embedding.

    Raises:
        InputError: latents that are not finite, ends that do not fit, a distance that is not positive.
    """
    latents = check_latents(latents)
    ends = check_ends(ends, len(latents))
    check_range("distance", distance, 0, low_open=True)
    found = ends.astype(np.int64)
    for start in range(0, len(latents), BLOCK):
        searching = np.arange(start, min(start + BLOCK, len(latents)))
        step = 0
        while len(searching):
            step += 1
            searching = searching[searching + step <= ends[searching]]
            away = latents[searching + step].astype(np.float64) - latents[searching]
            crossed = np.einsum("nd,nd->n", away, away) >= distance * distance
            found[searching[crossed]] = searching[crossed] + step
            searching = searching[~crossed]
    return found


def temporal_efficiency(
    latents: Float[np.ndarray, "states latent"], ends: Int[np.ndarray, " states"], horizon: float
) -> Float[np.ndarray, " states"]:
    """How straight each state's trajectory goes on: the cosine between where it is and where it could be.

    The cosine is that of the way made in `horizon` steps and the way to the first state at latent distance
    `horizon` (the last state where none is so far). A state in front of fewer than `horizon` steps has 1; one
    that has not moved has 0.

    Args:
        latents: embedded states, trajectory after trajectory.
        ends: for each state the index of the last state of its trajectory.
        horizon: H, both a number of steps (rounded) and a distance.

    Returns:
        cosines in [-1, 1].

    Raises:
        InputError: latents that are not finite, ends that do not fit, a horizon that is not positive.
    """
    latents = check_latents(latents)
    ends = check_ends(ends, len(latents))
    check_range("horizon", horizon, 0, low_open=True)
    steps = max(1, round(horizon))
    crossing = first_crossing(latents, ends, horizon)
    efficiency = np.ones(len(latents))
    inner = np.flatnonzero(np.arange(len(latents)) + steps <= ends)
    for start in range(0, len(inner), BLOCK):
        i = inner[start : start + BLOCK]
        origin = latents[i].astype(np.float64)
        made, possible = latents[i + steps] - origin, latents[crossing[i]] - origin
        lengths = np.linalg.norm(made, axis=1) * np.linalg.norm(possible, axis=1)
        inner_product = np.einsum("nd,nd->n", made, possible)
        efficiency[i] = np.divide(inner_product, lengths, out=np.zeros(len(i)), where=lengths > 0)
        same = (crossing[i] == i + steps) & (lengths > 0)
        efficiency[i[same]] = 1  # one and the same way, whatever rounding makes of it
    return efficiency.clip(-1, 1)
