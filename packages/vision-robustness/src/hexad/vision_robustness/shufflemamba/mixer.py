"""The bidirectional Mamba layer of Vim and its residual block (Zhu et al., 2024; Huang et al., ICML 2025).

Names of parameters are those of the official checkpoints: `in_proj`, `conv1d`, `x_proj`, `dt_proj`, `A_log`,
`D` of the forward direction, the same with `_b` (`A_b_log`, `D_b`) of the backward one, and `out_proj`.
"""

import math
from typing import Any, Literal, get_args

import torch
from jaxtyping import Float
from timm.layers import DropPath
from torch import Tensor, nn
from torch.nn import functional

from hexad.core.errors import InputError
from hexad.core.validation import check_choice, check_count
from hexad.kernels.selective_scan import selective_scan

Init = Literal["mamba", "official", "official-reg"]
DT_RANGE = (0.001, 0.1)
"""The step sizes between which Mamba's initialisation draws (Gu and Dao, 2023, section 3.6)."""
DT_FLOOR = 1e-4
EPS = 1e-5


class VimMixer(nn.Module):
    """Two selective scans over the tokens, one from each end, averaged.

    xz = in_proj(h) is shared. Each direction has its own causal convolution, projections, A and D:

        x -> conv -> silu -> x_proj -> (dt, B, C);  y = scan(x, dt_proj(dt), A, B, C, D)

    and out = out_proj((y_f + flip(y_b)) / 2 * silu(z)). The division keeps the depth stable (hustvl/Vim#90).

    Args:
        d_model: width of a token.
        d_state: numbers of state a channel (N).
        d_conv: width of the convolution.
        expand: channels of the scan over `d_model`.
        dt_rank: rank of the step sizes; None is d_model / 16, rounded up.
        init: "mamba" gives the step sizes of both directions Mamba's distribution. The authors' plain model
            overwrites it in both ("official": trunc-normal weights, zero bias), the one with registers in the
            backward direction alone ("official-reg").

    Raises:
        InputError: a size below 1, or an unknown `init`.
    """

    def __init__(
        self,
        d_model: int,
        d_state: int = 16,
        d_conv: int = 4,
        expand: int = 2,
        dt_rank: int | None = None,
        init: Init = "mamba",
    ) -> None:
        super().__init__()
        for name, value in (("d_model", d_model), ("d_state", d_state), ("d_conv", d_conv)):
            check_count(name, value)
        check_count("expand", expand)
        check_choice("init", init, get_args(Init))
        self.d_inner = inner = expand * d_model
        self.d_state, self.d_conv = d_state, d_conv
        self.dt_rank = rank = math.ceil(d_model / 16) if dt_rank is None else check_count("dt_rank", dt_rank)
        self.in_proj = nn.Linear(d_model, 2 * inner, bias=False)
        self.conv1d = nn.Conv1d(inner, inner, d_conv, groups=inner, padding=d_conv - 1)
        self.conv1d_b = nn.Conv1d(inner, inner, d_conv, groups=inner, padding=d_conv - 1)
        self.x_proj = nn.Linear(inner, rank + 2 * d_state, bias=False)
        self.x_proj_b = nn.Linear(inner, rank + 2 * d_state, bias=False)
        self.dt_proj, self.dt_proj_b = nn.Linear(rank, inner), nn.Linear(rank, inner)
        a_log = torch.arange(1, d_state + 1, dtype=torch.float32).log().repeat(inner, 1)
        self.A_log, self.A_b_log = nn.Parameter(a_log), nn.Parameter(a_log.clone())
        self.D, self.D_b = nn.Parameter(torch.ones(inner)), nn.Parameter(torch.ones(inner))
        self.out_proj = nn.Linear(inner, d_model, bias=False)
        self._initialise(init)

    @torch.no_grad()
    def _initialise(self, init: Init) -> None:
        for projection in (self.dt_proj, self.dt_proj_b):
            if init == "official-reg" and projection is self.dt_proj_b:
                nn.init.zeros_(projection.bias)  # its weight stays torch's default
                continue
            bound = self.dt_rank**-0.5
            nn.init.uniform_(projection.weight, -bound, bound)
            low, high = map(math.log, DT_RANGE)
            dt = (torch.rand(self.d_inner) * (high - low) + low).exp().clamp(min=DT_FLOOR)
            projection.bias.copy_(dt + torch.log(-torch.expm1(-dt)))  # the inverse of softplus
        if init == "official":
            for module in self.modules():
                if isinstance(module, nn.Linear):
                    nn.init.trunc_normal_(module.weight, std=0.02)
                    if module.bias is not None:
                        nn.init.zeros_(module.bias)

    def forward(self, hidden: Float[Tensor, "batch tokens d_model"]) -> Float[Tensor, "batch tokens d_model"]:
        """Mix the tokens; the scan runs in float32 at least, also under autocast."""
        _check_tokens(hidden, self.in_proj.in_features)
        x, z = self.in_proj(hidden).transpose(1, 2).chunk(2, dim=1)
        # Both directions are channels of one scan: two groups, each with its own B and C.
        x = torch.cat([x, x.flip(-1)], dim=1)
        weight = torch.cat([self.conv1d.weight, self.conv1d_b.weight])
        biases: list[Any] = [self.conv1d.bias, self.conv1d_b.bias]
        # Padded on both sides and cut, which is faster than padding the left alone; causal either way.
        x = functional.conv1d(x, weight, torch.cat(biases), padding=self.d_conv - 1, groups=2 * self.d_inner)
        u = functional.silu(x[..., : hidden.shape[1]])
        projected = torch.stack([self.x_proj.weight, self.x_proj_b.weight]) @ u.unflatten(1, (2, -1))
        dt, B, C = projected.split([self.dt_rank, self.d_state, self.d_state], dim=2)
        delta = (torch.stack([self.dt_proj.weight, self.dt_proj_b.weight]) @ dt).flatten(1, 2)
        y: Any = selective_scan(
            u,
            delta,
            -torch.cat([self.A_log, self.A_b_log]).exp(),
            B,
            C,
            torch.cat([self.D, self.D_b]),
            delta_bias=torch.cat([self.dt_proj.bias, self.dt_proj_b.bias]),
            delta_softplus=True,
        )
        forward, backward = y.chunk(2, dim=1)
        # The gate is the same for both, so it is applied once, to their mean.
        mixed = (forward + backward.flip(-1)) * (functional.silu(z) / 2)
        return self.out_proj(mixed.transpose(1, 2))


class VimBlock(nn.Module):
    """Add, normalise, mix: `residual + hidden` goes on as the residual, the mixer's output as hidden states.

    Args:
        dim: width of a token.
        d_state: numbers of state a channel.
        drop_path: probability of dropping a sample's hidden states, when they are added.
        norm: "rms" (all sizes but the authors' middle one) or "layer".
        init: see `VimMixer`.
    """

    def __init__(
        self,
        dim: int,
        d_state: int = 16,
        drop_path: float = 0.0,
        norm: Literal["rms", "layer"] = "rms",
        init: Init = "mamba",
    ) -> None:
        super().__init__()
        self.mixer = VimMixer(dim, d_state, init=init)
        self.norm = make_norm(norm, dim)
        self.drop_path = DropPath(drop_path) if drop_path > 0 else nn.Identity()

    def forward(
        self,
        hidden: Float[Tensor, "batch tokens dim"],
        residual: Float[Tensor, "batch tokens dim"] | None = None,
    ) -> tuple[Float[Tensor, "batch tokens dim"], Float[Tensor, "batch tokens dim"]]:
        """New hidden states and the new residual, which stays in float32 under autocast.

        Raises:
            InputError: hidden states of another width, no tokens, or a residual of another shape.
        """
        _check_tokens(hidden, self.mixer.in_proj.in_features)
        residual = add_residual(hidden, residual, self.drop_path)
        return self.mixer(self.norm(residual.to(self.norm.weight.dtype))), residual


def _check_tokens(hidden: Tensor, width: int) -> None:
    if hidden.ndim != 3 or hidden.shape[2] != width:
        raise InputError(
            f"hidden states have the shape {tuple(hidden.shape)}; they must be (batch, tokens, {width})"
        )
    if hidden.shape[1] == 0:
        raise InputError(f"the sequence has no tokens (shape {tuple(hidden.shape)})")


def add_residual(hidden: Tensor, residual: Tensor | None, drop_path: nn.Module) -> Tensor:
    """residual + drop_path(hidden), in float32 where they are narrower."""
    if residual is None:
        total = hidden
    elif residual.shape == hidden.shape:
        total = residual + drop_path(hidden)
    else:
        raise InputError(
            f"the residual of shape {tuple(residual.shape)} does not fit the hidden states of shape "
            f"{tuple(hidden.shape)}"
        )
    return total.float() if total.dtype in (torch.bfloat16, torch.float16) else total


def make_norm(kind: Literal["rms", "layer"], dim: int) -> nn.RMSNorm | nn.LayerNorm:
    """The norm of Vim, or of the authors' middle size."""
    check_choice("norm", kind, ("rms", "layer"))
    return nn.RMSNorm(dim, eps=EPS) if kind == "rms" else nn.LayerNorm(dim, eps=EPS)
