"""Tests and intervals beside scipy's, and what is refused."""

import numpy as np
import pytest
from scipy import stats

from hexad.core.errors import InputError
from hexad.science_ml.permucate.inference import adjust, nadeau_bengio, one_split


def test_the_corrected_t_equals_scipys_where_nothing_is_corrected():
    folds = np.random.default_rng(0).normal(0.4, 1, size=(10, 3))
    found = nadeau_bengio(folds, 0.0)
    expected = stats.ttest_1samp(folds, 0.0, alternative="greater")
    np.testing.assert_allclose(found.pvalues, expected.pvalue, rtol=1e-12)
    two_sided = stats.ttest_1samp(folds, 0.0).confidence_interval(0.9)
    np.testing.assert_allclose(found.interval(0.9), np.stack(two_sided, axis=1), rtol=1e-12)


def test_the_correction_widens_the_error_by_its_formula():
    folds = np.random.default_rng(0).normal(size=(25, 1))
    ratio = nadeau_bengio(folds, 0.25).standard_error / nadeau_bengio(folds, 0.0).standard_error
    assert ratio[0] == pytest.approx(np.sqrt((1 / 25 + 1 / 4) / (1 / 25)))


def test_one_fold_gives_no_t_test_and_nineteen_rows_no_normal_test():
    with pytest.raises(InputError, match="at least 2 folds"):
        nadeau_bengio(np.zeros((1, 3)), 0.25)
    with pytest.raises(InputError, match="19 rows; at least 20"):
        one_split(np.zeros((3, 19)))


def test_one_split_is_the_normal_test_of_row_means():
    rows = np.random.default_rng(0).normal(0.1, 1, size=(2, 400))
    expected = stats.norm.sf(rows.mean(axis=1) / stats.sem(rows, axis=1))
    np.testing.assert_allclose(one_split(rows).pvalues, expected, rtol=1e-12)


def test_no_variation_gives_no_nan():
    found = nadeau_bengio(np.array([[0.0, 2.0], [0.0, 2.0]]), 0.25)
    np.testing.assert_array_equal(found.pvalues, [1.0, 0.0])
    np.testing.assert_array_equal(found.interval(), [[0, 0], [2, 2]])


def test_adjustments_have_their_textbook_values():
    p = np.array([0.01, 0.04, 0.03, 0.005])
    np.testing.assert_allclose(adjust(p, "holm"), [0.03, 0.06, 0.06, 0.02])
    np.testing.assert_allclose(adjust(p, "bh"), [0.02, 0.04, 0.04, 0.02])
    np.testing.assert_allclose(adjust(p, "none"), p)
    np.testing.assert_allclose(adjust(np.array([0.6, 0.7]), "holm"), [1.0, 1.0])
    with pytest.raises(InputError, match="unknown adjustment"):
        adjust(p, "bonferroni")
