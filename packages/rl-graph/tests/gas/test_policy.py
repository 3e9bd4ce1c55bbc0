"""The low-level policy: rewards, losses, whose gradient goes where, and that it moves along its skill."""

import numpy as np
import pytest
import torch
from gas_chains import TINY_FIT, line

from hexad.core.errors import InputError
from hexad.rl_graph.gas.fitting import FitConfig
from hexad.rl_graph.gas.policy import (
    PolicyConfig,
    SkillPolicy,
    _Networks,
    _Trainee,
    actor_loss,
    skill_reward,
    value_loss,
)
from hexad.rl_graph.gas.temporal import TemporalConfig, TemporalDistance
from hexad.rl_graph.gas.trajectories import Trajectories


def test_the_rewards_of_a_trajectory_telescope():
    latents = torch.randn(50, 8, dtype=torch.float64)
    skill = torch.nn.functional.normalize(torch.randn(8, dtype=torch.float64), dim=0)
    total = skill_reward(latents[:-1], latents[1:], skill).sum()
    assert float(total) == pytest.approx(float((latents[-1] - latents[0]) @ skill), abs=1e-12)


def test_the_value_regresses_on_the_smaller_critic_by_its_expectile():
    value = torch.tensor([1.0, 1.0], requires_grad=True)
    loss = value_loss(value, torch.tensor([[3.0, 0.0], [2.0, 5.0]]), 0.7)
    assert float(loss.detach()) == pytest.approx((0.7 * 1 + 0.3 * 1) / 2)
    loss.backward()
    assert value.grad is not None
    assert value.grad.tolist() == pytest.approx([-0.7, 0.3])


def test_the_actor_has_a_q_term_and_an_imitation_term():
    mode, actions = torch.tensor([[0.5, 0.0]], requires_grad=True), torch.tensor([[0.0, 1.0]])
    q = 4 * mode[:, 0]
    loss = actor_loss(q, mode, actions, alpha=0.5)
    assert float(loss.detach()) == pytest.approx(-2 / (2 + 1e-6) + 0.5 * (0.25 + 1) / 2)
    loss.backward()
    assert mode.grad is not None
    # d/dmode of -Q / |Q|, the divisor being constant, and of the squares.
    assert mode.grad[0].tolist() == pytest.approx([-4 / 2 + 0.5 * 0.5, 0.5 * -1.0], rel=1e-5)


def batch(trainee, n=32):
    torch.manual_seed(0)
    z, direction = (torch.nn.functional.normalize(torch.randn(n, 3), dim=1) for _ in range(2))
    actions = torch.rand(n, 2) * 2 - 1
    return torch.randn(n, 2), torch.randn(n, 2), actions, torch.randn(n), z, direction


def test_the_actors_loss_moves_no_critic():
    config = PolicyConfig(hidden=(8,), alpha=1.0, fit=TINY_FIT)
    networks = _Networks(2, 2, 3, config)
    gradients = []
    for alpha in (1.0, 50.0):
        trainee = _Trainee(networks, PolicyConfig(hidden=(8,), alpha=alpha, fit=TINY_FIT))
        networks.zero_grad()
        trainee(*batch(trainee)).backward()
        gradients.append(
            {name: p.grad.clone() for name, p in networks.named_parameters() if p.grad is not None}
        )
    for name, gradient in gradients[0].items():
        same = torch.equal(gradient, gradients[1][name])
        assert same != name.startswith("actor"), name
    # Were the Q term missing, imitation alone would scale with alpha.
    actor = [name for name in gradients[0] if name.startswith("actor.weights")]
    assert any(not torch.allclose(50 * gradients[0][name], gradients[1][name]) for name in actor)


def test_the_slow_critics_follow_and_do_not_learn():
    trainee = _Trainee(_Networks(2, 2, 3, PolicyConfig(hidden=(8,))), PolicyConfig(hidden=(8,), polyak=0.25))
    before = [p.clone() for p in trainee.slow.parameters()]
    with torch.no_grad():
        for p in trainee.networks.critics.parameters():
            p.add_(1)
    trainee(*batch(trainee)).backward()
    for old, new in zip(before, trainee.slow.parameters(), strict=True):
        assert torch.allclose(new, old + 0.25, atol=1e-6)
        assert new.grad is None


@pytest.fixture(scope="module")
def plane():
    """Random walks on a plane, an embedding that is the plane itself, and a policy trained on both."""
    rng = np.random.default_rng(0)
    count, length = 40, 30
    actions = rng.uniform(-1, 1, (count, length, 2))
    states = np.concatenate([rng.uniform(-3, 3, (count, 1, 2)), np.zeros((count, length - 1, 2))], 1)
    states[:, 1:] = states[:, :1] + 0.3 * np.cumsum(actions[:, :-1], axis=1)
    terminals = np.zeros((count, length), bool)
    terminals[:, -1] = True
    data = Trajectories(states.reshape(-1, 2), actions.reshape(-1, 2), terminals.ravel())

    class Plane(TemporalDistance):
        def encode(self, observations):
            return np.asarray(observations, np.float32)

    temporal = Plane(2, TemporalConfig(latent_dim=2, hidden=(4,), fit=TINY_FIT))
    fit = FitConfig(800, 128, 3e-3, accelerator="cpu")
    config = PolicyConfig(hidden=(32, 32), gamma=0.9, alpha=0.1, polyak=0.05, fit=fit)
    return data, temporal, SkillPolicy(2, 2, 2, config).fit(data, temporal, 1.0)


def test_it_moves_along_its_skill(plane):
    _, _, policy = plane
    angles = np.linspace(0, 2 * np.pi, 9)[:-1]
    skills = np.stack([np.cos(angles), np.sin(angles)], 1)
    actions = policy.act(np.zeros((8, 2)), 7 * skills)
    cosines = (actions * skills).sum(1) / np.linalg.norm(actions, axis=1)
    # The data are uniform noise, of which imitation alone would take the mean, 0.
    assert cosines.min() > 0.8, "within 37 degrees; clipping a corner alone costs some"
    assert np.abs(actions).max() <= 1
    assert np.linalg.norm(actions, axis=1).min() > 0.5


def test_it_learns_from_all_transitions_and_knows_its_embedding(plane):
    data, temporal, policy = plane
    assert policy.encoder == temporal.digest
    assert len(data.tensors().moves) == 40 * 29


def test_bad_input_is_refused(plane):
    _, _, policy = plane
    with pytest.raises(InputError, match="directions has shape"):
        policy.act(np.zeros((1, 2)), np.zeros((1, 3)))
    with pytest.raises(InputError, match="must be as many"):
        policy.act(np.zeros((2, 2)), np.zeros((1, 2)))
    with pytest.raises(InputError, match="the policy is for"):
        policy.fit(line(dim=3), TemporalDistance(3, TemporalConfig(hidden=(4,), fit=TINY_FIT)), 1.0)
    for changes in ({"alpha": -1}, {"expectile": 1.0}, {"gamma": 0.0}, {"polyak": 0.0}, {"hidden": (0,)}):
        with pytest.raises(InputError, match=next(iter(changes))):
            PolicyConfig(**changes)
