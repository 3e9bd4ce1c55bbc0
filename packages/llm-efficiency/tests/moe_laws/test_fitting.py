"""Fits: the objective and its gradient, recovery of known laws, what runs are refused."""

import math

import numpy as np
import pandas as pd
import polars as pl
import pytest
from scipy.special import huber

from hexad.core.errors import InputError
from hexad.llm_efficiency.moe_laws import (
    ChinchillaLaw,
    ClarkLaw,
    JointMoELaw,
    Runs,
    fit,
    read_runs,
)
from hexad.llm_efficiency.moe_laws.fit_checks import fit_warnings
from hexad.llm_efficiency.moe_laws.objective import COEFFICIENTS, Objective, from_vector, to_vector
from hexad.llm_efficiency.moe_laws.published import TRAINING_GRID
from hexad.llm_efficiency.moe_laws.runs import choose_holdout
from hexad.llm_efficiency.moe_laws.study_recovery import noisy_grid

PAPER = {name: getattr(JointMoELaw(), name) for name in COEFFICIENTS}


def _objective(runs, **options):
    return Objective(runs, np.linspace(0.5, 1.5, len(runs)), **options)


def test_logsumexp_form_equals_the_direct_form(make_runs, paper):
    runs = make_runs()
    found, _ = _objective(runs).log_loss(to_vector(PAPER))
    direct = np.log(paper.loss(runs.n_active, runs.tokens, runs.experts))
    assert np.abs(found - direct).max() < 1e-12
    plain = PAPER | {"e_start": 1.0, "e_max": math.inf}
    law = JointMoELaw(**plain)
    found, _ = _objective(runs).log_loss(to_vector(plain))
    assert np.abs(found - np.log(law.loss(runs.n_active, runs.tokens, runs.experts))).max() < 1e-12


@pytest.mark.parametrize("reduction", ["sum", "mean"])
@pytest.mark.parametrize("noise", [0.001, 0.05])
def test_the_gradient_is_that_of_the_objective(make_runs, noise, reduction):
    # Small noise lies within Huber's parabola, large noise mostly beyond.
    objective = _objective(make_runs(noise), reduction=reduction)
    theta = to_vector(PAPER) * 1.0001
    value, gradient = objective(theta)
    steps = 1e-6 * np.eye(11)
    numeric = [(objective(theta + step)[0] - objective(theta - step)[0]) / 2e-6 for step in steps]
    assert value > 0
    # Each entry, since those of E_start and E_max are a thousandth of the others.
    assert gradient == pytest.approx(np.array(numeric), rel=1e-5, abs=1e-9 * np.abs(gradient).max())


def test_the_objective_is_the_weighted_sum_of_huber_losses(make_runs, paper):
    runs = make_runs(0.02)
    residuals = np.log(paper.loss(runs.n_active, runs.tokens, runs.experts)) - np.log(runs.loss)
    weights = np.linspace(0.5, 1.5, len(runs))
    theta = to_vector(PAPER)
    whole = float(weights @ huber(0.01, residuals))
    assert _objective(runs)(theta)[0] == pytest.approx(whole, rel=1e-9)
    assert _objective(runs, reduction="mean")(theta)[0] == pytest.approx(whole / len(runs), rel=1e-9)
    # And what Gauss-Newton steps minimise is the same: SciPy's cost is delta²/2 Σ rho((r/delta)²).
    rho = _objective(runs).rho((residuals / 0.01) ** 2)[0]
    assert 0.5 * 0.01**2 * rho.sum() == pytest.approx(whole, rel=1e-9)


def test_vectors_and_coefficients_are_inverse():
    assert from_vector(to_vector(PAPER)) == pytest.approx(PAPER, rel=1e-12)
    plain = PAPER | {"b": 0.0, "c": 0.0, "e_max": math.inf}
    assert from_vector(to_vector(plain)) == pytest.approx(plain, rel=1e-12)


def test_noise_free_runs_are_fitted_exactly(make_runs, paper):
    result = fit(make_runs(), n_starts=8, holdout="lowest:6", seed=1)
    # No start is the truth, and the runs held out are the best ones.
    assert result.rmse_train < 1e-4
    assert result.rmse_holdout < 5e-4
    assert result.held_out.sum() == 6
    assert result.starts >= 1
    sizes = [result.law.chinchilla(8).optimum(flops).n_active for flops in (1e20, 1e21)]
    assert sizes == pytest.approx(
        [paper.chinchilla(8).optimum(flops).n_active for flops in (1e20, 1e21)], rel=0.05
    )


@pytest.mark.slow
def test_the_papers_grid_is_recovered(paper):
    runs, truth = noisy_grid(500)
    result = fit(runs, n_starts=16)
    predicted = runs.loss + result.residuals
    assert len(runs) == 252
    # Thresholds of the study: the noise is 0.0025 of the loss, some 0.0075 nats.
    assert np.sqrt(np.mean((predicted - truth)[result.held_out] ** 2)) < 0.006
    assert 0.005 < result.rmse_train < 0.01


@pytest.mark.slow
def test_ablations_are_worse():
    runs, truth = noisy_grid(501)

    def error(**options):
        result = fit(runs, n_starts=8, **options)
        return np.sqrt(np.mean((runs.loss + result.residuals - truth)[result.held_out] ** 2))

    whole = error()
    assert error(fixed={"e_start": 1, "e_max": math.inf}) > 1.3 * whole
    assert error(reduction="mean", polish=False) > 1.3 * whole


def test_the_grid_of_the_paper_has_252_runs():
    assert len(TRAINING_GRID) == len(set(TRAINING_GRID)) == 252
    assert {experts for _, _, experts in TRAINING_GRID} == {1, 2, 4, 8, 16, 32}


def test_a_chinchilla_law_is_recovered():
    law = ChinchillaLaw(406.4, -0.34, 410.7, -0.28, 1.69)
    n_active, tokens = (grid.ravel() for grid in np.meshgrid([1e8, 3e8, 1e9, 3e9], [4e8, 2e9, 1e10, 5e10]))
    runs = Runs(n_active, tokens, np.full(16, 8.0), law.loss(n_active, tokens))
    result = fit(runs, "chinchilla", n_starts=8, holdout="longest:4")
    assert result.rmse_holdout < 1e-3
    assert result.law.mu == pytest.approx(-0.34, abs=0.02)
    assert result.law.c == pytest.approx(1.69, abs=0.05)
    assert result.law.ranges.experts == (8, 8)
    assert result.ci == {}


def test_a_clark_law_is_recovered():
    law = ClarkLaw(10.0, -0.08, -0.1, 0.004, 1.5, 200.0)
    n_active, experts = (grid.ravel() for grid in np.meshgrid([1e8, 3e8, 1e9, 3e9], [1, 2, 8, 32, 64]))
    runs = Runs(n_active, np.full(20, 1e10), experts, law.loss(n_active, 1e10, experts))
    result = fit(runs, "clark", n_starts=8, holdout="none")
    assert isinstance(result.law, ClarkLaw)
    assert result.rmse_train < 1e-3
    assert result.rmse_holdout is None


def test_coefficients_can_be_fixed(make_runs):
    result = fit(make_runs(0.002), n_starts=2, holdout=None, fixed={"gamma": 0, "zeta": 0, "c": 1.5})
    assert (result.law.gamma, result.law.zeta) == (0, 0)
    assert result.law.c == pytest.approx(1.5, rel=1e-12)


def test_seeds_reproduce_and_bootstrap_gives_intervals(make_runs):
    runs = make_runs(0.002)
    first, second = (fit(runs, n_starts=3, bootstrap=8, holdout="lowest:4", seed=5) for _ in range(2))
    assert first.law == second.law
    assert first.ci == second.ci
    assert set(first.ci) == set(COEFFICIENTS)
    assert all(low <= high for low, high in first.ci.values())
    assert first.ci["c"][0] < first.ci["c"][1]
    assert len(first.draws) == 8


def test_doubtful_fits_warn(make_runs):
    runs = make_runs(0.002)
    alone = fit(runs, n_starts=1, bootstrap=2, holdout=None).warnings
    assert any("only 1 of 1 start(s) reached this fit" in line for line in alone)
    assert any("2 bootstrap samples are too few" in line for line in alone)
    three = fit(make_runs(0.002, experts=(1, 2, 8)), n_starts=4, holdout=None).warnings
    assert any(line.endswith("trust this law at 1, 2, 8 experts, not at others") for line in three)
    # Losses that do not depend on E say nothing of e_start and e_max.
    flat = Runs(runs.n_active, runs.tokens, runs.experts, make_runs(experts=(1,) * 4).loss)
    found = fit(flat, n_starts=2, holdout=None)
    assert all("at the end of what is searched" in line or "1 of 2" in line for line in found.warnings)


def test_a_sound_fit_does_not_warn(make_runs):
    found = fit(make_runs(), n_starts=16, holdout=None)
    assert found.starts > 1
    assert found.warnings == ()


def test_coefficients_at_the_end_of_their_search_are_named(make_runs):
    runs = make_runs()
    best = to_vector(PAPER | {"e_start": 100.0, "e_max": 110.0})
    assert [line[:30] for line in fit_warnings(runs, JointMoELaw(), {}, best, 2, 2, 0)] == [
        "e_start is 100, at the end of ",
        "e_max is 110, at the end of wh",
    ]
    assert fit_warnings(runs, JointMoELaw(), {"e_start": 1.0, "e_max": 2.0}, best, 2, 2, 0) == ()
    assert fit_warnings(runs, JointMoELaw(), {}, to_vector(PAPER), 2, 2, 40) == ()


def test_fits_that_cannot_be_planned_by_say_so(make_runs):
    def lines(law):
        return fit_warnings(make_runs(), law, {}, to_vector(PAPER), 2, 2, 0)

    (line,) = lines(JointMoELaw(beta=-0.2, zeta=0.08))
    assert line.startswith(
        "by this law the loss does not fall both with active parameters and with tokens at 32 e"
    )
    assert "at 1, 2, 8, 32 expert(s)" in lines(ChinchillaLaw(1.0, 0.1, 1.0, -0.1, 1.0))[0]
    assert lines(ChinchillaLaw(1.0, -0.1, 1.0, -0.1, 1.0)) == ()
    assert lines(ClarkLaw(10.0, -0.1, -0.1, 0.01, 1.5, 300.0)) == ()
    # Losses that rise with the tokens, as of runs that overfit.
    runs = make_runs()
    turned = Runs(runs.n_active, runs.tokens, runs.experts, runs.loss * (runs.tokens / 1e9) ** 0.1)
    assert any("cannot be planned" in line for line in fit(turned, n_starts=2, holdout=None).warnings)


def test_weights_and_selection(make_runs):
    runs = make_runs(0.01, seed=3)
    plain = fit(runs, n_starts=2, holdout=None).law
    weighted = fit(runs, n_starts=2, holdout=None, weighting="inverse-loss").law
    assert weighted != plain
    both = fit(runs, n_starts=4, holdout="lowest:6", select="both")
    train = fit(runs, n_starts=4, holdout="lowest:6")
    assert train.objective <= both.objective * (1 + 1e-6)


def test_progress_is_told(make_runs):
    told = []
    fit(
        make_runs(),
        n_starts=2,
        bootstrap=1,
        holdout=None,
        progress=lambda share, note: told.append((share, note)),
    )
    assert [share for share, _ in told] == sorted(share for share, _ in told)
    assert told[-1][1] == "bootstrap 1 of 1"


def test_tables_of_several_kinds_are_taken(make_runs, tmp_path):
    runs = make_runs()
    columns = {name: getattr(runs, name) for name in ("n_active", "tokens", "experts", "loss")}
    pl.DataFrame(columns).write_csv(tmp_path / "runs.csv")
    pl.DataFrame(columns).write_csv(tmp_path / "runs.tsv", separator="\t")
    pl.DataFrame(columns).write_parquet(tmp_path / "runs.parquet")
    tables = [columns, pl.DataFrame(columns), pd.DataFrame(columns)]
    read = [read_runs(tmp_path / f"runs.{kind}") for kind in ("csv", "tsv", "parquet")]
    for found in [*map(Runs.of, tables), *read]:
        assert np.array_equal(found.loss, runs.loss)
        assert np.array_equal(found.experts, runs.experts)


@pytest.mark.parametrize(
    ("holdout", "held"),
    [
        ("lowest:2", [3, 4]),
        ("longest:2", [0, 4]),
        ("largest:1", [2]),
        ("lowest:40%", [3, 4]),
        ("lowest:37.5%", [3, 4]),
        (None, []),
        ("none", []),
        (np.array([True, False, False, False, False]), [0]),
    ],
)
def test_holdouts(holdout, held):
    runs = Runs(*np.array([[1, 2, 9, 4, 5], [9, 1, 2, 3, 8], [1] * 5, [5, 4, 3, 1, 2]], dtype=float))
    assert np.flatnonzero(choose_holdout(runs, holdout)).tolist() == held


def _row(**change):
    base = {"n_active": [1e8] * 3, "tokens": [1e9] * 3, "experts": [1.0] * 3, "loss": [3.0] * 3}
    for name, value in change.items():
        base[name] = [*base[name][:1], value, *base[name][2:]]
    return base


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"loss": 0}, r"loss of run 2 \(the first is 1\) is 0; it must be positive and at most 100 nats"),
        ({"loss": -1}, "loss of run 2 .* is -1"),
        ({"loss": 1e5}, "loss of run 2 .* is 100000"),
        ({"loss": math.nan}, "loss of run 2 .* is missing"),
        ({"loss": math.inf}, "loss of run 2 .* is inf"),
        ({"loss": "three"}, "loss of run 2 .* is 'three'"),
        ({"n_active": 0}, "n_active of run 2 .* is 0"),
        ({"n_active": 79}, "n_active of run 2 .* is 79; it must be a count of at least 1000, such as 79e6"),
        ({"n_active": "80M"}, "n_active of run 2 .* is '80M'; it must be a count"),
        ({"tokens": -5}, "tokens of run 2"),
        ({"tokens": 2}, "tokens of run 2 .* is 2; it must be a count of at least 1000"),
        ({"experts": 0}, "experts of run 2"),
        ({"experts": 2.5}, "experts of run 2 .* is 2.5; it must be a whole number"),
        ({"experts": None}, "experts of run 2 .* is missing"),
    ],
)
def test_runs_that_cannot_be(change, words):
    with pytest.raises(InputError, match=words):
        Runs.of(_row(**change))


def test_missing_and_uneven_columns():
    columns = _row()
    del columns["loss"]
    with pytest.raises(InputError, match="lack the column loss"):
        fit(columns)
    with pytest.raises(InputError, match="different lengths"):
        Runs.of(_row() | {"loss": [3.0]})
    with pytest.raises(InputError, match="lack the columns"):
        Runs.of([1, 2, 3])
    with pytest.raises(InputError, match="the table has columns but no rows"):
        Runs.of({name: [] for name in columns} | {"loss": []})
    with pytest.raises(InputError, match=r"the runs are a path, 'runs\.csv'; give read_runs\('runs\.csv'\)"):
        fit("runs.csv")


GOOD = "8e7,1e9,1,3.5\n8e7,2e9,8,3.25\n"
HEADER = "n_active,tokens,experts,loss\n"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.csv", HEADER + GOOD),
        ("a.CSV", "\ufeff" + HEADER + GOOD),
        ("a.csv", "# trained in May, on FineWeb\n" + HEADER + "# small\n" + GOOD),
        ("a.csv", (HEADER + GOOD).replace(",", ";")),
        ("a.csv", (HEADER + GOOD).replace(",", "\t")),
        ("a.tsv", (HEADER + GOOD).replace(",", ", ")),
        ("a.csv", (HEADER + GOOD).replace("\n", "\r\n\r\n")),
        ("a.csv", "name," + HEADER + GOOD.replace("8e7,", '"small, Ω",80000000,')),
    ],
)
def test_text_tables_are_read_as_people_write_them(tmp_path, name, text):
    (tmp_path / name).write_bytes(text.encode())
    found = read_runs(tmp_path / name)
    assert found.n_active.tolist() == [8e7, 8e7]
    assert found.tokens.tolist() == [1e9, 2e9]
    assert found.experts.tolist() == [1, 8]
    assert found.loss.tolist() == [3.5, 3.25]


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.csv", b"", "the file is empty; its first line must name the columns: n_active"),
        ("a.csv", HEADER.encode(), "the table has columns but no rows"),
        ("a.csv", (HEADER + GOOD.replace("3.25", "")).encode(), "loss of run 2 .* is missing"),
        ("a.csv", (HEADER + GOOD.replace("3.25", '""')).encode(), "loss of run 2 .* is missing"),
        ("a.csv", (HEADER + GOOD.replace("3.25", "NA")).encode(), "loss of run 2 .* is 'NA'"),
        (
            "a.csv",
            (HEADER + GOOD.replace("2e9", '"1,000,000"')).encode(),
            "tokens of run 2 .* is '1,000,000'",
        ),
        ("a.csv", (HEADER + GOOD).replace(",", ";").replace(".", ",").encode(), "loss of run 1 .* is '3,5'"),
        ("a.csv", (HEADER + GOOD).replace("3.5", "3,5").encode(), "the row '8e7,1e9,1,3,5' has more cells"),
        ("a.csv", (HEADER + GOOD).encode("utf-16"), "no text in UTF-8"),
        ("a.csv", (HEADER + GOOD).encode("utf-16-le"), "no text in UTF-8"),
        ("a.json", b'[{"n_active": 1}]', r"give a \.csv, \.tsv or \.parquet file"),
        ("a.parquet", b"PAR", "cannot be read as a table"),
    ],
)
def test_files_that_hold_no_runs(tmp_path, name, content, words):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(InputError, match=words) as caught:
        read_runs(path)
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)
    assert str(caught.value).isprintable()


def test_too_few_runs_and_single_experts_are_refused_and_chinchilla_offered(make_runs):
    runs = make_runs()
    with pytest.raises(InputError, match=r"10 distinct runs.*chinchilla"):
        fit(runs[np.arange(len(runs)) < 10], holdout=None)
    repeated = runs[np.arange(100) % 10]
    with pytest.raises(InputError, match="10 distinct runs"):
        fit(repeated, holdout=None)
    single = make_runs(experts=(8,))
    with pytest.raises(InputError, match=r"(?s)distinct runs.*chinchilla"):
        fit(single, holdout=None)
    many = Runs(*(np.tile(getattr(single, name), 2) for name in ("n_active", "tokens", "experts", "loss")))
    many = Runs(many.n_active * np.linspace(1, 1.1, len(many)), many.tokens, many.experts, many.loss)
    with pytest.raises(InputError, match=r"all runs have 8 expert.*chinchilla"):
        fit(many, holdout=None)
    with pytest.raises(InputError, match=r"1, 2, 8, 32 experts.*joint"):
        fit(runs, "chinchilla", holdout=None)
    two = make_runs(experts=(1, 2, 8))
    two = two[two.experts < 8]
    with pytest.raises(InputError, match=r"have 1, 2 experts, and two numbers.*chinchilla law"):
        fit(two, holdout=None)
    with pytest.raises(InputError, match=r"have 1, 2 experts"):
        fit(two, holdout=None, fixed={"e_start": 1})
    assert fit(two, holdout=None, n_starts=1, fixed={"e_start": 1, "e_max": math.inf}).rmse_train < 0.1
    with pytest.raises(InputError, match=r"1e\+09 to 2e\+10 tokens, and a Clark law holds for one number"):
        fit(runs, "clark", holdout=None)
    with pytest.raises(InputError, match=r"2 value\(s\) of tokens"):
        fit(runs, holdout=runs.tokens == runs.tokens.max())
    with pytest.raises(InputError, match="keeps none"):
        fit(runs, holdout="lowest:36")
    with pytest.raises(InputError, match="hold out fewer"):
        fit(runs, holdout="lowest:30")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"law": "cubic"}, "law"),
        ({"n_starts": 0}, "n_starts"),
        ({"bootstrap": -1}, "bootstrap"),
        ({"holdout": "worst:3"}, "holdout"),
        ({"holdout": "lowest:many"}, "holdout"),
        ({"holdout": np.zeros(3)}, "holdout"),
        ({"holdout": "lowest:2.5"}, "holdout"),
        ({"holdout": "lowest:101%"}, "keeps none"),
        ({"seed": -1}, "seed is -1; it must be a whole number of at least 0"),
        ({"fixed": {"kappa": 0}}, "coefficient"),
        ({"fixed": {"c": -1}}, "c is -1"),
        ({"fixed": {"gamma": math.nan}}, "gamma"),
        ({"fixed": {"e_start": 5, "e_max": 4}}, "e_max"),
        ({"reduction": "median"}, "reduction"),
        ({"weighting": "loss"}, "weighting"),
        ({"select": "test"}, "select"),
        ({"huber_delta": 0}, "huber_delta"),
    ],
)
def test_options_that_cannot_be(make_runs, options, words):
    with pytest.raises(InputError, match=words):
        fit(make_runs(), **{"holdout": None} | options)
