"""Pseudo-outcomes and risks against their closed forms."""

import numpy as np
import pytest

from hexad.core.errors import InputError
from hexad.science_ml.permucate.risks import Nuisances, make_risk, pseudo_outcome


def test_the_pseudo_outcome_has_its_closed_form():
    nuisances = Nuisances(np.array([1.0, 1.0]), np.array([3.0, 4.0]), np.array([0.25, 0.5]))
    # Treated: (7 - 3) / 0.25 + 2 = 18. Control: -(2 - 1) / 0.5 + 3 = 1.
    phi = pseudo_outcome(np.array([7.0, 2.0]), np.array([1, 0]), nuisances)
    np.testing.assert_allclose(phi, [18.0, 1.0])


def test_the_pseudo_outcome_has_the_effect_as_its_mean_if_only_the_propensity_is_right():
    rng = np.random.default_rng(0)
    n = 400_000
    e = rng.uniform(0.2, 0.8, n)
    a = (rng.random(n) < e).astype(int)
    y = 5 + 2 * a + rng.normal(size=n)
    phi = pseudo_outcome(y, a, Nuisances(np.zeros(n), np.full(n, 9.0), e))
    # The standard error of the mean is 0.02.
    assert phi.mean() == pytest.approx(2, abs=0.08)


def test_propensities_are_cut():
    nuisances = Nuisances(np.zeros(2), np.zeros(2), np.array([0.0, 1.0]))
    np.testing.assert_allclose(pseudo_outcome(np.ones(2), np.array([1, 0]), nuisances), [100, -100])


def test_the_r_risk_is_the_r_loss_and_weights_by_the_propensity():
    nuisances = Nuisances(np.array([1.0]), np.array([5.0]), np.array([0.25]))
    risk = make_risk("r_risk", np.array([4.0]), np.array([1]), nuisances)
    # m = 0.25 * 5 + 0.75 * 1 = 2; (4 - 2 - 0.75 tau)^2.
    assert risk.loss(np.array([2.0])) == pytest.approx(0.25)
    phi = make_risk("pseudo_outcome", np.array([4.0]), np.array([1]), nuisances)
    assert phi.loss(np.array([2.0])) == pytest.approx((-1 / 0.25 + 4 - 2) ** 2)


def test_relabelling_the_treatment_leaves_both_risks_unchanged():
    rng = np.random.default_rng(0)
    y, mu0, mu1, tau = rng.normal(size=(4, 50))
    a, e = rng.integers(0, 2, 50), rng.uniform(0.1, 0.9, 50)
    for name in ("pseudo_outcome", "r_risk"):
        loss = make_risk(name, y, a, Nuisances(mu0, mu1, e)).loss(tau)
        other = make_risk(name, y, 1 - a, Nuisances(mu1, mu0, 1 - e)).loss(-tau)
        np.testing.assert_allclose(other, loss, rtol=1e-9)


def test_nuisances_that_are_none_are_refused():
    for arguments, message in (
        ((np.zeros(2), np.zeros(2), np.zeros(3)), "as many"),
        ((np.zeros(1), np.array([np.nan]), np.zeros(1)), "mu1 holds"),
        ((np.zeros(1), np.zeros(1), np.array([1.5])), "leaves"),
    ):
        with pytest.raises(InputError, match=message):
            Nuisances(*arguments)
    with pytest.raises(InputError, match="did you mean 'r_risk'"):
        make_risk("rrisk", np.zeros(1), np.zeros(1), Nuisances(np.zeros(1), np.zeros(1), np.ones(1)))
