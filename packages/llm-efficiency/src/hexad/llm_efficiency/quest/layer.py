"""`QuestLinear`: a linear layer that multiplies quantised activations by quantised weights.

Steps 1 to 5 of QuEST, arXiv 2502.05003v2, algorithm 1. With H the block Hadamard matrix (H H^T = I):

    x_h = x H,  w_h = W H                both along the inputs; the transform cancels in the product
    X_q, M_x = quantise(x_h);  W_q, M_w = quantise(w_h)             (`quantizer`)
    y = X_q W_q^T

    g_x = (M_x * (g_y W_q)) H^T          g_W = (M_w * (g_y^T X_q)) H^T

The masks act in the Hadamard domain, and each product takes the other operand as it was quantised.
"""

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, Self

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.utils.parametrize import is_parametrized

from hexad.core.errors import InputError
from hexad.kernels.hadamard_transform import hadamard_transform
from hexad.llm_efficiency.quest.config import QuestConfig
from hexad.llm_efficiency.quest.hadamard import block_for
from hexad.llm_efficiency.quest.quantizer import GROUP, Rounded, Rule, check_floating, round_rows


class _RoundedProduct(torch.autograd.Function):
    """y = X_q W_q^T with the masked gradient, given both operands in the Hadamard domain.

    The product runs over levels, which are whole numbers: sums of them are exact in float32, so that the
    packed layer gives the very same result, and their factors are exact in bfloat16. A rule of None leaves an
    operand as it is.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x_h: Float[Tensor, "rows k"],
        w_h: Float[Tensor, "outputs k"],
        x_rule: Rule | None,
        w_rule: Rule | None,
        dtype: torch.dtype,
    ) -> Float[Tensor, "rows outputs"]:
        x_levels, x_scale, x_mask = _rounded(x_h, x_rule)
        w_levels, w_scale, w_mask = _rounded(w_h, w_rule)
        # The scale of a row tells of all its entries. Elsewhere than on a CPU asking would wait for the
        # device; there NaN and infinity pass through the scale into the outputs, and are seen in them.
        if x_h.device.type == "cpu" and not torch.compiler.is_compiling():
            for what, rows in (
                ("input", x_h if x_rule is None else x_scale),
                ("weight", w_h if w_rule is None else w_scale),
            ):
                if not bool(rows.isfinite().all()):
                    sizes = f"{w_h.shape[1]} -> {w_h.shape[0]}"
                    raise InputError(f"the {what} of a QuestLinear ({sizes}) holds NaN or infinity")
        x_levels, w_levels = x_levels.to(dtype), w_levels.to(dtype)
        # In the order of the packed layer's kernel, so that models of many layers agree to the bit.
        y = (x_levels @ w_levels.T).to(x_h.dtype).mul_(x_scale * w_scale.T)
        ctx.save_for_backward(x_levels, x_scale, x_mask, w_levels, w_scale, w_mask)
        return y.to(dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g_y: Float[Tensor, "rows outputs"]) -> tuple[Tensor | None, ...]:
        x_levels, x_scale, x_mask, w_levels, w_scale, w_mask = ctx.saved_tensors
        g_x = g_w = None
        with torch.autocast(g_y.device.type, enabled=False):
            if ctx.needs_input_grad[0]:
                # The scale goes into the weight, which is smaller than g_y.
                w_q = (w_levels * w_scale).to(w_levels.dtype)
                g_x = _masked(g_y.to(w_q.dtype) @ w_q, x_mask, x_scale.dtype)
            if ctx.needs_input_grad[1]:
                g_w = _masked((g_y * x_scale).to(x_levels.dtype).T @ x_levels, w_mask, w_scale.dtype)
        return g_x, g_w, None, None, None


def _rounded(x: Float[Tensor, "rows k"], rule: Rule | None) -> Rounded:
    return Rounded(x, x.new_ones(1, 1), None) if rule is None else round_rows(x, rule)


def _masked(
    gradient: Float[Tensor, "rows k"], mask: Bool[Tensor, "rows k"] | None, dtype: torch.dtype
) -> Float[Tensor, "rows k"]:
    gradient = gradient.to(dtype)
    return gradient if mask is None else gradient.mul_(mask)


class QuestLinear(nn.Linear):
    """A linear layer with quantised weights and activations, in training and in evaluation alike.

    The weight is the full-precision one that the optimiser sees; rounding happens at every call. The bias is
    added as it is. Under autocast the product runs in its dtype, scales and masks in float32.

    Args:
        in_features: k, of which a power of two of at least `config.min_block` must be a divisor.
        out_features: number of outputs.
        config: see `QuestConfig`.
        bias: as in `nn.Linear`, as the next two.
        device: see there.
        dtype: see there.

    Raises:
        InputError: a k that leaves too small a Hadamard block, or that 8 does not divide where sparse.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        config: QuestConfig | None = None,
        *,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        config = QuestConfig() if config is None else config
        check_features(in_features, config)
        super().__init__(in_features, out_features, bias, device, dtype)
        self.config = config
        self.block = block_for(in_features, config.block, config.min_block)
        self.weight_rule, self.activation_rule = config.weight_rule, config.activation_rule
        self.rounds_weights = self.rounds_activations = True

    @classmethod
    def from_linear(cls, linear: nn.Linear, config: QuestConfig | None = None) -> Self:
        """The same layer with quantisation; it takes over the parameters themselves and copies nothing.

        Raises:
            InputError: see the class; or weights that are not real floating-point numbers, or not finite.
        """
        if not isinstance(linear, nn.Linear):
            raise InputError(f"give an nn.Linear, not {type(linear).__name__}")
        check_own_weight(linear)
        check_weight(linear.weight)
        layer = cls(
            linear.in_features,
            linear.out_features,
            config,
            bias=linear.bias is not None,
            device="meta",
            dtype=linear.weight.dtype,
        )
        layer.weight, layer.bias = linear.weight, linear.bias
        layer.train(linear.training)
        return layer

    def forward(self, input: Float[Tensor, "*batch k"]) -> Float[Tensor, "*batch outputs"]:
        """y = Q(x H) Q(W H)^T + bias.

        Raises:
            InputError: a wrong last dimension or dtype; on a CPU also NaN or infinity in the input.
        """
        check_floating("the input of a QuestLinear", input)
        if input.dim() == 0 or input.shape[-1] != self.in_features:
            shape = tuple(input.shape)
            raise InputError(f"the input has shape {shape}; this layer takes rows of {self.in_features}")
        # Scales and masks are float32 whatever autocast says; the product alone runs in its dtype.
        device = input.device.type
        dtype = torch.promote_types(input.dtype, self.weight.dtype)
        wide = torch.promote_types(dtype, torch.float32)
        if torch.is_autocast_enabled(device):
            dtype = torch.get_autocast_dtype(device)
        with torch.autocast(device, enabled=False):
            x_h = hadamard_transform(input.reshape(-1, self.in_features).to(wide), self.block)
            w_h = hadamard_transform(self.weight.to(wide), self.block)
            y = _RoundedProduct.apply(
                x_h,
                w_h,
                self.activation_rule if self.rounds_activations else None,
                self.weight_rule if self.rounds_weights else None,
                dtype,
            )
            y = y.reshape(*input.shape[:-1], self.out_features)
            return y if self.bias is None else y + self.bias.to(dtype)

    @torch.no_grad()
    def rounded_weight(self) -> Rounded:
        """The weight on its grid, in the Hadamard domain: levels, the unit of each row, the mask."""
        wide = torch.promote_types(self.weight.dtype, torch.float32)
        return round_rows(hadamard_transform(self.weight.to(wide), self.block), self.weight_rule)

    def extra_repr(self) -> str:
        """What distinguishes the layer, for `print(model)`."""
        config = self.config
        activations = "float" if config.a_bits is None else config.a_bits
        return (
            f"{super().extra_repr()}, weights={config.w_bits}, activations={activations}, block={self.block}"
        )


def check_features(k: int, config: QuestConfig) -> None:
    """Raise `InputError` unless rows of k entries can be quantised so."""
    block_for(k, config.block, config.min_block)
    if config.sparse and k % GROUP:
        raise InputError(f"rows of {k} entries cannot be sparse: {GROUP} must divide their number")


def check_own_weight(layer: nn.Linear) -> None:
    """Raise `InputError` where hooks write the weight before each call (torch's pruning, old weight_norm)."""
    if "weight" not in dict(layer.named_parameters(recurse=False)) and not is_parametrized(layer, "weight"):
        raise InputError(
            "its weight is no parameter of its own but computed before each call (pruning? weight_norm?); "
            "make it permanent first, such as by torch.nn.utils.prune.remove"
        )


def check_weight(weight: Tensor) -> None:
    """Raise `InputError` unless a weight is of finite, real floating-point numbers."""
    check_floating("the weight", weight)
    if not weight.is_meta and not bool(weight.detach().isfinite().all()):
        raise InputError("the weight holds NaN or infinity")


@contextmanager
def without_rounding(model: nn.Module, *, weights: bool = False, activations: bool = True) -> Generator[None]:
    """Leave weights, activations or both of all `QuestLinear` layers unrounded while the block runs."""
    layers = [module for module in model.modules() if isinstance(module, QuestLinear)]
    before = [(layer.rounds_weights, layer.rounds_activations) for layer in layers]
    try:
        for layer in layers:
            layer.rounds_weights &= not weights
            layer.rounds_activations &= not activations
        yield
    finally:
        for layer, (w, a) in zip(layers, before, strict=True):
            layer.rounds_weights, layer.rounds_activations = w, a
