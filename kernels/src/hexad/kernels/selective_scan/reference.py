"""The selective scan by its definition, step by step in float64: the oracle of every other backend.

With delta' = softplus(delta + delta_bias) (Mamba, arXiv 2312.00752, algorithm 2; B is discretised by Euler's
rule as in the authors' code, A by the exponential):

    h_t = exp(delta'_t A) h_{t-1} + delta'_t u_t B_t
    y_t = <h_t, C_t> + D u_t, times silu(z_t)

It is no operator of its own: autograd goes through the loop, so that its gradients share nothing with the
formulas of the other backends.
"""

import torch
from jaxtyping import Float64
from torch import Tensor

from hexad.kernels.selective_scan.inputs import Inputs


def scan(
    inputs: Inputs, softplus: bool
) -> tuple[Float64[Tensor, "batch channels steps"], Float64[Tensor, "batch states channels"]]:
    """Outputs and the last state, in float64, differentiable."""
    wide = Inputs._make(None if x is None else x.to(torch.float64) for x in inputs)
    u, delta, A = wide.u, wide.delta, wide.A
    if wide.delta_bias is not None:
        delta = delta + wide.delta_bias[:, None]
    if softplus:
        delta = torch.logaddexp(delta, torch.zeros_like(delta))
    B, C = _each_step(wide.B, u), _each_step(wide.C, u)
    h = u.new_zeros(u.shape[0], *A.shape)
    if wide.initial_state is not None:
        h = wide.initial_state.transpose(1, 2)
    outputs = []
    for t in range(u.shape[-1]):
        h = torch.exp(delta[..., t, None] * A) * h + (delta * u)[..., t, None] * B[..., t]
        outputs.append((h * C[..., t]).sum(-1))
    y = torch.stack(outputs, -1)
    if wide.D is not None:
        y = y + wide.D[:, None] * u
    if wide.z is not None:
        y = y * torch.nn.functional.silu(wide.z)
    return y, h.transpose(1, 2)


def _each_step(x: Tensor, u: Tensor) -> Float64[Tensor, "batch channels states steps"]:
    """B or C for every channel."""
    batch, channels, steps = u.shape
    if x.dim() == 2:
        return x[None, :, :, None].expand(batch, -1, -1, steps)
    if x.dim() == 3:
        return x[:, None].expand(-1, channels, -1, -1)
    return x.repeat_interleave(channels // x.shape[1], dim=1)
