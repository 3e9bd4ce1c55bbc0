"""The operator under the public function, registered with torch.library in the namespace `hexad`.

It has a fake implementation, so a model that calls it traces whole under torch.compile(fullgraph=True). Its
arguments come checked in shape and dtype (see `functional`); NaN and infinity are looked for by the backends.
"""

import torch
from torch import Tensor

from hexad.kernels.low_bit_linear.backends import run
from hexad.kernels.low_bit_linear.grids import ActivationGrid, GridName

# Schemas have no unions: a grid travels as a number, 0 for none.
_NAMED: dict[GridName, int] = {"ternary": 9, "fp4": 10}


def grid_number(activation: ActivationGrid | None) -> int:
    """The number under which a grid crosses the operator's schema."""
    if activation is None:
        return 0
    return activation.bits if isinstance(activation.bits, int) else _NAMED[activation.bits]


def _grid(number: int, alpha: float) -> ActivationGrid | None:
    if number == 0:
        return None
    names: dict[int, GridName] = {value: name for name, value in _NAMED.items()}
    return ActivationGrid(names.get(number, number), alpha)


@torch.library.custom_op("hexad::low_bit_linear", mutates_args=())
def low_bit_linear(
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
    return run(
        backend,
        x,
        packed,
        scale,
        bias,
        row_sums,
        levels=levels,
        bits=bits,
        activation=_grid(grid, alpha),
        block=block,
    )


@low_bit_linear.register_fake
def _(x, packed, scale, bias, levels, row_sums, bits, grid, alpha, block, backend):
    return x.new_empty(*x.shape[:-1], packed.shape[0])
