"""The text half of the study: a trained encoder that reads through transformers' attention interface."""

import functools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from hexad.core.studies import Measurement, Trial
from hexad.core.timing import interleave
from hexad.kernels.sparse_attention import block_sparse_attention
from hexad.llm_efficiency.spargeattn import documents
from hexad.llm_efficiency.spargeattn.attention import block_mask
from hexad.llm_efficiency.spargeattn.masks import random_mask_like, window_mask_like
from hexad.llm_efficiency.spargeattn.params import HeadParams
from hexad.llm_efficiency.spargeattn.tuning import SpargeTuner
from hexad.llm_efficiency.spargeattn.variants import Config, Variant, applies_second_filter

TEXT_BLOCKS: dict[str, Any] = {"block_q": 64, "block_k": 32}
TEXT_CASE = f"text/{documents.WINDOW}"


@functools.lru_cache(maxsize=1)
def _text(texts: int, seed: int) -> tuple[documents.RetrievalTask, Tensor, Tensor]:
    """The texts and the dense encoder's hidden states of passages and queries, shared by the arms."""
    task = documents.retrieval_task(texts, seed)
    model = documents.load_encoder()
    model.set_attn_implementation("sdpa")
    return task, documents.hidden_states(model, task.passages), documents.hidden_states(model, task.queries)


def measure_texts(trial: Trial, variant: Variant) -> Iterator[Measurement]:
    """Agreement with the dense encoder, retrieval, sparsity and, where wanted, speed of one variant."""
    from hexad.llm_efficiency.spargeattn.transformers import record_stats

    config: Config = trial.config
    task, dense_passages, dense_queries = _text(config.texts, trial.seed)
    dense = documents.embeddings(torch.cat([dense_passages, dense_queries]))
    if variant.params is None:
        accuracy = documents.retrieval_accuracy(dense[config.texts :], dense[: config.texts])
        yield Measurement("retrieval", accuracy, TEXT_CASE)
        return
    model = documents.load_encoder()
    name = _register(variant, trial)
    model.set_attn_implementation(name)
    try:
        with record_stats() as records:
            passages = documents.hidden_states(model, task.passages)
            trial.progress(0.75, f"{config.texts} texts")
            queries = documents.hidden_states(model, task.queries)
        found = documents.embeddings(torch.cat([passages, queries]))
        yield Measurement("cosine", float((found * dense).sum(-1).mean()), TEXT_CASE)
        accuracy = documents.retrieval_accuracy(found[config.texts :], found[: config.texts])
        yield Measurement("retrieval", accuracy, TEXT_CASE)
        difference = (passages - dense_passages).abs().sum() + (queries - dense_queries).abs().sum()
        whole = dense_passages.abs().sum() + dense_queries.abs().sum()
        yield Measurement("text_rel_l1", float(difference / whole), TEXT_CASE)
        skipped = [record.stats.sparsity for record in records if record.stats is not None]
        yield Measurement("text_sparsity", sum(skipped) / len(skipped), TEXT_CASE)
        if variant.timed:
            yield Measurement(
                "text_speedup", _encoder_speedup(model, name, task.passages[:2], config), TEXT_CASE
            )
    finally:
        model.set_attn_implementation("sdpa")


def _encoder_speedup(model: Any, name: str, ids: Tensor, config: Config) -> float:
    """Of the whole encoder, not of its attention alone."""

    def forward(attention: str) -> None:
        model.set_attn_implementation(attention)
        model(input_ids=ids)

    functions = {attention: functools.partial(forward, attention) for attention in ("sdpa", name)}
    return interleave(functions, rounds=config.rounds).speedup(name, "sdpa")


def _register(variant: Variant, trial: Trial) -> str:
    """Make the variant an attention of transformers; gives its name there."""
    from hexad.llm_efficiency.spargeattn.calibration import calibrate
    from hexad.llm_efficiency.spargeattn.transformers import register

    assert variant.params is not None
    params = replace(variant.params, **TEXT_BLOCKS)
    if variant.tiles != "predicted":
        return _register_fixed_tiles(variant, params, trial.seed)
    if not variant.tuned:
        register("spargeattn-study", params, quantize=variant.quantize, backend=variant.backend)
        return "spargeattn-study"
    trial.progress(0.5, "tuning on other texts")
    count = trial.config.tuning_inputs
    tuner = SpargeTuner(second_filter=applies_second_filter(), min_inputs=count, **TEXT_BLOCKS)
    inputs = documents.calibration_inputs(count, trial.seed)
    register("spargeattn-study", calibrate(documents.load_encoder(), inputs, tuner))
    return "spargeattn-study"


def _register_fixed_tiles(variant: Variant, params: HeadParams, seed: int) -> str:
    """An attention whose tiles are not predicted, but as many in each row of each head."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    from hexad.llm_efficiency.spargeattn.transformers import CallRecord, record_call

    generator = torch.Generator().manual_seed(seed)

    def forward(
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        **options: Any,
    ) -> tuple[Tensor, None]:
        predicted = block_mask(query, key, params, scale=options.get("scaling"))
        tiles = (
            random_mask_like(predicted, generator)
            if variant.tiles == "random"
            else window_mask_like(predicted)
        )
        output, stats = block_sparse_attention(
            query, key, value, tiles, scale=options.get("scaling"), return_stats=True, **TEXT_BLOCKS
        )
        record_call(CallRecord(getattr(module, "layer_idx", None), query.shape[2], key.shape[2], stats))
        return output.transpose(1, 2).contiguous(), None

    AttentionInterface.register("spargeattn-fixed-tiles", forward)
    AttentionMaskInterface.register("spargeattn-fixed-tiles", sdpa_mask)
    return "spargeattn-fixed-tiles"
