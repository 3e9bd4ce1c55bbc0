"""Oracles of the smoothed objective: closed forms, quadrature, invariances and limits."""

import math
from itertools import pairwise

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.optimize import OptimizeWarning, minimize_scalar

from hexad.rl_graph.gs_poweropt import GSPower, Settings, minimize_gspower
from hexad.rl_graph.gs_poweropt.study_problems import two_log
from hexad.rl_graph.gs_poweropt.weighting import effective_samples, log_gradient, log_weights, weights


def quadratic():
    rng = np.random.default_rng(0)
    root = rng.normal(size=(3, 3))
    A = root @ root.T / 3 + 0.3 * np.eye(3)
    return A, np.array([0.4, -0.3, 0.2])


def closed_log_f(mu, A, a, N, s):
    inner = np.eye(3) + N * s**2 * A
    return -0.5 * np.linalg.slogdet(inner)[1] - N / 2 * (mu - a) @ A @ np.linalg.solve(inner, mu - a)


def closed_gradient(mu, A, a, N, s):
    return -N * A @ np.linalg.solve(np.eye(3) + N * s**2 * A, mu - a)


@pytest.mark.parametrize("baseline", ["mean", "none"])
def test_the_gradient_of_a_smoothed_quadratic_is_its_closed_form(baseline):
    A, a = quadratic()
    mu, N, s = np.array([1.0, 0.5, -0.7]), 1.5, 0.6
    exact = closed_gradient(mu, A, a, N, s)
    # The closed form is right: its differences are those of the closed log F_N.
    steps = 1e-5 * np.eye(3)
    numeric = [(closed_log_f(mu + h, A, a, N, s) - closed_log_f(mu - h, A, a, N, s)) / 2e-5 for h in steps]
    np.testing.assert_allclose(exact, numeric, rtol=1e-6)
    noise = np.random.default_rng(1).standard_normal((2_000_000, 3))
    x = mu + s * noise - a
    fun = 0.5 * np.einsum("ki,ij,kj->k", x, A, x)
    found = log_gradient(fun, noise, Settings(power=N, sigma=s, baseline=baseline))
    # Its error has a standard deviation of about 1e-3 of its size; a variance in place of sigma gives 30 %.
    np.testing.assert_allclose(found, exact, atol=3e-3 * np.linalg.norm(exact))


def test_the_mean_of_the_weights_is_the_closed_smoothed_value():
    A, a = quadratic()
    mu, N, s = np.array([1.0, 0.5, -0.7]), 1.5, 0.6
    x = mu + s * np.random.default_rng(2).standard_normal((2_000_000, 3)) - a
    fun = 0.5 * np.einsum("ki,ij,kj->k", x, A, x)
    logs = log_weights(fun, Settings(power=N, sigma=s))
    found = math.log(np.exp(logs).mean()) - N * fun.min()
    assert found == pytest.approx(closed_log_f(mu, A, a, N, s), abs=2e-3)


def smoothed_peak(N):
    """argmax of F_N of two-log in one dimension, sigma = 1, by quadrature; scaled by the peak at -0.5."""

    def f(x):
        return -float(two_log(np.array([[x]]))[0])

    top = f(-0.5)

    def negative(mu):
        def integrand(x):
            return math.exp(N * (f(x) - top) - 0.5 * (x - mu) ** 2)

        parts = [-8, -0.6, -0.51, -0.5, -0.49, -0.4, 0.4, 0.5, 0.6, 8]
        return -sum(quad(integrand, *ends, limit=200)[0] for ends in pairwise(parts))

    return minimize_scalar(negative, bounds=(-1, 1), method="bounded", options={"xatol": 1e-5}).x


def test_the_smoothed_maximum_moves_to_the_global_peak_as_the_power_grows():
    peaks = [smoothed_peak(N) for N in (0.25, 0.5, 0.75, 1.0, 1.5, 2.0)]
    assert all(later < earlier for earlier, later in pairwise(peaks))
    assert abs(peaks[0]) < 0.25, "a small power leaves it between the peaks"
    assert peaks[-1] == pytest.approx(-0.5, abs=2e-3)


def test_the_method_agrees_with_the_quadrature_in_one_dimension():
    N = 0.75
    search = GSPower([0.4], power=N, popsize=2000, learning_rate=0.05, decay=50, rng=0)
    for _ in range(300):
        search.tell(two_log(search.ask()))
    assert search.x_mean[0] == pytest.approx(smoothed_peak(N), abs=0.03)


def path(change, **settings):
    search = GSPower([0.7, -0.2], popsize=10, rng=3, **settings)
    for _ in range(30):
        X = search.ask()
        search.tell(change(np.square(X).sum(1)))
    return search.mean


@pytest.mark.parametrize("baseline", ["mean", "none"])
def test_epgs_ignores_a_constant_and_pgs_a_factor(baseline):
    same = {"rtol": 1e-9, "atol": 1e-11}
    exp = {"baseline": baseline, "power": 0.5}
    np.testing.assert_allclose(path(lambda v: v, **exp), path(lambda v: v + 7, **exp), **same)
    assert not np.allclose(path(lambda v: v, **exp), path(lambda v: 3 * v, **exp))
    pgs = {"baseline": baseline, "transform": "power", "power": 4.0}
    np.testing.assert_allclose(
        path(lambda v: -1 / (1 + v), **pgs), path(lambda v: -3 / (1 + v), **pgs), **same
    )
    assert not np.allclose(path(lambda v: -1 / (1 + v), **pgs), path(lambda v: -1 - 1 / (1 + v), **pgs))


def test_pgs_is_the_power_itself():
    rng = np.random.default_rng(4)
    f = rng.uniform(0.5, 3, 20)
    found = np.exp(log_weights(5 - f, Settings(transform="power", power=3.0, shift=5.0)))
    np.testing.assert_allclose(found, (f / f.max()) ** 3, rtol=1e-12)


def test_a_vanishing_power_gives_the_evolution_strategys_gradient():
    rng = np.random.default_rng(5)
    noise, values = rng.standard_normal((40, 6)), rng.normal(size=40)
    classic = -(values - values.mean()) @ noise
    misses = []
    for power in (1e-1, 1e-2, 1e-3, 1e-12):
        settings = Settings(power=power)
        g = weights(log_weights(values, settings), "mean") @ noise
        misses.append(1 - g @ classic / np.linalg.norm(g) / np.linalg.norm(classic))
    # 1 - cosine falls with the square of the power; at 1e-12 rounding alone would leave noise without expm1.
    assert misses[0] < 0.1
    assert misses[1] < 2e-2 * misses[0]
    assert misses[2] < 2e-2 * misses[1]
    assert misses[3] < 1e-12


def test_centring_takes_noise_away_and_no_mean():
    rng = np.random.default_rng(6)
    d, K, repeats = 20, 10, 4000
    slope = rng.normal(size=d) / math.sqrt(d)
    found = {}
    for baseline in ("mean", "none"):
        g = np.zeros((repeats, d))
        for place in range(repeats):
            noise = rng.standard_normal((K, d))
            g[place] = weights(log_weights(noise @ slope, Settings(power=0.3)), baseline) @ noise
        found[baseline] = g.mean(0), g.var(0).sum()
    (centred, little), (plain, much) = found["mean"], found["none"]
    # The mean holds each sample's own weight: 1 - 1/K.
    np.testing.assert_allclose(centred / (1 - 1 / K), plain, atol=6 * math.sqrt(much / d / repeats))
    assert little < 0.3 * much


def test_powers_and_values_that_would_overflow_are_weighed():
    values = np.array([-1e5, -1e5 + 1e-3, 3.0, 1e300])
    w = weights(log_weights(values, Settings(power=1e3)), "none")
    np.testing.assert_allclose(w, [1, math.exp(-1), 0, 0], rtol=1e-6)
    huge = log_weights(-np.array([1e200, 2e200]), Settings(transform="power", power=30))
    assert np.exp(huge) == pytest.approx([2.0**-30, 1])


def test_effective_samples_run_from_one_to_all():
    assert effective_samples(np.zeros(7)) == pytest.approx(7)
    assert effective_samples(np.array([0.0, -1e4, -1e4])) == pytest.approx(1)
    assert effective_samples(np.log([0.5, 0.25])) == pytest.approx(0.75**2 / 0.3125)


def test_scale_makes_the_power_free_of_units():
    values = np.random.default_rng(7).normal(size=30)
    one, two = (log_weights(c * values, Settings(power=2.0, scale="std")) for c in (1, 1e6))
    np.testing.assert_allclose(one, two)
    assert one.min() == pytest.approx(-2 * np.ptp(values) / values.std())


def test_a_single_sample_with_all_the_weight_is_warned_of_once():
    text = r"about one sample of 50.*power=1e\+06 is too large"
    with pytest.warns(OptimizeWarning, match=text) as said:
        found = minimize_gspower(
            lambda X: np.square(X).sum(0),
            [0.0, 0.0],
            power=1e6,
            popsize=50,
            maxiter=60,
            vectorized=True,
            rng=0,
        )
    assert len(said) == 1
    assert found.ess[-1] < 1.5


def test_a_fitting_power_is_not_warned_of(recwarn):
    search = GSPower(np.zeros(2), power=1.0, popsize=50, rng=0)
    for _ in range(60):
        search.tell(np.square(search.ask()).sum(1))
    assert not recwarn.list
