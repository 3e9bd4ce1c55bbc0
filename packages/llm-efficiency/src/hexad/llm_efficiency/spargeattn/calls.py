"""The inputs of one attention call, and their files.

A file is safetensors with tensors q, k and v; its metadata may hold `is_causal` ("true" or
"false") and `scale`.
"""

import os
from dataclasses import dataclass

import torch
from jaxtyping import Float
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from hexad.core.errors import InputError
from hexad.core.files import atomic_path, writable_file
from hexad.core.validation import check_file, check_range
from hexad.llm_efficiency.spargeattn.attention import check_inputs


@dataclass(frozen=True)
class AttentionCall:
    """The inputs of one attention call: shapes (batch, q_heads, n_q, d) and (batch, k_heads, n_k, d).

    Raises:
        InputError: what attention itself would refuse: shapes, dtypes and devices that do not fit together, a
            scale of zero or less.
    """

    q: Float[Tensor, "batch q_heads n_q d"]
    k: Float[Tensor, "batch k_heads n_k d"]
    v: Float[Tensor, "batch k_heads n_k d_v"]
    is_causal: bool = False
    scale: float | None = None

    def __post_init__(self) -> None:
        check_inputs(self.q, self.k, self.v, is_causal=self.is_causal)
        if self.scale is not None:
            check_range("scale", self.scale, 0, low_open=True)


def check_call(call: object) -> AttentionCall:
    """Return `call` if it is an `AttentionCall`, else raise `InputError`."""
    if not isinstance(call, AttentionCall):
        raise InputError(f"a call must be an AttentionCall(q, k, v), not {type(call).__name__}")
    return call


def save_call(call: AttentionCall, path: str | os.PathLike[str]) -> None:
    """Write a call to a safetensors file, atomically; its folder is made where it is missing."""
    check_call(call)
    path = writable_file(path, "file of q, k and v")
    metadata = {"is_causal": "true" if call.is_causal else "false"}
    if call.scale is not None:
        metadata["scale"] = repr(float(call.scale))
    tensors = {
        name: getattr(call, name).detach().cpu().clone(memory_format=torch.contiguous_format)
        for name in ("q", "k", "v")
    }
    with atomic_path(path) as temporary:
        save_file(tensors, temporary, metadata=metadata)


def load_call(
    path: str | os.PathLike[str], device: str = "cpu", is_causal: bool | None = None
) -> AttentionCall:
    """Read a call; tensors of shape (heads, n, d) get a batch of one.

    Args:
        path: the file.
        device: where the tensors are read to.
        is_causal: overrules what the file says.

    Raises:
        InputError: no such file, not safetensors, a tensor missing, tensors that do not fit together, or
            metadata that make no sense.
    """
    path = check_file(path, "file of q, k and v")
    try:
        with safe_open(path, framework="pt", device=device) as file:
            metadata = file.metadata() or {}
            names = set(file.keys())
            if missing := {"q", "k", "v"} - names:
                raise InputError(
                    f"{path} lacks the tensors {', '.join(sorted(missing))} (it holds "
                    f"{', '.join(sorted(names)[:8]) or 'none'}); write it with save_call"
                )
            q, k, v = (file.get_tensor(name) for name in ("q", "k", "v"))
    except SafetensorError as error:
        raise InputError(f"{path} is no safetensors file ({error})") from None
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        if tensor.dim() not in (3, 4):
            raise InputError(
                f"{name} in {path} has shape {tuple(tensor.shape)}; it must be (batch, heads, n, d), or "
                "without batch"
            )
    q, k, v = (tensor[None] if tensor.dim() == 3 else tensor for tensor in (q, k, v))
    causal = metadata.get("is_causal", "false").lower()
    if causal not in ("true", "false"):
        raise InputError(f"is_causal in {path} is {causal!r}; it must be true or false")
    scale = metadata.get("scale")
    try:
        number = None if scale is None else float(scale)
    except ValueError:
        raise InputError(f"scale in {path} is {scale!r}, which is no number") from None
    try:
        return AttentionCall(q, k, v, causal == "true" if is_causal is None else is_causal, number)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
