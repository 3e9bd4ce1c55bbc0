"""Vision Mamba with timm's conventions, with or without registers, shuffled layer by layer while it trains.

Names of parameters are those of the checkpoints of Vim and Mamba-Reg. timm's names for it are in `registry`.
"""

from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
from jaxtyping import Float
from timm.layers import DropPath, PatchEmbed, to_2tuple
from timm.models._features import feature_take_indices
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from hexad.core.errors import InputError
from hexad.core.validation import check_choice, check_count, check_range
from hexad.vision_robustness.shufflemamba.initialisation import initialise, initialise_linear
from hexad.vision_robustness.shufflemamba.mixer import Init, VimBlock, add_residual, make_norm
from hexad.vision_robustness.shufflemamba.positions import (
    check_patches,
    register_order,
    resize_positions,
    resize_with_class,
)
from hexad.vision_robustness.shufflemamba.shuffling import Schedule, layer_probs
from hexad.vision_robustness.shufflemamba.wrapping import apply_slws

Pool = Literal["token", "avg", ""]


class VisionMamba(nn.Module):
    """A plain (not hierarchical) Vision Mamba: patches, learned positions, `depth` blocks, a linear head.

    Args:
        img_size: pixels, one number or (height, width); a multiple of `patch_size`.
        patch_size: pixels.
        in_chans: channels of the image.
        num_classes: of the head; 0 leaves it out.
        global_pool: "token" reads the class token, or the registers where there are some; "avg" the mean of
            the patches; "" hands on all tokens.
        embed_dim: width of a token.
        depth: blocks.
        d_state: numbers of state a channel.
        registers: register tokens, spread evenly, instead of a class token (Mamba-Reg).
        reduce: the registers' features are made this many times narrower before they are joined.
        class_position: of the class token: "front" (ShuffleMamba) or "middle" (the checkpoints of Vim).
        norm: "rms" or "layer".
        drop_rate: dropout before the head.
        pos_drop_rate: dropout after positions are added.
        drop_path_rate: stochastic depth of the last block; it grows linearly with depth.
        slws_rate: probability of a shuffle of the last block, see `apply_slws`; 0 leaves SLWS out.
        slws_schedule: see `layer_probs`.
        dynamic_img_size: take images of other sizes too, with resized positions.
        init: see `VimMixer`.

    Raises:
        InputError: a size that makes no sense, or an image that is no whole number of patches.
    """

    def __init__(
        self,
        img_size: int | tuple[int, int] = 224,
        patch_size: int | tuple[int, int] = 16,
        in_chans: int = 3,
        num_classes: int = 1000,
        global_pool: Pool = "token",
        embed_dim: int = 192,
        depth: int = 24,
        d_state: int = 16,
        registers: int = 0,
        reduce: int = 1,
        class_position: Literal["front", "middle"] = "front",
        norm: Literal["rms", "layer"] = "rms",
        drop_rate: float = 0.0,
        pos_drop_rate: float = 0.0,
        drop_path_rate: float = 0.0,
        slws_rate: float = 0.0,
        slws_schedule: Schedule = "linear",
        dynamic_img_size: bool = False,
        init: Init = "mamba",
    ) -> None:
        super().__init__()
        counts = {"embed_dim": embed_dim, "depth": depth, "reduce": reduce, "in_chans": in_chans}
        for name, value in counts.items():
            check_count(name, value)
        check_count("num_classes", num_classes, 0)
        check_count("registers", registers, 0)
        check_choice("global_pool", global_pool, ("token", "avg", ""))
        check_choice("class_position", class_position, ("front", "middle"))
        for name, value in (("drop_rate", drop_rate), ("pos_drop_rate", pos_drop_rate)):
            check_range(name, value, 0, 1, high_open=True)
        check_range("drop_path_rate", drop_path_rate, 0, 1, high_open=True)
        check_range("slws_rate", slws_rate, 0, 1)
        if embed_dim % reduce:
            raise InputError(f"embed_dim {embed_dim} is no multiple of reduce {reduce}")
        check_patches("img_size", to_2tuple(img_size), to_2tuple(patch_size))

        self.num_classes, self.global_pool = num_classes, global_pool
        self.embed_dim, self.depth, self.registers, self.reduce = embed_dim, depth, registers, reduce
        self.class_position, self.dynamic_img_size = class_position, dynamic_img_size
        self.num_prefix_tokens = registers or 1
        self.grad_checkpointing = False
        side: Any = patch_size  # timm's own annotation knows squares only
        self.patch_embed = PatchEmbed(
            img_size, side, in_chans, embed_dim, strict_img_size=not dynamic_img_size
        )
        patches = self.patch_embed.num_patches
        if registers:
            register_order(patches, registers)  # refuses too small an image
            self.cls_token = nn.Parameter(torch.zeros(1, registers, embed_dim))
            self.pos_embed_cls = nn.Parameter(torch.zeros(1, registers, embed_dim))
            self.pos_embed = nn.Parameter(torch.zeros(1, patches, embed_dim))
        else:
            self.cls_token = nn.Parameter(torch.zeros(1, 1, embed_dim))
            self.pos_embed = nn.Parameter(torch.zeros(1, patches + 1, embed_dim))
        self.pos_drop = nn.Dropout(pos_drop_rate)

        # The authors shift the linear rule by one: the first two blocks drop nothing.
        rates = [0.0, *layer_probs(depth, drop_path_rate)]
        self.layers = nn.ModuleList(
            VimBlock(embed_dim, d_state, rates[place], norm, init) for place in range(depth)
        )
        self.drop_path = DropPath(rates[-1]) if rates[-1] > 0 else nn.Identity()
        self.norm_f = make_norm(norm, embed_dim)

        self.num_features = self.head_hidden_size = embed_dim
        if registers and global_pool == "token":
            self.num_features = self.head_hidden_size = embed_dim // reduce * registers
            if reduce > 1:
                self.neck = nn.Linear(embed_dim, embed_dim // reduce, bias=False)
                self.norm_neck = make_norm(norm, self.num_features)
        self.head_drop = nn.Dropout(drop_rate)
        self.head = nn.Linear(self.num_features, num_classes) if num_classes else nn.Identity()
        self.feature_info = [
            {"module": f"layers.{place}", "num_chs": embed_dim, "reduction": self.patch_embed.feat_ratio()}
            for place in range(depth)
        ]
        initialise(self)
        if slws_rate:
            apply_slws(self, slws_rate, slws_schedule, self.layers)

    @torch.jit.ignore
    def no_weight_decay(self) -> set[str]:
        """Names of parameters that no optimiser should shrink, beside biases and norms."""
        scans = {
            name for name, _ in self.named_parameters() if name.endswith(("A_log", "A_b_log", ".D", ".D_b"))
        }
        return {"pos_embed", "cls_token", "pos_embed_cls"} | scans

    @torch.jit.ignore
    def group_matcher(self, coarse: bool = False) -> dict[str, Any]:
        """How parameters belong to layers, for layer-wise learning rates."""
        return {
            "stem": r"^cls_token|pos_embed|patch_embed",
            "blocks": [(r"^layers\.(\d+)", None), (r"^norm_f|^neck|^norm_neck", (99999,))],
        }

    @torch.jit.ignore
    def set_grad_checkpointing(self, enable: bool = True) -> None:
        """Recompute blocks in the backward pass instead of storing what they computed."""
        self.grad_checkpointing = enable

    @torch.jit.ignore
    def get_classifier(self) -> nn.Module:
        """The head."""
        return self.head

    def reset_classifier(self, num_classes: int, global_pool: Pool | None = None) -> None:
        """A new head of `num_classes`, 0 for none; registers keep the way they are pooled."""
        if global_pool is not None:
            check_choice("global_pool", global_pool, ("token", "avg", ""))
            if self.registers and (global_pool == "token") != (self.global_pool == "token"):
                raise InputError(
                    "the neck of a model with registers is built for one way of pooling; make a new model"
                )
            self.global_pool = global_pool
        self.num_classes = check_count("num_classes", num_classes, 0)
        device = self.pos_embed.device
        self.head = nn.Linear(self.num_features, num_classes).to(device) if num_classes else nn.Identity()
        if isinstance(self.head, nn.Linear):
            initialise_linear(self.head)

    def set_input_size(self, img_size: int | tuple[int, int]) -> None:
        """Take images of another size from now on; positions are resized."""
        check_patches("img_size", to_2tuple(img_size), self.patch_embed.patch_size)
        grid = self.patch_embed.grid_size
        self.patch_embed.set_input_size(to_2tuple(img_size))
        with torch.no_grad():
            self.pos_embed = nn.Parameter(self._positions(grid, self.patch_embed.grid_size).clone())

    def class_place(self, patches: int) -> int:
        """Where the class token stands among `patches`."""
        return 0 if self.class_position == "front" else patches // 2

    def _positions(self, old: tuple[int, int], new: tuple[int, int]) -> Float[Tensor, "1 places dim"]:
        """`pos_embed` of grid `old` for grid `new`; that of the class token stays as it is."""
        if old == new:
            return self.pos_embed
        if self.registers:
            return resize_positions(self.pos_embed, old, new)
        return resize_with_class(self.pos_embed, old, new, self.class_place)

    def _embed(self, image: Float[Tensor, "batch channels height width"]) -> tuple[Tensor, tuple[int, int]]:
        """Tokens with positions, in the order of the sequence, and the grid of patches."""
        if image.ndim != 4 or image.shape[1] != self.patch_embed.proj.in_channels:
            raise InputError(
                f"images have the shape {tuple(image.shape)}; it must be (batch, "
                f"{self.patch_embed.proj.in_channels}, height, width)"
            )
        if not image.is_floating_point():
            raise InputError(f"images are {image.dtype}; normalise them to floating point")
        size = (image.shape[2], image.shape[3])
        if self.dynamic_img_size:
            check_patches("the image", size, self.patch_embed.patch_size)
        elif size != tuple(self.patch_embed.img_size):
            raise InputError(
                f"images of {size[0]} x {size[1]} pixels; the model takes {self.patch_embed.img_size[0]} x "
                f"{self.patch_embed.img_size[1]} (dynamic_img_size=True takes others)"
            )
        grid = self.patch_embed.dynamic_feat_size(size)
        x = self.patch_embed(image)
        positions = self._positions(self.patch_embed.grid_size, grid)
        extra = self.cls_token.expand(len(x), -1, -1)
        if self.registers:
            order, _ = register_order(x.shape[1], self.registers)
            x = torch.cat([x + positions, extra + self.pos_embed_cls], 1)[:, order.to(x.device)]
        else:
            place = self.class_place(x.shape[1])
            x = torch.cat([x[:, :place], extra, x[:, place:]], 1) + positions
        return self.pos_drop(x), grid

    def _run(
        self, x: Tensor, see: Callable[[int, Tensor], None] | None = None, stop: int | None = None
    ) -> Tensor:
        """The blocks and the last norm; `see(place, stream)` is told what each block leaves."""
        hidden, residual = x, None
        for place, block in enumerate(self.layers[:stop]):
            if self.grad_checkpointing and self.training:
                hidden, residual = checkpoint(block, hidden, residual, use_reentrant=False)
            else:
                hidden, residual = block(hidden, residual)
            if see is not None:
                see(place, add_residual(hidden, residual, nn.Identity()))
        return self._norm(add_residual(hidden, residual, self.drop_path))

    def _norm(self, stream: Tensor) -> Tensor:
        weight = getattr(self.norm_f, "weight", None)  # none after `prune_intermediate_layers`
        return self.norm_f(stream if weight is None else stream.to(weight.dtype))

    def forward_features(
        self, x: Float[Tensor, "batch channels height width"]
    ) -> Float[Tensor, "batch tokens dim"]:
        """All tokens after the last norm, in the order of the sequence."""
        return self._run(self._embed(x)[0])

    def _split(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Class or register tokens, and patches."""
        if self.registers:
            order, places = register_order(tokens.shape[1] - self.registers, self.registers)
            patches = (order < tokens.shape[1] - self.registers).nonzero().flatten()
            return tokens[:, places.to(tokens.device)], tokens[:, patches.to(tokens.device)]
        place = self.class_place(tokens.shape[1] - 1)
        return tokens[:, place : place + 1], torch.cat([tokens[:, :place], tokens[:, place + 1 :]], 1)

    def forward_head(
        self, x: Float[Tensor, "batch tokens dim"], pre_logits: bool = False
    ) -> Float[Tensor, "batch ..."]:
        """Class scores of the tokens, or with `pre_logits` the features before the head."""
        if self.global_pool == "token":
            x = self._split(x)[0]
            if self.registers and self.reduce > 1:
                x = self.norm_neck(self.neck(x).flatten(1))
            x = x.flatten(1)
        elif self.global_pool == "avg":
            x = self._split(x)[1].mean(1)
        x = self.head_drop(x)
        return x if pre_logits else self.head(x)

    def forward(self, x: Float[Tensor, "batch channels height width"]) -> Float[Tensor, "batch ..."]:
        """Class scores."""
        return self.forward_head(self.forward_features(x))

    def forward_intermediates(
        self,
        x: Float[Tensor, "batch channels height width"],
        indices: int | Sequence[int] | None = None,
        return_prefix_tokens: bool = False,
        norm: bool = False,
        stop_early: bool = False,
        output_fmt: Literal["NCHW", "NLC"] = "NCHW",
        intermediates_only: bool = False,
    ) -> Any:
        """What blocks leave (residual and hidden states, added), as maps of patches.

        Args:
            x: images.
            indices: the last n blocks if a number, all if None, else which.
            return_prefix_tokens: pair each map with the class or register tokens.
            norm: through the last norm.
            stop_early: do not run the blocks behind the last one wanted.
            output_fmt: "NCHW" maps or "NLC" tokens.
            intermediates_only: leave the last features out.

        Returns:
            (final tokens, list of maps), or the list alone.
        """
        check_choice("output_fmt", output_fmt, ("NCHW", "NLC"))
        wanted, last = feature_take_indices(len(self.layers), _listed(indices))
        tokens, grid = self._embed(x)
        found: list[Any] = []

        def see(place: int, stream: Tensor) -> None:
            if place in wanted:
                prefix, patches = self._split(self._norm(stream) if norm else stream)
                if output_fmt == "NCHW":
                    patches = patches.transpose(1, 2).unflatten(2, grid)
                found.append((patches, prefix) if return_prefix_tokens else patches)

        final = self._run(tokens, see, last + 1 if stop_early else None)
        return found if intermediates_only else (final, found)

    def prune_intermediate_layers(
        self, indices: int | Sequence[int] = 1, prune_norm: bool = False, prune_head: bool = True
    ) -> list[int]:
        """Cut the blocks behind the last one wanted, and the head; gives the indices that are kept."""
        wanted, last = feature_take_indices(len(self.layers), _listed(indices))
        self.layers = self.layers[: last + 1]
        if prune_norm:
            self.norm_f = nn.Identity()
        if prune_head:
            self.reset_classifier(0)
        return wanted


def _listed(indices: int | Sequence[int] | None) -> int | list[int] | None:
    return list(indices) if isinstance(indices, Sequence) else indices
