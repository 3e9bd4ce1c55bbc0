"""The state of a search between two steps, and whether one that is given can be gone on from."""

import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np

from hexad.core.errors import InputError

if TYPE_CHECKING:
    from hexad.rl_graph.gs_poweropt.ask_tell import GSPower

COUNTS = ("nit", "nfev", "stalls", "low_steps")


def settings_of(search: "GSPower") -> dict[str, Any]:
    """What must be the same in a search that goes on, as plain values."""
    box = search.box
    where = None if box is None else [box.lower.tolist(), box.upper.tolist(), box.boundary]
    return asdict(search.settings) | {"x_scale": search.x_scale.tolist(), "bounds": where}


def checked_state(state: Any, search: "GSPower", averaged: int) -> dict[str, Any]:
    """A state of `GSPower.state_dict` with arrays of its own, all but the generator's part checked.

    Raises:
        InputError: it is no such state, contradicts itself, or is of a search with other settings.
    """
    try:
        checked: dict[str, Any] = {
            name: np.array(state[name], dtype=np.float64) for name in ("mean", "x", "last_iterates")
        }
        checked |= {name: float(state[name]) for name in ("fun", "ess")}
        checked |= {name: int(state[name]) for name in COUNTS}
        settings, checked["rng"] = dict(state["settings"]), state["rng"]
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise InputError(f"this is no state of GSPower ({type(error).__name__}: {error})") from None
    d = len(search.mean)
    if checked["mean"].shape != (d,):
        raise InputError(f"the state has {checked['mean'].size} variables and x0 {d}")
    for name, value in settings_of(search).items():
        if settings.get(name) != value:
            raise InputError(
                f"the state is of a search with {name} = {settings.get(name)!s:.60}, and this one has "
                f"{value!s:.60}; make the search with the settings of the state"
            )
    wrong = _contradiction(checked, search, averaged)
    if wrong:
        raise InputError(f"this state of GSPower is damaged: {wrong}")
    return checked


def _contradiction(state: Mapping[str, Any], search: "GSPower", averaged: int) -> str:
    """What in a state cannot be; empty if nothing."""
    d, K = len(search.mean), search.settings.popsize
    iterates, nit = state["last_iterates"], state["nit"]
    if iterates.size == 0:
        iterates = iterates.reshape(0, d)
    shapes = (
        (state["x"].shape == (d,), f"x has the shape {state['x'].shape}, not ({d},)"),
        (iterates.ndim == 2 and iterates.shape[1:] == (d,), f"last_iterates has the shape {iterates.shape}"),
    )
    for good, what in shapes:
        if not good:
            return what
    points = (("mean", state["mean"]), ("x", state["x"]), ("last_iterates", iterates))
    for name, values in points:
        if not np.isfinite(values).all():
            return f"{name} is not finite"
        if search.box is not None and not np.array_equal(search.box.nearest(values), values):
            return f"{name} lies outside the bounds"
    rules = (
        (min(state[name] for name in COUNTS) >= 0, "a count is negative"),
        (len(iterates) == min(nit, averaged), f"{nit} steps left {len(iterates)} iterates"),
        (state["stalls"] <= nit and state["low_steps"] <= nit, f"it counts more than its {nit} steps"),
        (state["nfev"] >= nit * K, f"nfev is {state['nfev']}, less than {nit} steps of {K} take"),
        (state["fun"] > -math.inf, f"fun is {state['fun']}"),
        (
            math.isnan(state["ess"]) or 1 - 1e-9 <= state["ess"] <= K * (1 + 1e-9),
            f"ess is {state['ess']}, beyond 1 and {K}",
        ),
    )
    return next((what for good, what in rules if not good), "")
