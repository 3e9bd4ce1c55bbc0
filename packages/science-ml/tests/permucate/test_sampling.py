"""Conditional draws: support, dependence, and where models are fitted."""

import numpy as np
import polars as pl
import pytest
from sklearn.linear_model import LinearRegression, LogisticRegression

from hexad.core.errors import InputError
from hexad.science_ml.permucate.covariates import read_covariates
from hexad.science_ml.permucate.sampling import Noise, fit_samplers


def samplers(X, blocks, categorical=None, imputer="auto"):
    covariates = read_covariates(X)
    kinds = np.zeros(len(covariates.names), bool) if categorical is None else np.asarray(categorical)
    return covariates, fit_samplers(
        covariates, covariates.values, [np.array(b) for b in blocks], kinds, imputer
    )


@pytest.fixture
def pair():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(4000, 3))
    X[:, 1] = 0.8 * X[:, 0] + 0.6 * X[:, 1]
    return X


def test_draws_keep_the_dependence_and_are_new_given_the_others(pair):
    covariates, (sampler,) = samplers(pair, [[1]])
    drawn = sampler.draw(covariates.values, Noise.draw(4000, 5, 0, 0))[:, :, 0]
    for copy in drawn:
        # Standard errors are 0.016.
        assert np.corrcoef(copy, pair[:, 0])[0, 1] == pytest.approx(0.8, abs=0.04)
        assert copy.std() == pytest.approx(1, abs=0.04)
    residual = sampler.residuals(covariates.values)[:, 0]
    moved = drawn[0] - (pair[:, 1] - residual)
    assert abs(np.corrcoef(moved, residual)[0, 1]) < 0.06
    np.testing.assert_allclose(np.sort(moved), np.sort(residual), atol=1e-12)


def test_the_model_is_fitted_to_training_rows_alone(pair):
    _, (sampler,) = samplers(pair, [[1]])
    test = pair[:50] + 100.0
    # A refit on the shifted rows would leave residuals of mean 0; the old model leaves 100 - 0.8 * 100.
    assert sampler.residuals(test).mean() == pytest.approx(20, abs=1.5)


def test_classes_stay_classes_and_follow_the_others():
    rng = np.random.default_rng(0)
    x = rng.normal(size=6000)
    b = (rng.random(6000) < 1 / (1 + np.exp(-2 * x))).astype(float) * 2.5
    covariates, (sampler,) = samplers(np.column_stack([x, b]), [[1]], [False, True])
    drawn = sampler.draw(covariates.values, Noise.draw(6000, 4, 1, 0))[:, :, 0]
    assert set(np.unique(drawn)) == {0.0, 2.5}
    for low, high in ((-3, -1), (-0.5, 0.5), (1, 3)):
        inside = (x > low) & (x < high)
        # Four copies of over 900 rows: a standard error under 0.01 on each side.
        assert (drawn[:, inside] > 0).mean() == pytest.approx((b[inside] > 0).mean(), abs=0.04)


def test_a_group_is_drawn_jointly(pair):
    X = np.column_stack([pair, (pair[:, 0] + 0.3 * pair[:, 2] > 0).astype(float)])
    covariates, (sampler,) = samplers(X, [[0, 1, 3]], [False, False, False, True])
    drawn = sampler.draw(covariates.values, Noise.draw(4000, 3, 1, 0))
    for copy in drawn:
        assert np.corrcoef(copy[:, 0], copy[:, 1])[0, 1] == pytest.approx(0.8, abs=0.04)
        assert set(np.unique(copy[:, 2])) == {0.0, 1.0}
        # The class is drawn given the members before it, not given the rest alone.
        assert np.corrcoef(copy[:, 0], copy[:, 2])[0, 1] == pytest.approx(
            np.corrcoef(X[:, 0], X[:, 3])[0, 1], abs=0.05
        )


def test_text_is_drawn_as_its_levels_in_the_training_shares():
    rng = np.random.default_rng(0)
    city = rng.choice(["Bonn", "Oslo", "Rome"], 3000, p=[0.2, 0.3, 0.5])
    frame = pl.DataFrame({"x": rng.normal(size=3000), "city": city})
    covariates = read_covariates(frame)
    assert covariates.levels == {1: ("Bonn", "Oslo", "Rome")}
    kinds = covariates.categorical("auto", 10)
    np.testing.assert_array_equal(kinds, [False, True])
    (sampler,) = fit_samplers(covariates, covariates.values, [np.array([1])], kinds)
    drawn = sampler.draw(covariates.values, Noise.draw(3000, 10, 1, 0))
    shares = np.bincount(drawn.astype(int).ravel(), minlength=3) / drawn.size
    np.testing.assert_allclose(
        shares, [(city == name).mean() for name in ("Bonn", "Oslo", "Rome")], atol=0.01
    )


def test_any_estimator_imputes_and_the_wrong_kind_or_number_is_refused(pair):
    covariates, found = samplers(pair, [[0], [1]], imputer=[LinearRegression(), None])
    exact = pair[:, 0] - LinearRegression().fit(pair[:, 1:], pair[:, 0]).predict(pair[:, 1:])
    np.testing.assert_allclose(found[0].residuals(covariates.values)[:, 0], exact, atol=1e-10)
    X = np.column_stack([pair, pair[:, 0] > 0])
    _, (drawn,) = samplers(X, [[3]], [False, False, False, True], LogisticRegression(C=0.1))
    assert drawn.classifiers[0][1].model.C == 0.1
    for imputer, message in (
        ([LinearRegression()], "lists 1 estimators for 2"),
        ("ridge", "imputer is 'ridge'"),
        (3.0, "is no estimator"),
    ):
        with pytest.raises(InputError, match=message):
            samplers(pair, [[0], [1]], imputer=imputer)
