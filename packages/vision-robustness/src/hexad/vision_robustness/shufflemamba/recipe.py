"""How a network is trained: the paper's recipe (its appendix and run.sh), scaled to small data.

What differs from the paper's 300 epochs of ImageNet on eight GPUs: smaller batches at a higher rate,
less weight decay, a shorter average of the weights, lighter augmentation unless "full" is asked for,
and no repeated augmentation.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from timm.data import Mixup, create_transform
from timm.loss import LabelSmoothingCrossEntropy, SoftTargetCrossEntropy
from timm.optim import create_optimizer_v2
from timm.scheduler import create_scheduler_v2
from torch import nn

from hexad.core.errors import InputError
from hexad.core.validation import check_choice, check_count, check_range

Augment = Literal["none", "light", "full"]
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@dataclass(frozen=True)
class Recipe:
    """One training run.

    Args:
        epochs: times every picture is seen.
        batch_size: pictures a step.
        lr: highest learning rate.
        warmup: share of the steps in which it rises (the paper's 30 of 300 epochs), before half a cosine.
        min_lr: at the end, over `lr` (the paper's).
        weight_decay: of AdamW, on matrices alone.
        clip: largest norm of the gradient (the paper's).
        drop_path: stochastic depth of the last block.
        slws_rate: probability of a shuffle of the last block; 0 trains without SLWS.
        slws_schedule: "linear" or "constant", see `layer_probs`.
        augment: "none" scales pictures only; "light" cuts 70 to 100 % of each; "full" is the paper's: cuts of
            8 to 100 %, RandAugment m9, random erasing 0.25, mixup 0.8 and cutmix 1.
        flip: mirror half of the pictures; wrong for digits and letters.
        smoothing: of the labels.
        average: decay of the averaged weights (EMA), which are the result; 0 keeps the last weights.
        seed: of weights, order, augmentation and shuffles.

    Raises:
        InputError: a number out of its range, or an odd batch with "full".
    """

    epochs: int = 100
    batch_size: int = 64
    lr: float = 1e-3
    warmup: float = 0.1
    min_lr: float = 0.01
    weight_decay: float = 0.05
    clip: float = 3.0
    drop_path: float = 0.1
    slws_rate: float = 0.3
    slws_schedule: Literal["linear", "constant"] = "linear"
    augment: Augment = "light"
    flip: bool = True
    smoothing: float = 0.1
    average: float = 0.999
    seed: int = 0

    def __post_init__(self) -> None:
        check_count("epochs", self.epochs)
        check_count("batch_size", self.batch_size)
        check_count("seed", self.seed, 0)
        for name in ("lr", "clip"):
            check_range(name, getattr(self, name), 0, low_open=True)
        check_range("weight_decay", self.weight_decay, 0)
        for name in ("warmup", "min_lr", "slws_rate"):
            check_range(name, getattr(self, name), 0, 1)
        for name in ("drop_path", "smoothing", "average"):
            check_range(name, getattr(self, name), 0, 1, high_open=True)
        check_choice("augment", self.augment, get_args(Augment))
        check_choice("slws_schedule", self.slws_schedule, ("linear", "constant"))
        if self.augment == "full" and self.batch_size % 2:
            raise InputError(f"batch_size is {self.batch_size}; mixup pairs pictures, so make it even")


def training_transform(recipe: Recipe, size: int) -> Callable[[Any], torch.Tensor]:
    """timm's augmentation of a picture: a tensor (3, size, size), normalised."""
    common: dict[str, Any] = {"is_training": True, "mean": MEAN, "std": STD, "interpolation": "bicubic"}
    if recipe.augment == "none":
        return create_transform(size, no_aug=True, **common)
    common["hflip"] = 0.5 if recipe.flip else 0.0
    if recipe.augment == "light":
        return create_transform(size, scale=(0.7, 1.0), color_jitter=0.0, **common)
    return create_transform(
        size, auto_augment="rand-m9-mstd0.5-inc1", re_prob=0.25, re_mode="pixel", **common
    )


def make_objective(recipe: Recipe, classes: int) -> tuple[nn.Module, Mixup | None]:
    """The loss, and timm's mixing of batches where the recipe has it."""
    if recipe.augment == "full":
        mixup = Mixup(0.8, 1.0, label_smoothing=recipe.smoothing, num_classes=classes)
        return SoftTargetCrossEntropy(), mixup
    return LabelSmoothingCrossEntropy(recipe.smoothing), None


def make_optimizer(network: nn.Module, recipe: Recipe) -> torch.optim.Optimizer:
    """timm's AdamW with betas 0.9 and 0.95; no decay of biases, norms, positions, A and D."""
    return create_optimizer_v2(
        network, "adamw", lr=recipe.lr, weight_decay=recipe.weight_decay, betas=(0.9, 0.95)
    )


def make_scheduler(
    optimizer: torch.optim.Optimizer, recipe: Recipe, steps: int
) -> torch.optim.lr_scheduler.LambdaLR:
    """timm's warm-up and cosine, one value a step, as a scheduler of torch that can be resumed."""
    # timm's schedulers have no state; what they would do is drawn from one on an optimizer of its own.
    dummy = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=recipe.lr)
    scheduler, _ = create_scheduler_v2(
        dummy,
        "cosine",
        num_epochs=steps,
        min_lr=recipe.lr * recipe.min_lr,
        warmup_lr=recipe.lr * 1e-3,
        warmup_epochs=round(steps * recipe.warmup),
        step_on_epochs=False,
        updates_per_epoch=1,
    )
    shares = []
    for step in range(steps + 1):
        scheduler.step_update(step)
        shares.append(dummy.param_groups[0]["lr"] / recipe.lr)
    return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: shares[min(step, steps)])
