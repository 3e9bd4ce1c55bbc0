"""The real models of EconML, DoubleML and causalml, unfitted and fitted."""

import numpy as np
import pytest
from sklearn.linear_model import LinearRegression, LogisticRegression

from hexad.core.errors import InputError
from hexad.science_ml.permucate import (
    DoubleMLCate,
    NuisanceModels,
    PermuCATE,
    conditional_permutation_importance,
)
from hexad.science_ml.permucate.adapters import CausalMLCate, EconMLCate, adapt, predicted_effect
from hexad.science_ml.permucate.simulations import linear_data


@pytest.fixture(scope="module")
def sample():
    return linear_data(1200, 11)


def check(model, fitted, sample):
    """Cross-fitted with the unfitted model, and measured on a test set with the fitted one."""
    found = PermuCATE(model, n_permutations=5, cv=3, random_state=0).fit(sample.X, sample.y, sample.treatment)
    assert found.importances_.argmax() == 1
    assert found.importances_[1] == pytest.approx(3, rel=0.5)
    train, test = slice(0, 800), slice(800, None)
    nuisances = NuisanceModels().fit(sample.X[train], sample.y[train], sample.treatment[train])
    once = conditional_permutation_importance(
        fitted, sample.X[test], sample.y[test], sample.treatment[test],
        X_train=sample.X[train], nuisances=nuisances, n_permutations=5, random_state=0,
    )  # fmt: skip
    assert once.importances.argmax() == 1
    assert once.pvalues[1] < 0.05


def test_econml(sample):
    from econml.dml import LinearDML

    def make():
        return LinearDML(
            model_y=LinearRegression(), model_t=LogisticRegression(), discrete_treatment=True, random_state=0
        )

    fitted = make().fit(sample.y[:800], sample.treatment[:800], X=sample.X[:800])
    check(make(), fitted, sample)
    expected = fitted.const_marginal_effect(sample.X).ravel()
    np.testing.assert_allclose(predicted_effect(adapt(fitted), sample.X), expected)


def test_doubleml(sample):
    from doubleml import DoubleMLData, DoubleMLIRM, DoubleMLPLR

    data = DoubleMLData.from_arrays(sample.X[:800], sample.y[:800], sample.treatment[:800])
    irm = DoubleMLIRM(data, LinearRegression(), LogisticRegression(), n_rep=2)
    with pytest.raises(InputError, match="pass a fitted DoubleMLIRM"):
        adapt(irm)
    irm.fit()
    check(DoubleMLCate(), irm, sample)
    # The effect's mean over the rows is DoubleML's own average effect.
    assert predicted_effect(adapt(irm), sample.X[:800]).mean() == pytest.approx(irm.coef[0], abs=0.1)
    with pytest.raises(InputError, match="DoubleMLPLR gives no scores"):
        adapt(DoubleMLPLR(data, LinearRegression(), LinearRegression()).fit())


def test_one_seed_is_enough_for_models_of_other_packages(sample):
    from econml.dml import LinearDML

    econml = LinearDML(model_y=LinearRegression(), model_t=LogisticRegression(), discrete_treatment=True)
    X, y, treatment = sample.X[:300], sample.y[:300], sample.treatment[:300]
    for model in (econml, DoubleMLCate()):
        settings = PermuCATE(model, cv=2, n_permutations=2, random_state=0)
        legacy = np.random.mtrand._rand  # the global generator: the user's own draws go on as they were
        state = legacy.get_state()[1].copy()
        first, second = (settings.fit(X, y, treatment).importances_ for _ in range(2))
        np.testing.assert_array_equal(first, second)
        np.testing.assert_array_equal(legacy.get_state()[1], state)


@pytest.mark.slow  # importing causalml takes ten seconds
def test_causalml(sample):
    from causalml.inference.meta import BaseTRegressor

    fitted = BaseTRegressor(learner=LinearRegression(), control_name=0)
    fitted.fit(X=sample.X[:800], treatment=sample.treatment[:800], y=sample.y[:800])
    check(BaseTRegressor(learner=LinearRegression(), control_name=0), fitted, sample)
    np.testing.assert_allclose(predicted_effect(adapt(fitted), sample.X), fitted.predict(sample.X).ravel())


def test_a_model_of_several_or_no_effects_is_refused(sample):
    class Two:
        def effect(self, X):
            return np.zeros((len(X), 2))

    with pytest.raises(InputError, match="Two predicts 2400 effects for 1200 rows"):
        predicted_effect(adapt(Two()), sample.X)
    with pytest.raises(InputError, match="neither effect"):
        adapt(np.zeros(3))


def test_an_adapter_of_no_model_is_refused(sample):
    X, y, treatment = sample.X, sample.y, sample.treatment
    with pytest.raises(InputError, match=r"model is 5, which has no fit or effect"):
        EconMLCate(5).fit(X, y, treatment)
    with pytest.raises(InputError, match=r"LinearRegression\(\), which has no effect"):
        EconMLCate(LinearRegression()).effect(X)
    with pytest.raises(InputError, match=r"the class LinearRegression; give an instance"):
        CausalMLCate(LinearRegression).fit(X, y, treatment)
