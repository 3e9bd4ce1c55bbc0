"""Weights of Vim (hustvl/Vim), Mamba-Reg and ShuffleMamba, from files in the authors' own formats."""

import argparse
import math
import re
from pathlib import Path
from typing import Any, Literal

import torch
from timm.models import load_state_dict
from torch import Tensor

from hexad.core.errors import InputError
from hexad.core.validation import check_file
from hexad.vision_robustness.shufflemamba.network import VisionMamba
from hexad.vision_robustness.shufflemamba.positions import resize_positions, resize_with_class

State = dict[str, Tensor]

OTHER = {
    "cls_token_head": "two class tokens",
    "rope.": "rotary positions",
    ".mixer.gamma": "layer scale",
}
"""Variants of the official code that `VisionMamba` does not build, by what gives them away."""


def read_weights(path: str | Path) -> State:
    """Tensors of a checkpoint (`.pth`, `.pt`, `.safetensors`), out of the "model" it may lie in.

    Only tensors and the options of the authors' training script are read; no other pickled code is run.

    Raises:
        InputError: no such file, or one that holds something else.
    """
    file = check_file(path, "checkpoint")
    try:
        # The training scripts of Vim and Mamba-Reg store their parsed arguments beside the weights.
        with torch.serialization.safe_globals([argparse.Namespace]):
            state: Any = load_state_dict(str(file), use_ema=False, device="cpu", weights_only=True)
    except Exception as error:
        raise InputError(
            f"checkpoint {file} cannot be read as weights: it is damaged, or holds more than tensors; save "
            "model.state_dict() alone"
        ) from error
    if not isinstance(state, dict) or not all(isinstance(value, Tensor) for value in state.values()):
        raise InputError(f"checkpoint {file} is no table of tensors by name; save model.state_dict() alone")
    return dict(state)


def sizes_of(
    state: State, class_position: Literal["front", "middle"] = "middle", stride: int | None = None
) -> dict[str, Any]:
    """The arguments of the `VisionMamba` that a checkpoint's tensors belong to.

    Args:
        state: tensors by the official names.
        class_position: where a plain model has its class token, which the tensors do not say: Vim's published
            weights in the middle, ShuffleMamba's models in front.
        stride: pixels between patches, which the tensors do not say either. Some of Vim's fine-tuned files
            have half a patch, with which 224 pixels make 27 x 27 patches; those are not built. None takes
            that to be so where the grid has odd sides and patches have 16 pixels or more.

    Raises:
        InputError: tensors of another architecture, or of patches that overlap.
    """
    for sign, meaning in OTHER.items():
        if found := next((name for name in state if sign in name), None):
            raise InputError(f"the checkpoint has {meaning} ({found}), which VisionMamba does not build")
    needed = ("patch_embed.proj.weight", "pos_embed", "cls_token", "layers.0.mixer.A_b_log", "norm_f.weight")
    missing = [name for name in needed if name not in state]
    if missing:
        raise InputError(
            f"the checkpoint has no {missing[0]}; it is none of Vim (bidirectional, with class token), "
            "Mamba-Reg or ShuffleMamba"
        )
    dim, channels, height, width = state["patch_embed.proj.weight"].shape
    registers = state["cls_token"].shape[1] if "pos_embed_cls" in state else 0
    patches = state["pos_embed"].shape[1] - (0 if registers else 1)
    side = _side(patches)
    if stride is None and side > 1 and side % 2 and height >= 16:
        raise InputError(
            f"the checkpoint has {side} x {side} patches: of {side * height} pixels, or overlapping ones as "
            f"in Vim's files fine-tuned with stride {height // 2}, which VisionMamba does not build; where "
            f"they do not overlap, say stride={height} to load_official"
        )
    if stride not in (None, height):
        raise InputError(
            f"stride {stride} is not the patch's {height} pixels; overlapping patches are not built"
        )
    blocks = {int(match[1]) for name in state if (match := re.match(r"layers\.(\d+)\.", name))}
    sizes: dict[str, Any] = {
        "img_size": (side * height, side * width),
        "patch_size": (height, width),
        "in_chans": channels,
        "embed_dim": dim,
        "depth": max(blocks) + 1,
        "d_state": state["layers.0.mixer.A_log"].shape[1],
        "num_classes": state["head.weight"].shape[0] if "head.weight" in state else 0,
        "norm": "layer" if "norm_f.bias" in state else "rms",
    }
    if registers:
        reduce = dim // state["neck.weight"].shape[0] if "neck.weight" in state else 1
        return sizes | {"registers": registers, "reduce": reduce}
    return sizes | {"class_position": class_position}


def load_official(
    path: str | Path,
    *,
    num_classes: int | None = None,
    img_size: int | tuple[int, int] | None = None,
    class_position: Literal["front", "middle"] = "middle",
    stride: int | None = None,
    **options: Any,
) -> VisionMamba:
    """A `VisionMamba` with the weights of Vim, Mamba-Reg or ShuffleMamba, from a file; nothing is downloaded.

    Args:
        path: the file.
        num_classes: of a new head, drawn at random, where it is not the checkpoint's number.
        img_size: of the images; positions are resized (bicubic). None is the checkpoint's, of square images.
        class_position: of a plain model, see `sizes_of`.
        stride: of the patches, see `sizes_of`.
        options: further arguments of `VisionMamba`, such as `slws_rate=0.1` to fine-tune.

    Raises:
        InputError: a file that cannot be read, or weights of another architecture.
    """
    state = read_weights(path)
    sizes = sizes_of(state, class_position, stride)
    grid = tuple(side // patch for side, patch in zip(sizes["img_size"], sizes["patch_size"], strict=True))
    if num_classes is not None:
        sizes["num_classes"] = num_classes
    if img_size is not None:
        sizes["img_size"] = img_size
    model = VisionMamba(**(sizes | options))
    fitted = checkpoint_filter_fn(state, model)
    if grid != model.patch_embed.grid_size and fitted["pos_embed"] is state["pos_embed"]:
        fitted = fitted | {"pos_embed": _resized(state["pos_embed"], grid, model)}
    wanted = model.state_dict()
    same = sizes["num_classes"] == len(state.get("head.weight", ()))
    fresh = set() if same else {"head.weight", "head.bias"}
    shapes = {name: tuple(value.shape) for name, value in wanted.items() if name not in fresh}
    unfit = [name for name, shape in shapes.items() if _shape(fitted, name) != shape]
    extra = [name for name in fitted if name not in wanted and not name.startswith("head.")]
    if unfit or extra:
        name = (unfit + extra)[0]
        raise InputError(
            f"checkpoint {path} does not fit: {name} is {_shape(fitted, name)}, wanted {_shape(wanted, name)}"
        )
    model.load_state_dict({name: fitted[name] for name in shapes}, strict=False)
    return model


def checkpoint_filter_fn(state: State, model: VisionMamba) -> State:
    """Official tensors for `model`: prefixes off, and positions resized to the model's grid.

    timm calls it for `create_model(..., pretrained=True, pretrained_cfg_overlay={"file": path})`.
    """
    inner: Any = state.get("model", state.get("state_dict", state))
    cleaned: State = {name.removeprefix("module."): value for name, value in inner.items()}
    positions = cleaned.get("pos_embed")
    if positions is None or positions.shape == model.pos_embed.shape:
        return cleaned
    side = _side(positions.shape[1] - (0 if model.registers else 1))
    cleaned["pos_embed"] = _resized(positions, (side, side), model)
    return cleaned


def _resized(positions: Tensor, old: tuple[int, ...], model: VisionMamba) -> Tensor:
    """Positions of the grid `old` for the model's."""
    rows, columns = old
    new = model.patch_embed.grid_size
    if model.registers:
        return resize_positions(positions, (rows, columns), new)
    return resize_with_class(positions, (rows, columns), new, model.class_place)


def _side(patches: int) -> int:
    side = math.isqrt(patches)
    if side * side != patches:
        raise InputError(
            f"the checkpoint's {patches} patch positions are no square; only square images are known"
        )
    return side


def _shape(state: State, name: str) -> tuple[int, ...] | str:
    return tuple(state[name].shape) if name in state else "missing"
