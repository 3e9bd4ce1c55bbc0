"""Whether runs determine a law: what is refused before a fit, and what is said after it."""

from collections.abc import Mapping

import numpy as np

from hexad.core.errors import InputError
from hexad.core.validation import check_choice, check_range
from hexad.llm_efficiency.moe_laws.descent import BOUNDS
from hexad.llm_efficiency.moe_laws.law import AnyLaw, ChinchillaLaw, JointMoELaw
from hexad.llm_efficiency.moe_laws.objective import COEFFICIENTS, MAX, START, Vector, from_vector
from hexad.llm_efficiency.moe_laws.runs import Runs

LEAST_RUNS = 11  # the joint law's coefficients
LEAST_SAMPLES = 40  # of which one lies beyond each end of a 95 % interval
ONE_COUNT = 1.05  # token counts that differ by rounding to whole batches are one


def check_fixed(fixed: Mapping[str, float]) -> None:
    """Refuse coefficients that no law can have."""
    for name, value in fixed.items():
        check_choice("coefficient", name, COEFFICIENTS, "in fixed")
        if name in ("a", "b", "c", "e_start"):
            check_range(name, value, 0, low_open=name != "c")
        elif name != "e_max":
            check_range(name, value)
    if not fixed.get("e_max", np.inf) > fixed.get("e_start", 1):
        raise InputError(f"e_max is fixed at {fixed['e_max']!r}; it must be larger than e_start")


def check_runs(runs: Runs, law: str, held: Mapping[str, float]) -> None:
    """Refuse runs that cannot determine the coefficients of a law that are not held fixed."""
    free = sum(name not in held for name in COEFFICIENTS)
    if runs.distinct < max(free, LEAST_RUNS if law == "joint" else 0):
        rest = " (or fit the chinchilla law, which has 5)" if law == "joint" else ""
        raise InputError(
            f"{runs.distinct} distinct runs to fit cannot determine the {free} coefficients of the {law} "
            f"law; add runs, or hold out fewer{rest}"
        )
    # Through two sizes goes a power law with any c.
    least = 2 if "c" in held else 3
    for name, column in (("n_active", runs.n_active), ("tokens", runs.tokens)):
        if (law != "clark" or name == "n_active") and len(np.unique(column)) < least:
            raise InputError(
                f"the runs to fit have {len(np.unique(column))} value(s) of {name}; its exponent beside c "
                f"needs {least}; add runs, or hold out fewer"
            )
    if law == "clark" and runs.tokens.max() > ONE_COUNT * runs.tokens.min():
        raise InputError(
            f"the runs have {runs.tokens.min():.3g} to {runs.tokens.max():.3g} tokens, and a Clark law holds "
            "for one number of tokens; keep the runs of one, or fit the joint law"
        )
    _check_experts(np.unique(runs.experts), law, held)


def _check_experts(counts: np.ndarray, law: str, held: Mapping[str, float]) -> None:
    several = ", ".join(f"{value:g}" for value in counts)
    if law == "chinchilla":
        if len(counts) > 1:
            raise InputError(
                f"the runs have {several} experts, and a Chinchilla law holds for one; keep the runs of one, "
                "or fit the joint law"
            )
        return
    if len(counts) == 1:
        raise InputError(
            f"all runs have {several} expert(s), so nothing is known of E; fit the chinchilla law, or add "
            "runs of other numbers of experts"
        )
    # A line goes through two numbers of experts whatever they count as.
    if len(counts) == 2 and not {"e_start", "e_max"} <= set(held):
        raise InputError(
            f"the runs to fit have {several} experts, and two numbers of experts do not tell how losses "
            "depend on E; add runs of a third and better a fourth, or fit the chinchilla law to each"
        )


def fit_warnings(
    runs: Runs, law: AnyLaw, held: Mapping[str, float], best: Vector, reached: int, starts: int, samples: int
) -> tuple[str, ...]:
    """A line for each reason to doubt a fit.

    Args:
        runs: that were fitted.
        law: that was found.
        held: coefficients that were fixed.
        best: the law as a vector.
        reached: that many starts ended there.
        starts: of the fit.
        samples: of the bootstrap.
    """
    lines = []
    if reached == 1:
        lines.append(
            f"only 1 of {starts} start(s) reached this fit, which may be a local minimum; give more starts"
        )
    values = from_vector(best)
    for name, place in (("e_start", START), ("e_max", MAX)):
        if name not in held and np.abs(BOUNDS[:, place] - best[place]).min() < 1e-3:
            lines.append(
                f"{name} is {values[name]:.4g}, at the end of what is searched: the runs do not determine it"
            )
    counts = np.unique(runs.experts)
    if law.kind != "chinchilla" and len(counts) == 3 and not {"e_start", "e_max"} & set(held):
        several = ", ".join(f"{value:g}" for value in counts)
        lines.append(
            f"three numbers of experts leave one coefficient open: trust this law at {several} experts, not "
            "at others"
        )
    rising = [f"{count:g}" for count in counts if not _falls(law, count)]
    if rising:
        lines.append(
            f"by this law the loss does not fall both with active parameters and with tokens at "
            f"{', '.join(rising)} expert(s), which cannot be planned; add runs, or give more starts"
        )
    if 0 < samples < LEAST_SAMPLES:
        lines.append(f"{samples} bootstrap samples are too few for 95 % intervals; give {LEAST_SAMPLES}")
    return tuple(lines)


def _falls(law: AnyLaw, experts: float) -> bool:
    """Whether the loss falls with N and D, as an optimum needs; of a Clark law nothing is asked."""
    own = law.chinchilla(experts) if isinstance(law, JointMoELaw) else law
    return not isinstance(own, ChinchillaLaw) or (own.mu < 0 and own.nu < 0)
