"""SpargeAttn in transformers models, through the attention interface of transformers 5.

    register()
    model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="sparge")

Prefill runs sparse. Decoding, with a query or a few a step, and whatever comes with a mask runs dense through
torch's scaled_dot_product_attention; `record_stats` tells which call did what.
"""

import os
import warnings
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from jaxtyping import Float
from torch import Tensor, nn

from hexad.core.errors import InputError, MissingExtraError
from hexad.core.validation import check_range
from hexad.kernels.sparse_attention import AttentionStats
from hexad.llm_efficiency.spargeattn.attention import Backend, sparge_attention
from hexad.llm_efficiency.spargeattn.params import HeadParams, load_layers

try:
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.integrations.sdpa_attention import sdpa_attention_forward
    from transformers.masking_utils import sdpa_mask
except ModuleNotFoundError as error:
    raise MissingExtraError(
        f"spargeattn in transformers models needs {error.name!r}, which is not installed; "
        'run: pip install "hexad-llm-efficiency[transformers]"'
    ) from error

Layers = HeadParams | Mapping[int, HeadParams]


@dataclass(frozen=True)
class CallRecord:
    """What one attention call of a model did.

    Attributes:
        layer: index of the layer, or None where the module does not say.
        n_q, n_k: number of queries and keys.
        stats: what the sparse kernel did, or None where the call ran dense.
        reason: why it ran dense.
    """

    layer: int | None
    n_q: int
    n_k: int
    stats: AttentionStats | None
    reason: str = ""


_records: ContextVar[list[CallRecord] | None] = ContextVar("sparge_records", default=None)


@contextmanager
def record_stats() -> Generator[list[CallRecord]]:
    """Collect a `CallRecord` of every attention call that runs inside the block."""
    records: list[CallRecord] = []
    token = _records.set(records)
    try:
        yield records
    finally:
        _records.reset(token)


def register(
    name: str = "sparge",
    params: Layers | str | os.PathLike[str] | None = None,
    *,
    min_queries: int = 128,
    quantize: bool = False,
    backend: Backend = "auto",
) -> None:
    """Make `attn_implementation=name` known to transformers.

    Registering a name again replaces it, also for models that already run with it.

    Args:
        name: how models ask for it.
        params: one `HeadParams` for all layers, or one a layer by its index, or a file of these; the
            defaults of `HeadParams` where None.
        min_queries: calls with fewer queries run dense: decoding, and prompts too short to skip in.
        quantize: round Q and K to INT8.
        backend: of the kernel.

    Raises:
        InputError: a file that holds no parameters, no layers, or min_queries below 2.
        MissingExtraError: transformers is not installed.
    """
    check_range("min_queries", min_queries, 2)
    if name in ("eager", "sdpa", "flex_attention") or name.startswith("flash_attention"):
        raise InputError(f"{name!r} is an attention of transformers itself; choose another name")
    layers: Layers
    if params is None:
        layers = HeadParams()
    elif isinstance(params, (HeadParams, Mapping)):
        layers = params
    else:
        layers = load_layers(params)
    if isinstance(layers, Mapping) and not layers:
        raise InputError("params hold no layers")
    forward = _make_forward(name, layers, min_queries, quantize, backend)
    AttentionInterface.register(name, forward)
    AttentionMaskInterface.register(name, sdpa_mask)


def _make_forward(
    name: str, layers: Layers, min_queries: int, quantize: bool, backend: Backend
) -> Callable[..., tuple[Tensor, None]]:
    warned: set[str] = set()

    def forward(
        module: nn.Module,
        query: Float[Tensor, "batch heads n_q d"],
        key: Float[Tensor, "batch k_heads n_k d"],
        value: Float[Tensor, "batch k_heads n_k d_v"],
        attention_mask: Tensor | None,
        scaling: float | None = None,
        dropout: float = 0.0,
        is_causal: bool | None = None,
        **options: Any,
    ) -> tuple[Float[Tensor, "batch n_q heads d_v"], None]:
        """The attention of one layer, as transformers calls it."""
        layer = getattr(module, "layer_idx", None)
        refuse_what_changes_the_scores(name, key.shape[2], dropout, options)
        n_q = query.shape[2]
        causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
        reason = ""
        if n_q < min_queries:
            reason = f"{n_q} queries, fewer than min_queries = {min_queries}"
        elif attention_mask is not None:
            reason = "a mask: padding, packed sequences, or a chunk of a prefill after cached keys"
            if reason not in warned:
                warned.add(reason)
                warnings.warn(
                    f"attention {name!r} got {reason}; such calls run dense, through "
                    "scaled_dot_product_attention. Inputs of one length, without padding, run sparse.",
                    stacklevel=2,
                )
        if reason:
            record_call(CallRecord(layer, n_q, key.shape[2], None, reason))
            return sdpa_attention_forward(
                module, query, key, value, attention_mask, dropout, scaling, is_causal, **options
            )
        if causal and key.shape[2] > n_q:
            # No mask and more keys than queries: a static cache, of which the first n_q places are filled.
            key, value = key[:, :, :n_q], value[:, :, :n_q]
        arguments: dict[str, Any] = {"scale": scaling, "quantize": quantize, "backend": backend}
        arguments |= {"is_causal": causal, "params": _params_of(layers, layer)}
        if _records.get() is None:
            output = sparge_attention(query, key, value, **arguments)
        else:
            # Counting reads numbers back from the device, so it is done only where somebody asks.
            output, stats = sparge_attention(query, key, value, **arguments, return_stats=True)
            record_call(CallRecord(layer, n_q, key.shape[2], stats))
        return output.transpose(1, 2).contiguous(), None

    return forward


def record_call(record: CallRecord) -> None:
    """Note a call for whoever runs `record_stats`."""
    records = _records.get()
    if records is not None:
        records.append(record)


def _params_of(layers: Layers, layer: int | None) -> HeadParams:
    if isinstance(layers, HeadParams):
        return layers
    if layer is None:
        raise InputError(
            "this model's attention does not tell its layer_idx; register one HeadParams for all"
        )
    if layer not in layers:
        raise InputError(f"params hold layers {sorted(layers)}, not {layer}; calibrate this very model")
    return layers[layer]


def refuse_what_changes_the_scores(name: str, n_k: int, dropout: float, options: Mapping[str, Any]) -> None:
    """Refuse what the filter's prediction does not know of and the dense fallback would not honour either."""
    if dropout > 0:
        raise InputError(f"attention {name!r} is for inference: dropout is {dropout}; call model.eval()")
    window = options.get("sliding_window")
    if window is not None and n_k > window:
        raise InputError(
            f"attention {name!r} knows no sliding windows: {n_k} keys exceed this layer's window of "
            f"{window}; use sdpa for this model, or inputs within the window"
        )
    changes = {
        "softcap": "soft-capped scores",
        "s_aux": "attention sinks that are learned",
        "position_bias": "a position bias added to the scores",
    }
    for option, what in changes.items():
        if options.get(option) is not None:
            raise InputError(
                f"attention {name!r} does not support {what} ({option}); use eager for this model"
            )
    if options.get("output_attentions"):
        raise InputError(f"attention {name!r} builds no attention map to output; use eager")
