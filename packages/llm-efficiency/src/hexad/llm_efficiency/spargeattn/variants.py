"""The size of the study, and what its arms do differently."""

from dataclasses import dataclass
from typing import Literal

from hexad.kernels.sparse_attention import available_backends
from hexad.llm_efficiency.spargeattn.attention import Backend
from hexad.llm_efficiency.spargeattn.params import HeadParams


@dataclass(frozen=True)
class Config:
    """The size of the study.

    Attributes:
        sides: sides of the photographs' crops; n = side^2 tokens.
        speed_sides: sides at which nothing but the speed is measured.
        large_side: a further crop of one photograph, for the arms that want it; None for none.
        texts: texts to search among.
        tuning_side: side of the crops the tuned arm is tuned on.
        tuning_inputs: how many crops, and how many texts, it is tuned on; the authors use five.
        rounds: timed rounds of a call.
        compile_flex: time flex_attention, which needs a C++ compiler and some ten seconds a size to compile.
    """

    sides: tuple[int, ...]
    speed_sides: tuple[int, ...]
    large_side: int | None
    texts: int
    tuning_side: int
    tuning_inputs: int
    rounds: int
    compile_flex: bool


@dataclass(frozen=True)
class Variant:
    """What an arm does.

    Attributes:
        params: of the filter; None is dense attention.
        order: in which the pixels are laid out as tokens.
        tiles: predicted by the filter, or as many at random, or as many near the diagonal.
        tuned: fit the parameters on other inputs first.
        quantize: INT8.
        backend: of the kernel.
        timed: measure the speed.
        large: run on the large photograph too.
        text: run on the text task too.
    """

    params: HeadParams | None
    order: Literal["hilbert", "row-major", "random"] = "hilbert"
    tiles: Literal["predicted", "random", "window"] = "predicted"
    tuned: bool = False
    quantize: bool = False
    backend: Backend = "auto"
    timed: bool = False
    large: bool = False
    text: bool = False


def applies_second_filter() -> bool:
    """Whether a fast backend here applies the second filter; the pure-torch one cannot."""
    return available_backends()["native"] is None
