"""The baselines are what their papers say: a straw man would prove nothing."""

import math

import pytest
import torch
from torch import nn

from hexad.llm_efficiency.quest.baselines import LSQLinear, _LearnedStep, absmax_linear


def test_absmax_is_a_plain_straight_through_estimator():
    torch.manual_seed(0)
    linear, x = nn.Linear(128, 16), torch.randn(7, 128, requires_grad=True)
    layer = absmax_linear(linear, 4)

    def rounded(v):
        step = 2 * v.abs().amax(-1, keepdim=True) / 15
        return (torch.round(v / step + 0.5) - 0.5) * step

    x_q, w_q = rounded(x.detach()), rounded(linear.weight.detach())
    torch.testing.assert_close(layer(x), x_q @ w_q.T + linear.bias, rtol=1e-4, atol=1e-4)
    g = torch.randn(7, 16)
    g_x, g_w = torch.autograd.grad(layer(x), [x, layer.weight], g)
    torch.testing.assert_close(g_x, g @ w_q, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(g_w, g.T @ x_q, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("bits", [1, 2, 4])
def test_the_gradient_of_a_learned_step_is_the_papers(bits):
    torch.manual_seed(0)
    top = 2**bits - 1
    v = torch.randn(5, 64, dtype=torch.float64, requires_grad=True)
    step = torch.full((5, 1), 0.5, dtype=torch.float64, requires_grad=True)
    g = torch.randn(5, 64, dtype=torch.float64)
    g_v, g_step = torch.autograd.grad(_LearnedStep.apply(v, step, top), [v, step], g)
    scaled = v.detach() / 0.5
    inside = scaled.abs() <= top / 2
    level = torch.round(scaled.clamp(-top / 2, top / 2) + 0.5) - 0.5
    slope = torch.where(inside, level - scaled, top / 2 * scaled.sign())
    torch.testing.assert_close(g_v, g * inside)
    torch.testing.assert_close(g_step, (g * slope).sum(-1, keepdim=True) / math.sqrt(64 * top / 2))
    # Off the jumps the value moves with the step as that slope says.
    with torch.no_grad():
        moved = _LearnedStep.apply(v, step + 1e-7, top) - _LearnedStep.apply(v, step, top)
        expected = torch.where(inside, level, slope) * 1e-7
    assert float(((moved - expected).abs() < 1e-12).double().mean()) > 0.99


def test_lsq_starts_from_the_mean_magnitude_and_learns_its_steps():
    torch.manual_seed(0)
    layer = LSQLinear(nn.Linear(64, 16), 2)
    x = 3 * torch.randn(200, 64)
    layer(x).square().mean().backward()
    expected = 2 * float(x.abs().mean()) / math.sqrt(1.5)
    assert float(layer.log_a_step.detach().exp()) == pytest.approx(expected, rel=1e-5)
    assert layer.log_a_step.grad.abs().item() > 0
    assert layer.log_w_step.grad.shape == (16, 1)
    assert bool((layer.log_w_step.grad != 0).all())
    # The first batch sets it, no other does, and a checkpoint remembers that.
    layer(100 * x)
    again = LSQLinear(nn.Linear(64, 16), 2)
    again.load_state_dict(layer.state_dict())
    again(x)
    assert float(again.log_a_step.detach().exp()) == pytest.approx(expected, rel=1e-5)
