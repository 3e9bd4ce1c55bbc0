"""The GPU path: a program takes some channels of one sample through time, their states in its registers.

The backward pass runs through the chunks from the last to the first. It computes the states of a chunk once
more, writes them where only its program looks, and walks back over them. Sums over channels (the gradients of
B and C) are written tile by tile and added up by torch, so that they come out the same every time.
"""

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from hexad.kernels.selective_scan.inputs import STEPS, Inputs, Scanned, empty_gradients, empty_outputs

# Entries of a tile of channels and states.
_TILE = 512


def _log1p_of(e):
    # Kahan's: the rounding of 1 + e is divided out.
    w = 1.0 + e
    return tl.where(w == 1.0, e, tl.log(w) * (e / tl.where(w == 1.0, 1.0, w - 1.0)))


# ty takes every argument of a jitted function for a constexpr.
_log1p: Any = triton.jit(_log1p_of)


def _logistic_of(x):
    e = tl.exp(-tl.abs(x))
    return tl.where(x < 0, e, 1.0) / (1.0 + e)


_logistic: Any = triton.jit(_logistic_of)


def _softplus_of(x):
    return tl.maximum(x, 0.0) + _log1p(tl.exp(-tl.abs(x)))


_softplus: Any = triton.jit(_softplus_of)


@triton.jit
def _scan_kernel(
    u_ptr, u_b, u_d, u_t,
    delta_ptr, delta_b, delta_d, delta_t,
    z_ptr, z_b, z_d, z_t,
    b_ptr, b_b, b_g, b_d, b_n, b_t,
    c_ptr, c_b, c_g, c_d, c_n, c_t,
    a_ptr, skip_ptr, bias_ptr, initial_ptr,
    y_ptr, last_ptr, kept_ptr,
    channels, per_group, tiles, steps, states,
    SOFTPLUS: tl.constexpr, SKIP: tl.constexpr, GATE: tl.constexpr, BIAS: tl.constexpr,
    INITIAL: tl.constexpr, KEEP: tl.constexpr,
    STEPS: tl.constexpr, CHANNELS: tl.constexpr, STATES: tl.constexpr,
):  # fmt: skip
    batch = tl.program_id(1).to(tl.int64)
    group = tl.program_id(0) // tiles
    inner = tl.program_id(0) % tiles * CHANNELS + tl.arange(0, CHANNELS)
    real = inner < per_group
    d = (group * per_group + inner).to(tl.int64)
    n = tl.arange(0, STATES)
    real_n = n < states
    both = real[:, None] & real_n[None, :]
    chunks = tl.cdiv(steps, STEPS)
    rate = tl.load(a_ptr + d[:, None] * states + n[None, :], mask=both, other=0.0)
    at_state = n[None, :] * channels + d[:, None]  # of (states, channels)
    h = tl.full([CHANNELS, STATES], 0.0, tl.float32)
    if INITIAL:
        h = tl.load(initial_ptr + batch * states * channels + at_state, mask=both, other=0.0)
    bias = tl.full([CHANNELS], 0.0, tl.float32)
    if BIAS:
        bias = tl.load(bias_ptr + d, mask=real, other=0.0)
    u_at = u_ptr + batch * u_b + d * u_d
    delta_at = delta_ptr + batch * delta_b + d * delta_d
    z_at = z_ptr + batch * z_b + d * z_d
    b_at = b_ptr + batch * b_b + group * b_g + d[:, None] * b_d + n[None, :] * b_n
    c_at = c_ptr + batch * c_b + group * c_g + d[:, None] * c_d + n[None, :] * c_n
    for chunk in range(chunks):
        if KEEP:  # noqa: SIM102 (a constant of the compiler, and a number)
            if chunk > 0:
                row = (batch * (chunks - 1) + chunk - 1) * states * channels
                tl.store(kept_ptr + row + at_state, h, mask=both)
        for t in range(chunk * STEPS, tl.minimum(chunk * STEPS + STEPS, steps)):
            u = tl.load(u_at + t * u_t, mask=real, other=0.0).to(tl.float32)
            delta = tl.load(delta_at + t * delta_t, mask=real, other=0.0).to(tl.float32) + bias
            if SOFTPLUS:
                delta = _softplus(delta)
            b = tl.load(b_at + t * b_t, mask=both, other=0.0).to(tl.float32)
            c = tl.load(c_at + t * c_t, mask=both, other=0.0).to(tl.float32)
            h = tl.exp(delta[:, None] * rate) * h + (delta * u)[:, None] * b
            y = tl.sum(h * c, 1)
            if SKIP:
                y += tl.load(skip_ptr + d, mask=real, other=0.0) * u
            if GATE:
                z = tl.load(z_at + t * z_t, mask=real, other=0.0).to(tl.float32)
                y *= z * _logistic(z)
            tl.store(y_ptr + (batch * channels + d) * steps + t, y.to(y_ptr.dtype.element_ty), mask=real)
    tl.store(last_ptr + batch * states * channels + at_state, h, mask=both)


@triton.jit
def _scan_backward_kernel(
    u_ptr, u_b, u_d, u_t,
    delta_ptr, delta_b, delta_d, delta_t,
    z_ptr, z_b, z_d, z_t,
    b_ptr, b_b, b_g, b_d, b_n, b_t,
    c_ptr, c_b, c_g, c_d, c_n, c_t,
    outer_ptr, outer_b, outer_d, outer_t,
    a_ptr, skip_ptr, bias_ptr, initial_ptr, kept_ptr, last_ptr, scratch_ptr,
    grad_u_ptr, grad_delta_ptr, grad_z_ptr, grad_a_ptr, grad_b_ptr, grad_c_ptr,
    grad_skip_ptr, grad_bias_ptr, grad_initial_ptr,
    channels, per_group, tiles, steps, states, batches,
    SOFTPLUS: tl.constexpr, SKIP: tl.constexpr, GATE: tl.constexpr, BIAS: tl.constexpr,
    INITIAL: tl.constexpr, LAST: tl.constexpr, CONSTANT_B: tl.constexpr, CONSTANT_C: tl.constexpr,
    STEPS: tl.constexpr, CHANNELS: tl.constexpr, STATES: tl.constexpr,
):  # fmt: skip
    batch = tl.program_id(1).to(tl.int64)
    group = tl.program_id(0) // tiles
    tile = tl.program_id(0) % tiles
    inner = tile * CHANNELS + tl.arange(0, CHANNELS)
    real = inner < per_group
    d = (group * per_group + inner).to(tl.int64)
    n = tl.arange(0, STATES)
    real_n = n < states
    both = real[:, None] & real_n[None, :]
    chunks = tl.cdiv(steps, STEPS)
    at_rate = d[:, None] * states + n[None, :]  # of (channels, states)
    at_state = n[None, :] * channels + d[:, None]  # of (states, channels)
    rate = tl.load(a_ptr + at_rate, mask=both, other=0.0)
    zeros = tl.full([CHANNELS, STATES], 0.0, tl.float32)
    carry, grad_a, grad_b, grad_c = zeros, zeros, zeros, zeros
    if LAST:
        carry = tl.load(last_ptr + batch * states * channels + at_state, mask=both, other=0.0)
    bias = tl.full([CHANNELS], 0.0, tl.float32)
    skip, grad_skip, grad_bias = bias, bias, bias
    if BIAS:
        bias = tl.load(bias_ptr + d, mask=real, other=0.0)
    if SKIP:
        skip = tl.load(skip_ptr + d, mask=real, other=0.0)
    u_at = u_ptr + batch * u_b + d * u_d
    delta_at = delta_ptr + batch * delta_b + d * delta_d
    z_at = z_ptr + batch * z_b + d * z_d
    outer_at = outer_ptr + batch * outer_b + d * outer_d
    b_at = b_ptr + batch * b_b + group * b_g + d[:, None] * b_d + n[None, :] * b_n
    c_at = c_ptr + batch * c_b + group * c_g + d[:, None] * c_d + n[None, :] * c_n
    program = batch * tl.num_programs(0) + tl.program_id(0)
    scratch = scratch_ptr + program * STEPS * CHANNELS * STATES
    scratch += tl.arange(0, CHANNELS)[:, None] * STATES + n[None, :]
    # Sums over this tile's channels: (tiles, batch, groups, states, steps).
    groups = tl.num_programs(0) // tiles
    over_time = (((tile * batches + batch) * groups + group) * states + n) * steps
    for back in range(chunks):
        chunk = chunks - 1 - back
        first = chunk * STEPS
        last = tl.minimum(first + STEPS, steps)
        h = zeros
        if INITIAL:
            h = tl.load(initial_ptr + batch * states * channels + at_state, mask=both, other=0.0)
        if chunk > 0:
            row = (batch * (chunks - 1) + chunk - 1) * states * channels
            h = tl.load(kept_ptr + row + at_state, mask=both, other=0.0)
        for t in range(first, last):
            tl.store(scratch + (t - first) * CHANNELS * STATES, h)
            u = tl.load(u_at + t * u_t, mask=real, other=0.0).to(tl.float32)
            delta = tl.load(delta_at + t * delta_t, mask=real, other=0.0).to(tl.float32) + bias
            if SOFTPLUS:
                delta = _softplus(delta)
            b = tl.load(b_at + t * b_t, mask=both, other=0.0).to(tl.float32)
            h = tl.exp(delta[:, None] * rate) * h + (delta * u)[:, None] * b
        tl.debug_barrier()
        for step in range(last - first):
            t = last - 1 - step
            u = tl.load(u_at + t * u_t, mask=real, other=0.0).to(tl.float32)
            raw = tl.load(delta_at + t * delta_t, mask=real, other=0.0).to(tl.float32) + bias
            delta = raw
            if SOFTPLUS:
                delta = _softplus(raw)
            x = delta * u
            b = tl.load(b_at + t * b_t, mask=both, other=0.0).to(tl.float32)
            c = tl.load(c_at + t * c_t, mask=both, other=0.0).to(tl.float32)
            before = tl.load(scratch + (t - first) * CHANNELS * STATES)
            decay = tl.exp(delta[:, None] * rate)
            h = decay * before + x[:, None] * b
            outer = tl.load(outer_at + t * outer_t, mask=real, other=0.0).to(tl.float32)
            at = (batch * channels + d) * steps + t
            if GATE:
                z = tl.load(z_at + t * z_t, mask=real, other=0.0).to(tl.float32)
                part = _logistic(z)
                grad_z = outer * (tl.sum(h * c, 1) + skip * u) * (part * (1.0 + z * _logistic(-z)))
                tl.store(grad_z_ptr + at, grad_z.to(grad_z_ptr.dtype.element_ty), mask=real)
                outer *= z * part
            g = outer[:, None] * c + carry
            carry = g * decay
            w = carry * before
            if CONSTANT_B:
                grad_b += g * x[:, None]
            else:
                tl.store(grad_b_ptr + over_time + t, tl.sum(g * x[:, None], 0), mask=real_n)
            if CONSTANT_C:
                grad_c += outer[:, None] * h
            else:
                tl.store(grad_c_ptr + over_time + t, tl.sum(outer[:, None] * h, 0), mask=real_n)
            grad_x = tl.sum(g * b, 1)
            grad_raw = tl.sum(w * rate, 1) + grad_x * u
            if SOFTPLUS:
                grad_raw *= _logistic(raw)
            grad_a += w * delta[:, None]
            grad_skip += outer * u
            grad_bias += grad_raw
            grad_u = grad_x * delta + skip * outer
            tl.store(grad_u_ptr + at, grad_u.to(grad_u_ptr.dtype.element_ty), mask=real)
            tl.store(grad_delta_ptr + at, grad_raw.to(grad_delta_ptr.dtype.element_ty), mask=real)
        tl.debug_barrier()
    of_batch = batch * channels * states
    tl.store(grad_a_ptr + of_batch + at_rate, grad_a, mask=both)
    if CONSTANT_B:
        tl.store(grad_b_ptr + of_batch + at_rate, grad_b, mask=both)
    if CONSTANT_C:
        tl.store(grad_c_ptr + of_batch + at_rate, grad_c, mask=both)
    if SKIP:
        tl.store(grad_skip_ptr + batch * channels + d, grad_skip, mask=real)
    if BIAS:
        tl.store(grad_bias_ptr + batch * channels + d, grad_bias, mask=real)
    if INITIAL:
        tl.store(grad_initial_ptr + batch * states * channels + at_state, carry, mask=both)


class _Shape(NamedTuple):
    """How a call is cut into programs."""

    tiles: int  # of the channels of a group
    channels: int  # of a tile
    states: int  # of a tile, some of which may not exist
    grid: tuple[int, int]

    @classmethod
    def of(cls, inputs: Inputs) -> "_Shape":
        per_group = inputs.u.shape[1] // inputs.groups
        states = 1 << (inputs.A.shape[1] - 1).bit_length()
        channels = min(1 << (per_group - 1).bit_length(), max(1, _TILE // states))
        tiles = -(-per_group // channels)
        return cls(tiles, channels, states, (tiles * inputs.groups, inputs.u.shape[0]))


def forward(inputs: Inputs, softplus: bool, keep: bool) -> Scanned:
    """Outputs, the last state and the checkpoints, computed in float32; at most 256 states."""
    made = empty_outputs(inputs, keep)
    if made.y.numel() == 0:
        return made
    shape = _Shape.of(inputs)
    small = _small(inputs)
    launch: Any = _scan_kernel[shape.grid]
    launch(
        *_moving(inputs), *small, *made, *_sizes(inputs, shape), KEEP=keep, **_flags(inputs, softplus, shape)
    )
    return made


def backward(
    grad_y: Tensor, grad_last: Tensor | None, inputs: Inputs, checkpoints: Tensor, softplus: bool
) -> list[Tensor]:
    """The gradient of each input."""
    grads = Inputs._make(empty_gradients(inputs))
    u = inputs.u
    if u.numel() == 0:
        return [x.zero_() for x in grads if x is not None]
    shape = _Shape.of(inputs)
    small = _small(inputs)
    batch, channels, steps = u.shape
    states = inputs.A.shape[1]

    def room(*sizes: int) -> Tensor:
        return torch.empty(sizes, dtype=torch.float32, device=u.device)

    over_time = (shape.tiles, batch, inputs.groups, states, steps)
    of_batch = (batch, channels, states)
    sums = {
        "A": room(*of_batch),
        "B": room(*of_batch) if inputs.B.dim() == 2 else room(*over_time),
        "C": room(*of_batch) if inputs.C.dim() == 2 else room(*over_time),
        "D": room(batch, channels),
        "delta_bias": room(batch, channels),
        "initial_state": room(batch, states, channels),
    }
    scratch = room(shape.grid[0] * batch, STEPS, shape.channels, shape.states)
    last = small[0] if grad_last is None else grad_last.to(torch.float32).contiguous()
    launch: Any = _scan_backward_kernel[shape.grid]
    launch(
        *_moving(inputs), grad_y, *grad_y.stride(),
        *small, checkpoints.contiguous(), last, scratch,
        grads.u, grads.delta, grads.z, *sums.values(),
        *_sizes(inputs, shape), batch,
        LAST=grad_last is not None, CONSTANT_B=inputs.B.dim() == 2, CONSTANT_C=inputs.C.dim() == 2,
        **_flags(inputs, softplus, shape),
    )  # fmt: skip
    for name in ("A", "B", "C", "D", "delta_bias"):
        if getattr(inputs, name) is not None:
            grad = getattr(grads, name)
            grad.copy_(sums[name].sum(0).view(grad.shape))
    if inputs.initial_state is not None and grads.initial_state is not None:
        grads.initial_state.copy_(sums["initial_state"])
    return [x for x in grads if x is not None]


def _moving(inputs: Inputs) -> list[Any]:
    """The tensors that change over time, each with its strides; B and C have five of them."""
    arguments: list[Any] = []
    for x in (inputs.u, inputs.delta, inputs.z):
        arguments += [inputs.u, 0, 0, 0] if x is None else [x, *x.stride()]
    for x in (inputs.B, inputs.C):
        if x.dim() == 2:
            batch, group, (channel, state), step = 0, 0, x.stride(), 0
        else:
            batch, group, state, step = (x.unsqueeze(1) if x.dim() == 3 else x).stride()
            channel = 0
        arguments += [x, batch, group, channel, state, step]
    return arguments


def _small(inputs: Inputs) -> list[Tensor]:
    """A, D, bias and the initial state in float32; a stand-in for those that are None."""
    A = inputs.A.to(torch.float32).contiguous()
    rest = (inputs.D, inputs.delta_bias, inputs.initial_state)
    return [A, *(A if x is None else x.to(torch.float32).contiguous() for x in rest)]


def _sizes(inputs: Inputs, shape: _Shape) -> tuple[int, ...]:
    _, channels, steps = inputs.u.shape
    return channels, channels // inputs.groups, shape.tiles, steps, inputs.A.shape[1]


def _flags(inputs: Inputs, softplus: bool, shape: _Shape) -> dict[str, Any]:
    return {
        "SOFTPLUS": softplus,
        "SKIP": inputs.D is not None,
        "GATE": inputs.z is not None,
        "BIAS": inputs.delta_bias is not None,
        "INITIAL": inputs.initial_state is not None,
        "STEPS": STEPS,
        "CHANNELS": shape.channels,
        "STATES": shape.states,
        "num_warps": max(1, min(4, shape.channels * shape.states // 128)),
    }
