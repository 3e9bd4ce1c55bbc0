"""The operator under the public function, registered with torch.library in the namespace `hexad`.

It has a fake implementation, so a model that calls it traces whole under torch.compile(fullgraph=True). Its
arguments come checked in shape and dtype (see `functional`); what takes the numbers themselves to check is
checked here or by the backend.

Defined through `Library`, not by the decorator `custom_op`, whose checks of every call take about as long as
the rounding of a token (pytorch issue 139500).
"""

import torch
from torch import Tensor

from hexad.kernels.low_bit_linear.backends import run
from hexad.kernels.low_bit_linear.checks import check_level_values
from hexad.kernels.low_bit_linear.grids import grid_of
from hexad.kernels.low_bit_linear.packing import level_sums


def _low_bit_linear(
    x: Tensor,
    packed: Tensor,
    scale: Tensor,
    bias: Tensor | None,
    levels: Tensor,
    row_sums: Tensor | None,
    bits: int,
    grid: int,
    alpha: float,
    block: int,
    backend: str,
) -> Tensor:
    """See `functional.low_bit_linear`; `grid` is the activation's as `grid_number` has it."""
    if backend != "native":  # which looks for itself
        check_level_values(levels)
        if row_sums is None:
            row_sums = level_sums(packed, levels, bits=bits, k=x.shape[-1])
    return run(
        backend,
        x,
        packed,
        scale,
        bias,
        row_sums,
        levels=levels,
        bits=bits,
        activation=grid_of(grid, alpha),
        block=block,
    )


_library = torch.library.Library("hexad", "FRAGMENT")
_library.define(
    "low_bit_linear" + torch.library.infer_schema(_low_bit_linear, mutates_args=()),
    tags=torch.Tag.pt2_compliant_tag,
)
for _device in ("CPU", "CUDA"):
    _library.impl("low_bit_linear", _low_bit_linear, _device)


@torch.library.register_fake("hexad::low_bit_linear", lib=_library)
def _(x, packed, scale, bias, levels, row_sums, bits, grid, alpha, block, backend):
    return x.new_empty(*x.shape[:-1], packed.shape[0])


low_bit_linear = torch.ops.hexad.low_bit_linear.default
