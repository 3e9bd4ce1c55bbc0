"""The study at its tiny size, from the command line's own entry, and its problems against their sources."""

import importlib.util
import json
import sys

import numpy as np
import pytest

from hexad.core.errors import MissingExtraError
from hexad.core.methods import get_method
from hexad.rl_graph.gs_poweropt import study_problems
from hexad.rl_graph.gs_poweropt.study_arms import GRIDS, SEARCHES, grid_of, search, tuned
from hexad.rl_graph.gs_poweropt.study_problems import FITS, Counted, SpentError, attack, fitted_network

# Skipped where the study's extra is not installed.
STUDY = pytest.importorskip("hexad.rl_graph.gs_poweropt.study").STUDY
SWEEP = pytest.importorskip("hexad.rl_graph.gs_poweropt.sweep").SWEEP
ARMS = [arm.name for arm in STUDY.arms]


@pytest.fixture(scope="module")
def folder(prove, tmp_path_factory):
    out = tmp_path_factory.mktemp("results")
    assert prove("gs-poweropt", out) == 0
    return out


@pytest.fixture(scope="module")
def value(measured, folder):
    found = measured("gs-poweropt", folder)
    return lambda arm, metric, case: found[arm, metric, case]


def test_every_arm_measures(value):
    for arm in SEARCHES:
        assert 0 <= value(arm, "success", "attack") <= 1
        assert value(arm, "norm", "attack") > 0
        if arm != "nevergrad":
            assert 0 < value(arm, "r2", "sunspots") < 0.4251
            assert value(arm, "log_value", "rastrigin") < 3
    for arm in ("gspower", "paper"):
        assert value(arm, "mse", "two-log-2/N=4") > 0
    assert 1 <= value("pgs", "ess", "two-log-2/N=30") <= 100
    assert value("smoothing", "ess", "two-log-2/N=0") == pytest.approx(100)
    assert value("gspower", "time", "attack") == 1


def test_a_second_run_measures_nothing_again(prove, folder, capsys):
    records = folder / "gs-poweropt" / "tiny" / "records"
    before = {path: path.stat().st_mtime_ns for path in records.rglob("*.parquet")}
    assert len(before) == len(ARMS)
    assert prove("gs-poweropt", folder) == 0
    assert {path: path.stat().st_mtime_ns for path in records.rglob("*.parquet")} == before
    content = json.loads(capsys.readouterr().out)
    assert {item["verdict"] for item in content["pages"][0]["judgements"]} == {"not measured"}


def test_figures_are_drawn(folder):
    figures = folder / "gs-poweropt" / "tiny" / "figures"
    assert {path.stem for path in figures.glob("*.png")} == {"sweep", "attacks", "digits", "fits"}


@pytest.mark.parametrize("arm", list(SEARCHES))
def test_every_arm_spends_the_same_evaluations(arm):
    """The counter stops all alike; those that smooth may leave what is less than a step or Nelder-Mead's."""
    calls = []
    problem = attack(5, 0, 1)
    counted = Counted(problem, 230)
    values = counted.problem.values

    def count(X):
        calls.append(len(X))
        return values(X)

    counted.problem = study_problems.Problem("attack", count, problem.x0)
    search(arm, counted, 0, tuned(arm, "attack"))
    assert sum(calls) == counted.used <= 230
    assert counted.used >= 220


def test_the_counter_gives_nothing_beyond_its_budget():
    counted = Counted(FITS["rastrigin"](0), 5)
    counted.rows(np.zeros((3, 10)))
    with pytest.raises(SpentError):
        counted.rows(np.full((4, 10), 1.0))
    assert counted.used == 5
    with pytest.raises(SpentError):
        counted.one(np.zeros(10))
    assert counted.best == min(counted.problem.values(np.array([np.zeros(10), np.full(10, 1.0)])))


def test_the_network_is_scikit_learns_own():
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split
    from sklearn.neural_network import MLPClassifier

    network = fitted_network(7, 4)
    X, y = load_digits(return_X_y=True)
    train, _, y_train, _ = train_test_split(X / 16, y, stratify=y, random_state=7)
    model = MLPClassifier((64, 32), max_iter=400, random_state=7).fit(train, y_train)
    logits = network.logits(X / 16)
    shifted = logits - logits.max(1, keepdims=True)
    logs = shifted - np.log(np.exp(shifted).sum(1, keepdims=True))
    # scikit-learn gives log of probabilities, which have lost the digits of the smallest.
    likely = model.predict_log_proba(X / 16) > -30
    np.testing.assert_allclose(logs[likely], model.predict_log_proba(X / 16)[likely], atol=1e-6)
    assert network.accuracy > 0.96
    problem = attack(7, 1, 4)
    delta = np.random.default_rng(0).normal(size=(3, 64)) / 8
    probabilities = model.predict_log_proba(network.images[1] + delta)
    target = network.targets[1]
    margins = np.delete(probabilities, target, 1).max(1) - probabilities[:, target]
    expected = np.maximum(margins, -1e-3) + np.linalg.norm(delta, axis=1)
    np.testing.assert_allclose(problem.values(delta), expected, atol=1e-6)


def test_the_fits_have_the_optima_that_are_known():
    best = 1 - study_problems.unexplained(np.array([[9.0727, 9.9802], [9.9802, 9.0727]]))
    np.testing.assert_allclose(best, study_problems.SUNSPOTS_R2, atol=2e-5)
    # An independent least-squares fit.
    t, y = study_problems._sunspots()
    angles = 2 * np.pi * np.outer(t, [9.0727, 9.9802])
    design = np.column_stack([np.ones_like(t), np.cos(angles), np.sin(angles)])
    rest = y - design @ np.linalg.lstsq(design, y, rcond=None)[0]
    assert 1 - rest @ rest / (y @ y) == pytest.approx(best[0], abs=1e-6)
    for name in ("rastrigin", "griewank"):
        for seed in range(3):
            problem = FITS[name](seed)
            rng = np.random.default_rng([seed, 1 if name == "rastrigin" else 2])
            width = problem.upper[0]
            at = rng.uniform(-width / 2, width / 2, 10)
            assert problem.values(at[None])[0] == pytest.approx(0, abs=1e-9)
            assert problem.values(problem.x0[None])[0] > 1


def test_all_arms_were_tried_with_as_many_settings():
    for arm, grids in GRIDS.items():
        for kind, grid in grids.items():
            assert len(grid) == (1 if (arm, kind) == ("random", "fit") else 8)
            assert len({json.dumps(settings, sort_keys=True) for settings in grid}) == len(grid)
        for problem in ("attack", *(FITS if "fit" in grids else ())):
            assert tuned(arm, problem) in grid_of(arm, problem)


def test_the_sweep_keeps_clear_of_the_seeds_that_are_reported():
    reported, swept = (
        {preset.config.first_seed + seed for preset in study.presets.values() for seed in range(preset.seeds)}
        for study in (STUDY, SWEEP)
    )
    assert not reported & swept


def test_a_missing_package_is_named_before_anything_runs(monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "cma" else find(name))
    monkeypatch.delitem(sys.modules, "hexad.rl_graph.gs_poweropt.study", raising=False)
    with pytest.raises(MissingExtraError, match=r'cma.*pip install "hexad-rl-graph\[study\]"'):
        get_method("gs-poweropt").load_study()
