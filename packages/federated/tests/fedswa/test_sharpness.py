"""The top eigenvalue against the dense Hessian, and the flatness probe's invariance."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from hexad.core.errors import InputError
from hexad.federated.fedswa import flatness, top_hessian_eigenvalue

INPUTS = torch.randn(30, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
CLASSES = torch.arange(30) % 3


def make(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double()


def loss(model):
    return functional.cross_entropy(model(INPUTS), CLASSES)


def dense_hessian(model):
    names = [name for name, _ in model.named_parameters()]
    sizes = [p.numel() for p in model.parameters()]
    shapes = [p.shape for p in model.parameters()]

    def value(flat):
        parts = {n: p.reshape(s) for n, p, s in zip(names, flat.split(sizes), shapes, strict=True)}
        return functional.cross_entropy(torch.func.functional_call(model, parts, INPUTS), CLASSES)

    flat = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
    return torch.autograd.functional.hessian(value, flat)


@pytest.mark.parametrize("seed", [0, 1])
def test_it_is_the_largest_of_the_dense_hessian(seed):
    model = make(seed)
    wanted = float(torch.linalg.eigvalsh(dense_hessian(model))[-1])
    found = top_hessian_eigenvalue(model, loss, iterations=2000, tolerance=1e-10)
    assert found == pytest.approx(wanted, rel=1e-4)


def test_a_large_negative_eigenvalue_is_not_taken_for_the_top():
    class Saddle(nn.Module):
        def __init__(self):
            super().__init__()
            self.x = nn.Parameter(torch.zeros(3, dtype=torch.float64))

    curvature = torch.tensor([-9.0, 2.0, 0.5], dtype=torch.float64)
    found = top_hessian_eigenvalue(Saddle(), lambda m: (curvature * m.x**2).sum() / 2, tolerance=1e-9)
    assert found == pytest.approx(2.0, rel=1e-5)


def test_the_probe_rises_as_curvature_says_and_leaves_the_model_alone():
    class Bowl(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.tensor([[3.0, 4.0]], dtype=torch.float64))

    model = Bowl()
    # f = h |w - w0|^2 / 2 at w0: a move of exactly r |w0| = 0.5 in any direction costs h / 8.
    start = model.w.detach().clone()
    rise = flatness(model, lambda m: 6 * ((m.w - start) ** 2).sum() / 2, radius=0.1)
    assert rise == pytest.approx(6 / 8)
    assert torch.equal(model.w, start)


def test_the_probe_does_not_see_a_rescaling_between_layers():
    plain = nn.Sequential(nn.Linear(4, 5, bias=False), nn.ReLU(), nn.Linear(5, 3, bias=False)).double()
    scaled = nn.Sequential(nn.Linear(4, 5, bias=False), nn.ReLU(), nn.Linear(5, 3, bias=False)).double()
    with torch.no_grad():
        scaled[0].weight.copy_(plain[0].weight * 10)
        scaled[2].weight.copy_(plain[2].weight / 10)
    rises = [flatness(model, loss, draws=5) for model in (plain, scaled)]
    np.testing.assert_allclose(*rises, rtol=1e-9)


def test_bad_questions_are_refused():
    model = make()
    with pytest.raises(InputError, match="the loss is nan"):
        top_hessian_eigenvalue(model, lambda m: loss(m) * float("nan"))
    with pytest.raises(InputError, match="iterations is 0"):
        top_hessian_eigenvalue(model, loss, iterations=0)
    with pytest.raises(InputError, match="radius is 0"):
        flatness(model, loss, radius=0.0)
