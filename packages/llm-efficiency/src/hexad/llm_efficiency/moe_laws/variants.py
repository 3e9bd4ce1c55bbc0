"""The size of the study, and what its arms fit."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Bool, Float

from hexad.llm_efficiency.moe_laws.fitting import fit
from hexad.llm_efficiency.moe_laws.ladder import LadderConfig
from hexad.llm_efficiency.moe_laws.law import ChinchillaLaw
from hexad.llm_efficiency.moe_laws.runs import Runs


@dataclass(frozen=True)
class Config:
    """The size of the study.

    Attributes:
        ladder: the real runs.
        starts: of a fit to the paper's grid.
        ladder_starts: of a fit to the ladder at one c.
    """

    ladder: LadderConfig = field(default_factory=LadderConfig)
    starts: int = 64
    ladder_starts: int = 16


@dataclass(frozen=True)
class Variant:
    """What an arm fits.

    Attributes:
        options: of `fit` that differ from the method's.
        per_expert: a Chinchilla law for each number of experts instead of a joint law.
        tables: compute the paper's tables too.
    """

    options: Mapping[str, Any] = field(default_factory=dict)
    per_expert: bool = False
    tables: bool = False


def fit_per_expert(
    runs: Runs,
    held_out: Bool[np.ndarray, " runs"],
    n_starts: int,
    seed: int,
    c: float | None,
    progress: Callable[[float, str], None],
) -> tuple[dict[float, ChinchillaLaw], Float[np.ndarray, " runs"]]:
    """A Chinchilla law for each number of experts, and what they predict of every run.

    Args:
        runs: of several numbers of experts.
        held_out: runs that are not fitted.
        n_starts: of each fit.
        seed: of the starts.
        c: the irreducible loss, fitted where None.
        progress: called as `progress(share, note)`.
    """
    laws, predicted = {}, np.empty(len(runs))
    counts = np.unique(runs.experts)
    fixed = {} if c is None else {"c": c}
    for done, experts in enumerate(counts):
        progress(done / len(counts), f"E {experts:g}")
        own = runs.experts == experts
        found = fit(runs[own], "chinchilla", n_starts=n_starts, holdout=held_out[own], fixed=fixed, seed=seed)
        assert isinstance(found.law, ChinchillaLaw)
        laws[float(experts)] = found.law
        predicted[own] = runs.loss[own] + found.residuals
    return laws, predicted
