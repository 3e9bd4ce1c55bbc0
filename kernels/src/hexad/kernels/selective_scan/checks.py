"""Everything that can be wrong with a call of the selective scan, said before any work is done."""

import torch
from torch import Tensor

from hexad.core.errors import InputError
from hexad.kernels.selective_scan.inputs import Inputs

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


def check_tensor(name: str, x: Tensor) -> None:
    """Reject what is no dense tensor of real floating numbers."""
    if not isinstance(x, Tensor):
        raise InputError(f"{name} must be a tensor, got {type(x).__name__}")
    if x.is_nested or x.layout != torch.strided:
        kind = "nested" if x.is_nested else str(x.layout).removeprefix("torch.")
        raise InputError(f"{name} is a {kind} tensor; give a dense (strided) one")
    if x.dtype not in DTYPES:
        why = " (complex states are not supported)" if x.is_complex() else ""
        raise InputError(f"{name} has dtype {x.dtype}; give float32, bfloat16, float16 or float64{why}")


def check_call(
    u: Tensor,
    delta: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None,
    z: Tensor | None,
    delta_bias: Tensor | None,
    initial_state: Tensor | None,
) -> None:
    """Reject tensors, shapes and devices that do not belong together."""
    tensors = {"u": u, "delta": delta, "A": A, "B": B, "C": C}
    optional = {"D": D, "z": z, "delta_bias": delta_bias, "initial_state": initial_state}
    tensors |= {name: x for name, x in optional.items() if x is not None}
    for name, x in tensors.items():
        check_tensor(name, x)
        if x.device != u.device:
            raise InputError(f"u is on {u.device}, {name} on {x.device}; move one of them")
    if u.dim() != 3:
        raise InputError(f"u must be (batch, channels, steps), got shape {tuple(u.shape)}")
    batch, channels, steps = u.shape
    if steps == 0 or channels == 0:
        raise InputError(f"u has shape {tuple(u.shape)}: it needs at least one channel and one step")
    if A.dim() != 2 or A.shape[0] != channels or A.shape[1] == 0:
        raise InputError(
            f"A must be (channels, states) with the {channels} channels of u and at least one state, "
            f"got shape {tuple(A.shape)}"
        )
    states = A.shape[1]
    wanted = {
        "delta": (batch, channels, steps),
        "z": (batch, channels, steps),
        "D": (channels,),
        "delta_bias": (channels,),
        "initial_state": (batch, channels, states),
    }
    names = {
        "delta": "(batch, channels, steps)",
        "z": "(batch, channels, steps)",
        "D": "(channels,)",
        "delta_bias": "(channels,)",
        "initial_state": "(batch, channels, states)",
    }
    for name, shape in wanted.items():
        if name in tensors and tensors[name].shape != shape:
            raise InputError(
                f"{name} has shape {tuple(tensors[name].shape)}, but u of shape {tuple(u.shape)} and A of "
                f"shape {tuple(A.shape)} ask for {names[name]} = {shape}"
            )
    _check_matrix("B", B, u, A)
    _check_matrix("C", C, u, A)
    groups = {name: 1 if x.dim() == 3 else x.shape[1] for name, x in (("B", B), ("C", C)) if x.dim() > 2}
    if len(set(groups.values())) > 1:
        raise InputError(f"B has {groups['B']} groups, C has {groups['C']}; they must have as many")


def _check_matrix(name: str, x: Tensor, u: Tensor, A: Tensor) -> None:
    """B or C: one for each step of a batch, of one or several groups of channels, or constant."""
    (batch, channels, steps), states = u.shape, A.shape[1]
    good = {2: (channels, states), 3: (batch, states, steps)}
    if x.dim() == 4:
        groups = x.shape[1]
        good[4] = (batch, groups, states, steps)
        if x.shape == good[4] and (groups == 0 or channels % groups):
            raise InputError(f"{name} has {groups} groups, which do not divide the {channels} channels of u")
    if x.shape != good.get(x.dim()):
        raise InputError(
            f"{name} has shape {tuple(x.shape)}, but u of shape {tuple(u.shape)} and A of shape "
            f"{tuple(A.shape)} ask for (batch, states, steps) = {good[3]}, (batch, groups, states, steps) = "
            f"({batch}, groups, {states}, {steps}), or constant (channels, states) = {good[2]}"
        )


def check_rates(A: Tensor) -> None:
    """Reject an A that lets states grow, or holds NaN."""
    if not bool((A <= 0).all()):
        channel, state = (int(i) for i in (A <= 0).logical_not().nonzero()[0])
        raise InputError(
            f"A holds {float(A[channel, state]):g} at channel {channel}, state {state}; no entry may be "
            "positive or NaN, or states would grow without end (Mamba takes A = -exp(A_log))"
        )


def check_numbers(inputs: Inputs) -> None:
    """Reject NaN in any tensor."""
    for name, x in zip(inputs._fields, inputs, strict=True):
        if x is not None and bool(x.isnan().any()):
            raise InputError(holds_nan(name))


def holds_nan(name: str) -> str:
    """The message for a tensor with NaN."""
    return f"{name} holds NaN; look for the layer that made it"
