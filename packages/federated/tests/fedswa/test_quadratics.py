"""Bias on heterogeneous quadratics: fixed points in closed form, and the thresholds of the study."""

import numpy as np
import pytest

from hexad.core.errors import InputError
from hexad.federated.fedswa.quadratics import Descent, Quadratics, descend, draw_quadratics
from hexad.federated.fedswa.schedule import cyclic_lrs

CLIENTS, ROUNDS = 20, 1000
PROBLEM = draw_quadratics(CLIENTS, 6, seed=11)
FEDAVG = Descent()
SWA = Descent(rho=0.1, server_alpha=1.5)
MOSWA = Descent("momentum", rho=0.1, server_alpha=1.5)
SCAFFOLD = Descent("scaffold")


def distance(descent, participants, seed=3):
    return descend(PROBLEM, descent, participants, ROUNDS, seed).distance(PROBLEM.optimum)


def test_the_problem_is_what_it_says():
    values = np.linalg.eigvalsh(PROBLEM.hessians)
    assert values.min() >= 0.2 - 1e-12
    assert values.max() <= 2 + 1e-12
    total = PROBLEM.gradients(np.broadcast_to(PROBLEM.optimum, (CLIENTS, 6))).mean(0)
    np.testing.assert_allclose(total, 0, atol=1e-12)


@pytest.mark.parametrize("alpha", [0.5, 1.0, 1.5])
@pytest.mark.parametrize("rho", [0.1, 1.0])
def test_fedswa_ends_at_its_fixed_point_whatever_alpha_is(rho, alpha):
    # Order matters in the product of non-commuting maps only between clients, not within one.
    wanted = PROBLEM.fixed_point(cyclic_lrs(0.05, 10, rho))
    end = descend(PROBLEM, Descent(rho=rho, server_alpha=alpha), CLIENTS, ROUNDS).theta[-1]
    np.testing.assert_allclose(end, wanted, atol=1e-10)
    assert np.linalg.norm(wanted - PROBLEM.optimum) > 1e-2


def test_with_all_clients_fedmoswa_ends_at_the_optimum_with_the_right_variates():
    path = descend(PROBLEM, MOSWA, CLIENTS, ROUNDS)
    np.testing.assert_allclose(path.theta[-1], PROBLEM.optimum, atol=1e-8)
    np.testing.assert_allclose(path.m, 0, atol=1e-8)
    own = PROBLEM.gradients(np.broadcast_to(PROBLEM.optimum, (CLIENTS, 6)))
    np.testing.assert_allclose(path.c, own, atol=1e-8)
    assert np.abs(own).max() > 0.1


def test_the_thresholds_of_full_participation():
    assert distance(MOSWA, CLIENTS) < 1e-8
    assert distance(SCAFFOLD, CLIENTS) < 1e-8
    assert distance(SWA, CLIENTS) < 0.75 * distance(FEDAVG, CLIENTS)


def test_the_thresholds_of_partial_participation():
    fedavg = distance(FEDAVG, 5)
    assert distance(MOSWA, 5) <= 0.7 * fedavg
    assert distance(SCAFFOLD, 5) < 1e-8
    assert distance(MOSWA, 5) > 0.1 * fedavg  # the limit that the documentation states: a bias stays


def test_identical_clients_with_gamma_one_follow_fedswa():
    """Full participation, one loss for all: m = c_i after each round, so nothing is corrected."""
    same = Quadratics(np.repeat(PROBLEM.hessians[:1], 4, 0), np.repeat(PROBLEM.centres[:1], 4, 0))
    plain = descend(same, SWA, 4, 30)
    controlled = descend(same, Descent("momentum", 0.1, 1.5, gamma=1.0), 4, 30)
    np.testing.assert_allclose(controlled.theta, plain.theta, rtol=0, atol=1e-13)
    np.testing.assert_allclose(controlled.c, np.broadcast_to(controlled.m, (4, 6)), atol=1e-13)
    # With gamma < 1 and m = 0 at the start the second round is slowed by (1 - gamma) c.
    lagging = descend(same, Descent("momentum", 0.1, 1.5, gamma=0.2), 4, 30)
    gaps = [np.linalg.norm(path.theta[1] - same.optimum) for path in (lagging, plain)]
    assert gaps[0] > gaps[1] * 1.05


def test_nothing_is_learnt_in_the_first_round_but_fedswa():
    """c = m = 0: the first round of FedMoSWA is FedSWA's."""
    first = [descend(PROBLEM, d, 5, 1).theta for d in (SWA, Descent("momentum", 0.1, 1.5, gamma=0.0))]
    np.testing.assert_array_equal(*first)


def test_a_descent_repeats_itself():
    paths = [descend(PROBLEM, MOSWA, 5, 20, seed) for seed in (1, 1, 2)]
    np.testing.assert_array_equal(paths[0].theta, paths[1].theta)
    assert not np.array_equal(paths[0].theta, paths[2].theta)


def test_bad_descents_are_refused():
    for wrong in ({"variates": "both"}, {"gamma": 2.0}, {"server_alpha": 0.0}, {"rho": 0.0}, {"steps": 0}):
        with pytest.raises(InputError):
            Descent(**wrong)
    with pytest.raises(InputError, match="participants is 21"):
        descend(PROBLEM, SWA, 21, 1)
