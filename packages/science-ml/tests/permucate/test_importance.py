"""Importances against closed forms, and beside hidimstat's."""

from itertools import permutations

import numpy as np
import pytest
from hidimstat import CFI
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.linear_model import LinearRegression, RidgeCV

from hexad.core.errors import InputError
from hexad.science_ml.permucate import conditional_permutation_importance
from hexad.science_ml.permucate.covariates import read_covariates
from hexad.science_ml.permucate.importance import (
    conditional_rows,
    increases,
    layers_of,
    loco_rows,
    permutation_rows,
)
from hexad.science_ml.permucate.learners import DRLearner
from hexad.science_ml.permucate.risks import Risk
from hexad.science_ml.permucate.sampling import Noise, fit_samplers
from hexad.science_ml.permucate.simulations import linear_data, sobol_linear

SLOPES = np.array([1.0, 2.0, 1.0, 0.0, 0.0, 0.0])


class Linear(RegressorMixin, BaseEstimator):
    """A fitted model whose slopes are known."""

    def __init__(self, slopes=SLOPES):
        self.slopes = slopes

    def fit(self, X, y=None, treatment=None):
        self.n_features_in_ = X.shape[1]
        return self

    def predict(self, X):
        return np.asarray(X) @ self.slopes

    effect = predict


def singles(p):
    return [np.array([j]) for j in range(p)]


def measured(X_train, X, phi, slopes, noise, blocks=None, imputer="auto"):
    covariates = read_covariates(X_train)
    blocks = singles(X.shape[1]) if blocks is None else blocks
    kinds = np.zeros(X.shape[1], bool)
    samplers = fit_samplers(covariates, X_train, blocks, kinds, imputer)
    risk = Risk(phi, np.ones(len(phi)))
    return conditional_rows(lambda x: x @ slopes, X, risk, samplers, noise), samplers


def test_the_sobol_indices_of_the_linear_simulation():
    covariance = np.kron(np.eye(3), [[1, 0.5], [0.5, 1]])
    np.testing.assert_allclose(sobol_linear(SLOPES, covariance), [0.75, 3, 0.75, 0, 0, 0], atol=1e-12)
    sample = linear_data(60_000, 0)
    X_train, X = sample.X[:30_000], sample.X[30_000:]
    tau = X @ SLOPES
    rows, _ = measured(X_train, X, tau, SLOPES, Noise.draw(30_000, 5, 0, 0))
    # Exact model, true effect: b_j^2 / (Sigma^-1)_jj with a relative error of about sqrt(2 / 30 000) = 0.8 %.
    # Twice as much, or half, would be the factor 1/2 gone wrong.
    np.testing.assert_allclose(rows.mean(axis=1), [0.75, 3, 0.75, 0, 0, 0], rtol=0.04, atol=1e-12)
    # LOCO with the same model: the refit without j predicts E[tau | X_-j].
    covariates = read_covariates(X_train)
    model = DRLearner().fit_final(X_train, X_train @ SLOPES)
    a = np.zeros(len(X_train), dtype=int)
    loco = loco_rows(
        model, covariates, X_train, X_train[:, 0], a, X, Risk(tau, np.ones(len(tau))), singles(6)
    )
    np.testing.assert_allclose(loco.mean(axis=1), [0.75, 3, 0.75, 0, 0, 0], rtol=0.04, atol=1e-4)


def test_all_permutations_give_the_identity_of_a_linear_model():
    rng = np.random.default_rng(1)
    X_train, X, phi = rng.normal(size=(40, 3)), rng.normal(size=(6, 3)), rng.normal(size=6)
    slopes = np.array([1.5, -0.7, 0.0])
    orders = np.array(list(permutations(range(6))))
    rows, samplers = measured(X_train, X, phi, slopes, Noise(orders, np.empty((0, 720, 6))))
    e = phi - X @ slopes
    for j, sampler in enumerate(samplers):
        r = sampler.residuals(X)[:, 0]
        b = slopes[j]
        # Raw: 2 b^2 Var(r) + 2 b Cov(e, r), with population moments; importance is half of it.
        exact = b**2 * r.var() + b * ((e * r).mean() - e.mean() * r.mean())
        assert rows[j].mean() == pytest.approx(exact, abs=1e-12)


def test_half_of_hidimstats_conditional_importance_with_the_same_permutations():
    rng = np.random.default_rng(2)
    X = rng.normal(size=(300, 4))
    X[:, 1] += X[:, 0]
    slopes = np.array([1.0, -1.0, 0.5, 0.0])
    train, test = X[:200], X[200:]
    phi = test @ slopes + rng.normal(size=100)
    cfi = CFI(
        Linear(slopes).fit(train), imputation_model_continuous=RidgeCV(), feature_types="continuous",
        n_permutations=20, random_state=7,
    )  # fmt: skip
    cfi.fit(train)
    theirs = cfi.importance(test, phi)
    covariates = read_covariates(train)
    blocks = singles(4)
    samplers = fit_samplers(covariates, train, blocks, np.zeros(4, bool), RidgeCV())
    for j, child in enumerate(np.random.default_rng(7).spawn(4)):
        orders = np.stack([child.permutation(np.arange(100)) for _ in range(20)])
        noise = Noise(orders, np.empty((0, 20, 100)))
        risk = Risk(phi, np.ones(100))
        ours = conditional_rows(lambda x: x @ slopes, test, risk, [samplers[j]], noise)
        assert ours.mean() == pytest.approx(theirs[j] / 2, rel=1e-10, abs=1e-13)


def test_a_perfectly_predicted_covariate_has_importance_zero():
    rng = np.random.default_rng(3)
    X = rng.normal(size=(200, 3))
    X[:, 2] = X[:, 0] + X[:, 1]
    noise = Noise.draw(100, 10, 0, 0)
    slopes = np.array([1.0, 1.0, 3.0])
    rows, _ = measured(X[:100], X[100:], np.zeros(100), slopes, noise, [np.array([2])], LinearRegression())
    # Residuals are rounding errors of 1e-15 and enter through the loss's slope of about 20.
    assert np.abs(rows).max() < 1e-12


def test_independent_covariates_give_half_the_plain_permutation():
    rng = np.random.default_rng(4)
    X = rng.normal(size=(20_000, 3))
    slopes = np.array([1.0, 2.0, 0.0])
    noise = Noise.draw(10_000, 10, 0, 0)
    test, phi = X[10_000:], X[10_000:] @ slopes
    rows, _ = measured(X[:10_000], test, phi, slopes, noise)
    plain = permutation_rows(lambda x: x @ slopes, test, Risk(phi, np.ones(10_000)), singles(3), noise)
    # The same permutations: what is left is the estimation error of slopes of about 0.01.
    np.testing.assert_allclose(rows.mean(axis=1), plain.mean(axis=1), rtol=0.01, atol=1e-12)
    np.testing.assert_allclose(plain.mean(axis=1), [1, 4, 0], rtol=0.05, atol=1e-12)


def test_plain_permutation_overstates_a_covariate_that_others_predict_and_ours_does_not():
    rng = np.random.default_rng(5)
    x = rng.normal(size=20_000)
    X = np.column_stack([x, x + 0.1 * rng.normal(size=20_000)])
    noise = Noise.draw(10_000, 5, 0, 0)
    slopes = np.array([1.0, 1.0])
    phi = X[10_000:] @ slopes
    rows, _ = measured(X[:10_000], X[10_000:], phi, slopes, noise)
    plain = permutation_rows(lambda z: z @ slopes, X[10_000:], Risk(phi, np.ones(10_000)), singles(2), noise)
    assert rows[1].mean() == pytest.approx(0.01, rel=0.1)
    assert plain[1].mean() == pytest.approx(1.01, rel=0.1)


def test_memory_is_bounded_by_batches_that_change_nothing(monkeypatch):
    rng = np.random.default_rng(6)
    X = rng.normal(size=(100, 4))
    drawn = rng.normal(size=(13, 100, 1))
    risk = Risk(rng.normal(size=100), np.ones(100))
    sizes = []

    def effect(x):
        sizes.append(len(x))
        return x.sum(axis=1)

    whole = increases(effect, X, risk, singles(4), lambda place: drawn)
    monkeypatch.setattr("hexad.science_ml.permucate.importance.MAX_CELLS", 2_000)
    sizes.clear()
    batched = increases(effect, X, risk, singles(4), lambda place: drawn)
    assert max(sizes) == 500
    np.testing.assert_allclose(batched, whole, rtol=1e-12)
    assert whole[0, 0] == pytest.approx(
        0.5
        * (
            (risk.target[0] - (X[0, 1:].sum() + drawn[:, 0, 0])) ** 2 - (risk.target[0] - X[0].sum()) ** 2
        ).mean()
    )


def test_a_fitted_model_on_one_test_set():
    sample = linear_data(3000, 8)
    train, test = slice(0, 1500), slice(1500, None)
    model = DRLearner(random_state=0).fit(sample.X[train], sample.y[train], sample.treatment[train])
    arguments = (sample.X[test], sample.y[test], sample.treatment[test])
    found = conditional_permutation_importance(
        model, *arguments, X_train=sample.X[train], nuisances=model, random_state=0
    )
    low, high = found.estimates.interval(0.999).T
    psi = np.array([0.75, 3, 0.75, 0, 0, 0])
    assert ((low <= psi + 0.05) & (psi - 0.05 <= high)).all()
    assert found.pvalues[1] < 1e-4
    nuisances = model.nuisances(sample.X[test])
    again = conditional_permutation_importance(
        model, *arguments, X_train=sample.X[train], nuisances=nuisances, random_state=0
    )
    np.testing.assert_array_equal(again.importances, found.importances)
    with pytest.raises(InputError, match="neither effect"):
        conditional_permutation_importance(object(), *arguments, X_train=sample.X[train], nuisances=nuisances)
    few = tuple(part[:19] for part in arguments)
    with pytest.raises(InputError, match="test set has 19 rows"):
        conditional_permutation_importance(model, *few, X_train=sample.X[train], nuisances=nuisances)


def test_nuisances_are_asked_once_and_for_the_rows_as_they_are():
    sample = linear_data(400, 9)
    model = DRLearner(random_state=0).fit(sample.X, sample.y, sample.treatment)

    class Watched:
        asked: list[np.ndarray] = []  # noqa: RUF012

        def predict(self, X):
            self.asked.append(np.array(X))
            return model.nuisances(X)

    conditional_permutation_importance(
        model, sample.X, sample.y, sample.treatment, X_train=sample.X, nuisances=Watched(), random_state=0
    )
    assert len(Watched.asked) == 1
    np.testing.assert_array_equal(Watched.asked[0], sample.X)


def test_layers_of_uniforms_suffice_for_the_block_with_most_classes():
    kinds = np.array([True, False, True, True])
    assert layers_of([np.array([0, 1]), np.array([2, 3])], kinds) == 2
