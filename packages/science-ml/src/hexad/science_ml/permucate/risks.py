"""The doubly robust pseudo-outcome, and the risks of a treatment-effect model that it and the R-loss give.

Each risk of a row is a square in the predicted effect, (target - slope * tau)^2, so one class holds all:

=============== ================== ======= ====================================================
risk            target             slope   expected difference is that of
=============== ================== ======= ====================================================
pseudo_outcome  phi                1       (tau - tau_hat)^2, the DR-loss
r_risk          y - m              a - e   (a - e)^2 (tau - tau_hat)^2, weighted by e (1 - e)
=============== ================== ======= ====================================================

with m = e mu_1 + (1 - e) mu_0. Paillard et al. 2025, section 3; Nie and Wager 2021 for the R-loss.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Float, Int

from hexad.core.errors import InputError
from hexad.core.validation import check_choice

CLIP = 0.01
"""Propensities are cut to [CLIP, 1 - CLIP], as in the authors' code."""

RiskName = Literal["pseudo_outcome", "r_risk"]
RISKS: tuple[RiskName, ...] = ("pseudo_outcome", "r_risk")


@dataclass(frozen=True)
class Nuisances:
    """Nuisance functions at n rows.

    Attributes:
        mu0, mu1: expected outcome without and with treatment, (n,).
        propensity: probability of treatment, not clipped, (n,).
    """

    mu0: Float[np.ndarray, " n"]
    mu1: Float[np.ndarray, " n"]
    propensity: Float[np.ndarray, " n"]

    def __post_init__(self) -> None:
        if not len(self.mu0) == len(self.mu1) == len(self.propensity):
            lengths = (len(self.mu0), len(self.mu1), len(self.propensity))
            raise InputError(f"mu0, mu1 and propensity have {lengths} rows; they must be as many")
        for name in ("mu0", "mu1", "propensity"):
            if not np.isfinite(getattr(self, name)).all():
                raise InputError(f"{name} holds values that are not finite; check the nuisance models")
        if len(self.propensity) and (self.propensity.min() < 0 or self.propensity.max() > 1):
            raise InputError("propensity leaves [0, 1]; give probabilities of treatment")


@dataclass(frozen=True)
class Risk:
    """(target - slope * tau)^2 of each row; both (n,)."""

    target: Float[np.ndarray, " n"]
    slope: Float[np.ndarray, " n"]

    def loss(self, tau: Float[np.ndarray, "*copies n"]) -> Float[np.ndarray, "*copies n"]:
        """The loss of each row for predicted effects `tau`, of shape (..., n)."""
        return (self.target - self.slope * tau) ** 2


def pseudo_outcome(
    y: Float[np.ndarray, " n"],
    treatment: Int[np.ndarray, " n"],
    nuisances: Nuisances,
    clip: float = CLIP,
) -> Float[np.ndarray, " n"]:
    """phi = (y - mu_a)(a - e) / (e (1 - e)) + mu_1 - mu_0, whose mean given X is tau(X).

    Kennedy 2023, equation 2; e is cut to [clip, 1 - clip].
    """
    e = np.clip(nuisances.propensity, clip, 1 - clip)
    own = np.where(treatment == 1, nuisances.mu1, nuisances.mu0)
    return (y - own) * (treatment - e) / (e * (1 - e)) + nuisances.mu1 - nuisances.mu0


def make_risk(
    name: str,
    y: Float[np.ndarray, " n"],
    treatment: Int[np.ndarray, " n"],
    nuisances: Nuisances,
    clip: float = CLIP,
) -> Risk:
    """The risk called `name` at these rows, with the nuisances of the rows as they are.

    They stay fixed while covariates are permuted: only tau changes.

    Raises:
        InputError: there is no such risk.
    """
    check_choice("risk", name, RISKS)
    if name == "pseudo_outcome":
        return Risk(pseudo_outcome(y, treatment, nuisances, clip), np.ones(len(y)))
    e = np.clip(nuisances.propensity, clip, 1 - clip)
    return Risk(y - e * nuisances.mu1 - (1 - e) * nuisances.mu0, treatment - e)
