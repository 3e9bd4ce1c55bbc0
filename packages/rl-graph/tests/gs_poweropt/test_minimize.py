"""`minimize_gspower` beside SciPy's conventions."""

import concurrent.futures
import math
import os
import signal
import threading
from itertools import pairwise

import numpy as np
import pytest
import scipy.optimize
from scipy.optimize import Bounds, OptimizeResult, OptimizeWarning

from hexad.core.errors import InputError
from hexad.rl_graph.gs_poweropt import GSPower, Settings, minimize_gspower
from hexad.rl_graph.gs_poweropt.box import box_of
from hexad.rl_graph.gs_poweropt.study_problems import two_log
from hexad.rl_graph.gs_poweropt.weighting import log_gradient


def sphere(x):
    return float(np.square(x - 1).sum())


def two_log_columns(X):
    return two_log(X.T)


QUICK = {"maxiter": 30, "popsize": 20, "sigma": 0.5, "rng": 0}


def test_the_global_peak_is_found_and_the_power_does_it():
    """N = 1 is the control: from the same starts it stays between the peaks.

    From 100 other starts 87 end within 0.02; fewer than 15 of 20 has a chance of 1 in 20.
    """
    errors = {}
    for power in (1.0, 4.0):
        ends = []
        for start in range(20):
            x0 = np.random.default_rng(start).uniform(-1, 1, 2)
            found = minimize_gspower(
                two_log_columns, x0, power=power, maxiter=500, baseline="none", vectorized=True, rng=start
            )
            ends.append(float(np.square(found.x_mean + 0.5).mean()))
        errors[power] = np.array(ends)
    assert (errors[4.0] < 0.02).mean() >= 0.75
    assert errors[4.0].max() < 0.1
    assert errors[1.0].mean() > 0.1


def test_the_best_point_seen_is_what_is_returned_and_all_calls_are_counted():
    seen = []

    def fun(x):
        seen.append((sphere(x), x.copy()))
        x[:] = np.nan  # a function may spoil what it is given
        return seen[-1][0]

    found = minimize_gspower(fun, [3.0, 0.0, 0.0], **QUICK)
    assert found.nfev == len(seen) == 1 + 30 * 20 + 1
    value, x = min(seen, key=lambda pair: pair[0])
    assert found.fun == value
    np.testing.assert_array_equal(found.x, x)
    np.testing.assert_array_equal(found.x_mean, seen[-1][1])
    assert found.fun_mean == seen[-1][0]
    assert found.ess.shape == (30,)
    assert ((found.ess >= 1) & (found.ess <= 20)).all()
    assert found.accuracy == 0.5 / math.sqrt(20)
    assert found.step_length == pytest.approx(0.1 * 1000 / 1029)
    assert (found.success, found.status, found.nit, found.stalls) == (True, 0, 30, 0)
    assert "sigma/sqrt(popsize) = 0.112" in found.message


def test_the_mean_can_be_a_candidate():
    found = minimize_gspower(sphere, [1.0, 1.0], evaluate_mean=True, evaluate_start=False, **QUICK)
    assert found.fun == 0
    np.testing.assert_array_equal(found.x, [1, 1])
    assert found.nfev == 30 * 21 + 1


def test_sigma_stays_and_steps_have_the_length_of_the_schedule():
    spreads, means = [], []

    def fun(X):
        spreads.append(X.std(1).mean())
        return np.square(X).sum(0)

    found = minimize_gspower(
        fun, np.full(40, 2.0), vectorized=True, popsize=200, maxiter=60, learning_rate=0.3, decay=20,
        sigma=0.7, power=0.2, return_all=True, rng=0, evaluate_start=False,
    )  # fmt: skip
    means = np.array(found.allvecs)
    assert means.shape == (61, 40)
    lengths = np.linalg.norm(np.diff(means, axis=0), axis=1)
    np.testing.assert_allclose(lengths, 0.3 * 20 / (20 + np.arange(60)), rtol=1e-9)
    # 8000 numbers a step: their spread is known to 1 %; sigma as a variance would be 0.84.
    np.testing.assert_allclose(spreads[:-1], 0.7, rtol=0.03)
    np.testing.assert_allclose(found.x_mean, means[-50:].mean(0))


def test_without_normalising_a_step_is_the_gradient():
    settings = {"popsize": 50, "sigma": 0.3, "power": 0.7, "learning_rate": 0.2, "decay": math.inf}
    plain = minimize_gspower(
        sphere, [2.0, 0.0], normalize=False, maxiter=1, return_all=True, rng=1, **settings
    )
    noise = np.random.default_rng(1).standard_normal((50, 2))
    values = np.array([sphere(x) for x in np.array([2.0, 0.0]) + 0.3 * noise])
    expected = np.array([2.0, 0.0]) + 0.2 * log_gradient(values, noise, Settings(normalize=False, **settings))
    np.testing.assert_allclose(plain.allvecs[1], expected, rtol=1e-9)


def test_seeds_reproduce_and_generators_go_on():
    first, again = (minimize_gspower(sphere, [3.0, 0.0], return_all=True, **QUICK) for _ in range(2))
    np.testing.assert_array_equal(first.allvecs, again.allvecs)
    other = minimize_gspower(sphere, [3.0, 0.0], return_all=True, **(QUICK | {"rng": 1}))
    assert not np.allclose(first.allvecs[1], other.allvecs[1])
    rng = np.random.default_rng(0)
    one, two = (minimize_gspower(sphere, [3.0, 0.0], **(QUICK | {"rng": rng})) for _ in range(2))
    assert one.fun == first.fun != two.fun


def rows(X):
    return np.square(X - 1).sum(1)


def columns(X):
    return np.square(X - 1).sum(0)


def test_scalar_vectorized_and_parallel_calls_agree():
    expected = minimize_gspower(sphere, [3.0, 0.0], return_all=True, **QUICK)
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        for fun, options in (
            (columns, {"vectorized": True}),
            (rows, {"vectorized": "rows"}),
            (sphere, {"workers": pool.map}),
            (sphere, {"workers": 2}),
        ):
            found = minimize_gspower(fun, [3.0, 0.0], return_all=True, **options, **QUICK)
            np.testing.assert_allclose(found.allvecs, expected.allvecs, rtol=1e-9)
            assert found.nfev == expected.nfev


def test_values_summed_along_the_wrong_axis_show_even_where_k_is_d():
    with pytest.raises(InputError, match=r"is given an array of shape \(20, 19\), one point a column"):
        minimize_gspower(rows, np.zeros(20), popsize=20, maxiter=5, vectorized=True, evaluate_start=False)
    found = minimize_gspower(columns, np.zeros(20), popsize=20, maxiter=5, vectorized=True)
    assert found.nfev == 102


def test_it_serves_as_scipys_method():
    def fun(x, a, b):
        return (x[0] - a) ** 2 + b * (x[1] - x[0]) ** 2

    options = {"rng": 0, "sigma": 0.3, "popsize": 30, "maxiter": 100, "polish": True}
    found = scipy.optimize.minimize(
        fun, [2.0, -1.0], args=(0.5, 2.0), method=minimize_gspower, options=options
    )
    assert isinstance(found, OptimizeResult)
    np.testing.assert_allclose(found.x, [0.5, 0.5], atol=1e-3)
    bounded = scipy.optimize.minimize(
        fun,
        [2.0, -1.0],
        args=(0.5, 2.0),
        method=minimize_gspower,
        bounds=[(1, 3), (None, 0)],
        options=options,
    )
    np.testing.assert_allclose(bounded.x, [1, 0], atol=1e-3)
    with pytest.warns(OptimizeWarning, match="uses no derivatives"):
        scipy.optimize.minimize(
            scipy.optimize.rosen, [0.0, 0.0], jac=scipy.optimize.rosen_der, method=minimize_gspower,
            options={"maxiter": 2, "rng": 0},
        )  # fmt: skip


def test_polishing_is_counted_by_itself_and_within_the_budget():
    calls = []

    def fun(x):
        calls.append(1)
        return scipy.optimize.rosen(x)

    found = minimize_gspower(
        fun, [-1.0, 2.0], maxiter=20, popsize=20, power=0.1, sigma=0.3, polish=True, maxfev=700, rng=0
    )
    assert found.nfev == len(calls) <= 700
    assert found.nfev == 1 + 400 + 1 + found.nfev_polish
    assert found.fun < 1e-6
    without = minimize_gspower(fun, [-1.0, 2.0], maxiter=20, popsize=20, power=0.1, sigma=0.3, rng=0)
    assert without.nfev_polish == 0
    assert without.fun > found.fun


def test_no_evaluation_goes_beyond_maxfev():
    for maxfev, steps, mean in ((20, 1, 0), (39, 1, 1), (205, 10, 1), (10_000, 30, 1)):
        found = minimize_gspower(sphere, [3.0, 0.0], maxfev=maxfev, evaluate_start=False, **QUICK)
        assert found.nit == steps
        assert found.nfev == 20 * steps + mean <= maxfev
        assert math.isfinite(found.fun_mean) == bool(mean)
        assert found.status == (0 if steps == 30 else 1)
        assert found.success


def test_callbacks_of_both_kinds_and_stopping():
    states, points = [], []

    def by_name(intermediate_result):
        states.append(intermediate_result)
        if intermediate_result.nit == 7:
            raise StopIteration

    found = minimize_gspower(sphere, [3.0, 0.0], callback=by_name, **QUICK)
    assert (found.status, found.success, found.nit) == (99, False, 7)
    assert found.message.startswith("`callback` raised `StopIteration`")
    assert [state.nfev for state in states] == [1 + 20 * k for k in range(1, 8)]
    assert all(sphere(state.x) == state.fun for state in states)
    assert all(later.fun <= earlier.fun for earlier, later in pairwise(states))
    assert {"mean", "ess", "nit"} <= set(states[0])

    minimize_gspower(sphere, [3.0, 0.0], callback=lambda xk: points.append(xk), **QUICK)
    np.testing.assert_array_equal(points[6], states[6].x)
    assert len(points) == 30


def test_a_constant_objective_moves_nothing():
    found = minimize_gspower(lambda x: 5.0, [1.0, 2.0], return_all=True, **QUICK)
    np.testing.assert_array_equal(found.allvecs, np.tile([1.0, 2.0], (31, 1)))
    assert (found.stalls, found.status, found.success, found.fun) == (30, 2, False, 5.0)
    np.testing.assert_allclose(found.ess, 20)


def test_failures_can_count_as_the_worst():
    def fun(x):
        return float("nan") if x[0] < 0 else sphere(x)

    found = minimize_gspower(fun, [0.1, 0.0], nan_policy="worst", **QUICK)
    assert found.fun < 0.3
    assert found.x[0] >= 0
    nowhere = minimize_gspower(lambda x: math.inf, [0.1, 0.0], nan_policy="worst", **QUICK)
    assert nowhere.status == 2
    assert nowhere.stalls == 30
    np.testing.assert_allclose(nowhere.x_mean, [0.1, 0.0], rtol=1e-12)


def test_x_scale_is_a_change_of_variables():
    sizes = np.array([1e-3, 50.0])
    plain = minimize_gspower(sphere, [3.0, 0.0], return_all=True, **QUICK)
    scaled = minimize_gspower(
        lambda x: sphere(x / sizes), sizes * [3.0, 0.0], x_scale=sizes, return_all=True, **QUICK
    )
    np.testing.assert_allclose(scaled.allvecs, sizes * np.array(plain.allvecs), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("boundary", ["clip", "reflect"])
def test_fun_is_called_within_the_bounds_alone(boundary):
    seen = []

    def fun(X):
        seen.append(X.copy())
        return np.square(X - 5).sum(0)

    bounds = Bounds([-1, 0, -np.inf], [2, np.inf, 4])
    found = minimize_gspower(
        fun, [0.0, 0.5, 0.0], bounds=bounds, boundary=boundary, sigma=3.0, maxiter=50, power=0.1, rng=0,
        vectorized=True, return_all=True,
    )  # fmt: skip
    X, means = np.concatenate(seen, axis=1).T, np.array(found.allvecs)
    for points in (X, means):
        assert ((points >= bounds.lb) & (points <= bounds.ub)).all()
    on_face = (X[:, 0] == 2).mean()
    assert on_face > 0.1 if boundary == "clip" else on_face == 0
    assert X[:, 1].max() > 6
    np.testing.assert_allclose(found.x, [2, 5, 4], atol=0.8)


def test_reflection_is_a_triangle_wave():
    box = box_of([(-1, 2)], np.zeros(1), "reflect")
    points = np.array([[-1.5], [2.5], [5.5], [-7.0], [1.25]])
    np.testing.assert_allclose(box.inside(points)[:, 0], [-0.5, 1.5, -0.5, -1.0, 1.25])


def test_bounds_hold_in_a_thousand_variables():
    found = minimize_gspower(
        lambda X: np.abs(X).sum(0), np.full(1000, 0.9), bounds=[(0, 1)] * 1000, vectorized=True, maxiter=50,
        scale="std", sigma=0.3, learning_rate=0.5, rng=0,
    )  # fmt: skip
    assert ((found.x >= 0) & (found.x <= 1)).all()
    assert found.fun_mean < 850


def test_ask_and_tell_give_the_same_path_as_the_function():
    search = GSPower([3.0, 0.0], popsize=20, sigma=0.5, rng=0)
    for _ in range(30):
        X = search.ask()
        np.testing.assert_array_equal(X, search.ask())
        search.tell([sphere(x) for x in X])
    found = minimize_gspower(sphere, [3.0, 0.0], return_all=True, **QUICK)
    np.testing.assert_array_equal(search.mean, found.allvecs[-1])
    assert search.result.nfev == 600
    assert search.result.fun == min(found.fun, search.fun)


def test_a_saved_search_goes_on_exactly():
    whole, half, rest = (GSPower([3.0, 0.0], popsize=20, rng=0) for _ in range(3))
    for _ in range(20):
        whole.tell([sphere(x) for x in whole.ask()])
    for _ in range(12):
        half.tell([sphere(x) for x in half.ask()])
    half.ask()  # asked for and never told: it is asked for again
    rest.load_state_dict(half.state_dict())
    for _ in range(8):
        rest.tell([sphere(x) for x in rest.ask()])
    for name in ("x", "mean", "x_mean"):
        np.testing.assert_array_equal(getattr(rest, name), getattr(whole, name))
    assert (rest.fun, rest.nfev, rest.nit) == (whole.fun, whole.nfev, whole.nit)


def interrupting(at):
    calls = []

    def fun(x):
        calls.append(1)
        if len(calls) == at:
            os.kill(os.getpid(), signal.SIGINT)
        return sphere(x)

    return fun


def test_ctrl_c_raises_or_gives_what_was_found():
    assert threading.current_thread() is threading.main_thread()
    with pytest.raises(KeyboardInterrupt):
        minimize_gspower(interrupting(105), [3.0, 0.0], **QUICK)
    found = minimize_gspower(interrupting(105), [3.0, 0.0], interrupt="return", **QUICK)
    # x0, five steps, three values of the sixth; the call that was interrupted gave none.
    assert (found.status, found.success, found.nit, found.nfev) == (130, False, 5, 104)
    assert found.fun == minimize_gspower(sphere, [3.0, 0.0], **(QUICK | {"maxfev": 104})).fun


def test_a_noisy_objective_is_allowed():
    noise = np.random.default_rng(8)
    found = minimize_gspower(lambda x: sphere(x) + noise.normal(), [2.0, 0.0], sigma=0.5, maxiter=200, rng=0)
    assert found.fun < -1, "the best value seen is one of luck"
    np.testing.assert_allclose(found.x_mean, [1, 1], atol=0.15)
