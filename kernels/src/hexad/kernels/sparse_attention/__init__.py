"""Block-sparse attention with a two-stage online filter (SpargeAttn, arXiv 2502.18137).

`predict_block_mask` judges from q and k alone which tiles of the attention map matter,
`block_sparse_attention` attends over the kept tiles of any such mask, and `sparse_attention` does both.
`AttentionStats` says what ran and how much was skipped; `to_flex_block_mask` hands a mask to torch's
flex_attention. Names load on first use, so importing this package does not import torch.
"""

from typing import TYPE_CHECKING

from hexad.core.lazy import lazy_exports

if TYPE_CHECKING:
    from hexad.kernels.sparse_attention.flex import to_flex_block_mask
    from hexad.kernels.sparse_attention.functional import (
        available_backends,
        block_sparse_attention,
        predict_block_mask,
        sparse_attention,
    )
    from hexad.kernels.sparse_attention.stats import AttentionStats

_HOME = {
    "AttentionStats": "stats",
    "available_backends": "functional",
    "block_sparse_attention": "functional",
    "predict_block_mask": "functional",
    "sparse_attention": "functional",
    "to_flex_block_mask": "flex",
}

__all__ = [
    "AttentionStats",
    "available_backends",
    "block_sparse_attention",
    "predict_block_mask",
    "sparse_attention",
    "to_flex_block_mask",
]

__getattr__, __dir__ = lazy_exports(__name__, _HOME)
