"""SpargeAttn in transformers models, through the attention interface of transformers 5.

    register()
    model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="sparge")

Prefill runs sparse, in chunks too, and so do batches padded at their ends, sample by sample. Decoding, with a
query or a few a step, and whatever comes with another mask runs dense through torch's
scaled_dot_product_attention; `record_stats` tells which call did what.
"""

import os
import warnings
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, get_args

import torch
from jaxtyping import Float
from torch import Tensor, nn

from hexad.core.errors import InputError, MissingExtraError
from hexad.core.validation import check_choice, check_count, check_flag
from hexad.kernels.sparse_attention import AttentionStats
from hexad.llm_efficiency.spargeattn.attention import Backend, dense_attention, sparge_attention
from hexad.llm_efficiency.spargeattn.params import HeadParams, check_layers, load_layers

try:
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    from hexad.llm_efficiency.spargeattn.padding import expand_key_mask, is_key_mask, key_mask, key_ranges
except ModuleNotFoundError as error:
    raise MissingExtraError(
        f"spargeattn in transformers models needs {error.name!r}, which is not installed; "
        'run: pip install "hexad-llm-efficiency[transformers]"'
    ) from error

Layers = HeadParams | Mapping[int, HeadParams]


@dataclass(frozen=True)
class CallRecord:
    """What one attention call of a model did, or a part of it: padded samples of one length are a call.

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
        InputError: no name, or one of transformers itself; a file that holds no parameters; no layers, or
            others than `HeadParams` by index; min_queries below 2; an unknown backend.
        MissingExtraError: transformers is not installed.
    """
    if not isinstance(name, str) or not name:
        raise InputError(f"name is {name!r}; give one by which models ask for the attention")
    if name in ("eager", "sdpa", "flex_attention") or name.startswith("flash_attention"):
        raise InputError(f"{name!r} is an attention of transformers itself; choose another name")
    check_count("min_queries", min_queries, 2)
    check_flag("quantize", quantize)
    check_choice("backend", backend, get_args(Backend))
    layers: Layers
    if params is None:
        layers = HeadParams()
    elif isinstance(params, HeadParams):
        layers = params
    elif isinstance(params, Mapping):
        layers = check_layers(params)
    elif isinstance(params, (str, os.PathLike)):
        layers = load_layers(params)
    else:
        raise InputError(
            f"params must be HeadParams, one a layer by its index, or a file of them, not {params!r}"
        )
    AttentionInterface.register(name, _Forward(name, layers, min_queries, quantize, backend))
    AttentionMaskInterface.register(name, key_mask)


@dataclass(frozen=True, eq=False)
class _Forward:
    """The attention function of one registered name."""

    name: str
    layers: Layers
    min_queries: int
    quantize: bool
    backend: Backend
    warned: set[str] = field(default_factory=set)

    def __call__(
        self,
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
        refuse_what_changes_the_scores(self.name, key.shape[2], dropout, options)
        layer = getattr(module, "layer_idx", None)
        causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
        n_q = query.shape[2]
        flags = attention_mask if is_key_mask(attention_mask) else None
        if flags is not None:
            key, value = key[:, :, : flags.shape[-1]], value[:, :, : flags.shape[-1]]
        elif attention_mask is None and causal and key.shape[2] > n_q > 1:
            # No mask and more keys than queries: a static cache, of which the first n_q places are filled.
            key, value = key[:, :, :n_q], value[:, :, :n_q]
        groups = None if flags is None else key_ranges(flags)
        if reason := self._why_dense(n_q, attention_mask is None or groups is not None):
            record_call(CallRecord(layer, n_q, key.shape[2], None, reason))
            mask = attention_mask if flags is None else expand_key_mask(flags, n_q, causal)
            return sdpa_attention_forward(
                module, query, key, value, mask, dropout, scaling, is_causal, **options
            )
        if groups is None:
            return self._attend(layer, query, key, value, scaling, causal).transpose(1, 2).contiguous(), None
        output = query.new_zeros(*query.shape[:3], value.shape[-1])
        for (start, stop), samples in groups.items():
            which = slice(None) if len(samples) == len(query) else torch.tensor(samples, device=query.device)
            keys, values = key[which][:, :, start:stop], value[which][:, :, start:stop]
            for rows in _row_ranges(start, stop, n_q, key.shape[2], causal):
                part = self._attend(layer, query[which][:, :, rows], keys, values, scaling, causal)
                output[which, :, rows] = part
        return output.transpose(1, 2).contiguous(), None

    def _why_dense(self, n_q: int, plain: bool) -> str:
        if n_q < self.min_queries:
            return f"{n_q} queries, fewer than min_queries = {self.min_queries}"
        if plain:
            return ""
        reason = "a mask that is more than padding at the ends (packed sequences, holes, your own)"
        if reason not in self.warned:
            self.warned.add(reason)
            warnings.warn(
                f"attention {self.name!r} got {reason}; such calls run dense, through "
                "scaled_dot_product_attention",
                stacklevel=4,
            )
        return reason

    def _attend(
        self,
        layer: int | None,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        scaling: float | None,
        causal: bool,
    ) -> Float[Tensor, "batch heads n_q d_v"]:
        if query.shape[2] < self.min_queries:
            reason = (
                f"{query.shape[2]} queries in a padded sample, fewer than min_queries = {self.min_queries}"
            )
            record_call(CallRecord(layer, query.shape[2], key.shape[2], None, reason))
            return dense_attention(query, key, value, is_causal=causal, scale=scaling)
        options: dict[str, Any] = {"scale": scaling, "quantize": self.quantize, "backend": self.backend}
        options |= {"is_causal": causal, "params": _params_of(self.layers, layer)}
        if _records.get() is None:
            return sparge_attention(query, key, value, **options)
        # Counting reads numbers back from the device, so it is done only where somebody asks.
        output, stats = sparge_attention(query, key, value, **options, return_stats=True)
        record_call(CallRecord(layer, query.shape[2], key.shape[2], stats))
        return output


def _row_ranges(start: int, stop: int, n_q: int, n_k: int, causal: bool) -> list[slice]:
    """The queries that attend to the keys [start, stop) of a sample, in the parts that are predicted apart.

    Under a causal mask padding stands among the queries too: it attends to nothing and its rows stay zero.
    Without one it attends as it does in sdpa, but apart, so that no block mixes it with the sample's own.
    """
    if start == stop:
        return []
    if causal:
        offset = n_k - n_q
        bounds = [(max(start - offset, 0), stop - offset)]
    else:
        bounds = [(0, start), (start, stop), (stop, n_q)] if n_q == n_k else [(0, n_q)]
    return [slice(first, last) for first, last in bounds if first < last]


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
