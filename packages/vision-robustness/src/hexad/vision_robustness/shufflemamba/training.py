"""Train a classifier with SLWS: `hexad.core.training` over timm's data, losses, optimizer and EMA."""

import dataclasses
import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float, Int
from timm.data import Mixup, create_loader
from timm.utils import ModelEmaV3
from torch import Tensor, nn
from torch.nn import functional

from hexad.core.errors import InputError
from hexad.core.files import writable_folder, write_json
from hexad.core.training import TrainingConfig, train
from hexad.vision_robustness.shufflemamba.datasets import Pictures
from hexad.vision_robustness.shufflemamba.recipe import (
    Recipe,
    make_objective,
    make_optimizer,
    make_scheduler,
    training_transform,
)
from hexad.vision_robustness.shufflemamba.storage import FILE, Description, save_network


@dataclass(frozen=True)
class Score:
    """How well a network names pictures: shares of them named rightly first, and among five; mean loss."""

    top1: float
    top5: float
    loss: float
    pictures: int


@dataclass(frozen=True)
class Machine:
    """Where and how a run computes.

    Args:
        accelerator: as in `lightning_fabric.Fabric`.
        precision: of the arithmetic; the scan keeps float32.
        workers: data loading processes.
        checkpoint_every: steps between checkpoints.
    """

    accelerator: str = "auto"
    precision: Literal["32-true", "bf16-mixed"] = "32-true"
    workers: int = 0
    checkpoint_every: int = 200


class Trainee(nn.Module):
    """Network, running average and validation scores as one module, so that checkpoints hold all of them."""

    def __init__(self, network: nn.Module, objective: nn.Module, decay: float, rows: int) -> None:
        super().__init__()
        self.network, self.objective = network, objective
        # The average follows closely at first: of a short run it would else hold mostly first weights.
        self.average = ModelEmaV3(network, decay=decay, use_warmup=True) if decay else None
        self.seen: Tensor
        self.scores: Tensor
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))
        self.register_buffer("scores", torch.full((rows, 4), -1.0))

    @property
    def result(self) -> nn.Module:
        """The network with the weights that a run ends with."""
        average: Any = self.average
        return self.network if average is None else average.module

    def follow(self) -> None:
        """Take the weights of the last step into the average."""
        if self.average is not None:
            self.seen += 1
            self.average.update(self.network, step=int(self.seen))

    def forward(
        self, images: Float[Tensor, "batch channels height width"], targets: Tensor
    ) -> Float[Tensor, ""]:
        """The loss of a batch."""
        return self.objective(self.network(images), targets)


def fit(
    description: Description,
    pictures: Pictures,
    recipe: Recipe,
    folder: str | Path,
    machine: Machine = Machine(),
    *,
    network: nn.Module | None = None,
    progress: Callable[[float, str], None] | None = None,
) -> dict[str, Any]:
    """Train, and write FOLDER/model.safetensors and report.json; the same call goes on after an interruption.

    Args:
        description: the network to train.
        pictures: labelled sets.
        recipe: how.
        folder: of the run; checkpoints go to its `checkpoints`.
        machine: where.
        network: to start from, with SLWS applied or not; None draws weights by the recipe's seed.
        progress: called as `progress(fraction, "loss 1.23, 81.0 %")`.

    Returns:
        What report.json holds.

    Raises:
        InputError: fewer pictures than a batch, or as `hexad.core.training.train`.
    """
    count = len(pictures.train)
    if count < recipe.batch_size:
        raise InputError(f"{count} pictures to train on are fewer than a batch of {recipe.batch_size}")
    steps = max(1, round(recipe.epochs * count / recipe.batch_size))
    every = max(1, round(steps / min(recipe.epochs, 20)))
    out = writable_folder(folder, "run folder")
    torch.manual_seed(recipe.seed)
    if network is None:
        network = description.build(recipe.slws_rate, recipe.slws_schedule)
        first = {}
    else:
        first = {"first weights": _digest(network)}
    objective, mixup = make_objective(recipe, len(pictures.classes))
    trainee = Trainee(network, objective, recipe.average, -(-steps // every))
    optimizer = make_optimizer(network, recipe)
    pictures.train.transform = training_transform(recipe, description.size)
    last, place = "", torch.device("cpu")

    def tell(fraction: float, note: str) -> None:
        nonlocal last, place
        step = round(fraction * steps)
        trainee.follow()
        if step % every == 0 or step == steps:
            place = next(trainee.parameters()).device
            score = evaluate(trainee.result, pictures.val, description, device=place)
            row = torch.tensor([step, score.top1, score.top5, score.loss], device=place)
            trainee.scores[(step - 1) // every] = row
            trainee.train()
            last = f", {score.top1:.1%} of validation"
        if progress is not None:
            progress(fraction, note + last)

    history = train(
        trainee,
        optimizer,
        lambda module, batch: _loss(module, batch, mixup),
        pictures.train,
        TrainingConfig(
            steps=steps,
            batch_size=recipe.batch_size,
            seed=recipe.seed,
            checkpoint_every=machine.checkpoint_every,
            clip_norm=recipe.clip,
            workers=machine.workers,
            accelerator=machine.accelerator,
            precision=machine.precision,
        ),
        out / "checkpoints",
        scheduler=make_scheduler(optimizer, recipe, steps),
        progress=tell,
        identity=_identity(description, pictures, recipe) | first,
    )
    result = trainee.result.eval()
    save_network(result, description, out / FILE)
    seen = evaluate(result, pictures.train, description, device=place)
    score = evaluate(result, pictures.val, description, device=place)
    report = {
        "file": str(out / FILE),
        "model": description.model or "VisionMamba",
        "parameters": sum(parameter.numel() for parameter in result.parameters()),
        "classes": list(pictures.classes),
        "recipe": dataclasses.asdict(recipe),
        "steps": steps,
        "train": dataclasses.asdict(seen),
        "validation": dataclasses.asdict(score),
        "gap": seen.top1 - score.top1,
        "scores": [
            {"step": int(step), "top1": round(top1, 6), "top5": round(top5, 6), "loss": round(loss, 6)}
            for step, top1, top5, loss in trainee.scores.tolist()
            if step >= 0
        ],
        "losses": [round(float(value), 5) for value in history],
    }
    write_json(out / "report.json", report)
    return report


def _loss(module: nn.Module, batch: Any, mixup: Mixup | None) -> Float[Tensor, ""]:
    images, labels = batch
    if mixup is not None:
        images, labels = mixup(images, labels)
    return module(images, labels)


def _identity(description: Description, pictures: Pictures, recipe: Recipe) -> dict[str, Any]:
    """What a run depends on beside what `hexad.core.training` compares itself."""
    free = ("batch_size", "seed", "clip")
    settings = {name: value for name, value in dataclasses.asdict(recipe).items() if name not in free}
    return settings | {"data": pictures.digest, "network": dataclasses.asdict(description)}


def _digest(network: nn.Module) -> str:
    """A hash of a network's weights."""
    digest = hashlib.sha256()
    for tensor in network.state_dict().values():
        digest.update(tensor.detach().cpu().numpy().tobytes())
    return digest.hexdigest()[:16]


def picture_loader(dataset: Any, description: Description, batch_size: int = 128, workers: int = 0) -> Any:
    """timm's loader for evaluation: scaled, cut to the centre, normalised, in order."""
    return create_loader(
        dataset,
        (3, description.size, description.size),
        batch_size,
        is_training=False,
        use_prefetcher=False,
        interpolation="bicubic",
        mean=tuple(description.mean),
        std=tuple(description.std),
        crop_pct=description.crop,
        num_workers=workers,
        persistent_workers=False,
    )


@torch.no_grad()
def predict(
    network: nn.Module,
    dataset: Any,
    description: Description,
    *,
    batch_size: int = 128,
    device: torch.device | None = None,
    progress: Callable[[float, str], None] | None = None,
) -> tuple[Float[np.ndarray, "pictures classes"], Int[np.ndarray, " pictures"]]:
    """Class scores of a data set's pictures before the softmax, and their labels; draws no random numbers."""
    before, network = dataset.transform, network.to(device or "cpu").eval()
    scores, labels = [], []
    try:
        # The loader draws a seed for its workers; training that goes on must not notice.
        with torch.random.fork_rng(devices=[]):
            loader = picture_loader(dataset, description, batch_size)
            for number, (images, targets) in enumerate(loader):
                scores.append(network(images.to(device or "cpu")).float().cpu())
                labels.append(targets)
                if progress is not None:
                    progress((number + 1) / len(loader), f"{min((number + 1) * batch_size, len(dataset))}")
    finally:
        dataset.transform = before
    return torch.cat(scores).numpy(), torch.cat(labels).numpy()


def evaluate(
    network: nn.Module,
    dataset: Any,
    description: Description,
    *,
    batch_size: int = 128,
    device: torch.device | None = None,
    progress: Callable[[float, str], None] | None = None,
) -> Score:
    """Score a network on labelled pictures."""
    found, labels = predict(
        network, dataset, description, batch_size=batch_size, device=device, progress=progress
    )
    return score_of(found, labels)


def score_of(scores: Float[np.ndarray, "pictures classes"], labels: Int[np.ndarray, " pictures"]) -> Score:
    """Top-1, top-5 and cross-entropy."""
    logits, targets = torch.from_numpy(scores), torch.from_numpy(labels)
    best = logits.topk(min(5, logits.shape[1]), 1).indices == targets[:, None]
    return Score(
        top1=float(best[:, 0].double().mean()),
        top5=float(best.any(1).double().mean()),
        loss=float(functional.cross_entropy(logits, targets)),
        pictures=len(targets),
    )
