"""Inputs of a scan, and the outputs and gradients of any backend."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from hexad.kernels.selective_scan import selective_scan

# (batch, channels, steps, states): below, at and above a vector of channels, a run of states and a chunk.
SHAPES = [
    (1, 1, 1, 1),
    (2, 3, 2, 2),
    (1, 16, 16, 4),
    (2, 17, 33, 5),
    (2, 24, 47, 16),
    (1, 8, 100, 1),
    (3, 40, 17, 7),
]


def make_inputs(
    batch: int,
    channels: int,
    steps: int,
    states: int,
    *,
    groups: int | None = None,
    constant: str = "",
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
) -> dict[str, Any]:
    """Every tensor of a call. `groups` None makes B and C without groups; `constant` names those that are."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    def matrix(name: str) -> Tensor:
        if name in constant:
            return normal(channels, states)
        return normal(batch, states, steps) if groups is None else normal(batch, groups, states, steps)

    moving = {
        "u": normal(batch, channels, steps),
        "delta": normal(batch, channels, steps),
        "B": matrix("B"),
        "C": matrix("C"),
        "z": normal(batch, channels, steps),
    }
    fixed = {
        "A": -torch.rand(channels, states, generator=generator, dtype=torch.float64) * 4,
        "D": normal(channels),
        "delta_bias": normal(channels),
        "initial_state": normal(batch, channels, states),
    }
    small = dtype if dtype == torch.float64 else torch.float32
    inputs = {name: x.to(dtype) for name, x in moving.items()}
    return inputs | {name: x.to(small) for name, x in fixed.items()}


def run_both_ways(inputs: dict[str, Any], **options: Any) -> dict[str, Tensor]:
    """Output, last state and the gradient of every tensor, for random gradients of the two outputs."""
    leaves = {name: x if x is None else x.detach().clone().requires_grad_() for name, x in inputs.items()}
    y, last = selective_scan(**leaves, return_last_state=True, **options)
    generator = torch.Generator().manual_seed(9)
    outer = torch.randn(y.shape, generator=generator, dtype=torch.float64)
    outer_last = torch.randn(last.shape, generator=generator, dtype=torch.float64)
    torch.autograd.backward([y, last], [outer.to(y), outer_last.to(last)])
    found = {"y": y.detach(), "last": last.detach()}
    return found | {f"grad of {name}": x.grad for name, x in leaves.items() if x is not None}


@pytest.fixture(scope="session")
def make() -> Callable[..., dict[str, Any]]:
    return make_inputs


@pytest.fixture(scope="session")
def both_ways() -> Callable[..., dict[str, Tensor]]:
    return run_both_ways


@pytest.fixture(params=SHAPES, ids=str)
def shape(request: pytest.FixtureRequest) -> tuple[int, int, int, int]:
    return request.param
