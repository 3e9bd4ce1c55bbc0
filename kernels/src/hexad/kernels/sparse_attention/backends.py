"""Which backend runs a call, and the one place that runs it."""

import logging
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from hexad.core.errors import InputError
from hexad.kernels.dispatch import constant_when_compiled, reason_against_triton

logger = logging.getLogger(__name__)

Name = Literal["reference", "native", "gather", "triton", "flex"]
Backend = Literal["auto", "reference", "native", "gather", "triton", "flex"]
PredictionBackend = Literal["auto", "native", "torch"]
# Fastest first. The reference takes any call, so a choice always ends.
_PREFERENCE: dict[str, tuple[Name, ...]] = {
    "cpu": ("native", "gather", "reference"),
    "cuda": ("triton", "reference"),
}


@dataclass(frozen=True)
class Call:
    """What decides whether a backend can serve a call."""

    device: str = "cpu"
    dtype: torch.dtype = torch.float32
    block_q: int = 128
    block_k: int = 64
    quantize: bool = False
    pv_threshold: bool = False


def _against_native(call: Call) -> str | None:
    if call.device != "cpu":
        return "it is a CPU path"
    from hexad.kernels.sparse_attention import cpu

    return cpu.reason_against(call.dtype)


def _against_gather(call: Call) -> str | None:
    if call.device != "cpu":
        return "it is a CPU path"
    if call.pv_threshold:
        return "it has no second filter (pv_threshold)"
    return None


def _against_triton(call: Call) -> str | None:
    reason = reason_against_triton(call.device)
    if reason is not None:
        return reason
    if call.dtype == torch.float64:
        return "it does not compute in float64"
    for name, block in (("block_q", call.block_q), ("block_k", call.block_k)):
        if block < 16 or block & (block - 1):
            return f"{name} must be a power of two of at least 16, got {block}"
    return None


def _against_flex(call: Call) -> str | None:
    if call.dtype == torch.float64:
        return "it does not compute in float64"
    if call.quantize:
        return "it has no INT8 scores (quantize)"
    if call.pv_threshold:
        return "it has no second filter (pv_threshold)"
    if call.device == "cuda" and find_spec("triton") is None:
        return "torch compiles it with triton, which is not installed"
    compilers = (os.environ.get("CXX", "c++"), "g++", "clang++")
    if call.device == "cpu" and not any(shutil.which(name) for name in compilers):
        return "torch compiles it with a C++ compiler, and none is on the PATH"
    return None


_AGAINST: dict[str, Callable[[Call], str | None]] = {
    "reference": lambda call: None,
    "native": _against_native,
    "gather": _against_gather,
    "triton": _against_triton,
    "flex": _against_flex,
}


def reason_against(backend: Name, call: Call) -> str | None:
    """Why `backend` cannot run such a call on this machine, or None if it can."""
    return _AGAINST[backend](call)


@constant_when_compiled
def choose(backend: Backend, call: Call) -> Name:
    """The backend that will run: the one asked for, or the fastest that honours every option of the call.

    Raises:
        InputError: for an unknown name, or a backend asked for by name that cannot run the call.
    """
    if backend not in get_args(Backend):
        raise InputError(f"backend must be one of {', '.join(get_args(Backend))}, got {backend!r}")
    if backend != "auto":
        reason = reason_against(backend, call)
        if reason is not None:
            raise InputError(f"backend {backend!r} cannot run this call: {reason}")
        return backend
    untold = []
    for name in _PREFERENCE.get(call.device, ("reference",)):
        reason = reason_against(name, call)
        if reason is None:
            if untold:
                slow = " (slow)" if name == "reference" else ""
                _warn_once(f"sparse attention runs on its {name!r} backend{slow}: {'; '.join(untold)}")
            return name
        # Why there is no native code on this machine has been logged when it was looked for.
        if name != "native" or call.dtype == torch.float64:
            untold.append(f"{name!r} cannot serve, {reason}")
    raise AssertionError("the reference takes any call")


@constant_when_compiled
def choose_prediction(backend: PredictionBackend, device: str, dtype: torch.dtype) -> str:
    """What will run the first filter: "native" or "torch". Errors as those of `choose`."""
    if backend not in get_args(PredictionBackend):
        raise InputError(f"backend must be one of {', '.join(get_args(PredictionBackend))}, got {backend!r}")
    if backend == "torch":
        return "torch"
    reason = _against_native(Call(device, dtype))
    if reason is not None and backend == "native":
        raise InputError(f"backend 'native' cannot predict for this call: {reason}")
    return "native" if reason is None else "torch"


@cache
def _warn_once(message: str) -> None:
    logger.warning(message)


def run(
    backend: str,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    block_mask: Tensor,
    *,
    is_causal: bool,
    scale: float,
    block_q: int,
    block_k: int,
    pv_threshold: Tensor | None,
    quantize: bool,
) -> tuple[Tensor, Tensor | int]:
    """Run a checked call: the output, and how many kept tiles the second filter left out."""
    # Each backend is imported when it first runs: triton and flex_attention are slow to load.
    tiling: dict[str, Any] = {"is_causal": is_causal, "scale": scale, "block_q": block_q, "block_k": block_k}
    filtered: dict[str, Any] = {"pv_threshold": pv_threshold, "quantize": quantize}
    if backend == "native":
        from hexad.kernels.sparse_attention import cpu

        return cpu.attend(q, k, v, block_mask, **tiling, **filtered)
    if backend == "gather":
        from hexad.kernels.sparse_attention import gather

        return gather.attend(q, k, v, block_mask, quantize=quantize, **tiling), 0
    if backend == "triton":
        from hexad.kernels.sparse_attention import triton

        return triton.attend(q, k, v, block_mask, **tiling, **filtered)
    if backend == "flex":
        from hexad.kernels.sparse_attention import flex

        return flex.attend(q, k, v, block_mask, **tiling), 0
    from hexad.kernels.sparse_attention import reference

    out, pv_kept = reference.attend(q, k, v, block_mask, **tiling, **filtered)
    return out, int(block_mask.sum()) - int(pv_kept.sum())
