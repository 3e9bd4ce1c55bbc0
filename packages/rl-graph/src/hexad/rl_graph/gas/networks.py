"""What all three stages are made of: perceptrons whose copies are one batch of weights, and scaled inputs."""

import hashlib
import itertools
import math
import warnings
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from hexad.core.errors import InputError
from hexad.core.validation import check_count
from hexad.rl_graph.gas.trajectories import STEADY

ROWS = 65_536
"""States that are encoded at a time: bounds the memory of the hidden layers."""


def check_hidden(hidden: Sequence[int]) -> tuple[int, ...]:
    """The numbers of at least one hidden layer, else `InputError`."""
    if isinstance(hidden, str) or not isinstance(hidden, Sequence) or len(hidden) == 0:
        raise InputError(f"hidden is {hidden!r}; give the numbers of at least one layer, such as (128, 128)")
    return tuple(check_count("hidden", size) for size in hidden)


class Perceptrons(nn.Module):
    """Independent copies of a perceptron, computed together as batched matrix products.

    Hidden layers are linear, GELU and, with `layer_norm`, LayerNorm; the output is linear. Weights are drawn
    from the uniform distribution of variance 1 / mean(fan in, fan out), biases are 0.

    Args:
        copies: how many, with weights of their own.
        sizes: numbers of the input, of each hidden layer and of the output.
        layer_norm: normalise each hidden layer.
        generator: of the first weights.
        last_scale: variance of the last layer's weights, relative to the others.
    """

    def __init__(
        self,
        copies: int,
        sizes: Sequence[int],
        *,
        layer_norm: bool = True,
        generator: torch.Generator,
        last_scale: float = 1.0,
    ) -> None:
        super().__init__()
        self.weights, self.biases = nn.ParameterList(), nn.ParameterList()
        self.gains, self.shifts = nn.ParameterList(), nn.ParameterList()
        for place, (rows, columns) in enumerate(itertools.pairwise(sizes)):
            last = place == len(sizes) - 2
            limit = math.sqrt(6 * (last_scale if last else 1.0) / (rows + columns))
            weight = torch.empty(copies, rows, columns).uniform_(-limit, limit, generator=generator)
            self.weights.append(nn.Parameter(weight))
            self.biases.append(nn.Parameter(torch.zeros(copies, 1, columns)))
            if layer_norm and not last:
                self.gains.append(nn.Parameter(torch.ones(copies, 1, columns)))
                self.shifts.append(nn.Parameter(torch.zeros(copies, 1, columns)))

    def forward(
        self, x: Float[Tensor, "batch inputs"], copies: slice = slice(None)
    ) -> Float[Tensor, "copies batch outputs"]:
        """The outputs of the chosen copies for one and the same input."""
        chosen = self.weights[0][copies]
        x = x.expand(len(chosen), -1, -1)
        for place, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            x = torch.baddbmm(bias[copies], x, weight[copies])
            if place < len(self.weights) - 1:
                x = functional.gelu(x)
                if len(self.gains):
                    normal = functional.layer_norm(x, x.shape[-1:])
                    x = torch.addcmul(self.shifts[place][copies], normal, self.gains[place][copies])
        return x


class Scaler(nn.Module):
    """Observations shifted and scaled number by number; saved with the weights as buffers.

    Args:
        obs_dim: numbers in an observation; the scaler does nothing until `fit`.
        dtype: of mean and deviation; float64 once fitted to float64 observations, which are shifted and
            scaled before they are rounded to float32.
    """

    mean: Tensor
    scale: Tensor

    def __init__(self, obs_dim: int, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(obs_dim, dtype=dtype))
        self.register_buffer("scale", torch.ones(obs_dim, dtype=dtype))

    @property
    def dtype(self) -> torch.dtype:
        """In which observations are shifted and scaled."""
        return self.mean.dtype

    def fit(self, observations: Float[np.ndarray, "states obs_dim"]) -> None:
        """Take mean and deviation of the states; a number that is always the same is only shifted."""
        mean = observations.mean(axis=0, dtype=np.float64)
        deviation = observations.std(axis=0, dtype=np.float64)
        precise = observations.dtype == np.float64
        steady = deviation <= (STEADY if precise else 1e-6) * np.maximum(np.abs(mean), 1e-6)
        lost = steady & (deviation > 1e-12 * np.maximum(np.abs(mean), 1e-6))
        if lost.any():
            column = int(lost.argmax())
            warnings.warn(
                f"number {column} of observations (and {int(lost.sum()) - 1} others) deviates by "
                f"{deviation[column]:.2g} around {mean[column]:.7g} and is taken as constant; subtract the "
                "offset if it matters",
                stacklevel=3,
            )
        self.to(torch.float64 if precise else torch.float32)
        self.mean.copy_(torch.from_numpy(mean))
        self.scale.copy_(torch.from_numpy(np.where(steady, 1.0, deviation)))

    def forward(self, observations: Float[Tensor, "*batch obs_dim"]) -> Float[Tensor, "*batch obs_dim"]:
        """Scaled observations."""
        return ((observations - self.mean) / self.scale).float()


def as_rows(
    values: "Float[np.ndarray, 'rows columns'] | Float[Tensor, 'rows columns']",
    columns: int,
    what: str,
    dtype: torch.dtype = torch.float32,
) -> Float[Tensor, "rows columns"]:
    """Finite numbers of shape (rows, columns) as a tensor, float32 unless told otherwise.

    Raises:
        InputError: another shape, or numbers that are not finite.
    """
    try:
        array = np.asarray(values)
        if np.iscomplexobj(array):
            raise InputError(f"{what} must be real numbers of shape (rows, {columns}), not complex")
        rows = torch.as_tensor(array, dtype=dtype)
    except (TypeError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{what} must be numbers of shape (rows, {columns}): {error}") from None
    if rows.ndim != 2 or rows.shape[1] != columns:
        raise InputError(f"{what} has shape {tuple(rows.shape)}; it must be (rows, {columns})")
    if not bool(rows.isfinite().all()):
        raise InputError(f"{what} holds numbers that are not finite")
    return rows


def weights_digest(tensors: Mapping[str, Tensor]) -> str:
    """A short hash of tensors and their names."""
    found = hashlib.sha256()
    for name, tensor in tensors.items():
        found.update(name.encode())
        found.update(tensor.detach().cpu().numpy().tobytes())
    return found.hexdigest()[:16]


@torch.no_grad()
def follow(averages: nn.Module, module: nn.Module, rate: float) -> None:
    """Move the slow copy's parameters towards the module's by that share (Polyak averaging), in place."""
    torch._foreach_lerp_(list(averages.parameters()), list(module.parameters()), rate)
