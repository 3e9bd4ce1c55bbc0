"""The short way of layers that ran before: it is taken, sees every change, and steps aside when watched."""

import gc

import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.profiler import ProfilerActivity, profile
from torch.utils._python_dispatch import TorchDispatchMode

from hexad.core.errors import InputError
from hexad.kernels.low_bit_linear import available_backends, low_bit_linear, prepared

pytestmark = pytest.mark.skipif(
    available_backends("cpu")["native"] is not None, reason="the native path cannot run here"
)


@pytest.fixture
def case(layer):
    weights = layer(4, 40, 256)
    options = weights.options(8, 64) | {"row_sums": weights.row_sums}
    # Whole numbers, whose transform is exact in every backend.
    x = torch.randint(-9, 10, (3, 256), generator=torch.Generator().manual_seed(5)).float()

    def call(x=x, scale=weights.scale, **changes):
        return low_bit_linear(x, weights.packed, scale, weights.bias, **(options | changes))

    return weights, x, call


def slow(call, *arguments, **changes):
    """The answer by PyTorch's dispatcher."""
    return call(*arguments, backend="torch", **changes)


@pytest.fixture
def taken(monkeypatch):
    """The number of calls that went the short way."""
    count = []
    run = prepared.Prepared.__call__
    monkeypatch.setattr(prepared.Prepared, "__call__", lambda self, x: count.append(1) or run(self, x))
    return count


def test_it_is_taken_from_the_second_call_and_answers_the_same(case, taken):
    _, x, call = case
    first = call()
    assert not taken
    assert torch.equal(call(), first)
    assert torch.equal(call(x[None]), first[None])
    assert torch.equal(call(x[:0]), first[:0])
    assert call(x.bfloat16()).dtype == torch.bfloat16
    assert len(taken) == 4
    assert torch.equal(slow(call), first)


def test_weights_changed_in_place_are_seen(case, taken):
    weights, _, call = case
    call()
    weights.scale.mul_(2)
    weights.bias.add_(1)
    assert torch.equal(call(), slow(call))
    assert len(taken) == 1
    weights.scale.data = weights.scale * 3  # other memory behind the same tensor
    assert torch.equal(call(), slow(call))
    assert len(taken) == 1


def test_other_tensors_and_options_go_the_long_way(case, taken, layer):
    weights, x, call = case
    call()
    other = layer(4, 40, 256, seed=1)
    call(scale=weights.scale.clone())
    call()  # the scale is the old one again, so this one goes the long way too
    low_bit_linear(x, other.packed, weights.scale, weights.bias, **other.options(8, 64))
    call(block=128)
    call(x.T.contiguous().T)
    assert not taken
    with pytest.raises(InputError, match="packed has rows of 128 bytes"):
        call(x[:, :128])
    with pytest.raises(InputError, match="computes no gradient"):
        call(x.clone().requires_grad_())
    with pytest.raises(InputError, match="NaN or infinity"):
        call(x * torch.nan)


def test_whoever_listens_to_operators_hears_of_it(case, taken):
    _, x, call = case
    first = call()
    heard = []

    class Listener(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            heard.append(func)
            return func(*args, **(kwargs or {}))

    with Listener():
        assert torch.equal(call(), first)
    assert torch.ops.hexad.low_bit_linear.default in heard
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        call()
    assert "hexad::low_bit_linear" in {event.key for event in seen.key_averages()}
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        fake = call(mode.from_tensor(x))
    assert type(fake).__name__ == "FakeTensor"
    assert fake.shape == first.shape
    assert not taken


def test_layers_are_forgotten_with_their_weights(layer):
    weights = layer(2, 40, 256)
    options = weights.options(8, 64) | {"row_sums": weights.row_sums}
    low_bit_linear(torch.ones(256), weights.packed, weights.scale, **options)
    key = id(weights.packed)
    assert key in prepared._known
    del weights, options
    gc.collect()
    assert key not in prepared._known
