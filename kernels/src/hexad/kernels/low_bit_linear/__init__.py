"""A linear layer on packed weights of 1 to 8 bits, and inputs rounded to as few.

`low_bit_linear` transforms x by block Hadamard, rounds it to an `ActivationGrid`, multiplies integers exactly
and scales the result: inference of what QuEST trains (arXiv 2502.05003). `pack_codes` and `unpack_codes` make
and read its weights, `integer_levels` gives the common grids and `quantize_rows` rounds to them; keep
`level_sums` beside the weights. Names load on first use, so importing this package imports no torch.
"""

from typing import TYPE_CHECKING

from hexad.core.lazy import lazy_exports

if TYPE_CHECKING:
    from hexad.kernels.low_bit_linear.functional import available_backends, low_bit_linear
    from hexad.kernels.low_bit_linear.grids import ActivationGrid, code_bits, integer_levels, quantize_rows
    from hexad.kernels.low_bit_linear.packing import level_sums, pack_codes, packed_bytes, unpack_codes

_HOME = {
    "ActivationGrid": "grids",
    "available_backends": "functional",
    "code_bits": "grids",
    "integer_levels": "grids",
    "level_sums": "packing",
    "low_bit_linear": "functional",
    "pack_codes": "packing",
    "packed_bytes": "packing",
    "quantize_rows": "grids",
    "unpack_codes": "packing",
}

__all__ = [
    "ActivationGrid",
    "available_backends",
    "code_bits",
    "integer_levels",
    "level_sums",
    "low_bit_linear",
    "pack_codes",
    "packed_bytes",
    "quantize_rows",
    "unpack_codes",
]

__getattr__, __dir__ = lazy_exports(__name__, _HOME)
