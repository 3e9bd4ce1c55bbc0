"""The settings of QuEST, for a layer and for a whole model."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hexad.core.errors import InputError
from hexad.core.validation import check_count, near_miss
from hexad.llm_efficiency.quest.grids import Bits, Constants, check_bits
from hexad.llm_efficiency.quest.hadamard import is_power_of_two
from hexad.llm_efficiency.quest.quantizer import OUTER_SCALE, Rule, Trust, make_rule


@dataclass(frozen=True)
class QuestConfig:
    """How linear layers are quantised.

    Attributes:
        w_bits: grid of the weights: 1 to 8, "ternary" (1.585), "fp4", or 16 for checks.
        a_bits: grid of the activations, likewise; None leaves them as they are.
        block: the largest Hadamard block; a layer takes the largest power of two up to it that divides its
            inputs. 1 switches the transform off (an ablation).
        min_block: layers that leave a smaller block are refused.
        trust: T of the trust mask in units of half the grid's largest gap; "default" is 1, and at one bit
            the narrowed [ |x| <= outer_scale a ]; "none" is the plain straight-through estimator.
        outer_scale: s of the one-bit mask; 1.30 behind a Hadamard transform, 1.25 without one.
        constants: alpha* computed ("exact"), or as printed in the authors' code ("official").
        sparse: weights also keep only two pairs of four in eight neighbours (2:4-style).
        skip: modules whose dotted name contains one of these stay as they are.

    Raises:
        InputError: a setting that makes no sense.
    """

    w_bits: Bits = 4
    a_bits: Bits | None = 4
    block: int = 128
    min_block: int = 2
    trust: Trust = "default"
    outer_scale: float = OUTER_SCALE
    constants: Constants = "exact"
    sparse: bool = False
    skip: tuple[str, ...] = ("lm_head", "embed")

    def __post_init__(self) -> None:
        object.__setattr__(self, "w_bits", check_bits("w_bits", self.w_bits))
        if self.a_bits is not None:
            object.__setattr__(self, "a_bits", check_bits("a_bits", self.a_bits))
        for name in ("block", "min_block"):
            if not is_power_of_two(check_count(name, getattr(self, name))):
                raise InputError(f"{name} is {getattr(self, name)}; it must be a power of two")
        if 1 < self.block < self.min_block:
            raise InputError(
                f"min_block is {self.min_block}, more than block ({self.block}); give at most that"
            )
        for bits in (self.w_bits, self.a_bits):
            if bits is not None:
                self._rule(bits, sparse=self.sparse)
        if self.sparse and self.w_bits == 8:
            raise InputError(
                "sparse weights of 8 bits have 257 levels, one more than a byte holds; give at most 7 bits"
            )
        if isinstance(self.skip, str) or not isinstance(self.skip, Sequence):
            raise InputError(
                f"skip is {self.skip!r}; give parts of module names, such as ('lm_head', 'embed')"
            )
        if not all(isinstance(part, str) and part for part in self.skip):
            raise InputError(f"skip is {self.skip!r}; every part of a name must be a string, and not empty")
        object.__setattr__(self, "skip", tuple(self.skip))

    def _rule(self, bits: Bits, *, sparse: bool) -> Rule:
        return make_rule(
            bits, trust=self.trust, outer_scale=self.outer_scale, constants=self.constants, sparse=sparse
        )

    @property
    def weight_rule(self) -> Rule:
        """How the rows of a weight are rounded."""
        return self._rule(self.w_bits, sparse=self.sparse)

    @property
    def activation_rule(self) -> Rule | None:
        """How the activations of a token are rounded, if they are."""
        return None if self.a_bits is None else self._rule(self.a_bits, sparse=False)

    def to_dict(self) -> dict[str, Any]:
        """The settings as JSON values."""
        values = dataclasses.asdict(self) | {"skip": list(self.skip)}
        # JSON has no infinity; without a bound the mask lets every gradient pass.
        return values | ({"trust": "none"} if self.trust == math.inf else {})

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "QuestConfig":
        """The settings back from `to_dict`.

        Raises:
            InputError: a setting that is not known, or makes no sense.
        """
        names = [field.name for field in dataclasses.fields(cls)]
        for name in values:
            if name not in names:
                raise InputError(f"QuestConfig has no setting {name!r}; {near_miss(name, names)}")
        return cls(**values)
