"""QuEST (ICML 2025): training with 1 to 4 bits for weights and activations, and running what came of it.

`prepare` makes the linear layers of any model train quantised, `convert` packs them for deployment,
`quantize` and `scale_for` are the quantiser itself, `save_packed` and `load_packed` write and read files, and
`QuestQuantizationConfig` is for transformers models. Names load on first use.
"""

from typing import TYPE_CHECKING

from hexad.core.lazy import lazy_exports

if TYPE_CHECKING:
    from hexad.llm_efficiency.quest.alignment import gradient_alignment
    from hexad.llm_efficiency.quest.config import QuestConfig
    from hexad.llm_efficiency.quest.files import load_packed, save_packed
    from hexad.llm_efficiency.quest.grids import scale_for
    from hexad.llm_efficiency.quest.hadamard import fwht
    from hexad.llm_efficiency.quest.layer import QuestLinear
    from hexad.llm_efficiency.quest.model import convert, prepare
    from hexad.llm_efficiency.quest.packed import PackedLinear
    from hexad.llm_efficiency.quest.quantizer import Quantized, quantize
    from hexad.llm_efficiency.quest.transformers import QuestQuantizationConfig

_HOME = {
    "PackedLinear": "packed",
    "Quantized": "quantizer",
    "QuestConfig": "config",
    "QuestLinear": "layer",
    "QuestQuantizationConfig": "transformers",
    "convert": "model",
    "fwht": "hadamard",
    "gradient_alignment": "alignment",
    "load_packed": "files",
    "prepare": "model",
    "quantize": "quantizer",
    "save_packed": "files",
    "scale_for": "grids",
}

__all__ = [
    "PackedLinear",
    "Quantized",
    "QuestConfig",
    "QuestLinear",
    "QuestQuantizationConfig",
    "convert",
    "fwht",
    "gradient_alignment",
    "load_packed",
    "prepare",
    "quantize",
    "save_packed",
    "scale_for",
]

__getattr__, __dir__ = lazy_exports(__name__, _HOME)
