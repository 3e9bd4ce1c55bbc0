"""What is refused or warned of before any model is fitted."""

import warnings
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int

from hexad.core.errors import InputError
from hexad.core.validation import check_count
from hexad.science_ml.permucate.covariates import Covariates


def seed_of(random_state: Any) -> int | None:
    """A seed, as scikit-learn's `random_state` may be given: a number, a generator to draw it from, or None.

    Raises:
        InputError: something else.
    """
    if random_state is None:
        return None
    if isinstance(random_state, np.random.Generator):
        return int(random_state.integers(2**31))
    if isinstance(random_state, np.random.RandomState):
        return int(random_state.randint(2**31))
    return check_count(
        "random_state", int(random_state) if isinstance(random_state, np.integer) else random_state, 0
    )


def check_rows(n: int, y: Any, treatment: Any) -> tuple[Float[np.ndarray, " n"], Int[np.ndarray, " n"]]:
    """Outcome and treatment as arrays of n numbers.

    Raises:
        InputError: other lengths, gaps, text, or a treatment that is not 0 and 1.
    """
    try:
        y = np.asarray(y, dtype=float)
    except (TypeError, ValueError):
        raise InputError("the outcome y holds text; it must be numbers") from None
    treatment = np.asarray(treatment)
    for name, column in (("outcome y", y), ("treatment", treatment)):
        if column.shape != (n,):
            raise InputError(f"the {name} has the shape {column.shape}, X has {n} rows; give one value a row")
    if not np.isfinite(y).all():
        bad = int((~np.isfinite(y)).sum())
        raise InputError(f"the outcome y is missing or infinite in {bad} rows; drop those rows")
    try:
        numbers = treatment.astype(float)
    except (TypeError, ValueError):
        numbers = np.full(n, -1.0)
    if np.isnan(numbers).any():
        raise InputError(f"the treatment is missing in {int(np.isnan(numbers).sum())} rows; drop those rows")
    if not np.isin(numbers, (0, 1)).all():
        found = [str(value) for value in np.unique(treatment.astype(str))[:4]]
        raise InputError(f"the treatment holds {', '.join(found)}; it must hold 0 (control) and 1 (treated)")
    return y, numbers.astype(int)


def check_arms(treatment: Int[np.ndarray, " n"], cv: int) -> None:
    """Refuse folds that are too small: under 20 test rows, or under two rows of an arm.

    Raises:
        InputError: see above, or fewer than two folds.
    """
    if isinstance(cv, bool) or not isinstance(cv, (int, np.integer)):
        raise InputError(f"cv is {cv!r}; it must be a number of folds, which are drawn by random_state")
    if cv < 2:
        raise InputError(f"cv is {cv!r}; the t-test needs at least 2 folds")
    n = len(treatment)
    if n // cv < 20:
        raise InputError(f"{n} rows in {cv} folds leave {n // cv} test rows; 20 are needed: take fewer folds")
    for arm in (0, 1):
        rows = int((treatment == arm).sum())
        if rows < 2 * cv:
            raise InputError(
                f"treatment arm {arm} has {rows} rows; {cv} folds need at least {2 * cv}: take fewer folds "
                "or gather more"
            )
        if rows < 50:
            warnings.warn(
                f"treatment arm {arm} has {rows} rows only; its outcome model is weak",
                UserWarning,
                stacklevel=3,
            )


def warn_of_constant_outcome(y: Float[np.ndarray, " n"]) -> None:
    """Warn where the outcome is the same in all rows."""
    if np.ptp(y) == 0:
        warnings.warn(
            f"the outcome is {y[0]:g} in all rows: no effect can vary, and all importances are 0",
            UserWarning,
            stacklevel=3,
        )


def warn_of_constants(covariates: Covariates) -> Bool[np.ndarray, " p"]:
    """Which covariates are constant, with a warning that names them."""
    constant = covariates.constant()
    if constant.any():
        listed = ", ".join(repr(covariates.names[j]) for j in np.flatnonzero(constant)[:5])
        warnings.warn(f"constant covariates have importance 0: {listed}", UserWarning, stacklevel=3)
    return constant


def warn_of_overlap(propensity: Float[np.ndarray, " n"], clip: float) -> None:
    """Warn where more than a fifth of the rows have a propensity that is cut."""
    cut = float(((propensity < clip) | (propensity > 1 - clip)).mean())
    if cut > 0.2:
        warnings.warn(
            f"{cut:.0%} of the rows have a propensity below {clip:g} or above {1 - clip:g}: the arms hardly "
            "overlap, and importances rest on the few rows that could have had either treatment",
            UserWarning,
            stacklevel=3,
        )
