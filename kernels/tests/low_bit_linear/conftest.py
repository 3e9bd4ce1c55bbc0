"""Packed weights on any grid, and the answer in whole numbers that every backend is held against."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from hexad.kernels.hadamard_transform import pure
from hexad.kernels.low_bit_linear import (
    ActivationGrid,
    code_bits,
    integer_levels,
    level_sums,
    pack_codes,
    quantize_rows,
)

# Near the best multiples of the root mean square for Gaussian rows; the tests do not depend on them.
ALPHA = {1: 0.798, 2: 1.494, 3: 2.051, 4: 2.514, 5: 2.916, 6: 3.278, 7: 3.611, 8: 3.922, "ternary": 1.224}
ALPHA["fp4"] = 2.922


def grid_of(bits: int | str) -> ActivationGrid:
    return ActivationGrid(bits, ALPHA[bits])


@dataclass
class Layer:
    """Weights of a grid in every form: codes, integers, packed."""

    codes: Tensor
    scale: Tensor
    levels: Tensor
    bits: int
    packed: Tensor
    row_sums: Tensor
    bias: Tensor

    @property
    def integers(self) -> Tensor:
        return self.levels.long()[self.codes.long()]

    def options(self, activation: int | str | None, block: int) -> dict[str, Any]:
        grid = None if activation is None else grid_of(activation)
        return {"levels": self.levels, "bits": self.bits, "activation": grid, "block": block}

    def exact(self, x: Tensor, activation: int | str, block: int) -> tuple[Tensor, Tensor]:
        """The sums of whole numbers, by int64, and the output of them in float64."""
        codes, unit = quantize_rows(pure.by_steps(x.float(), block), grid_of(activation))
        sums = integer_levels(activation).long()[codes.long()] @ self.integers.T
        return sums, sums.double() * unit.double()[..., None] * self.scale.double() + self.bias.double()


def make_layer(bits: int | str, rows: int, k: int, seed: int = 0) -> Layer:
    generator = torch.Generator().manual_seed(seed)
    codes, scale = quantize_rows(torch.randn(rows, k, generator=generator), grid_of(bits))
    width, levels = code_bits(bits), integer_levels(bits)
    packed = pack_codes(codes, width)
    bias = torch.randn(rows, generator=generator)
    sums = level_sums(packed, levels, bits=width, k=k)
    return Layer(codes, scale, levels, width, packed, sums, bias)


@pytest.fixture(scope="session")
def layer() -> Callable[..., Layer]:
    return make_layer


@pytest.fixture(scope="session")
def grid() -> Callable[[int | str], ActivationGrid]:
    return grid_of
