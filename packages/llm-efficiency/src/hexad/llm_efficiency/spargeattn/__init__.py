"""SpargeAttn (ICML 2025): attention that skips the tiles its softmax would ignore, in any trained model.

`sparge_attention` stands in for torch's `scaled_dot_product_attention`, `register` gives it to
transformers models by one argument, `SpargeTuner` and `calibrate` fit its thresholds per head, and
`hilbert_order` arranges image and video tokens so that more can be skipped. Names load on first use.
"""

from typing import TYPE_CHECKING

from hexad.core.lazy import lazy_exports

if TYPE_CHECKING:
    from hexad.kernels.sparse_attention import AttentionStats, block_sparse_attention, to_flex_block_mask
    from hexad.llm_efficiency.spargeattn.attention import block_mask, dense_attention, sparge_attention
    from hexad.llm_efficiency.spargeattn.calibration import calibrate
    from hexad.llm_efficiency.spargeattn.calls import AttentionCall, load_call, save_call
    from hexad.llm_efficiency.spargeattn.hilbert import hilbert_order
    from hexad.llm_efficiency.spargeattn.params import HeadParams, load_layers, save_layers
    from hexad.llm_efficiency.spargeattn.transformers import record_stats, register
    from hexad.llm_efficiency.spargeattn.tuning import SpargeTuner

_KERNEL = "hexad.kernels.sparse_attention"
_HOME = {
    "AttentionCall": "calls",
    "AttentionStats": _KERNEL,
    "HeadParams": "params",
    "SpargeTuner": "tuning",
    "block_mask": "attention",
    "block_sparse_attention": _KERNEL,
    "calibrate": "calibration",
    "dense_attention": "attention",
    "hilbert_order": "hilbert",
    "load_call": "calls",
    "load_layers": "params",
    "record_stats": "transformers",
    "register": "transformers",
    "save_call": "calls",
    "save_layers": "params",
    "sparge_attention": "attention",
    "to_flex_block_mask": _KERNEL,
}

__all__ = [
    "AttentionCall",
    "AttentionStats",
    "HeadParams",
    "SpargeTuner",
    "block_mask",
    "block_sparse_attention",
    "calibrate",
    "dense_attention",
    "hilbert_order",
    "load_call",
    "load_layers",
    "record_stats",
    "register",
    "save_call",
    "save_layers",
    "sparge_attention",
    "to_flex_block_mask",
]

__getattr__, __dir__ = lazy_exports(__name__, _HOME)
