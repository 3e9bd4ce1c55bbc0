"""What a user found to be wrong in silence: each of these failed before it was mended."""

import json
import math

import numpy as np
import pytest
import torch
from scipy.optimize import OptimizeWarning, minimize

from hexad.core.errors import InputError
from hexad.rl_graph.gs_poweropt import GSPower, GSPowerOptimizer, Settings, minimize_gspower
from hexad.rl_graph.gs_poweropt.box import box_of
from hexad.rl_graph.gs_poweropt.weighting import log_weights

QUICK = {"maxiter": 20, "popsize": 10, "rng": 0}


def sphere(x):
    return float(np.square(x - 1).sum())


def spoiling(X):
    """Of columns; it writes into what it is given."""
    values = np.square(X - 1).sum(0)
    X[:] = 0
    return values


@pytest.mark.parametrize("options", [{"polish": True}, {"evaluate_mean": True}, {"bounds": [(0, 5)] * 2}])
def test_a_function_may_write_into_its_batch(options):
    found = minimize_gspower(spoiling, [3.0, 2.0], vectorized=True, return_all=True, **options, **QUICK)
    clean = minimize_gspower(sphere, [3.0, 2.0], return_all=True, **options, **QUICK)
    assert found.fun == sphere(found.x)
    assert found.fun_mean == sphere(found.x_mean)
    np.testing.assert_array_equal(found.allvecs, clean.allvecs)


def test_a_function_may_give_the_same_array_again():
    buffer = np.zeros(10)

    def fun(X):
        if X.shape[1] < 10:
            return np.square(X - 1).sum(0)
        buffer[:] = np.square(X - 1).sum(0)
        return buffer

    found = minimize_gspower(fun, [3.0, 2.0], vectorized=True, **QUICK)
    assert found.fun == minimize_gspower(sphere, [3.0, 2.0], **QUICK).fun == sphere(found.x)


def test_what_a_search_hands_out_is_the_users_own():
    search, clean = (GSPower([3.0, 2.0], popsize=10, rng=0) for _ in range(2))
    for _ in range(5):
        X = search.ask()
        values = [sphere(x) for x in X]
        X[:] = 99
        np.testing.assert_array_equal(search.ask(), clean.ask())
        search.tell(values)
        clean.tell(values)
        for mine in (search.mean, search.x, search.result.x, search.x_mean):
            mine[:] = 77
    np.testing.assert_array_equal(search.mean, clean.mean)
    np.testing.assert_array_equal(search.x, clean.x)
    assert search.fun == sphere(search.x)


def test_a_sigma_too_wide_for_the_box_is_said_before_the_first_call():
    def fun(x):
        raise RuntimeError("called")

    text = r"sigma \* x_scale is 1 in variable 1, whose bounds are 1 apart.*sigma=0.1 with x_scale"
    with pytest.warns(OptimizeWarning, match=text), pytest.raises(RuntimeError, match="called"):
        minimize_gspower(fun, [0.5, 0.5], bounds=[(None, 1), (0, 1)])


def test_a_fitting_sigma_is_not_warned_of(recwarn):
    GSPower([0.5, 0.5], bounds=[(0, 1), (None, None)], sigma=0.5)
    GSPower([5.0], bounds=[(0, 10)], sigma=0.1, x_scale=10)
    assert not recwarn.list


def test_the_result_is_never_worse_than_the_start():
    seen = []

    def fun(x):
        seen.append(x.copy())
        return sphere(x)

    d = 10
    found = minimize_gspower(fun, np.ones(d), **QUICK)
    np.testing.assert_array_equal(seen[0], np.ones(d))
    assert (found.fun, found.nfev) == (0, 202)
    seen.clear()
    without = minimize_gspower(fun, np.ones(d), evaluate_start=False, **QUICK)
    assert without.fun > 0
    np.testing.assert_array_equal(without.x_mean, found.x_mean, "the samples are the same")
    # Within maxfev: of four steps' evaluations three are left.
    assert minimize_gspower(sphere, np.ones(d), **(QUICK | {"maxfev": 40})).nit == 3
    with pytest.raises(InputError, match=r"fun is nan at \[1\., 1\.\]"):
        minimize_gspower(lambda x: math.nan if (x == 1).all() else 0.0, [1.0, 1.0], **QUICK)


def test_reflection_leaves_what_is_inside_as_it_is():
    points = np.array([[0.1, 0.1], [-0.3, 3.3], [1e-3, -7e5]])
    for width in (1.0, 1e6, 1e16, 1e200, 1e308):
        box = box_of([(-width, width)] * 2, np.zeros(2), "reflect")
        inside = np.abs(points) <= width
        np.testing.assert_array_equal(box.inside(points)[inside], points[inside])
        assert (np.abs(box.inside(points)) <= width).all()
    unbounded = minimize_gspower(sphere, [3.0, 2.0], **QUICK)
    found = minimize_gspower(sphere, [3.0, 2.0], bounds=[(-1e20, 1e308)] * 2, boundary="reflect", **QUICK)
    np.testing.assert_array_equal(found.x_mean, unbounded.x_mean)


def test_what_is_considered_is_checked():
    search = GSPower([3.0, 2.0], popsize=10, bounds=[(0, 5)] * 2, rng=0)
    for x, value, message in (
        ([1.0, 1.0, 3.0], -1.0, "x has 3 variables and the search 2"),
        ([9.0, 1.0], -1.0, r"x = \[9\., 1\.\] lies outside the bounds"),
        ([1.0, math.nan], -1.0, r"x\[1\] is nan"),
        ([1.0, 1.0], math.nan, r"fun is nan at \[1\., 1\.\]"),
        ([1.0, 1.0], -math.inf, "fun is -inf"),
        ([1.0, 1.0], [1.0, 2.0], "value must be one real number, not float64 of shape"),
        ([1.0, 1.0], "low", "value must be one real number"),
    ):
        with pytest.raises(InputError, match=message):
            search.consider(x, value)
    assert (search.nfev, search.fun) == (0, math.inf)
    mine = np.array([1.0, 1.0])
    search.consider(mine, 0.5)
    mine[:] = 88
    np.testing.assert_array_equal(search.x, [1, 1])
    assert (search.nfev, search.fun) == (1, 0.5)


def stepped(**options):
    search = GSPower([3.0, 2.0], **({"popsize": 10, "rng": 0} | options))
    for _ in range(60):
        search.tell([sphere(x) for x in search.ask()])
    return search


@pytest.mark.parametrize(
    "options",
    [{"popsize": 20}, {"power": 9.0}, {"sigma": 0.1}, {"x_scale": [1, 2]}, {"bounds": [(2.9, 4)] * 2}],
)
def test_a_state_of_other_settings_is_refused(options):
    x0 = [3.0, 3.0] if "bounds" in options else [3.0, 2.0]
    other = GSPower(x0, **({"popsize": 10, "rng": 1} | options))
    with pytest.raises(InputError, match=rf"of a search with {next(iter(options))} = .*and this one has"):
        other.load_state_dict(stepped().state_dict())
    assert other.nit == 0


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("x", None, "x has the shape|no state"),
        ("x", -5, r"x has the shape \(\)"),
        ("x", [math.nan, 1.0], "x is not finite"),
        ("mean", [math.inf, 1.0], "mean is not finite"),
        ("last_iterates", -5, "last_iterates has the shape"),
        ("last_iterates", np.zeros((50, 3)), "last_iterates has the shape"),
        ("last_iterates", np.zeros((3, 2)), "60 steps left 3 iterates"),
        ("fun", math.nan, "fun is nan"),
        ("ess", -5, "ess is -5"),
        ("ess", 11.0, "ess is 11"),
        ("nit", -5, "a count is negative"),
        ("nit", "many", "no state of GSPower"),
        ("nfev", 5, "nfev is 5, less than 60 steps of 10 take"),
        ("stalls", 61, "more than its 60 steps"),
        ("rng", {"bit_generator": "PCG64"}, "the state's rng is none of a PCG64"),
        ("rng", 3, "the state's rng is none of a PCG64"),
        ("settings", None, "no state of GSPower"),
    ],
)
def test_a_damaged_state_is_refused_and_changes_nothing(name, value, message):
    search = stepped()
    before = search.state_dict()
    with pytest.raises(InputError, match=message) as refused:
        search.load_state_dict(search.state_dict() | {name: value})
    assert "\n" not in str(refused.value)
    for key, kept in search.state_dict().items():
        np.testing.assert_equal(kept, before[key])


def test_a_state_of_another_generator_is_refused_and_json_is_taken():
    state = stepped().state_dict()
    other = GSPower([3.0, 2.0], popsize=10, rng=np.random.Generator(np.random.MT19937(1)))
    with pytest.raises(InputError, match="none of a MT19937"):
        other.load_state_dict(state)
    lists = {key: value.tolist() if isinstance(value, np.ndarray) else value for key, value in state.items()}
    again = GSPower([3.0, 2.0], popsize=10)
    again.load_state_dict(json.loads(json.dumps(lists)))
    np.testing.assert_array_equal(again.ask(), stepped().ask())


@pytest.mark.parametrize("factor", [1e-300, 1e-170, 1e150, 1e200, 1e300])
def test_scaled_weights_are_free_of_units_at_any_size(factor):
    values = np.random.default_rng(7).normal(size=30)
    plain, scaled = (log_weights(c * values, Settings(scale="std")) for c in (1.0, factor))
    np.testing.assert_allclose(scaled, plain)


def test_the_accuracy_is_in_the_variables_units_and_moving_on_is_said():
    found = minimize_gspower(sphere, [3.0, 2.0], x_scale=[1, 100.0], sigma=0.5, **QUICK)
    np.testing.assert_allclose(found.accuracy, 0.5 / math.sqrt(10) * np.array([1, 100]))
    assert "both times x_scale" in found.message
    far = minimize_gspower(sphere, [500.0, 500.0], power=1e-3, **(QUICK | {"maxiter": 100}))
    assert "the last iterates still moved one way" in far.message
    settled = minimize_gspower(sphere, [1.0, 1.0], **(QUICK | {"maxiter": 100}))
    assert "moved one way" not in settled.message


@pytest.mark.parametrize("d", [1, 50, 500])
def test_moving_on_is_told_from_a_walk_at_random_in_many_variables(d):
    """With 10 samples in 500 variables a step goes mostly astray, and the way is 0.14 of its length."""

    def drift(X):
        return X.sum(0) / math.sqrt(d)

    def chance(X, noise=np.random.default_rng(11)):
        return noise.normal(size=X.shape[1])

    for fun, moves in ((drift, True), (chance, False)):
        found = minimize_gspower(fun, np.zeros(d), vectorized=True, **(QUICK | {"maxiter": 60}))
        assert ("moved one way" in found.message) == moves


def test_polishing_has_a_share_of_maxfev():
    found = minimize_gspower(sphere, [3.0, 2.0], maxfev=2000, polish=True, **(QUICK | {"maxiter": 1000}))
    assert found.nit == (2000 - 200 - 1) // 10
    assert found.polished is True
    assert found.fun < 1e-6
    assert found.nfev <= 2000
    half = minimize_gspower(sphere, [3.0, 2.0], maxfev=100, polish=True, **QUICK)
    assert (half.nit, half.nfev, half.polished) == (4, 100, False)
    assert f"Nelder-Mead had not converged after its {half.nfev_polish} evaluations" in half.message


def test_an_interrupted_step_keeps_what_it_found():
    calls = []

    def fun(x):
        calls.append(1)
        if len(calls) == 95:
            raise KeyboardInterrupt
        return 0.0 if len(calls) == 85 else sphere(x) + 1

    options = {"popsize": 50, "rng": 0}
    found = minimize_gspower(fun, [3.0, 2.0], interrupt="return", **options)
    assert (found.fun, found.nit, found.nfev) == (0, 1, 94)
    calls[:] = [1] * 93
    first = minimize_gspower(fun, [3.0, 2.0], interrupt="return", **options)
    assert (first.status, first.nit, first.nfev) == (130, 0, 1)
    np.testing.assert_array_equal(first.x, [3, 2])
    calls[:] = [1] * 94
    nothing = minimize_gspower(fun, [3.0, 2.0], interrupt="return", **options)
    assert (nothing.fun, nothing.nfev, nothing.success) == (math.inf, 0, False)


@pytest.mark.parametrize("polish", [False, True])
def test_an_error_carries_what_was_found(polish):
    calls = []

    def fun(x):
        calls.append(1)
        return math.nan if len(calls) == (215 if polish else 150) else sphere(x)

    with pytest.raises(InputError, match="fun is nan") as failed:
        minimize_gspower(fun, [3.0, 2.0], polish=polish, **QUICK)
    found = failed.value.result
    assert found.fun == sphere(found.x) < sphere(np.array([3.0, 2.0]))
    assert found.nit == (20 if polish else 14)
    assert found.success is False


def test_scipys_disp_is_taken(capsys):
    found = minimize(sphere, [3.0, 2.0], method=minimize_gspower, options={"disp": True, **QUICK})
    assert capsys.readouterr().out.startswith(found.message)
    minimize(sphere, [3.0, 2.0], method=minimize_gspower, options={"disp": False, **QUICK})
    assert not capsys.readouterr().out


def test_values_of_torch_and_masked_arrays_are_taken_for_what_they_are():
    def gradient(x):
        return (torch.tensor(x, requires_grad=True) - 1).square().sum()

    assert minimize_gspower(gradient, [3.0, 2.0], **QUICK).fun == pytest.approx(
        minimize_gspower(sphere, [3.0, 2.0], **QUICK).fun
    )
    search = GSPower([3.0], popsize=3, rng=0)
    search.ask()
    with pytest.raises(InputError, match="fun is nan"):
        search.tell(np.ma.array([1.0, -5.0, 2.0], mask=[False, True, False]))


def frozen_and_free():
    return torch.nn.Parameter(torch.ones(2), requires_grad=False), torch.nn.Parameter(torch.ones(2))


def test_frozen_parameters_stay():
    frozen, free = frozen_and_free()
    optimizer = GSPowerOptimizer([frozen, free], popsize=10)
    seen = []

    def closure():
        seen.append(frozen.clone())
        return (frozen + free).square().sum()

    optimizer.step(closure)
    assert all(torch.equal(value, torch.ones(2)) for value in (*seen, frozen))
    assert not torch.equal(free.data, torch.ones(2))
    alone = torch.nn.Parameter(torch.ones(2))
    GSPowerOptimizer([alone], popsize=10).step(lambda: (1 + alone).square().sum())
    torch.testing.assert_close(alone, free, rtol=0, atol=0)
    with pytest.raises(InputError, match="no parameter has requires_grad=True"):
        GSPowerOptimizer([frozen])


def test_a_best_sample_of_other_parameters_is_forgotten():
    frozen, free = frozen_and_free()
    optimizer = GSPowerOptimizer([frozen, free], popsize=10)
    optimizer.step(lambda: (frozen + free).square().sum() - 1000)
    frozen.requires_grad_(True)
    kept = free.detach().clone()
    with pytest.raises(InputError, match="no best sample of these parameters"):
        optimizer.load_best()
    torch.testing.assert_close(free.data, kept, rtol=0, atol=0)
    optimizer.step(lambda: (frozen + free).square().sum())
    assert optimizer.best_loss >= 0
    optimizer.load_best()
    assert float((frozen + free).square().sum().detach()) == pytest.approx(optimizer.best_loss)


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (torch.ones(2), r"must return the loss, one real number, and gave float64 of shape \(2,\)"),
        (None, "and gave NoneType"),
        ("low", "one real number"),
        (torch.tensor(1j), "one real number"),
        ((torch.tensor(1.0), 2), "one real number"),
    ],
)
def test_a_closure_that_gives_no_loss_is_refused(loss, message):
    _, free = frozen_and_free()
    with pytest.raises(InputError, match=message):
        GSPowerOptimizer([free], popsize=5).step(lambda: loss)
    torch.testing.assert_close(free.data, torch.ones(2), rtol=0, atol=0)


def test_losses_in_bfloat16_are_taken():
    _, free = frozen_and_free()
    loss = GSPowerOptimizer([free], popsize=5).step(lambda: free.square().sum().bfloat16())
    assert math.isfinite(loss)


def test_states_of_other_optimizers_are_refused():
    _, free = frozen_and_free()
    optimizer = GSPowerOptimizer([free], popsize=10)
    optimizer.step(lambda: free.square().sum())
    state = optimizer.state_dict()
    longer = GSPowerOptimizer([torch.nn.Parameter(torch.ones(3))], popsize=10)
    two = GSPowerOptimizer([*frozen_and_free()], popsize=10)
    for other, loaded, message in (
        (optimizer, {}, "no state of GSPowerOptimizer"),
        (optimizer, torch.optim.Adam([free]).state_dict(), "no state of GSPowerOptimizer"),
        (GSPowerOptimizer([free], popsize=20), state, "popsize = 10, and this one has 20"),
        (GSPowerOptimizer([free], popsize=10, power=9), state, "power = 2.0, and this one has 9"),
        (longer, state, r"fits no parameter of shape \(3,\)"),
        (two, state, "the state is of other parameters"),
    ):
        with pytest.raises(InputError, match=message):
            other.load_state_dict(loaded)
    optimizer.load_state_dict(state)


@pytest.mark.parametrize(("name", "value"), [("lr", math.nan), ("sigma", 0.0), ("sigma", math.nan)])
def test_rates_that_a_schedule_spoilt_are_refused(name, value):
    _, free = frozen_and_free()
    optimizer = GSPowerOptimizer([free], popsize=5)
    optimizer.param_groups[0][name] = value
    with pytest.raises(InputError, match=rf"{name} is"):
        optimizer.step(lambda: free.square().sum())
    with pytest.raises(InputError, match="given twice"):
        GSPowerOptimizer([{"params": [free, free]}])
