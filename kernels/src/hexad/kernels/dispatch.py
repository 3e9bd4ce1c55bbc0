"""What the choice of a backend needs in every operation."""

import os
from collections.abc import Callable
from importlib.util import find_spec
from typing import TypeVar

F = TypeVar("F", bound=Callable)


def constant_when_compiled(function: F) -> F:
    """What torch.compiler.assume_constant_result does, without importing the compiler (a second or two)."""
    function._dynamo_marked_constant = True  # ty: ignore[missing-attribute]
    return function


def reason_against_triton(device: str) -> str | None:
    """Why no Triton kernel can run on `device` here, or None if one can."""
    if find_spec("triton") is None:
        return "triton is not installed"
    # Triton reads the variable when a kernel is defined, so it must be set before this package is used.
    if device != "cuda" and os.environ.get("TRITON_INTERPRET") != "1":
        return "it needs CUDA tensors (or TRITON_INTERPRET=1 in the environment from the start)"
    return None
