"""Tuning of every layer and head of a transformers model on a handful of real inputs."""

from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from hexad.core.errors import InputError
from hexad.llm_efficiency.spargeattn.calls import AttentionCall
from hexad.llm_efficiency.spargeattn.params import HeadParams
from hexad.llm_efficiency.spargeattn.transformers import (
    AttentionInterface,
    AttentionMaskInterface,
    key_mask,
    refuse_what_changes_the_scores,
    sdpa_attention_forward,
)
from hexad.llm_efficiency.spargeattn.tuning import Progress, SpargeTuner, Trials

if TYPE_CHECKING:
    from transformers import PreTrainedModel

CALIBRATION = "sparge_calibration"
_running: ContextVar["_Calibration | None"] = ContextVar(CALIBRATION, default=None)


class _Calibration:
    """The trials of each layer, made while the model runs, so that no layer's q, k and v need be kept."""

    def __init__(self, tuner: SpargeTuner) -> None:
        self.tuner = tuner
        self.trials: dict[int, list[Trials]] = {}
        self.modules: dict[int, nn.Module] = {}
        self.progress: Progress | None = None

    def see(self, module: nn.Module, call: AttentionCall) -> None:
        layer = getattr(module, "layer_idx", None)
        if layer is None:
            raise InputError(
                f"{type(module).__name__} does not tell its layer_idx, so layers cannot be told apart"
            )
        if self.modules.setdefault(layer, module) is not module:
            raise InputError(
                f"two attentions call themselves layer {layer} (encoder and decoder, or self and "
                "cross): tune the calls of one of them with SpargeTuner"
            )
        found = self.tuner.search(call, _layer_progress(self.progress, layer))
        self.trials.setdefault(layer, []).append(found)


def _calibration_forward(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    is_causal: bool | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """Dense attention whose inputs the running calibration sees."""
    refuse_what_changes_the_scores(CALIBRATION, key.shape[2], dropout, options)
    calibration = _running.get()
    if calibration is not None:
        if attention_mask is not None:
            raise InputError("a batch to calibrate on needs no padding and no mask; give texts of one length")
        causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
        calibration.see(module, AttentionCall(query, key, value, causal, scaling))
    return sdpa_attention_forward(
        module, query, key, value, attention_mask, dropout, scaling, is_causal, **options
    )


def calibrate(
    model: "PreTrainedModel",
    batches: Sequence[Mapping[str, Any] | Tensor],
    tuner: SpargeTuner | None = None,
    progress: Progress | None = None,
) -> dict[int, HeadParams]:
    """Tune every layer and head of a model on real inputs.

    The model runs dense; each layer is tuned on its inputs as they come, and only the findings are kept.

    Args:
        model: a transformers model of one stack of layers.
        batches: at least `tuner.min_inputs` inputs, each a tensor of token ids or the model's keyword
            arguments, without padding. Keep others aside to test on.
        tuner: error bounds and block sizes; `SpargeTuner()` where None.
        progress: called as `progress(fraction, note)`.

    Returns:
        Parameters by layer, for `register(params=...)` and `save_layers`.

    Raises:
        InputError: too few batches, padded ones, something else than batches or a model, or a model whose
            layers cannot be told apart or whose attention is not plain.
    """
    from transformers import PreTrainedModel

    tuner = SpargeTuner() if tuner is None else tuner
    if not isinstance(model, PreTrainedModel):
        raise InputError(f"model must be a transformers model, not {type(model).__name__}")
    if not isinstance(tuner, SpargeTuner):
        raise InputError(f"tuner must be a SpargeTuner, not {type(tuner).__name__}")
    if not isinstance(batches, Sequence) or not all(isinstance(b, (Tensor, Mapping)) for b in batches):
        raise InputError("batches must be a sequence of tensors of token ids, or of the model's arguments")
    if len(batches) < tuner.min_inputs:
        raise InputError(f"{len(batches)} batches to tune on, fewer than the {tuner.min_inputs} wanted")
    AttentionInterface.register(CALIBRATION, _calibration_forward)
    AttentionMaskInterface.register(CALIBRATION, key_mask)
    before, training = model.config._attn_implementation, model.training
    calibration = _Calibration(tuner)
    token = _running.set(calibration)
    try:
        model.set_attn_implementation(CALIBRATION)
        model.eval()
        for index, batch in enumerate(batches):
            inputs = {"input_ids": batch} if isinstance(batch, Tensor) else dict(batch)
            if progress is not None:
                calibration.progress = _batch_progress(progress, index, len(batches))
            with torch.no_grad():
                model(**inputs)
    finally:
        _running.reset(token)
        model.set_attn_implementation(before)
        model.train(training)
    if not calibration.trials:
        raise InputError(f"{type(model).__name__} made no call through transformers' attention interface")
    return {layer: tuner.pool(trials) for layer, trials in sorted(calibration.trials.items())}


def _batch_progress(progress: Progress, index: int, count: int) -> Progress:
    """Progress within one batch; how many layers it has is not known, so the fraction moves by batches."""
    return lambda fraction, note: progress(index / count, f"batch {index + 1} of {count}, {note}")


def _layer_progress(progress: Progress | None, layer: int) -> Progress | None:
    if progress is None:
        return None
    return lambda fraction, note: progress(fraction, f"layer {layer}, {note}")
