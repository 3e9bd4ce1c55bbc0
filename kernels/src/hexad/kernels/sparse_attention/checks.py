"""Everything that can be wrong with a call of sparse attention, said before any work is done."""

import numbers
from collections.abc import Sequence

import torch
from torch import Tensor

from hexad.core.errors import InputError
from hexad.kernels.sparse_attention.prediction import num_blocks

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)

OVERFLOW = (
    "the scores q k^T * scale pass the range of their dtype; scale q and k down, or give a smaller scale"
)

MAX_BLOCK = 2**20
"""Larger tiles are mistakes, and would overflow the kernels' index arithmetic."""


def check_tensors(q: Tensor, k: Tensor, v: Tensor | None, *, is_causal: bool, names: str = "qkv") -> None:
    """Reject shapes, dtypes and devices that do not belong together, of the tensors in `names`."""
    given = {name: x for name, x in zip("qkv", (q, k, v), strict=True) if name in names}
    for name, x in given.items():
        if isinstance(x, Tensor) and (x.is_nested or x.layout != torch.strided):
            kind = "nested" if x.is_nested else str(x.layout).removeprefix("torch.")
            raise InputError(f"{name} is a {kind} tensor; give a dense (strided) one")
        if not isinstance(x, Tensor) or x.dim() != 4:
            got = tuple(x.shape) if isinstance(x, Tensor) else type(x).__name__
            raise InputError(f"{name} must be a tensor of shape (batch, heads, tokens, head_dim), got {got}")
        if x.dtype not in DTYPES:
            raise InputError(f"{name} has dtype {x.dtype}; give float32, bfloat16, float16 or float64")
        if 0 in x.shape:
            raise InputError(f"{name} is empty: its shape is {tuple(x.shape)}")
        if x.dtype != q.dtype or x.device != q.device:
            raise InputError(
                f"q and {name} must share dtype and device, got {q.dtype} on {q.device} "
                f"and {x.dtype} on {x.device}"
            )
        if x.shape[0] != q.shape[0]:
            raise InputError(f"q and {name} must share the batch size, got {q.shape[0]} and {x.shape[0]}")
    if q.shape[-1] != k.shape[-1]:
        raise InputError(f"q and k must share head_dim, got {q.shape[-1]} and {k.shape[-1]}")
    if v is not None and v.shape[:3] != k.shape[:3]:
        raise InputError(
            f"k and v must share (batch, heads, tokens), got {tuple(k.shape[:3])} and {tuple(v.shape[:3])}"
        )
    if q.shape[1] % k.shape[1]:
        raise InputError(f"q has {q.shape[1]} heads, which is no multiple of the {k.shape[1]} heads of k")
    if is_causal and q.shape[2] > k.shape[2]:
        raise InputError(
            f"is_causal needs at most as many queries as keys, got {q.shape[2]} and {k.shape[2]}: "
            "the first queries would see no key"
        )


def check_blocks(block_q: int, block_k: int) -> None:
    """Reject block sizes that no tile can have."""
    for name, block in (("block_q", block_q), ("block_k", block_k)):
        if isinstance(block, bool) or not isinstance(block, int) or block < 1:
            raise InputError(f"{name} must be a positive integer, got {block!r}")
        if block > MAX_BLOCK:
            raise InputError(f"{name} is {block}; no tile may be larger than {MAX_BLOCK} tokens")


def check_mask(block_mask: Tensor, q: Tensor, k: Tensor, block_q: int, block_k: int) -> None:
    """Reject a tile mask of another dtype, device or shape than the call needs."""
    if not isinstance(block_mask, Tensor) or block_mask.dtype != torch.bool:
        got = block_mask.dtype if isinstance(block_mask, Tensor) else type(block_mask).__name__
        raise InputError(f"block_mask must be a boolean tensor, got {got}")
    if block_mask.device != q.device:
        raise InputError(f"block_mask is on {block_mask.device}, q on {q.device}; move one of them")
    wanted = (q.shape[0], q.shape[1], num_blocks(q.shape[2], block_q), num_blocks(k.shape[2], block_k))
    if tuple(block_mask.shape) != wanted:
        raise InputError(
            f"block_mask must have shape (batch, q_heads, q_blocks, k_blocks) = {wanted} for "
            f"{q.shape[2]} queries and {k.shape[2]} keys in blocks of {block_q} and {block_k}, "
            f"got {tuple(block_mask.shape)}"
        )


def check_inference_only(*tensors: Tensor) -> None:
    """Refuse inputs that ask for a gradient, which no backend computes."""
    if torch.is_grad_enabled() and any(x.requires_grad for x in tensors):
        raise InputError(
            "sparse attention is for inference and computes no gradient: call it under torch.no_grad() "
            "or torch.inference_mode(), or detach q, k and v"
        )


def per_head(name: str, value: float | Sequence[float] | Tensor, heads: int) -> Tensor:
    """`value` as a float64 vector of one entry a query head."""
    if isinstance(value, Tensor):
        vector = value.detach().to(torch.float64)
    elif isinstance(value, (int, float, numbers.Real)):  # the last are NumPy's scalars
        return torch.full((heads,), float(value), dtype=torch.float64)
    else:
        try:
            if isinstance(value, str):
                raise TypeError
            vector = torch.tensor([float(x) for x in value], dtype=torch.float64)
        except (TypeError, ValueError):
            raise InputError(
                f"{name} must be one number or one for each of {heads} query heads, got {value!r}"
            ) from None
    if vector.is_meta:
        raise InputError(f"{name} is on the meta device and holds no numbers; give one with values")
    if vector.dim() == 0:
        return vector.expand(heads).clone()
    if vector.shape != (heads,):
        raise InputError(
            f"{name} must be one number or one for each of {heads} query heads, got {tuple(vector.shape)}"
        )
    return vector


def check_range(name: str, vector: Tensor, low: float, high: float) -> None:
    """Reject entries outside [low, high], and NaN."""
    inside = (vector >= low) & (vector <= high)
    if not bool(inside.all()):
        raise InputError(f"{name} must lie in [{low:g}, {high:g}], got {float(vector[~inside][0]):g}")


def check_finite(**tensors: Tensor) -> None:
    """Reject NaN and infinity at the price of one sum a tensor."""
    for name, x in tensors.items():
        if not _is_finite(x):
            raise InputError(f"{name} holds NaN or infinity; look for the layer that made it")


def check_output(out: Tensor) -> None:
    """Reject what scores that overflow leave behind: finite inputs give a finite output otherwise."""
    if not _is_finite(out):
        raise InputError(OVERFLOW)


def _is_finite(x: Tensor) -> bool:
    # A sum over finite numbers may overflow, so only a suspicious sum has its tensor looked at in full.
    # Half precision is summed in float32 (float16 overflows at 65504).
    dtype = torch.float32 if x.dtype == torch.float16 else None
    return bool(torch.isfinite(x.sum(dtype=dtype))) or bool(torch.isfinite(x).all())


def check_rows(
    block_mask: Tensor, *, is_causal: bool, n_q: int, n_k: int, block_q: int, block_k: int
) -> None:
    """Reject a mask under which some query has no key to attend to (its softmax would be 0 / 0).

    A causal tile row serves all its queries only when its first kept tile begins at or before the first
    query's own position.
    """
    if is_causal:
        first_kept = block_mask.to(torch.uint8).argmax(-1) * block_k
        position = torch.arange(block_mask.shape[2], device=block_mask.device) * block_q + n_k - n_q
        served = block_mask.any(-1) & (first_kept <= position)
    else:
        served = block_mask.any(-1)
    if bool(served.all()):
        return
    b, h, i = (int(x) for x in (~served).nonzero()[0])
    reason = "its first query sees none of the kept keys" if is_causal else "it keeps no key block"
    mend = "keep the diagonal tiles (force_diagonal)" if is_causal else "keep at least one tile in every row"
    raise InputError(f"block_mask row (batch {b}, head {h}, q block {i}) is empty: {reason}; {mend}")
