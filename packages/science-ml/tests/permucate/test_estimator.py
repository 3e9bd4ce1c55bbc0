"""`PermuCATE` as a scikit-learn estimator: conventions, invariances, error rates, bad input."""

import warnings
from dataclasses import replace

import numpy as np
import pandas as pd
import polars as pl
import pytest
from scipy.sparse import csr_array
from sklearn.base import clone
from sklearn.compose import make_column_selector, make_column_transformer
from sklearn.dummy import DummyClassifier
from sklearn.ensemble import RandomForestRegressor
from sklearn.linear_model import LinearRegression, LogisticRegression, Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from hexad.core.errors import InputError
from hexad.science_ml.permucate import (
    DRLearner,
    NuisanceModels,
    PermuCATE,
    TLearner,
    loco_cate,
    permutation_cate,
)
from hexad.science_ml.permucate.figures import draw_importances
from hexad.science_ml.permucate.inference import adjust
from hexad.science_ml.permucate.simulations import equicorrelated_data, linear_data, null_data

NAMES = ["age", "dose", "site", "sex", "bmi", "hb"]


@pytest.fixture(scope="module")
def sample():
    return linear_data(1500, 3)


@pytest.fixture(scope="module")
def fitted(sample):
    return PermuCATE(random_state=0).fit(sample.X, sample.y, sample.treatment)


def test_it_finds_the_drivers_and_nothing_else(fitted):
    assert set(np.argsort(-fitted.importances_)[:3]) == {0, 1, 2}
    assert fitted.pvalues_[1] < 0.01
    assert (fitted.pvalues_[3:] > 0.05).all()
    low, high = fitted.intervals_.T
    assert ((low < [0.75, 3, 0.75, 0, 0, 0]) & (high > [0.75, 3, 0.75, 0, 0, 0])).sum() >= 5
    assert fitted.importances_folds_.shape == (6, 5)
    np.testing.assert_allclose(fitted.importances_folds_.mean(axis=1), fitted.importances_)
    width = 2.7764 * np.sqrt(fitted.importances_folds_.var(axis=1, ddof=1) * (1 / 5 + 1 / 4))
    np.testing.assert_allclose((high - low) / 2, width, rtol=1e-4)


def test_a_constant_effect_gives_conservative_p_values():
    rejections = []
    for seed in range(34):
        sample = null_data(200, seed)
        rejections.append(
            PermuCATE(n_permutations=20, random_state=seed).fit(sample.X, sample.y, sample.treatment).pvalues_
        )
    pvalues = np.concatenate(rejections)
    assert len(pvalues) == 204
    assert (pvalues < 0.05).mean() <= 0.07
    # Conservative, and yet no constant: p spreads over the interval.
    assert (pvalues < 0.5).mean() > 0.2


def test_it_follows_scikit_learns_conventions(sample):
    estimator = PermuCATE(DRLearner(Ridge(), final=Ridge(2.0)), cv=4, n_permutations=3, random_state=1)
    copy = clone(estimator).set_params(estimator__final__alpha=7.0, risk="r_risk")
    assert estimator.get_params()["estimator__final__alpha"] == 2.0
    assert copy.estimator.final.alpha == 7.0
    assert not hasattr(copy, "importances_")
    copy.fit(sample.X, sample.y, sample.treatment)
    assert not hasattr(copy.estimator, "final_"), "the given learner is cloned, not fitted"
    again = clone(copy).fit(sample.X, sample.y, sample.treatment)
    np.testing.assert_array_equal(again.importances_, copy.importances_)
    other = clone(copy).set_params(random_state=2).fit(sample.X, sample.y, sample.treatment)
    assert np.abs(other.importances_ - copy.importances_).max() > 1e-4


def test_processes_change_no_number(sample, fitted):
    found = PermuCATE(random_state=0, n_jobs=2).fit(sample.X, sample.y, sample.treatment)
    np.testing.assert_array_equal(found.importances_folds_, fitted.importances_folds_)


def test_names_of_pandas_and_polars_are_kept_and_change_no_number(sample, fitted):
    for frame in (pd.DataFrame(sample.X, columns=NAMES), pl.DataFrame(sample.X, schema=NAMES)):
        found = PermuCATE(random_state=0).fit(frame, sample.y, sample.treatment)
        assert list(found.feature_names_in_) == NAMES
        np.testing.assert_allclose(found.importances_, fitted.importances_, rtol=1e-9)
        table = found.summary(adjustment="holm")
        assert type(table) is (pd.DataFrame if isinstance(frame, pd.DataFrame) else pl.DataFrame)
        assert table["variable"][0] == "dose"
        assert list(table["importance"]) == sorted(found.importances_, reverse=True)
        assert (np.asarray(table["p_adjusted"]) >= np.asarray(table["p_value"])).all()


def test_the_order_and_the_units_of_columns_change_nothing(sample, fitted):
    order = [4, 2, 0, 5, 1, 3]
    scale, shift = np.array([1e-3, 5, 1e4, 1, -2, 0.3]), np.array([0, 10, -1, 3, 0, 7])
    found = PermuCATE(random_state=0).fit((sample.X * scale + shift)[:, order], sample.y, sample.treatment)
    # The default models standardise columns: only rounding and the tolerance of the logistic fit remain.
    np.testing.assert_allclose(found.importances_, fitted.importances_[order], rtol=1e-3, atol=1e-4)


def test_relabelling_the_treatment_changes_nothing(sample, fitted):
    found = PermuCATE(random_state=0).fit(sample.X, sample.y, 1 - sample.treatment)
    np.testing.assert_allclose(found.importances_, fitted.importances_, rtol=1e-3, atol=1e-4)


def test_a_group_of_one_is_its_member_and_a_group_holds_its_members_together(sample, fitted):
    frame = pl.DataFrame(sample.X, schema=NAMES)
    found = PermuCATE(groups={"only": ["dose"], "pair": ["age", "hb"]}, random_state=0)
    found.fit(frame, sample.y, sample.treatment)
    assert found.names_ == ("pair", "only", "site", "sex", "bmi")
    np.testing.assert_allclose(found.importances_[1], fitted.importances_[1], rtol=1e-9)
    both = PermuCATE(groups={"g": ["age", "dose"]}, random_state=0).fit(frame, sample.y, sample.treatment)
    # Var(x1 + 2 x2) with correlation 1/2 is 7, far above the parts 0.75 and 3.
    assert both.importances_[0] == pytest.approx(7, rel=0.35)


def test_a_constant_column_has_importance_zero_and_a_warning(sample):
    X = np.column_stack([sample.X, np.full(1500, 0.1)])
    with pytest.warns(UserWarning, match="constant covariates have importance 0: 'x6'"):
        found = PermuCATE(random_state=0).measure(
            X, sample.y, sample.treatment, ("permucate", "loco", "permutation")
        )
    for result in found.values():
        assert result.importances[6] == 0
        assert result.pvalues[6] == 1
        assert np.isfinite(result.pvalues).all()


def test_the_r_risk_is_a_quarter_in_a_balanced_trial():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(4000, 3))
    a = rng.integers(0, 2, 4000)
    y = a * 2 * X[:, 0] + 0.3 * rng.normal(size=4000)
    learner = DRLearner(classifier=DummyClassifier(strategy="prior"))
    dr, r = (
        PermuCATE(learner, risk=risk, random_state=0).fit(X, y, a) for risk in ("pseudo_outcome", "r_risk")
    )
    assert dr.importances_[0] == pytest.approx(4, rel=0.1)
    assert r.importances_[0] == pytest.approx(1, rel=0.1)


def test_sharing_fits_between_folds_estimates_the_same_as_nesting(sample, fitted):
    nested = PermuCATE(random_state=0, cross_fit="nested").fit(sample.X, sample.y, sample.treatment)
    assert (nested.importances_folds_ != fitted.importances_folds_).all()
    np.testing.assert_allclose(nested.importances_, fitted.importances_, atol=0.3)


def test_no_model_of_a_training_pseudo_outcome_saw_the_row_or_the_test_fold():
    rng = np.random.default_rng(0)
    X = np.column_stack([rng.normal(size=200), np.arange(200)])
    a = np.tile([0, 1], 100)
    asked = []

    class Spy(LinearRegression):
        def fit(self, X, y):
            self.seen_ = set(X[:, 1].astype(int))
            return super().fit(X, y)

        def predict(self, X):
            rows = set(X[:, 1].astype(int))
            asked.append((len(self.seen_), len(rows), self.seen_ & rows))
            return super().predict(X)

    PermuCATE(DRLearner(Spy(), final=Ridge()), n_permutations=1, random_state=0).fit(
        X, rng.normal(size=200), a
    )
    assert all(not both for _, _, both in asked)
    # Ten pairs leave out 80 of 200 rows, five folds 40; each fits two arms of half the rest.
    assert sorted((seen, rows) for seen, rows, _ in asked) == sorted([(60, 80)] * 20 + [(80, 40)] * 10)


def test_pipelines_see_named_columns_and_text_as_it_came():
    rng = np.random.default_rng(0)
    city = rng.choice(["Bonn", "Oslo", "Rome"], 900)
    frame = pd.DataFrame({"x": rng.normal(size=900), "city": pd.Categorical(city), "z": rng.normal(size=900)})
    a = rng.integers(0, 2, 900)
    y = a * 3 * (city == "Oslo") + rng.normal(size=900)
    encode = make_column_transformer(
        (OneHotEncoder(), make_column_selector(dtype_exclude="number")), remainder=StandardScaler()
    )
    learner = DRLearner(
        make_pipeline(encode, Ridge()),
        make_pipeline(encode, LogisticRegression()),
        make_pipeline(encode, Ridge()),
    )
    # E[Var(3 [city = Oslo])] = 9 * 2/9 = 2.
    for found in (
        PermuCATE(learner, encode=False, random_state=0).fit(frame, y, a),
        PermuCATE(random_state=0).fit(frame, y, a),
        PermuCATE(random_state=0).fit(
            pl.from_dict({"x": frame["x"].to_numpy(), "city": city, "z": frame["z"].to_numpy()}), y, a
        ),
    ):
        assert list(found.names_) == ["x", "city", "z"]
        assert found.importances_[1] == pytest.approx(2, rel=0.25)
        assert np.abs(found.importances_[[0, 2]]).max() < 0.1


@pytest.mark.parametrize(
    "learner",
    [
        TLearner(),
        TLearner(RandomForestRegressor(20, min_samples_leaf=10)),
        DRLearner(final=RandomForestRegressor(20, min_samples_leaf=20)),
    ],
    ids=["T", "T forest", "DR forest"],
)
def test_other_learners_find_the_strongest_driver(learner, sample):
    found = PermuCATE(learner, n_permutations=5, random_state=0).measure(
        sample.X, sample.y, sample.treatment, ("permucate", "loco")
    )
    for result in found.values():
        assert result.importances.argmax() == 1


def test_few_folds_and_repeats(sample):
    found = PermuCATE(cv=2, n_repeats=3, n_permutations=5, random_state=0).fit(
        sample.X, sample.y, sample.treatment
    )
    assert found.importances_folds_.shape == (6, 6)
    assert found.importances_.argmax() == 1


def test_conditional_permutation_varies_less_than_refitting_in_wide_data():
    sample = equicorrelated_data(300, 0, p=40, important=5)
    found = PermuCATE(n_permutations=20, random_state=0).measure(
        sample.X, sample.y, sample.treatment, ("permucate", "loco")
    )
    nulls = {name: result.importances[~sample.modifiers].std() for name, result in found.items()}
    assert nulls["permucate"] < 0.65 * nulls["loco"]


def test_baselines_have_the_same_return_type(sample, fitted):
    settings = PermuCATE(random_state=0)
    loco = loco_cate(sample.X, sample.y, sample.treatment, settings)
    plain = permutation_cate(sample.X, sample.y, sample.treatment, settings)
    assert loco.folds.shape == plain.folds.shape == fitted.result_.folds.shape
    assert (loco.method, plain.method) == ("loco", "permutation")
    # Plain permutation breaks the correlation of 1/2: 1, 4, 1 and not 0.75, 3, 0.75.
    assert plain.importances[1] / fitted.importances_[1] == pytest.approx(4 / 3, rel=0.1)


def test_the_plot_shows_the_largest_importances(fitted):
    figure = fitted.plot(limit=4)
    (axes,) = figure.axes
    assert axes.get_yticklabels()[0].get_text() == "x1"
    assert len(axes.get_yticklabels()) == 4


GOOD = linear_data(200, 0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"treatment": GOOD.treatment + 1}, "must hold 0 .control. and 1 .treated."),
        ({"treatment": np.where(GOOD.treatment == 1, "drug", "none")}, "the treatment holds drug, none"),
        ({"treatment": np.where(np.arange(200) == 3, np.nan, GOOD.treatment)}, "missing in 1 rows"),
        (
            {"treatment": (np.arange(200) < 9).astype(int)},
            "treatment arm 1 has 9 rows; 5 folds need at least 10",
        ),
        ({"treatment": GOOD.treatment[:-1]}, "treatment has the shape .199,., X has 200 rows"),
        ({"y": GOOD.y[:-1]}, "outcome y has the shape .199,."),
        ({"y": np.where(np.arange(200) < 2, np.nan, GOOD.y)}, "missing or infinite in 2 rows"),
        ({"y": np.full(200, "high")}, "outcome y holds text"),
        ({"X": np.where(np.arange(6) == 2, np.nan, GOOD.X)}, "missing values in 'x2' .200 rows."),
        ({"X": np.where(np.arange(6) == 2, np.inf, GOOD.X)}, "infinite values in 'x2'"),
        ({"X": GOOD.X[:, 0]}, "X has the shape"),
        ({"X": np.empty((200, 0))}, "X is empty"),
        ({"X": pl.DataFrame({"id": [f"p{i}" for i in range(200)]})}, "text with 200 levels"),
        ({"X": pl.DataFrame({"when": pl.Series([0] * 200).cast(pl.Date)})}, "has the type Date"),
        ({"X": pd.DataFrame(GOOD.X[:, :2], columns=["a", "a"])}, "two columns have one name"),
        ({"X": GOOD.X.astype(str).astype(object) + "a"}, "X holds text"),
        ({"groups": {"g": ["x0", "x1"], "h": ["x1"]}}, "'x1' is in two groups, 'g' and 'h'"),
        ({"groups": {"g": ["x9"]}}, "no covariate is called 'x9' .in group 'g'."),
        ({"groups": {"g": []}}, "group 'g' must be a list"),
        ({"groups": {"x1": ["x2"]}}, "has the name of a covariate"),
        ({"categorical": ["x9"]}, "no covariate is called 'x9'"),
        ({"cv": 1}, "cv is 1; the t-test needs at least 2 folds"),
        ({"cv": 11}, "leave 18 test rows"),
        ({"estimator": Ridge()}, "Ridge has no fit.X, y, treatment. and effect"),
        ({"estimator": StandardScaler()}, "neither effect.X. nor predict"),
        ({"estimator": DRLearner(classifier=Ridge())}, "has no predict_proba"),
        ({"risk": "mse"}, "unknown risk 'mse'"),
        ({"n_permutations": 0}, "n_permutations is 0"),
        ({"n_repeats": 0}, "n_repeats is 0"),
        ({"clip": 0.5}, "clip is 0.5"),
        ({"n_jobs": 0}, "n_jobs is 0"),
        ({"random_state": -1}, "random_state is -1"),
        ({"random_state": "a"}, "random_state is 'a'"),
        ({"n_permutations": 2.5}, "n_permutations is 2.5"),
        ({"max_cardinality": "a"}, "max_cardinality is 'a'"),
        ({"encode": "no"}, "encode is 'no'"),
        ({"cv": "5"}, "cv is '5'; it must be a number of folds"),
        ({"imputer": [Ridge()] * 2}, "imputer lists 2 models for 6 covariates"),
        ({"estimator": DRLearner(clip=0.9)}, "clip of the DRLearner is 0.9"),
        ({"X": pl.LazyFrame(GOOD.X)}, "pass X.collect"),
        ({"X": csr_array(GOOD.X)}, "pass X.toarray"),
        ({"X": GOOD.X + 1j}, "complex"),
        ({"cross_fit": "none"}, "unknown cross_fit"),
    ],
)
def test_bad_input_is_refused_in_one_line(change, message):
    data = {"X": GOOD.X, "y": GOOD.y, "treatment": GOOD.treatment} | {
        k: v for k, v in change.items() if k in ("X", "y", "treatment")
    }
    settings = {k: v for k, v in change.items() if k not in data}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(InputError, match=message) as caught:
            PermuCATE(**settings).fit(**data)
    assert "\n" not in str(caught.value)


def test_a_generator_gives_the_seed_and_objects_that_are_numbers_are_numbers(sample):
    settings = {"n_permutations": 2, "cv": 2}
    frame = pd.DataFrame(sample.X).astype(object)
    first, second, other = (
        PermuCATE(random_state=state, **settings).fit(frame, sample.y, sample.treatment).importances_
        for state in (np.random.RandomState(0), np.random.RandomState(0), np.random.default_rng(0))
    )
    np.testing.assert_array_equal(first, second)
    assert not np.array_equal(first, other)
    seed = int(np.random.default_rng(0).integers(2**31))
    same = PermuCATE(random_state=seed, **settings).fit(sample.X, sample.y, sample.treatment)
    np.testing.assert_allclose(same.importances_, other)


def test_the_picture_marks_what_the_adjusted_test_rejects(sample):
    fitted = PermuCATE(n_permutations=2, random_state=0).fit(sample.X, sample.y, sample.treatment)
    fitted.result_ = replace(fitted.result_, names=("$\\frac{", *fitted.names_[1:]))
    for adjustment in ("none", "holm"):
        figure = draw_importances(fitted.result_, adjustment=adjustment)
        figure.draw_without_rendering()
        filled = figure.axes[0].lines[0]
        expected = adjust(fitted.pvalues_, adjustment) < 0.05
        assert sorted(filled.get_xdata()) == sorted(fitted.importances_[expected])


def test_weak_overlap_and_small_arms_are_warned_of():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(400, 2))
    a = (X[:, 0] + 0.02 * rng.normal(size=400) > 0).astype(int)
    learner = DRLearner(classifier=LogisticRegression(C=1e4))
    with pytest.warns(UserWarning, match="of the rows have a propensity below 0.01 or above 0.99"):
        PermuCATE(learner, n_permutations=2, random_state=0).fit(X, a + X[:, 1], a)
    small = (np.arange(400) % 10 == 0).astype(int)
    with pytest.warns(UserWarning, match="treatment arm 1 has 40 rows only"):
        PermuCATE(n_permutations=2, random_state=0).fit(X, X[:, 1], small)


def test_classes_of_the_propensity_may_come_in_any_order(sample):
    class Reversed(LogisticRegression):
        def fit(self, X, y):
            super().fit(X, y)
            self.classes_ = self.classes_[::-1]
            return self

        def predict_proba(self, X):
            return super().predict_proba(X)[:, ::-1]

    plain, turned = (
        NuisanceModels(Ridge(), model).fit(sample.X, sample.y, sample.treatment).predict(sample.X).propensity
        for model in (LogisticRegression(), Reversed())
    )
    np.testing.assert_allclose(turned, plain)
