"""The tensors of a call, as every backend takes them, and what their shapes tell."""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

STEPS = 16
"""Steps between two stored states; the backward pass recomputes the others (native/call.h has it too)."""


class Inputs(NamedTuple):
    """The tensors of a call in the order of `selective_scan`.

    B and C are (batch, states, steps), (batch, groups, states, steps), or constant: (channels, states).
    """

    u: Float[Tensor, "batch channels steps"]
    delta: Float[Tensor, "batch channels steps"]
    A: Float[Tensor, "channels states"]
    B: Float[Tensor, "..."]
    C: Float[Tensor, "..."]
    D: Float[Tensor, " channels"] | None
    z: Float[Tensor, "batch channels steps"] | None
    delta_bias: Float[Tensor, " channels"] | None
    initial_state: Float[Tensor, "batch states channels"] | None

    @property
    def groups(self) -> int:
        """Of channels that share B and C; 1 where both are constant."""
        return max(x.shape[1] if x.dim() == 4 else 1 for x in (self.B, self.C))

    @property
    def dtype(self) -> torch.dtype:
        """What is computed in: float64 if any tensor has it, else float32."""
        return compute_dtype(self)

    @property
    def chunks(self) -> int:
        """Runs of up to STEPS steps."""
        return -(-self.u.shape[-1] // STEPS)

    def state_shape(self) -> tuple[int, int, int]:
        """(batch, states, channels)."""
        return self.u.shape[0], self.A.shape[1], self.u.shape[1]


class Scanned(NamedTuple):
    """What a forward pass makes.

    Attributes:
        y: in the dtype of u, contiguous.
        last_state: after the last step.
        checkpoints: the states before each chunk but the first; of no chunk where they are not kept.
    """

    y: Float[Tensor, "batch channels steps"]
    last_state: Float[Tensor, "batch states channels"]
    checkpoints: Float[Tensor, "batch chunks states channels"]


def compute_dtype(tensors: tuple[Tensor | None, ...]) -> torch.dtype:
    """Float64 if any of the tensors has it, else float32."""
    wide = any(x is not None and x.dtype == torch.float64 for x in tensors)
    return torch.float64 if wide else torch.float32


def empty_outputs(inputs: Inputs, keep: bool) -> Scanned:
    """Room for what a forward pass makes."""
    u, (batch, states, channels) = inputs.u, inputs.state_shape()
    return Scanned(
        u.new_empty(u.shape),
        u.new_empty((batch, states, channels), dtype=inputs.dtype),
        u.new_empty((batch, inputs.chunks - 1 if keep else 0, states, channels), dtype=inputs.dtype),
    )


def empty_gradients(inputs: Inputs) -> list[Tensor]:
    """Room for the gradient of each tensor, contiguous; no numbers for those that are None."""
    u = inputs.u
    return [u.new_empty(0) if x is None else x.new_empty(x.shape) for x in inputs]
