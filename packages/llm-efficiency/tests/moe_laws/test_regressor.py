"""The regressor in scikit-learn's hands."""

import pickle

import numpy as np
import pandas as pd
import polars as pl
import pytest

pytest.importorskip("sklearn")

from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, KFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils.estimator_checks import parametrize_with_checks

from hexad.core.errors import InputError
from hexad.llm_efficiency.moe_laws import JointMoERegressor

COLUMNS = "the check's X has another number of columns than three: N, D, E"
DOMAIN = "the check's X holds zeros or E below 1, which no run has; random positive numbers are no runs"
EXPECTED = {
    "check_estimators_overwrite_params": COLUMNS,
    "check_estimators_fit_returns_self": COLUMNS,
    "check_readonly_memmap_input": COLUMNS,
    "check_n_features_in_after_fitting": COLUMNS,
    "check_estimators_dtypes": COLUMNS,
    "check_dtype_object": COLUMNS,
    "check_regressors_train": COLUMNS,
    "check_regressor_data_not_an_array": COLUMNS,
    "check_regressors_no_decision_function": COLUMNS,
    "check_regressors_int": COLUMNS,
    "check_fit_idempotent": COLUMNS,
    "check_fit_check_is_fitted": COLUMNS,
    "check_n_features_in": COLUMNS,
    "check_fit_score_takes_y": DOMAIN,
    "check_dont_overwrite_parameters": DOMAIN,
    "check_pipeline_consistency": DOMAIN,
    "check_estimators_nan_inf": DOMAIN,
    "check_estimators_pickle": DOMAIN,
    "check_f_contiguous_array_estimator": DOMAIN,
    "check_supervised_y_2d": DOMAIN,
    "check_methods_sample_order_invariance": DOMAIN,
    "check_methods_subset_invariance": DOMAIN,
    "check_dict_unchanged": DOMAIN,
    "check_fit2d_predict1d": DOMAIN,
}
"""What scikit-learn checks with data that the law refuses; the tests below ask the same with runs."""


@parametrize_with_checks(
    [JointMoERegressor(n_starts=1)], expected_failed_checks=lambda estimator: EXPECTED, xfail_strict=True
)
def test_scikit_learns_own_checks(estimator, check):
    check(estimator)


@pytest.fixture
def data(make_runs):
    runs = make_runs(0.001)
    return np.stack([runs.n_active, runs.tokens, runs.experts], axis=1), runs.loss


@pytest.fixture
def fitted(data):
    return JointMoERegressor(n_starts=2).fit(*data)


def test_it_fits_predicts_and_scores(data, fitted):
    X, y = data
    assert fitted.fit(X, y) is fitted
    assert fitted.n_features_in_ == 3
    assert np.array_equal(fitted.predict(X), fitted.law_.loss(*X.T))
    assert fitted.score(X, y) > 0.999
    with pytest.raises(NotFittedError):
        JointMoERegressor().predict(X)


def test_what_the_expected_failures_ask(data, fitted):
    X, y = data
    before = X.copy(), y.copy(), fitted.get_params()
    again = clone(fitted).fit(X, y)
    assert again.law_ == fitted.law_, "fitting twice gives the same"
    assert np.array_equal(X, before[0])
    assert np.array_equal(y, before[1])
    assert fitted.get_params() == before[2], "parameters and data are left as they were"
    attributes = dict(fitted.__dict__)
    whole = fitted.predict(X)
    assert fitted.__dict__ == attributes, "predicting changes nothing"
    assert np.array_equal(np.concatenate([fitted.predict(X[i : i + 1]) for i in range(len(X))]), whole)
    order = np.random.default_rng(0).permutation(len(X))
    assert np.array_equal(fitted.predict(X[order]), whole[order])
    assert np.array_equal(pickle.loads(pickle.dumps(fitted)).predict(X), whole)
    assert clone(fitted).fit(np.asfortranarray(X), y).law_ == fitted.law_
    assert clone(fitted).fit(X.astype(object), y).law_ == fitted.law_
    assert clone(fitted).fit(X.tolist(), y.tolist()).law_ == fitted.law_
    frozen = X.copy(), y.copy()
    for array in frozen:
        array.setflags(write=False)
    assert clone(fitted).fit(*frozen).law_ == fitted.law_
    assert np.array_equal(make_pipeline(clone(fitted)).fit(X, y).predict(X), whole)
    with pytest.raises(ValueError, match="NaN"):
        clone(fitted).fit(np.where(X[0, 0] == X, np.nan, X), y)
    with pytest.raises(ValueError, match="inf"):
        fitted.predict(np.where(X[0, 0] == X, np.inf, X))
    with pytest.raises(ValueError, match="1D array"):
        fitted.predict(X[0])
    with pytest.raises(ValueError, match="features"):
        fitted.predict(X[:, :2])
    with pytest.warns(Warning, match="column-vector"):
        assert clone(fitted).fit(X, y[:, None]).law_ == fitted.law_


def test_it_is_searched_and_validated(data):
    X, y = data
    folds = KFold(3, shuffle=True, random_state=0)
    model = make_pipeline(FunctionTransformer(), JointMoERegressor(n_starts=4))
    assert cross_val_score(model, X, y, cv=folds, scoring="neg_root_mean_squared_error").min() > -0.1
    search = GridSearchCV(JointMoERegressor(n_starts=6), {"huber_delta": [0.001, 0.01]}, cv=folds).fit(X, y)
    assert search.best_params_["huber_delta"] in (0.001, 0.01)


def test_names_of_data_frames_are_kept(data):
    X, y = data
    table = pd.DataFrame(X, columns=["n_active", "tokens", "experts"])
    model = JointMoERegressor(n_starts=1).fit(table, y)
    assert model.feature_names_in_.tolist() == ["n_active", "tokens", "experts"]


@pytest.mark.parametrize("frame", [pd.DataFrame, pl.DataFrame])
def test_columns_are_taken_by_name(data, fitted, frame):
    X, y = data
    table = frame({"experts": X[:, 2], "tokens": X[:, 1], "n_active": X[:, 0]})
    model = clone(fitted).fit(table, y)
    assert model.law_ == fitted.law_
    assert np.array_equal(model.predict(table), fitted.predict(X))
    assert np.array_equal(model.predict(table[["n_active", "experts", "tokens"]]), fitted.predict(X))


@pytest.mark.parametrize("names", [["n_active", "D", "experts"], ["n_active", "tokens", "experts", "seed"]])
def test_other_names_are_refused(data, fitted, names):
    X, y = data
    table = pd.DataFrame(dict.fromkeys(names, X[:, 0]))
    wanted = f"X has the columns {', '.join(names)}; they must be n_active, tokens, experts"
    with pytest.raises(InputError, match=wanted):
        JointMoERegressor().fit(table, y)
    with pytest.raises(InputError, match=wanted):
        fitted.predict(table)


def test_a_bad_seed_is_refused(data):
    with pytest.raises(InputError, match="random_state is -1"):
        JointMoERegressor(random_state=-1).fit(*data)


def test_other_columns_are_refused(data):
    X, y = data
    with pytest.raises(InputError, match="2 feature"):
        JointMoERegressor().fit(X[:, :2], y)
