"""INT8 quantisation a tile, as in SageAttention (arXiv 2410.02367) and in SpargeAttn's released kernels.

A tile of tokens shares one scale d = max|x| / 127 + 1e-7, and x is stored as the integer nearest to x / d,
halves rounded away from zero, so that |x - d * x8| <= d / 2.
"""

import torch
from jaxtyping import Float, Int8
from torch import Tensor
from torch.nn.functional import pad

from hexad.kernels.sparse_attention.prediction import compute_dtype, num_blocks


def quantize_tiles(
    x: Float[Tensor, "*batch n d"], block: int
) -> tuple[Int8[Tensor, "*batch n d"], Float[Tensor, "*batch blocks"]]:
    """Quantise each run of `block` tokens with its own scale; the last tile may be shorter.

    Returns the integers and the scales (float32, or float64 for float64 input).
    """
    values = x.to(compute_dtype(x.dtype))
    n = x.shape[-2]
    blocks = num_blocks(n, block)
    tiles = pad(values, (0, 0, 0, blocks * block - n)).unflatten(-2, (blocks, block))
    scale = tiles.abs().amax((-1, -2)) / 127 + 1e-7
    # Adding half with the sign and cutting off rounds halves away from zero; torch.round takes them to even.
    scaled = tiles / scale[..., None, None]
    rounded = torch.trunc(scaled + torch.where(scaled < 0, -0.5, 0.5))
    return rounded.to(torch.int8).flatten(-3, -2)[..., :n, :], scale


def dequantize_tiles(
    x8: Int8[Tensor, "*batch n d"], scale: Float[Tensor, "*batch blocks"], block: int
) -> Float[Tensor, "*batch n d"]:
    """The values that the integers stand for."""
    per_token = scale.repeat_interleave(block, dim=-1)[..., : x8.shape[-2]]
    return x8.to(scale.dtype) * per_token[..., None]


def smooth_keys(k: Float[Tensor, "*batch n d"]) -> Float[Tensor, "*batch n d"]:
    """k without its mean token. A softmax over keys does not see the difference, the int8 scale does."""
    values = k.to(compute_dtype(k.dtype))
    return values - values.mean(-2, keepdim=True)
