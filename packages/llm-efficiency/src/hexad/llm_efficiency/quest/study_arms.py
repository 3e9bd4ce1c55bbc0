"""The arms of the study as ways to quantise a model's linear layers, and at which rate each is trained."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import nn

from hexad.llm_efficiency.quest.baselines import LSQLinear, absmax_linear
from hexad.llm_efficiency.quest.config import QuestConfig
from hexad.llm_efficiency.quest.model import prepare
from hexad.llm_efficiency.quest.surgery import linears_of, swap

SKIP = ("lm_head", "embed")

Quantise = Callable[[nn.Module, int], nn.Module]
"""`(model, bits) -> model` with weights and activations of that many bits."""


def _quest(model: nn.Module, bits: int) -> nn.Module:
    return prepare(model, QuestConfig(bits, bits, skip=SKIP))


def _no_hadamard(model: nn.Module, bits: int) -> nn.Module:
    # 1.25 is the paper's own outer scale without the transform.
    return prepare(model, QuestConfig(bits, bits, block=1, outer_scale=1.25, skip=SKIP))


def _no_trust(model: nn.Module, bits: int) -> nn.Module:
    return prepare(model, QuestConfig(bits, bits, trust="none", skip=SKIP))


def _absmax(model: nn.Module, bits: int) -> nn.Module:
    linears = linears_of(model, SKIP)
    return swap(model, {name: absmax_linear(linear, bits) for name, linear in linears.items()})


def _lsq(model: nn.Module, bits: int) -> nn.Module:
    return swap(model, {name: LSQLinear(linear, bits) for name, linear in linears_of(model, SKIP).items()})


@dataclass(frozen=True)
class Variant:
    """One arm.

    Attributes:
        quantise: how its layers are made; None for full precision.
        rate: its learning rate, one for all widths, as in the paper: the best of `sweep.py`, at two bits
            on a seed that no preset uses.
        is_method: it is QuEST itself, with its packed model and a width more.
    """

    quantise: Quantise | None
    rate: float
    is_method: bool = False


WIDTHS = (4, 2, 1)
"""Bits of weights and activations at which all arms are compared."""

VARIANTS: dict[str, Variant] = {
    "quest": Variant(_quest, 3e-3, is_method=True),
    "no-hadamard": Variant(_no_hadamard, 1e-3),
    "no-trust": Variant(_no_trust, 1e-3),
    "absmax": Variant(_absmax, 1e-3),
    "lsq": Variant(_lsq, 3e-3),
    "fp32": Variant(None, 1e-3),
}


def case_of(bits: int) -> str:
    """ "w4a4" for four bits."""
    return f"w{bits}a{bits}"
