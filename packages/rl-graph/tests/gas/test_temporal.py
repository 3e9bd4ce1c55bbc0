"""The embedding: its fixed point, its loss, its goals, and that it stitches."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from gas_chains import TINY_FIT, line

from hexad.core.errors import InputError
from hexad.rl_graph.gas.fitting import FitConfig
from hexad.rl_graph.gas.policy import PolicyConfig, SkillPolicy
from hexad.rl_graph.gas.saving import load_policy, load_temporal, save_policy, save_temporal
from hexad.rl_graph.gas.temporal import TemporalConfig, TemporalDistance, latent_value, temporal_loss
from hexad.rl_graph.gas.trajectories import Trajectories

CHAIN = {1: -1.0, 2: -1.99, 10: -9.561792, 100: -63.396766}
"""V(d) = -(1 - 0.99^d) / 0.01."""


def solve(successors, goal, expectile, rounds, first=0.0, gamma=0.99):
    """The fixed point of the loss with a table in the embedding's place: states x successors, one goal.

    Each round fits the table to the loss by its exact minimiser's gradient steps, then copies it.
    """
    states = torch.tensor([s for s, _ in successors])
    after = torch.tensor([a for _, a in successors])
    table = torch.full((2, int(max(states.max(), after.max())) + 1), first, dtype=torch.float64)
    success = states == goal
    for _ in range(rounds):
        slow, table = table.detach(), table.detach().clone().requires_grad_(True)
        optimizer = torch.optim.SGD([table], lr=0.2 * len(states))
        for _ in range(60):
            optimizer.zero_grad()
            loss = temporal_loss(table[:, states], slow[:, states], slow[:, after], success, gamma, expectile)
            loss.backward()
            optimizer.step()
    return table.detach()


def test_the_fixed_point_of_a_chain_is_the_discounted_count():
    length = 101
    chain = [(s, min(s + 1, length - 1)) for s in range(length)]
    table = solve(chain, length - 1, 0.5, rounds=110)
    for d, expected in CHAIN.items():
        # What 60 steps of the inner regression leave is below 1e-6.
        assert torch.allclose(
            table[:, length - 1 - d], torch.tensor(expected, dtype=torch.float64), atol=1e-5
        ), d
    assert float(table[0, -1]) == 0


def test_half_as_expectile_is_a_plain_regression_and_near_one_takes_the_short_way():
    # From state 0 two moves were seen: one to the goal's neighbour 3, one on a detour 1 -> 2 -> 3; goal 4.
    detour = [(0, 3), (0, 1), (1, 2), (2, 3), (3, 4), (4, 4)]
    plain = solve(detour, 4, 0.5, rounds=30)
    ways = [-(1 - 0.99**d) / 0.01 for d in (2, 4)]
    assert float(plain[0, 0]) == pytest.approx(sum(ways) / 2, abs=1e-5), "the mean of both targets"
    # From below: what is too hopeful is unlearned a thousand times more slowly.
    short = solve(detour, 4, 0.999, rounds=60, first=-20.0)
    assert float(short[0, 0]) == pytest.approx(ways[0], abs=0.02), "the better target"


def test_the_loss_is_weighted_by_the_advantage_of_both_slow_copies():
    value = torch.tensor([[-2.0], [-3.0]], requires_grad=True)
    slow, after = torch.tensor([[-2.5], [-1.5]]), torch.tensor([[-1.0], [-4.0]])
    loss = temporal_loss(value, slow, after, torch.tensor([False]), 0.9, 0.8)
    # adv = -1 + .9 * min(-1, -4) - mean(-2.5, -1.5) < 0, so both weigh .2; targets are each copy's own.
    expected = 0.2 * ((-1.9 + 2) ** 2 + (-4.6 + 3) ** 2)
    loss.backward()
    assert float(loss.detach()) == pytest.approx(expected, rel=1e-6)
    assert value.grad is not None
    assert value.grad[:, 0].tolist() == pytest.approx([-2 * 0.2 * 0.1, -2 * 0.2 * -1.6], rel=1e-5)
    at_goal = temporal_loss(value, slow, after, torch.tensor([True]), 0.9, 0.8)
    # The target is 0, whatever comes after; adv = 0 + 2 > 0.
    assert float(at_goal.detach()) == pytest.approx(0.8 * (4 + 9), rel=1e-6)


def test_no_gradient_goes_through_targets_or_advantage():
    value = torch.zeros(2, 3, requires_grad=True)
    slow, after = torch.zeros(2, 3, requires_grad=True), torch.zeros(2, 3, requires_grad=True)
    temporal_loss(value, slow, after, torch.zeros(3, dtype=torch.bool), 0.9, 0.8).backward()
    assert value.grad is not None
    assert slow.grad is None
    assert after.grad is None


def test_the_value_of_a_state_to_itself_has_a_finite_gradient():
    point = torch.ones(1, 3, requires_grad=True)
    latent_value(point, point.detach().clone()).sum().backward()
    assert point.grad is not None
    assert point.grad.isfinite().all()
    assert float(latent_value(torch.zeros(1, 2), torch.tensor([[3.0, 4.0]]))) == -5


def test_goals_come_in_their_shares():
    torch.manual_seed(0)
    terminals = np.zeros(400, bool)
    terminals[[199, 399]] = True
    data = Trajectories(np.random.default_rng(0).normal(size=(400, 1)), np.zeros((400, 1)), terminals)
    tensors = data.tensors()
    t = torch.zeros(100_000, dtype=torch.int64)
    temporal = TemporalDistance(1, TemporalConfig(hidden=(4,), p_trajectory=0.5, p_random=0.3, p_current=0.2))
    goals = temporal.draw_goals(tensors, t)
    # A random goal lies in the other trajectory half of the time, and is state 0 once in 400.
    assert float((goals >= 200).double().mean()) == pytest.approx(0.15, abs=0.005)
    assert float((goals == 0).double().mean()) == pytest.approx(0.2 + 0.3 / 400, abs=0.005)
    default = TemporalDistance(1, TemporalConfig(hidden=(4,))).draw_goals(tensors, t)
    assert float((default >= 200).double().mean()) == pytest.approx(0.375 / 2, abs=0.006)
    assert float((default == 0).double().mean()) < 0.004


def test_distances_across_trajectories_are_stitched():
    """Two halves of a line that overlap in the middle: no trajectory goes from one end to the other."""
    rng = np.random.default_rng(0)
    states, terminals = [], []
    for _ in range(60):
        start = rng.integers(0, 31)
        states.append(np.arange(start, start + 11.0))
        terminals += [False] * 10 + [True]
    data = Trajectories(np.concatenate(states)[:, None], np.zeros((660, 1)), np.array(terminals))
    fit = FitConfig(1500, 64, 1e-3, accelerator="cpu")
    config = TemporalConfig(8, (32, 32), gamma=0.95, expectile=0.9, polyak=0.05, fit=fit)
    temporal = TemporalDistance(1, config).fit(data)
    places = np.array([[0.0], [5], [10], [20], [35]])
    found = temporal.distance(np.zeros_like(places), places)
    expected = (1 - 0.95 ** places[:, 0]) / 0.05
    assert np.abs(found - expected).max() < 3.0, (
        "no trajectory is longer than 10 steps, (1 - .95^10) / .05 = 8"
    )
    assert found[4] > 13, "35 steps count 16.7, though nobody ever made more than 10"


def test_the_same_seed_gives_the_same_weights_and_an_interrupted_run_goes_on(tmp_path):
    data = line()
    whole = TemporalDistance(2, TemporalConfig(4, (8,), fit=TINY_FIT)).fit(data)
    again = TemporalDistance(2, TemporalConfig(4, (8,), fit=TINY_FIT))

    def stop(fraction, note):
        if fraction > 0.5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        again.fit(data, folder=tmp_path, progress=stop)
    resumed = TemporalDistance(2, TemporalConfig(4, (8,), fit=TINY_FIT)).fit(data, folder=tmp_path)
    assert resumed.digest == whole.digest
    assert len(resumed.losses_) == 3
    with pytest.raises(InputError, match="other settings"):
        TemporalDistance(2, TemporalConfig(4, (8,), gamma=0.5, fit=TINY_FIT)).fit(data, folder=tmp_path)
    with pytest.raises(InputError, match="other settings"):
        TemporalDistance(2, TemporalConfig(4, (8,), fit=TINY_FIT)).fit(line(seed=1), folder=tmp_path)


def test_observations_are_standardized_and_the_scale_is_part_of_the_embedding():
    data = line()
    temporal = TemporalDistance(2, TemporalConfig(4, (8,), fit=TINY_FIT)).fit(data)
    scaled = temporal.scaler(torch.from_numpy(data.observations))
    assert scaled.mean(0).abs().max() < 1e-5
    assert (scaled.std(0, correction=0) - 1).abs().max() < 1e-5
    before = temporal.digest
    temporal.scaler.scale *= 2
    assert temporal.digest != before
    raw = TemporalDistance(2, TemporalConfig(4, (8,), standardize=False, fit=TINY_FIT)).fit(data)
    assert (raw.scaler.scale == 1).all()
    steady = Trajectories(np.full((5, 2), 3.0), np.zeros((5, 1)), np.array([0, 0, 0, 0, 1]))
    flat = TemporalDistance(2, TemporalConfig(4, (8,), fit=TINY_FIT)).fit(steady)
    assert (flat.scaler.scale == 1).all()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"p_random": 0.5}, "must add up to 1"),
        ({"p_current": 0.1}, "must add up to 1"),
        ({"gamma": 1.0}, "gamma"),
        ({"expectile": 0.0}, "expectile"),
        ({"latent_dim": 0}, "latent_dim"),
        ({"hidden": (0,)}, "hidden"),
        ({"standardize": 1}, "standardize"),
    ],
)
def test_bad_settings_are_refused(changes, message):
    with pytest.raises(InputError, match=message):
        TemporalConfig(**changes)


def test_bad_observations_are_refused():
    temporal = TemporalDistance(2, TemporalConfig(4, (8,), fit=TINY_FIT))
    with pytest.raises(InputError, match=r"must be \(rows, 2\)"):
        temporal.encode(np.zeros((3, 3)))
    with pytest.raises(InputError, match="not finite"):
        temporal.encode(np.full((3, 2), np.nan))
    with pytest.raises(InputError, match="as many"):
        temporal.distance(np.zeros((3, 2)), np.zeros((2, 2)))
    with pytest.raises(InputError, match="have 3 numbers, not 2"):
        temporal.fit(line(dim=3))


def test_offsets_do_not_hide_how_observations_vary(tmp_path):
    data = line((40, 30))
    exact = np.round(np.float64(data.observations) * 1024) / 1024  # so that offsets change nothing
    plain = Trajectories(exact, data.actions, data.terminals)
    moved = Trajectories(exact + np.array([1.7e9, -5e6]), data.actions, data.terminals)
    config = TemporalConfig(latent_dim=4, hidden=(8,), fit=TINY_FIT)
    near, far = (TemporalDistance(2, config).fit(which) for which in (plain, moved))
    assert far.encode(moved.observations) == pytest.approx(near.encode(exact), abs=1e-4)
    save_temporal(tmp_path / "a.safetensors", far)
    again = load_temporal(tmp_path / "a.safetensors")
    assert again.digest == far.digest
    assert (again.encode(moved.observations) == far.encode(moved.observations)).all()
    policy = SkillPolicy(2, 2, 4, PolicyConfig(hidden=(8,), fit=TINY_FIT)).fit(moved, far, 1.0)
    save_policy(tmp_path / "b.safetensors", policy)
    ways = np.ones((len(moved), 4))
    acts = policy.act(moved.observations, ways)
    assert np.ptp(acts) > 0
    assert (load_policy(tmp_path / "b.safetensors").act(moved.observations, ways) == acts).all()
    with pytest.raises(InputError, match="lose their variation in float32"):
        TemporalDistance(2, replace(config, standardize=False)).fit(moved)


def test_a_number_whose_variation_is_lost_is_said():
    data = line((40, 30))
    states = data.observations.copy()
    states[:, 1] = 1e7 + (np.arange(70) % 2)
    with pytest.warns(UserWarning, match=r"number 1 of observations \(and 0 others\) deviates by 0\.5"):
        TemporalDistance(2, TemporalConfig(latent_dim=4, hidden=(8,), fit=TINY_FIT)).fit(
            Trajectories(states, data.actions, data.terminals)
        )


def test_observations_that_embed_to_nothing_finite_are_refused():
    temporal = TemporalDistance(2, TemporalConfig(latent_dim=4, hidden=(8,), fit=TINY_FIT)).fit(line())
    with pytest.raises(InputError, match=r"not finite|no finite numbers"):
        temporal.encode(np.full((1, 2), 3e38) * [1, -1])
    with pytest.raises(InputError, match="must be real numbers"):
        temporal.encode(np.ones((1, 2)) * 1j)
