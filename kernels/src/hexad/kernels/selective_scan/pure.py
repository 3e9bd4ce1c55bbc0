"""The selective scan in plain PyTorch: chunks of STEPS steps, their states in the cache.

Exponentials, sums over states and over channels run over a whole chunk; the recurrence itself is one fused
operation a step. The backward pass recomputes a chunk from the state that was kept before it. Tensors of a
chunk are (steps, batch, groups, states, channels of a group), so that every operation runs along channels.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from hexad.kernels.selective_scan.inputs import STEPS, Inputs, Scanned, empty_gradients, empty_outputs

# Entries of a chunk's states that are computed together: they fit in the cache, and those of one step are
# too few for PyTorch to wake threads for.
_ENTRIES = 2**18
# Tensors that have no samples, or need not have any.
_SHARED = ("A", "B", "C", "D", "delta_bias")


@dataclass(frozen=True)
class _Chunk:
    """What the steps [first, last) take, in the dtype of the computation.

    Attributes:
        u, z: with one entry along `states`, as the two that follow.
        raw: delta with its bias.
        delta: the same after softplus.
        B, C: with one entry along `channels`; (groups, states, channels) where they are constant.
    """

    u: Tensor
    raw: Tensor
    delta: Tensor
    B: Tensor
    C: Tensor
    z: Tensor | None

    @classmethod
    def of(cls, inputs: Inputs, first: int, last: int, softplus: bool) -> "_Chunk":
        u, raw = (_steps(x, inputs, first, last) for x in (inputs.u, inputs.delta))
        if inputs.delta_bias is not None:
            raw = raw + _channels(inputs.delta_bias[:, None], inputs)
        delta = torch.logaddexp(raw, torch.zeros_like(raw)) if softplus else raw
        z = None if inputs.z is None else _steps(inputs.z, inputs, first, last)
        B, C = (_matrix(x, inputs, first, last) for x in (inputs.B, inputs.C))
        return cls(u, raw, delta, B, C, z)

    def states(self, decay: Tensor, h: Tensor) -> Tensor:
        """The states after every step; h is the one before the first."""
        states = (self.delta * self.u) * self.B
        for k in range(len(states)):
            states[k].addcmul_(decay[k], h)
            h = states[k]
        return states


def forward(inputs: Inputs, softplus: bool, keep: bool) -> Scanned:
    """Outputs, the last state and the checkpoints."""
    made = empty_outputs(inputs, keep)
    for samples in _parts(inputs):
        _forward(_of(inputs, samples), softplus, keep, Scanned(*(x[samples] for x in made)))
    return made


def _forward(inputs: Inputs, softplus: bool, keep: bool, made: Scanned) -> None:
    """The forward pass of some samples."""
    A, h = _channels(inputs.A, inputs), _state(inputs.initial_state, inputs)
    skip = None if inputs.D is None else _channels(inputs.D[:, None], inputs)
    for number in range(inputs.chunks):
        first = number * STEPS
        if keep and number:
            made.checkpoints[:, number - 1] = _ungrouped(h)
        chunk = _Chunk.of(inputs, first, first + STEPS, softplus)
        states = chunk.states((chunk.delta * A).exp_(), h)
        y = _over_states(chunk.C, states)
        if skip is not None:
            y += skip * chunk.u
        if chunk.z is not None:
            y *= torch.nn.functional.silu(chunk.z)
        _write(y, made.y, first)
        h = states[-1].clone()
    made.last_state.copy_(_ungrouped(h))


def backward(
    grad_y: Tensor, grad_last: Tensor | None, inputs: Inputs, checkpoints: Tensor, softplus: bool
) -> list[Tensor]:
    """The gradient of each input."""
    grads = Inputs._make(empty_gradients(inputs))
    A = _channels(inputs.A, inputs)
    # Gradients of what all samples share: (groups, states or 1, channels).
    sums = {name: torch.zeros_like(A[:, :1] if name in ("D", "delta_bias") else A) for name in _SHARED}
    for samples in _parts(inputs):
        last = None if grad_last is None else grad_last[samples]
        part = _of(inputs, samples)
        _backward(grad_y[samples], last, part, checkpoints[samples], softplus, _of(grads, samples), sums)
    for name, total in sums.items():
        x, grad = getattr(inputs, name), getattr(grads, name)
        if x is not None and x.dim() < 3:
            grad.copy_(total.transpose(1, 2).flatten(0, 1).view(grad.shape))
    return [x for x in grads if x is not None]


def _backward(
    grad_y: Tensor,
    grad_last: Tensor | None,
    inputs: Inputs,
    checkpoints: Tensor,
    softplus: bool,
    grads: Inputs,
    sums: dict[str, Tensor],
) -> None:
    """The backward pass of some samples: fills their part of `grads` and adds to `sums`."""
    A = _channels(inputs.A, inputs)
    skip = None if inputs.D is None else _channels(inputs.D[:, None], inputs)
    carry = _state(grad_last, inputs).clone()  # exp(delta A) g of the step that comes after
    for number in reversed(range(inputs.chunks)):
        first = number * STEPS
        h = _state(checkpoints[:, number - 1] if number else inputs.initial_state, inputs)
        chunk = _Chunk.of(inputs, first, first + STEPS, softplus)
        decay = (chunk.delta * A).exp_()
        states = chunk.states(decay, h)
        outer = _steps(grad_y, inputs, first, first + STEPS)
        if chunk.z is not None:
            y = _over_states(chunk.C, states)
            if skip is not None:
                y += skip * chunk.u
            part = torch.sigmoid(chunk.z)
            _write(outer * y * (part * (1 + chunk.z * (1 - part))), grads.z, first)
            outer = outer * (chunk.z * part)
        if inputs.C.dim() == 2:
            sums["C"] += (outer * states).sum((0, 1))
        else:
            _write_matrix(_over_channels(states, outer), grads.C, first)
        # The gradient of every state; each hands `carry` to the step before.
        g = outer * chunk.C
        for k in reversed(range(len(g))):
            g[k] += carry
            torch.mul(g[k], decay[k], out=carry)
        x = chunk.delta * chunk.u
        if inputs.B.dim() == 2:
            sums["B"] += (g * x).sum((0, 1))
        else:
            _write_matrix(_over_channels(g, x), grads.B, first)
        grad_x = _over_states(chunk.B, g)
        w = g.mul_(decay)
        w[1:] *= states[:-1]
        w[0] *= h
        grad_raw = (w * A).sum(3, keepdim=True).addcmul_(grad_x, chunk.u)
        sums["A"] += w.mul_(chunk.delta).sum((0, 1))
        if softplus:
            grad_raw *= torch.sigmoid(chunk.raw)
        sums["delta_bias"] += grad_raw.sum((0, 1))
        _write(grad_raw, grads.delta, first)
        grad_u = grad_x * chunk.delta
        if skip is not None:
            sums["D"] += (outer * chunk.u).sum((0, 1))
            grad_u += skip * outer
        _write(grad_u, grads.u, first)
    if grads.initial_state is not None and inputs.initial_state is not None:
        grads.initial_state.copy_(_ungrouped(carry))


def _parts(inputs: Inputs) -> list[slice]:
    """Samples that are taken together: the states of a chunk of them stay in the cache."""
    batch, states, channels = inputs.state_shape()
    count = max(1, _ENTRIES // (STEPS * states * channels))
    return [slice(first, first + count) for first in range(0, batch, count)]


def _of(tensors: Inputs, samples: slice) -> Inputs:
    """Those of some samples; what all samples share stays whole."""
    return Inputs._make(x if x is None or x.dim() < 3 else x[samples] for x in tensors)


def _steps(x: Tensor, inputs: Inputs, first: int, last: int) -> Tensor:
    """(batch, channels, steps) as (steps, batch, groups, 1, channels), those of a chunk."""
    part = x[..., first:last].permute(2, 0, 1).to(inputs.dtype, memory_format=torch.contiguous_format)
    return part.unflatten(2, (inputs.groups, -1)).unsqueeze(3)


def _channels(x: Tensor, inputs: Inputs) -> Float[Tensor, "groups states channels"]:
    """(channels, states) as a chunk has them."""
    return x.to(inputs.dtype).unflatten(0, (inputs.groups, -1)).transpose(1, 2).contiguous()


def _matrix(x: Tensor, inputs: Inputs, first: int, last: int) -> Tensor:
    """B or C: (steps, batch, groups, states, 1), or (groups, states, channels) if constant."""
    if x.dim() == 2:
        return _channels(x, inputs)
    x = x.unsqueeze(1) if x.dim() == 3 else x
    return x[..., first:last].to(inputs.dtype).movedim(-1, 0).contiguous().unsqueeze(-1)


def _state(x: Tensor | None, inputs: Inputs) -> Float[Tensor, "batch groups states channels"]:
    """(batch, states, channels) in groups; zeros for None."""
    if x is None:
        x = inputs.u.new_zeros(inputs.state_shape(), dtype=inputs.dtype)
    return x.to(inputs.dtype).unflatten(2, (inputs.groups, -1)).transpose(1, 2).contiguous()


def _ungrouped(h: Tensor) -> Float[Tensor, "batch states channels"]:
    return h.transpose(1, 2).flatten(2)


def _over_states(matrix: Tensor, states: Tensor) -> Tensor:
    """Sum over states of B or C times something: (steps, batch, groups, 1, channels)."""
    if matrix.dim() == 3:
        return (matrix * states).sum(3, keepdim=True)
    return matrix.transpose(3, 4) @ states


def _over_channels(states: Tensor, x: Tensor) -> Float[Tensor, "steps batch groups states"]:
    """Sum over the channels of a group."""
    return (states @ x.transpose(3, 4)).squeeze(4)


def _write(x: Tensor, out: Tensor | None, first: int) -> None:
    """A chunk (steps, batch, groups, 1, channels) into (batch, channels, steps)."""
    assert out is not None
    out[..., first : first + len(x)] = x.flatten(2).permute(1, 2, 0)


def _write_matrix(x: Tensor, out: Tensor, first: int) -> None:
    """A chunk (steps, batch, groups, states) into B's shape."""
    grouped = out.unsqueeze(1) if out.dim() == 3 else out
    grouped[..., first : first + len(x)] = x.movedim(0, -1)
