"""The native CPU path of sparse attention: torch tensors in, C++ of the folder `native` behind.

The two stages have the faces of their plain-torch twins, `prediction.block_mask_from_inputs` and
`reference.attend`. Products run on the matrix unit (AMX) or the vector unit, whichever the processor has:

=========  ==============================================  =====================================
inputs     with AMX                                        with vector units
=========  ==============================================  =====================================
float32    three bfloat16 terms (24 bits), float32 sums    float32
bfloat16   bfloat16, float32 sums                          bfloat16 dot products, else float32
float16    two bfloat16 terms (exact), float32 sums        float32
quantize   Q K^T in int8, P V in bfloat16                  int8 dot products, else float32
=========  ==============================================  =====================================
"""

import ctypes
from pathlib import Path

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from hexad.core.errors import HexadError, InputError
from hexad.kernels.native import NativeLibrary
from hexad.kernels.sparse_attention import checks
from hexad.kernels.sparse_attention.prediction import num_blocks

_DTYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
# Queries that walk their key tiles together where no second filter says otherwise: their scores, weights and
# output then stay in the first-level cache.
_PANEL = 64


class _Array(ctypes.Structure):
    _fields_ = (("data", ctypes.c_void_p), ("stride", ctypes.c_int64 * 3))


class _AttentionCall(ctypes.Structure):
    _fields_ = (
        *((name, _Array) for name in ("q", "k", "v", "out")),
        *((name, ctypes.c_void_p) for name in ("mask", "pv_threshold")),
        *(
            (name, ctypes.c_int64)
            for name in ("batch", "q_heads", "k_heads", "n_q", "n_k", "dim", "value_dim")
        ),
        *((name, ctypes.c_int64) for name in ("block_q", "block_k", "panel")),
        ("scale", ctypes.c_float),
        *((name, ctypes.c_int32) for name in ("dtype", "is_causal", "quantize", "threads", "use_amx")),
        *((name, ctypes.c_int64) for name in ("skipped", "empty")),
        ("nonfinite", ctypes.c_int32),
    )


class _PredictCall(ctypes.Structure):
    _fields_ = (
        *((name, _Array) for name in ("q", "k")),
        *((name, ctypes.c_void_p) for name in ("theta", "tau", "topk", "mask")),
        *((name, ctypes.c_int64) for name in ("batch", "q_heads", "k_heads", "n_q", "n_k", "dim")),
        *((name, ctypes.c_int64) for name in ("block_q", "block_k")),
        ("scale", ctypes.c_float),
        *((name, ctypes.c_int32) for name in ("dtype", "is_causal", "attention_sink", "force_diagonal")),
        *((name, ctypes.c_int32) for name in ("smooth_k", "threads", "nonfinite")),
    )


FUNCTIONS = {
    "hexad_features": (ctypes.c_int32, ()),
    "hexad_block_sparse_attention": (ctypes.c_int32, (ctypes.POINTER(_AttentionCall),)),
    "hexad_predict_block_mask": (ctypes.c_int32, (ctypes.POINTER(_PredictCall),)),
}
SOURCES = Path(__file__).parent / "native"
library = NativeLibrary("sparse_attention", SOURCES, FUNCTIONS)


def reason_against(dtype: torch.dtype = torch.float32) -> str | None:
    """Why native code cannot serve inputs of `dtype` on this machine, or None if it can."""
    if dtype not in _DTYPES:
        return f"it does not compute in {str(dtype).removeprefix('torch.')}"
    return None if library.load() is not None else library.status()


def instructions() -> str:
    """Which units of the processor the loaded library uses, in words."""
    loaded = library.load()
    if loaded is None:
        return "none"
    features = loaded.hexad_features()
    units = [f"{(features >> 8) * 32}-bit vectors"]
    units += [
        name for bit, name in ((2, "bfloat16 dot products"), (4, "int8 dot products")) if features & bit
    ]
    return ", ".join((["AMX"] if features & 1 else []) + units)


def attend(
    q: Float[Tensor, "batch q_heads n_q d"],
    k: Float[Tensor, "batch k_heads n_k d"],
    v: Float[Tensor, "batch k_heads n_k d_v"],
    block_mask: Bool[Tensor, "batch q_heads q_blocks k_blocks"],
    *,
    is_causal: bool,
    scale: float,
    block_q: int,
    block_k: int,
    pv_threshold: Float[Tensor, " q_heads"] | None = None,
    quantize: bool = False,
    row_group: int | None = None,
    matrix_unit: bool = True,
) -> tuple[Float[Tensor, "batch q_heads n_q d_v"], int]:
    """Attention over the kept tiles; the arguments are those of `reference.attend`.

    Returns the output, and how many (kept tile, row group) pairs the second filter left out of P V. NaN and
    infinity are found while the operands are packed, so they need no look beforehand. `matrix_unit=False`
    keeps the products on the vector unit.

    Raises:
        InputError: for NaN or infinity in q, k or v, and for a query that sees none of the kept keys.
    """
    loaded = library.load()
    if loaded is None:
        raise HexadError(f"there is no native sparse attention here: {library.status()}")
    (batch, heads, n_q, dim), (_, k_heads, n_k, _), value_dim = q.shape, k.shape, v.shape[-1]
    q, k, v = _rows(q), _rows(k), _rows(v)
    out = torch.empty(batch, heads, n_q, value_dim, dtype=q.dtype)
    mask = block_mask.contiguous()
    threshold = None if pv_threshold is None else pv_threshold.to("cpu", torch.float32).contiguous()
    call = _AttentionCall(
        q=_array(q),
        k=_array(k),
        v=_array(v),
        out=_array(out),
        mask=mask.data_ptr(),
        pv_threshold=None if threshold is None else threshold.data_ptr(),
        batch=batch,
        q_heads=heads,
        k_heads=k_heads,
        n_q=n_q,
        n_k=n_k,
        dim=dim,
        value_dim=value_dim,
        block_q=block_q,
        block_k=block_k,
        panel=_PANEL if threshold is None else row_group or block_q,
        scale=scale,
        dtype=_DTYPES[q.dtype],
        is_causal=is_causal,
        quantize=quantize,
        threads=torch.get_num_threads(),
        use_amx=matrix_unit,
    )
    if loaded.hexad_block_sparse_attention(ctypes.byref(call)) != 0:
        raise MemoryError(
            f"sparse attention over {n_k} keys of {k_heads} heads needs more memory than there is"
        )
    _reject_nonfinite(call.nonfinite)
    if call.empty:
        # The kernel knows a query without a key by its scores, which all lie below -1e20.
        checks.check_rows(block_mask, is_causal=is_causal, n_q=n_q, n_k=n_k, block_q=block_q, block_k=block_k)
        raise InputError(checks.OVERFLOW)
    return out, call.skipped


def block_mask_from_inputs(
    q: Float[Tensor, "batch q_heads n_q d"],
    k: Float[Tensor, "batch k_heads n_k d"],
    *,
    theta: Float[Tensor, " q_heads"],
    tau: Float[Tensor, " q_heads"] | None,
    topk: Int[Tensor, " q_heads"] | None,
    is_causal: bool,
    scale: float,
    attention_sink: bool,
    force_diagonal: bool,
    block_q: int,
    block_k: int,
    smooth_k: bool,
) -> Bool[Tensor, "batch q_heads q_blocks k_blocks"]:
    """The tile mask; the arguments are those of `prediction.block_mask_from_inputs`.

    Raises:
        InputError: for NaN or infinity in q or k.
    """
    loaded = library.load()
    if loaded is None:
        raise HexadError(f"there is no native sparse attention here: {library.status()}")
    if (tau is None) == (topk is None):
        raise InputError("give exactly one of tau and topk (topk=0.5 needs tau=None)")
    (batch, heads, n_q, dim), (_, k_heads, n_k, _) = q.shape, k.shape
    q, k = _rows(q), _rows(k)
    theta = theta.to("cpu", torch.float32).contiguous()
    tau = None if tau is None else tau.to("cpu", torch.float32).contiguous()
    topk = None if topk is None else topk.to("cpu", torch.int64).contiguous()
    mask = torch.empty(batch, heads, num_blocks(n_q, block_q), num_blocks(n_k, block_k), dtype=torch.bool)
    call = _PredictCall(
        q=_array(q),
        k=_array(k),
        theta=theta.data_ptr(),
        tau=None if tau is None else tau.data_ptr(),
        topk=None if topk is None else topk.data_ptr(),
        mask=mask.data_ptr(),
        batch=batch,
        q_heads=heads,
        k_heads=k_heads,
        n_q=n_q,
        n_k=n_k,
        dim=dim,
        block_q=block_q,
        block_k=block_k,
        scale=scale,
        dtype=_DTYPES[q.dtype],
        is_causal=is_causal,
        attention_sink=attention_sink,
        force_diagonal=force_diagonal,
        smooth_k=smooth_k,
        threads=torch.get_num_threads(),
    )
    if loaded.hexad_predict_block_mask(ctypes.byref(call)) != 0:
        raise MemoryError(
            f"predicting a mask over {n_k} keys of {k_heads} heads needs more memory than there is"
        )
    _reject_nonfinite(call.nonfinite)
    return mask


def _rows(x: Tensor) -> Tensor:
    """x with each token's numbers side by side; other strides are taken as they are."""
    return x if x.stride(-1) == 1 else x.contiguous()


def _array(x: Tensor) -> _Array:
    return _Array(x.data_ptr(), (ctypes.c_int64 * 3)(*x.stride()[:3]))


def _reject_nonfinite(bits: int) -> None:
    names = [name for bit, name in enumerate("qkv") if bits >> bit & 1]
    if names:
        raise InputError(f"{' and '.join(names)} holds NaN or infinity; look for the layer that made it")
    if bits & 8:
        raise InputError(checks.OVERFLOW)
