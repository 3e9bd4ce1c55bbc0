"""`PackedLinear`: what a trained `QuestLinear` becomes, codes of few bits and one scale a row.

The weight lies in the Hadamard domain already, W_q = scale * levels[codes]; at run time the input is
transformed, rounded and multiplied in whole numbers by `hexad.kernels.low_bit_linear`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch
from jaxtyping import Float
from torch import Tensor, nn

from hexad.core.errors import InputError
from hexad.kernels.low_bit_linear import ActivationGrid, level_sums, low_bit_linear, pack_codes, packed_bytes
from hexad.llm_efficiency.quest.config import QuestConfig
from hexad.llm_efficiency.quest.grids import code_levels, grid_for
from hexad.llm_efficiency.quest.hadamard import block_for
from hexad.llm_efficiency.quest.layer import QuestLinear, check_features, check_own_weight
from hexad.llm_efficiency.quest.quantizer import codes_of


def code_bits(config: QuestConfig) -> int:
    """Bits of a weight's code in memory: 2 for ternary, 4 for fp4, one more with sparsity's zero.

    Raises:
        InputError: 16 bits, which are for checks and never packed.
    """
    return (len(code_levels(grid_for(config.w_bits), sparse=config.sparse)) - 1).bit_length()


# In `layout`, which is a tensor so that it travels with the codes.
_GRID_NUMBERS: dict[Any, int] = {None: 0, **{bits: bits for bits in range(1, 9)}, "ternary": 100, "fp4": 101}
_GRIDS = {number: name for name, number in _GRID_NUMBERS.items()}
_SETTINGS = ("w_bits", "a_bits", "constants", "sparse")


def _said(kinds: Sequence[str], layout: Sequence[int]) -> dict[str, Any]:
    """A layout in words."""
    said: dict[str, Any] = dict(zip(kinds, layout, strict=False))
    for kind in ("w_bits", "a_bits"):
        said[kind] = _GRIDS.get(said.get(kind))
    return said | {
        "constants": "official" if said.get("constants") else "exact",
        "sparse": bool(said.get("sparse")),
    }


@dataclass(frozen=True)
class _NoWeight:
    dtype: torch.dtype
    device: torch.device
    shape: torch.Size

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"a packed layer has codes and scales, and no weight to read or write (weight.{name}); what "
            "changes weights, such as merging an adapter, must be done before convert"
        )


class PackedLinear(nn.Module):
    """A linear layer of packed weights, for inference.

    Buffers: `codes` of shape (out_features, bytes) in uint8, `scale` (out_features,) in float32 whatever the
    model is cast to, `layout` (7,) with the sizes and settings, which loading compares; and the `bias`.

    Args:
        in_features: as in `nn.Linear`.
        out_features: as in `nn.Linear`.
        config: see `QuestConfig`; its trust mask plays no part any more.
        bias: whether there is one.
        device: of the buffers.
        dtype: of the bias.

    Raises:
        InputError: inputs that leave too small a Hadamard block, 16 bits.
    """

    codes: Tensor
    scale: Tensor
    layout: Tensor
    levels: Tensor
    row_sums: Tensor
    bias: Tensor | None

    def __init__(
        self,
        in_features: int,
        out_features: int,
        config: QuestConfig,
        *,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        check_features(in_features, config)
        super().__init__()
        self.in_features, self.out_features, self.config = in_features, out_features, config
        self.block = block_for(in_features, config.block, config.min_block)
        self.bits = code_bits(config)
        grid = config.activation_rule
        if grid is not None and grid.grid.top >= 2**8:
            raise InputError("activations of 16 bits are for checks; 8 is the most that runs packed")
        self.activation = None if grid is None else ActivationGrid(grid.grid.name, grid.alpha)  # ty: ignore
        width = packed_bytes(in_features, self.bits)
        self.register_buffer("codes", torch.zeros(out_features, width, dtype=torch.uint8, device=device))
        self.register_buffer("scale", torch.zeros(out_features, dtype=torch.float32, device=device))
        self.register_buffer("layout", self._layout().to(device or "cpu"))
        bias_values = torch.zeros(out_features, device=device, dtype=dtype) if bias else None
        self.register_buffer("bias", bias_values)
        self._dtype = dtype or torch.get_default_dtype()
        # Made from the rest: not saved, and made anew by `refresh` once codes are there.
        self._level_values = code_levels(grid_for(config.w_bits), sparse=config.sparse)
        levels = torch.tensor(self._level_values, dtype=torch.int16, device=device)
        row_sums = torch.zeros(out_features, dtype=torch.int32, device=device)
        self.register_buffer("levels", levels, persistent=False)
        self.register_buffer("row_sums", row_sums, persistent=False)

    def _layout(self) -> Tensor:
        config = self.config
        settings = (
            _GRID_NUMBERS[config.w_bits],
            _GRID_NUMBERS[config.a_bits],
            config.constants == "official",
            config.sparse,
        )
        sizes = (self.in_features, self.block, self.bits)
        return torch.tensor([*sizes, *settings], dtype=torch.int32, device="cpu")

    @property
    def weight(self) -> "_NoWeight":
        """No tensor, but what code such as T5's may ask of a layer's weight: dtype, device and shape."""
        return _NoWeight(self._dtype, self.codes.device, torch.Size((self.out_features, self.in_features)))

    @classmethod
    def from_quest(cls, layer: QuestLinear) -> Self:
        """Round the weight of a trained layer for good, and pack it.

        Raises:
            InputError: 16 bits, or a weight that is not finite, in float64, or on the meta device.
        """
        config = layer.config
        check_own_weight(layer)
        if layer.weight.is_meta:
            raise InputError("the weight is on the meta device and holds no numbers; load the model first")
        if layer.weight.dtype == torch.float64:
            raise InputError("packed layers do not compute in float64; call model.float() first")
        packed = cls(
            layer.in_features,
            layer.out_features,
            config,
            bias=layer.bias is not None,
            device=layer.weight.device,
            dtype=layer.weight.dtype,
        )
        if not bool(layer.weight.isfinite().all()):
            raise InputError("the weight holds NaN or infinity; it cannot be packed")
        levels, scale, _ = layer.rounded_weight()
        codes = codes_of(levels, layer.weight_rule.grid, sparse=config.sparse)
        packed.codes = pack_codes(codes, packed.bits)
        packed.scale = scale.squeeze(-1).float()
        if layer.bias is not None:
            packed.bias = layer.bias.detach().clone()
        packed.refresh()
        return packed

    def forward(self, input: Float[Tensor, "*batch k"]) -> Float[Tensor, "*batch outputs"]:
        """y = Q(x H) W_q^T + bias, in the dtype of the input (of autocast, where it is on).

        Raises:
            InputError: an input that requires a gradient, holds NaN or infinity, or has rows of another
                length; see `hexad.kernels.low_bit_linear`.
        """
        y = low_bit_linear(
            input,
            self.codes,
            self.scale,
            levels=self.levels,
            bits=self.bits,
            activation=self.activation,
            block=self.block,
            row_sums=self.row_sums,
        )
        # As in QuestLinear, autocast decides over the output and not over what is rounded.
        device = input.device.type
        if torch.is_autocast_enabled(device):
            y = y.to(torch.get_autocast_dtype(device))
        # Added as QuestLinear adds it: in half precision the kernel would round once where that rounds twice,
        # and a last bit that differs here changes codes in the next layer, and in a deep model everything.
        return y if self.bias is None else y + self.bias.to(y.dtype)

    def refresh(self) -> None:
        """Make the levels, and their sums over rows, from the settings and the codes; after codes changed."""
        if not self.codes.is_meta:
            self.levels = torch.tensor(self._level_values, dtype=torch.int16, device=self.codes.device)
            self.row_sums = level_sums(self.codes, self.levels, bits=self.bits, k=self.in_features)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Move, or cast the bias alone: a scale in half precision would no longer be the weight's."""
        scale = self.scale
        super()._apply(fn, recurse)
        self._dtype = fn(torch.empty(0, dtype=self._dtype)).dtype
        if self.scale.dtype != torch.float32:
            self.scale = self.scale.float() if scale.is_meta else scale.to(self.scale.device)
        return self

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any
    ) -> None:
        given = {name: state_dict.get(f"{prefix}{name}") for name in ("layout", "scale")}
        self.check_loaded(given["layout"], given["scale"], prefix.rstrip("."))
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)
        self.refresh()

    def check_loaded(self, layout: Tensor | None, scale: Tensor | None, name: str = "") -> None:
        """Raise `InputError` unless codes were packed as this layer reads them, with scales that can be."""
        where = name or "the layer"
        if layout is not None and (found := layout.tolist()) != (wanted := self._layout().tolist()):
            kinds = ("inputs", "Hadamard block", "bits a code", *_SETTINGS)
            values = [_said(kinds, numbers) for numbers in (found, wanted)]
            differ = "; ".join(
                f"{kind} {values[0].get(kind)}, not {ours}"
                for kind, ours in values[1].items()
                if values[0].get(kind) != ours
            )
            raise InputError(
                f"{where}: these codes are for another layer ({differ or 'of another version'}); "
                "convert with the settings they were packed with"
            )
        if scale is not None and scale.dtype != torch.float32:
            raise InputError(f"{where}: its scales are {scale.dtype}, not float32; pack the model again")
        if scale is not None and not scale.is_meta and not bool((scale.isfinite() & (scale > 0)).all()):
            raise InputError(f"{where}: its scales must be positive and finite; the file is damaged")

    @property
    def nbytes(self) -> int:
        """Bytes of the packed weight with its scales (without the bias)."""
        return self.codes.nbytes + self.scale.nbytes

    def extra_repr(self) -> str:
        """What distinguishes the layer, for `print(model)`."""
        activations = "float" if self.config.a_bits is None else self.config.a_bits
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, "
            f"bias={self.bias is not None}, weights={self.config.w_bits}, activations={activations}, "
            f"block={self.block}"
        )
