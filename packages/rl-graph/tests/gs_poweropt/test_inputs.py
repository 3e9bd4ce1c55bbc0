"""Bad input is refused in one line, before fun is called."""

import math

import numpy as np
import pytest
from scipy.optimize import Bounds

from hexad.core.errors import InputError
from hexad.rl_graph.gs_poweropt import GSPower, minimize_gspower


def untouched(x):
    raise AssertionError("fun was called")


@pytest.mark.parametrize(
    ("x0", "options", "message"),
    [
        ([[1.0, 2.0]], {}, r"x0 has the shape \(1, 2\)"),
        (3.0, {}, r"x0 has the shape \(\)"),
        ([], {}, r"x0 has the shape \(0,\)"),
        ([0.0, math.nan], {}, r"x0\[1\] is nan"),
        ([0.0, math.inf], {}, r"x0\[1\] is inf"),
        ("ab", {}, "x0 must be a vector of numbers"),
        ([0.0], {"sigma": 0.0}, "sigma is 0.0"),
        ([0.0], {"sigma": -1}, "sigma is -1"),
        ([0.0], {"power": 0}, "power is 0"),
        ([0.0], {"power": -2.0}, "power is -2.0"),
        ([0.0], {"power": math.nan}, "power is nan"),
        ([0.0], {"popsize": 1}, "popsize is 1"),
        ([0.0], {"popsize": 2.5}, "popsize is 2.5"),
        ([0.0], {"learning_rate": 0}, "learning_rate is 0"),
        ([0.0], {"decay": -1.0}, "decay is -1.0"),
        ([0.0], {"transform": "epgs"}, "unknown transform 'epgs'"),
        ([0.0], {"baseline": "avg"}, "unknown baseline 'avg'"),
        ([0.0], {"scale": "mad"}, "unknown scale 'mad'"),
        ([0.0], {"nan_policy": "omit"}, "unknown nan_policy 'omit'"),
        ([0.0], {"boundary": "wrap"}, "unknown boundary 'wrap'"),
        ([0.0], {"shift": 3.0}, "shift is for transform='power'"),
        ([0.0], {"transform": "power", "scale": "std"}, "scale is for transform='exp'"),
        ([0.0], {"maxiter": 0}, "maxiter is 0"),
        ([0.0], {"maxfev": 100}, "maxfev is 100, less than the 101 evaluations of one step and x0"),
        ([0.0], {"maxfev": 101, "maxiter": 10, "polish": True}, "leaves none to polish"),
        ([0.0, 0.0], {"bounds": [(0, 1)]}, "bounds has 1 pairs and x0 2 variables"),
        ([0.0, 0.5], {"bounds": [(0, 1), (1, 1)]}, r"bounds of variable 1 are \(1, 1\)"),
        ([0.0, 0.5], {"bounds": Bounds([0, 2], [1, 1])}, r"bounds of variable 1 are \(2, 1\)"),
        ([0.0, 5.0], {"bounds": [(0, 1), (0, 1)]}, r"x0\[1\] is 5; x0 must lie within"),
        ([0.0], {"bounds": [(math.nan, 1)]}, "bounds of variable 0"),
        ([0.0], {"bounds": 3}, "bounds must be"),
        ([0.0, 0.0], {"bounds": Bounds([0, 0, 0], [1, 1, 1])}, "bounds must be"),
        ([0.0, 0.0], {"x_scale": [1.0]}, r"x_scale has the shape \(1,\)"),
        ([0.0], {"x_scale": -1.0}, "x_scale must be finite and above 0"),
        ([0.0], {"rng": -1}, "rng is -1"),
        ([0.0], {"rng": "seed"}, "rng is 'seed'"),
        ([0.0], {"workers": 0}, "workers is 0"),
        ([0.0], {"workers": "all"}, "workers is 'all'"),
        ([0.0], {"workers": 2, "vectorized": True}, "choose one of them"),
        ([0.0], {"vectorized": "columns"}, "vectorized is 'columns'"),
        ([0.0], {"callback": 3}, "callback must be a function"),
        ([0.0], {"constraints": [{"type": "eq"}]}, "constraints are not supported"),
        ([0.0], {"tol": 1e-3}, "tol is not supported"),
        ([0.0], {"polish": 1}, "polish is 1"),
        ([0.0], {"interrupt": "stop"}, "unknown interrupt 'stop'"),
        ([0.0], {"evaluate_start": 1}, "evaluate_start is 1"),
        ([0.0], {"rng": True}, "rng is True"),
        ([0.0], {"jac": True}, "jac=True is not supported"),
        ([0.0], {"popsize": 10**13}, "too many for the memory.*lower popsize"),
    ],
)
def test_arguments_are_refused_before_the_first_call(x0, options, message):
    with pytest.raises(InputError, match=message) as refused:
        minimize_gspower(untouched, x0, **options)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("fun", "options", "message"),
    [
        (lambda x: math.nan, {}, r"fun is nan at \[.*\]; mend fun there, or pass nan_policy='worst'"),
        (lambda x: math.inf, {}, r"fun is inf at \["),
        (lambda x: -math.inf, {"nan_policy": "worst"}, r"fun is -inf at \["),
        (lambda x: x, {}, r"fun must return one real number, and gave float64 of shape \(3,\)"),
        (lambda x: "low", {}, "fun must return one real number"),
        (lambda x: None, {}, "fun must return one real number, and gave a value of type NoneType"),
        (lambda x: (1.0, x), {}, "and gave a value of type tuple"),
        (lambda x: np.ma.masked, {}, "fun is nan at"),
        (lambda x: 1.0, {"workers": lambda f, X: None}, "must be map-like .*, not NoneType"),
        (lambda x: 1.0, {"workers": lambda f, X: [1.0, 2.0, 3.0]}, r"shape \(3,\) for 1 points"),
        (lambda x: 1j, {}, "fun must return one real number, and gave complex128"),
        (
            lambda X: X,
            {"vectorized": True},
            r"must return 1 real numbers; it gave float64 of shape \(3, 1\)",
        ),
        (lambda X: X.sum(1), {"vectorized": True}, r"of shape \(3, 1\), one point a column"),
        (lambda X: X.sum(0), {"vectorized": "rows"}, r"of shape \(1, 3\), one point a row"),
        (lambda x: 1.0, {"transform": "power"}, "needs shift - fun > 0 everywhere.*fun = 1 .*give shift > 1"),
        (lambda x: 3.0, {"transform": "power", "shift": 3.0}, "give shift > 3"),
        (lambda x: 1.0, {"workers": 2}, "fun cannot be sent to 2 processes"),
        (3, {}, "fun must be a function, not int"),
    ],
)
def test_what_fun_gives_is_checked(fun, options, message):
    with pytest.raises(InputError, match=message) as refused:
        minimize_gspower(fun, [0.0, 0.0, 0.0], popsize=10, maxiter=3, **options)
    assert "\n" not in str(refused.value)


def test_the_point_of_a_failure_is_named():
    def fun(x):
        return math.nan if x[0] > 1 else 0.0

    search = GSPower(np.zeros(30), rng=0)
    X = search.ask().copy()
    failing = X[X[:, 0] > 1][0]
    with pytest.raises(InputError, match=r"fun is nan at \[ ?-?[\d.]+, .*\.\.\..*\]") as refused:
        search.tell([fun(x) for x in X])
    assert f"{failing[0]:.6f}".rstrip("0") in str(refused.value)
    assert search.nit == 0, "the step is not made, and can be told again"
    search.tell(np.arange(100.0))


def test_telling_is_checked():
    search = GSPower([0.0], popsize=10)
    with pytest.raises(InputError, match=r"comes after ask\(\)"):
        search.tell(np.zeros(10))
    search.ask()
    for values in (np.zeros(9), np.zeros((10, 1)), ["a"] * 10, 1j * np.ones(10)):
        with pytest.raises(InputError, match=r"tell\(\) wants 10 real numbers"):
            search.tell(values)


def test_states_are_checked():
    search = GSPower([0.0, 1.0])
    with pytest.raises(InputError, match="the state has 1 variables and x0 2"):
        search.load_state_dict(GSPower([0.0]).state_dict())
    with pytest.raises(InputError, match="no state of GSPower"):
        search.load_state_dict({"mean": [0.0, 0.0]})


def test_numpys_whole_numbers_are_taken():
    found = minimize_gspower(
        lambda x: x[0] ** 2, [1.0], popsize=np.int64(10), maxiter=np.int32(2), rng=np.int64(0)
    )
    assert found.nfev == 22
