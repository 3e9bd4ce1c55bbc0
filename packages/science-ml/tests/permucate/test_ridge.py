"""Ridge in closed form, beside scikit-learn's, which refits for every column."""

import numpy as np
import pytest
from sklearn.linear_model import Ridge, RidgeCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from hexad.science_ml.permucate.ridge import ALPHAS, StandardizedRidge, regress_blocks


@pytest.fixture
def data():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(80, 7)) @ rng.normal(size=(7, 7)) * np.logspace(-2, 2, 7) + 5
    return X, X[:, 0] / 0.01 + rng.normal(size=80)


@pytest.mark.parametrize("rows", [80, 5])
def test_standardized_ridge_equals_a_pipeline_of_scikit_learn(data, rows):
    X, y = data[0][:rows], data[1][:rows]
    ours = StandardizedRidge().fit(X, y)
    theirs = make_pipeline(StandardScaler(), RidgeCV(ALPHAS)).fit(X, y)
    assert ours.alpha_ == pytest.approx(theirs[-1].alpha_)
    # Both are exact: only rounding differs, here of columns whose units differ by 1e4.
    np.testing.assert_allclose(ours.predict(data[0]), theirs.predict(data[0]), rtol=1e-7)


def test_one_inverse_regresses_every_column_as_refitting_does(data):
    X = data[0]
    Z = StandardScaler().fit_transform(X)
    for j, found in enumerate(regress_blocks(X, [np.array([j]) for j in range(7)])):
        others = np.delete(Z, j, axis=1)
        refitted = RidgeCV(ALPHAS).fit(others, Z[:, j])
        assert found.alpha == pytest.approx(refitted.alpha_)
        residuals = (Z[:, j] - refitted.predict(others)) * X[:, j].std()
        np.testing.assert_allclose(found.residuals(X)[:, 0], residuals, rtol=1e-6, atol=1e-9 * X[:, j].std())
        assert found.coefficients[j, 0] == 0


def test_a_block_is_regressed_on_the_columns_outside_it(data):
    X = data[0]
    Z = StandardScaler().fit_transform(X)
    block = np.array([1, 4])
    (found,) = regress_blocks(X, [block])
    others = np.delete(Z, block, axis=1)
    predicted = Ridge(found.alpha).fit(others, Z[:, block]).predict(others)
    residuals = (Z[:, block] - predicted) * X[:, block].std(axis=0)
    np.testing.assert_allclose(found.residuals(X), residuals, rtol=1e-6, atol=1e-8)


def test_a_column_that_others_determine_leaves_next_to_nothing(data):
    X = np.column_stack([data[0], data[0][:, 2]])
    found = regress_blocks(X, [np.array([7])])[0]
    # The smallest penalty is 1e-3 beside 80 rows: residuals of at most 1e-4 deviations.
    assert np.abs(found.residuals(X)).max() < 1e-4 * X[:, 7].std()


def test_a_constant_column_does_no_harm(data):
    X = np.column_stack([data[0], np.full(80, 0.1)])
    found = regress_blocks(X, [np.array([0]), np.array([7])])
    plain = regress_blocks(data[0], [np.array([0])])[0]
    np.testing.assert_allclose(found[0].residuals(X), plain.residuals(data[0]), rtol=1e-9)
    assert np.abs(found[1].residuals(X)).max() < 1e-12
    assert np.isfinite(StandardizedRidge().fit(X, data[1]).coef_).all()
