"""The public function of the selective scan: checks at the door, then the registered operator."""

from typing import get_args

import torch
from jaxtyping import Float
from torch import Tensor

from hexad.core.errors import InputError
from hexad.kernels.selective_scan import checks, op, reference
from hexad.kernels.selective_scan.backends import Backend, Name, choose, reason_against
from hexad.kernels.selective_scan.inputs import Inputs, compute_dtype

Output = Float[Tensor, "batch channels steps"]
State = Float[Tensor, "batch channels states"]


def available_backends(device: str = "cpu", dtype: torch.dtype = torch.float32) -> dict[str, str | None]:
    """Every backend, with the reason why it cannot serve `device` and `dtype` here (None where it can)."""
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    return {name: reason_against(name, device, wide) for name in get_args(Name)}


def selective_scan(
    u: Float[Tensor, "batch channels steps"],
    delta: Float[Tensor, "batch channels steps"],
    A: Float[Tensor, "channels states"],
    B: Float[Tensor, "..."],
    C: Float[Tensor, "..."],
    D: Float[Tensor, " channels"] | None = None,
    z: Float[Tensor, "batch channels steps"] | None = None,
    delta_bias: Float[Tensor, " channels"] | None = None,
    delta_softplus: bool = False,
    return_last_state: bool = False,
    *,
    initial_state: Float[Tensor, "batch channels states"] | None = None,
    backend: Backend = "auto",
) -> Output | tuple[Output, State]:
    """Mamba's selective scan, differentiable in every tensor; takes the arguments of `selective_scan_fn`.

    With d = delta + delta_bias, or its softplus: h_t = exp(d_t A) h_{t-1} + d_t u_t B_t and
    y_t = <h_t, C_t> + D u_t, times silu(z_t) (Mamba, arXiv 2312.00752, algorithm 2; B discretised by Euler's
    rule, as in the authors' code).

    Tensors may have different floating dtypes and any strides. Everything is computed in float32, or in
    float64 if one of them has that; between forward and backward one state in 16 is kept.

    Args:
        u: the input.
        delta: the step size of each channel and step, before bias and softplus.
        A: rates, none positive.
        B: (batch, states, steps); or (batch, groups, states, steps), where channels of a group share it; or
            constant, (channels, states).
        C: as B, with as many groups.
        D: adds D u to the output.
        z: a gate: the output is multiplied with silu(z).
        delta_bias: added to delta.
        delta_softplus: take the softplus of delta + delta_bias.
        return_last_state: return the state after the last step too. A gradient flows through it.
        initial_state: the state before the first step, such as the last one of the piece before; None is 0.
        backend: "auto" takes the fastest that can run on the tensors' device; a backend asked for by name
            runs or raises. "mamba_ssm" hands over to that package.

    Returns:
        The output in the dtype of u, and with return_last_state the last state in float32 (or float64).

    Raises:
        InputError: for shapes, dtypes or devices that do not fit, no steps, a backend that cannot run; on
            CPUs also for NaN in any tensor and a positive entry of A.
    """
    checks.check_call(u, delta, A, B, C, D, z, delta_bias, initial_state)
    for name, flag in (("delta_softplus", delta_softplus), ("return_last_state", return_last_state)):
        if not isinstance(flag, bool):
            raise InputError(f"{name} must be True or False, got {flag!r}")
    tensors = (u, delta, A, B, C, D, z, delta_bias)
    everything = (*tensors, initial_state)
    learns = torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in everything)
    chained = initial_state is not None or (return_last_state and learns)
    dtype = compute_dtype(everything)
    chosen = choose(backend, u.device.type, dtype, A.shape[1], chained)
    if chosen == "mamba_ssm":
        return _delegated(tensors, delta_softplus, return_last_state)
    start = None if initial_state is None else initial_state.transpose(1, 2)
    if chosen == "reference":
        inputs = Inputs(*tensors, start)
        if u.device.type == "cpu" and not torch.compiler.is_compiling():
            checks.check_rates(A)
            checks.check_numbers(inputs)
        y, last_state = reference.scan(inputs, delta_softplus)
        y, last_state = y.to(u.dtype), last_state.to(dtype)
    else:
        y, last_state, _ = op.selective_scan(*tensors, start, delta_softplus, learns, chosen)
    return (y, last_state.transpose(1, 2)) if return_last_state else y


def _delegated(
    tensors: tuple[Tensor | None, ...], delta_softplus: bool, return_last_state: bool
) -> Output | tuple[Output, State]:
    """Call mamba_ssm, which wants one dtype for all that changes over time and float32 for the rest."""
    from mamba_ssm.ops.selective_scan_interface import selective_scan_fn  # ty: ignore[import-not-found]

    u, delta, A, B, C, D, z, delta_bias = tensors
    assert u is not None

    def like_u(x: Tensor | None) -> Tensor | None:
        return None if x is None else x.to(torch.float32 if x.dim() < 3 else u.dtype)

    made = [like_u(x) for x in (u, delta, A, B, C, D, z, delta_bias)]
    return selective_scan_fn(*made, delta_softplus, return_last_state)
