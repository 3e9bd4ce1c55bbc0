"""The photograph half of the study: non-local means as one attention call of thousands of tokens."""

import functools
import warnings
from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor

from hexad.core.studies import Measurement, Trial
from hexad.core.timing import interleave
from hexad.kernels.sparse_attention import available_backends, block_sparse_attention
from hexad.llm_efficiency.spargeattn.attention import block_mask, dense_attention, sparge_attention
from hexad.llm_efficiency.spargeattn.calls import AttentionCall
from hexad.llm_efficiency.spargeattn.hilbert import hilbert_order
from hexad.llm_efficiency.spargeattn.masks import random_mask_like, window_mask_like
from hexad.llm_efficiency.spargeattn.params import HeadParams
from hexad.llm_efficiency.spargeattn.photographs import TUNING_CORNERS, DenoisingTask, denoising_task
from hexad.llm_efficiency.spargeattn.scoring import relative_l1
from hexad.llm_efficiency.spargeattn.tuning import SpargeTuner
from hexad.llm_efficiency.spargeattn.variants import Config, Variant, applies_second_filter

PHOTOGRAPHS = ("china", "flower")
LARGE_PHOTOGRAPH = "china"


def photograph_case(name: str, side: int, large: bool = False) -> str:
    """The name of a case, such as `photo/china/16384`; the large one has its own, apart from the claims."""
    return f"{'large' if large else 'photo'}/{name}/{side * side}"


@functools.lru_cache(maxsize=6)
def _task(name: str, side: int, seed: int) -> tuple[DenoisingTask, Tensor]:
    """A photograph and its dense output, shared by the arms of one seed."""
    task = denoising_task(name, side, seed=seed)
    return task, dense_attention(task.q, task.k, task.v, scale=task.scale)


def _order(order: str, side: int, seed: int) -> tuple[Tensor, Tensor] | None:
    if order == "hilbert":
        return hilbert_order((side, side))
    if order == "random":
        permutation = torch.randperm(side * side, generator=torch.Generator().manual_seed(seed))
        return permutation, permutation.argsort()
    return None


def _tiles(variant: Variant, mask: Tensor, seed: int) -> Tensor:
    """The variant's own tiles, as many as `mask` keeps."""
    if variant.tiles == "random":
        return random_mask_like(mask, torch.Generator().manual_seed(seed))
    return window_mask_like(mask) if variant.tiles == "window" else mask


def _sparse_call(variant: Variant, task: DenoisingTask, seed: int) -> Callable[[], Tensor]:
    """The whole call: permute, predict, attend, permute back. Only the order itself is made beforehand."""
    order = _order(variant.order, task.clean.shape[0], seed)
    params = variant.params or HeadParams()

    def call() -> Tensor:
        q, k, v = (task.q, task.k, task.v) if order is None else task.permuted(order[0])
        if variant.tiles == "predicted":
            output = sparge_attention(
                q, k, v, scale=task.scale, params=params, quantize=variant.quantize, backend=variant.backend
            )
        else:
            tiles = _tiles(variant, block_mask(q, k, params, scale=task.scale), seed)
            output = block_sparse_attention(q, k, v, tiles, scale=task.scale, backend=variant.backend)
        return output if order is None else output[:, :, order[1]]

    return call


def measure_photograph(trial: Trial, variant: Variant, name: str, side: int) -> Iterator[Measurement]:
    """Error, quality, sparsity and, where wanted, speed of one variant on one photograph."""
    config: Config = trial.config
    large = side == config.large_side
    case = photograph_case(name, side, large)
    task, dense = _task(name, side, trial.seed)
    if variant.params is None:
        yield Measurement("psnr", task.psnr(dense), case)
        _save_picture(trial, name, side, task.image(dense))
        return
    call = _sparse_call(variant, task, trial.seed)
    order = _order(variant.order, side, trial.seed)
    q, k, _ = (task.q, task.k, task.v) if order is None else task.permuted(order[0])
    predict = functools.partial(block_mask, q, k, variant.params, scale=task.scale)
    outputs: dict[str, Tensor] = {}
    if variant.timed and (variant.backend != "flex" or config.compile_flex):
        functions = {
            "dense": lambda: dense_attention(task.q, task.k, task.v, scale=task.scale),
            "call": lambda: outputs.__setitem__("call", call()),
            "predict": predict,
        }
        # A call of some milliseconds needs more rounds for a steady median, and two thread pools (torch's and
        # the kernel's) to be awake; at 65,536 tokens, where dense attention takes seconds, one pair must do.
        rounds, warmup = (1, 0) if large else (config.rounds, 1) if side > 64 else (4 * config.rounds, 3)
        timing = interleave(functions, rounds=rounds, warmup=warmup)
        yield Measurement("speedup", timing.speedup("call", "dense"), case)
        yield Measurement("prediction_share", timing.median("predict") / timing.median("call"), case)
    if side in config.speed_sides:
        return
    output = outputs["call"] if outputs else _uncompiled(variant, call)
    mask = _tiles(variant, predict(), trial.seed)
    yield Measurement("rel_l1", float(relative_l1(output, dense)), case)
    yield Measurement("psnr", task.psnr(output), case)
    yield Measurement("psnr_gap", abs(task.psnr(output) - task.psnr(dense)), case)
    yield Measurement("sparsity", 1 - float(mask.float().mean()), case)
    _save_picture(trial, name, side, task.image(output), mask[0, 0])


def _uncompiled(variant: Variant, call: Callable[[], Tensor]) -> Tensor:
    """The output of a call that is not timed; flex_attention then need not be compiled."""
    if variant.backend != "flex":
        return call()
    with torch.compiler.set_stance("force_eager"), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="flex_attention called without torch.compile")
        return call()


def flex_cases(cases: list[tuple[str, int]], config: Config) -> list[tuple[str, int]]:
    """Uncompiled flex_attention builds the whole map, so it is then checked on small photographs alone."""
    if config.compile_flex and available_backends()["flex"] is None:
        return cases
    return [(name, side) for name, side in cases if side <= 64 and side in config.sides]


def _save_picture(trial: Trial, name: str, side: int, image: Tensor, mask: Tensor | None = None) -> None:
    if trial.seed == 0:
        pixels = (image.clamp(0, 1) * 255).round().to(torch.uint8).numpy()
        tiles = np.zeros((0, 0), bool) if mask is None else mask.numpy()
        np.savez_compressed(trial.folder / f"{name}-{side}.npz", image=pixels, tiles=tiles)


@functools.lru_cache(maxsize=1)
def tuned_on_photographs(side: int, crops: int) -> HeadParams:
    """Parameters found on crops that share no pixel with the scored ones, under other noise."""
    calls = []
    for index, corner in enumerate(TUNING_CORNERS[:crops]):
        # Seeds from 1000 on: noise that no scored photograph has.
        task = denoising_task(PHOTOGRAPHS[index % 2], side, seed=1000 + index, corner=corner)
        calls.append(AttentionCall(*task.permuted(hilbert_order((side, side))[0]), scale=task.scale))
    # The bounds on the error are what this study asks of the untuned arm.
    tuner = SpargeTuner(0.015, 0.02, second_filter=applies_second_filter(), min_inputs=crops)
    return tuner.fit(calls)
