"""Inputs with structure, and the dense float64 answer that every backend is held against."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

LOG2_E = math.log2(math.e)


def expand_mask(
    block_mask: Tensor, n_q: int, n_k: int, block_q: int, block_k: int, is_causal: bool
) -> Tensor:
    """The (n_q, n_k) entries that a tile mask keeps, the last query aligned with the last key."""
    rows = block_mask.repeat_interleave(block_q, -2)[..., :n_q, :]
    entries = rows.repeat_interleave(block_k, -1)[..., :n_k]
    if is_causal:
        entries = entries & torch.ones(n_q, n_k, dtype=torch.bool).tril(n_k - n_q)
    return entries


def dense_oracle(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    block_mask: Tensor,
    *,
    is_causal: bool = False,
    block_q: int = 128,
    block_k: int = 64,
    scale: float | None = None,
) -> Tensor:
    """SDPA in float64 over the expanded boolean mask: what block-sparse attention has to equal."""
    mask = expand_mask(block_mask, q.shape[2], k.shape[2], block_q, block_k, is_causal)
    q, k, v = (x.double() for x in (q, k, v))
    return scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale, enable_gqa=True)


def structured_inputs(
    n_q: int,
    n_k: int | None = None,
    *,
    heads: int = 2,
    k_heads: int | None = None,
    d: int = 64,
    d_v: int | None = None,
    batch: int = 1,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
    sink: float = 0.0,
) -> tuple[Tensor, Tensor, Tensor]:
    """q, k, v of tokens on a curve through feature space: neighbours are alike, distant tokens are not.

    Keys carry a common offset, as those of trained models do. Each head turns at its own speed. `sink` is
    what the first 16 keys gain in score, in bits at the default scale, as the first tokens of a text do.
    """
    n_k = n_q if n_k is None else n_k
    k_heads = heads if k_heads is None else k_heads
    generator = torch.Generator().manual_seed(seed)
    radians_a_token = torch.rand(batch, k_heads, 1, d // 2, generator=generator) * 0.015
    angle = torch.arange(n_k)[:, None] * radians_a_token
    curve = torch.cat((angle.sin(), angle.cos()), -1)
    noise = torch.randn(2, batch, heads, max(n_q, n_k), d, generator=generator) * 0.2
    k = curve + noise[0, :, :k_heads, :n_k] + torch.randn(d, generator=generator)
    position = torch.linspace(0, n_k - 1, n_q).long()
    q = curve.repeat_interleave(heads // k_heads, 1)[:, :, position] + noise[1, :, :, :n_q]
    if sink:
        pull = (sink / LOG2_E) ** 0.5 * d**-0.25
        q = q + pull
        k[:, :, :16] += pull
    v = torch.randn(batch, k_heads, n_k, d if d_v is None else d_v, generator=generator)
    return q.to(dtype), k.to(dtype), v.to(dtype)


def random_block_mask(
    batch: int, heads: int, q_blocks: int, k_blocks: int, keep: float, seed: int = 0
) -> Tensor:
    """A random tile mask whose rows keep their first tile, so that no query is left without a key."""
    mask = torch.rand(batch, heads, q_blocks, k_blocks, generator=torch.Generator().manual_seed(seed)) < keep
    mask[..., 0] = True
    return mask


@pytest.fixture(scope="session")
def oracle() -> Callable[..., Tensor]:
    return dense_oracle


@pytest.fixture(scope="session")
def expand() -> Callable[..., Tensor]:
    return expand_mask


@pytest.fixture(scope="session")
def structured() -> Callable[..., tuple[Tensor, Tensor, Tensor]]:
    return structured_inputs


@pytest.fixture(scope="session")
def random_mask() -> Callable[..., Tensor]:
    return random_block_mask
