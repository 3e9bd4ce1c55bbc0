"""The GPU path: a program takes whole blocks into its registers and walks through the steps of the recursion.

Sums and differences are those of `pure.by_steps`, in float32 and in the same order.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor

# Entries that a program takes, where a block has no more: enough for four warps to load whole cache lines.
_SPAN = 2048


@triton.jit
def _transform_kernel(x_ptr, y_ptr, entries, factor, STEPS: tl.constexpr, SPAN: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * SPAN + tl.arange(0, SPAN)
    x = tl.load(x_ptr + at, mask=at < entries, other=0).to(tl.float32)
    for step in tl.static_range(STEPS):
        pairs = tl.reshape(x, (SPAN // (2 << step), 2, 1 << step))
        first, second = tl.split(tl.permute(pairs, (0, 2, 1)))
        pairs = tl.join(first + second, first - second)
        x = tl.reshape(tl.permute(pairs, (0, 2, 1)), (SPAN,))
    tl.store(y_ptr + at, (x * factor).to(y_ptr.dtype.element_ty), mask=at < entries)


def transform(x: Float[Tensor, "*batch k"], block: int) -> Float[Tensor, "*batch k"]:
    """x times the block-diagonal matrix, sums in float32; the block is at most 2**14."""
    x = x.contiguous()
    y = torch.empty_like(x)
    if x.numel() == 0:
        return y
    span = max(block, _SPAN)
    # ty takes every argument of a jitted function for a constexpr.
    launch: Any = _transform_kernel[(-(-x.numel() // span),)]
    steps = block.bit_length() - 1
    launch(x, y, x.numel(), block**-0.5, STEPS=steps, SPAN=span, num_warps=max(4, min(16, span // 1024)))
    return y
