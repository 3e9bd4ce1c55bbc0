"""Training networks on ensembles of conformers: base, then reflow, then distillation; each stage resumes.

A stage is `hexad.core.training.train` on batches of molecules of like size. Weights are averaged
exponentially (EMA); the averages live in the checkpoints beside the weights and are what a stage returns.
"""

import copy
import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import Dataset

from hexad.core.errors import InputError
from hexad.core.training import TrainingConfig, train
from hexad.core.validation import check_choice, check_range
from hexad.science_ml.avgflow.batching import MoleculeBatch, MoleculeGraph, collate
from hexad.science_ml.avgflow.equivariant import EquivariantFlow
from hexad.science_ml.avgflow.flow import FlowMatcher, velocity_loss
from hexad.science_ml.avgflow.network import ConformerFlow
from hexad.science_ml.avgflow.reflow import distill_loss, reflow_loss

Network = ConformerFlow | EquivariantFlow
Loss = Callable[[nn.Module, MoleculeBatch, Tensor, Tensor], Float[Tensor, ""]]


@dataclass(frozen=True)
class FlowTrainingConfig:
    """One stage of training. The paper's base stage: 2e-4 after 10 000 steps of warm-up, 1e6 steps.

    Args:
        steps: optimiser steps.
        batch_size: molecules a step.
        learning_rate: highest, after the warm-up; a cosine takes it to a hundredth.
        warmup: steps in which it rises.
        weight_decay: of AdamW.
        decay: of the averaged weights; smaller at first, see `running_average`.
        conformers: at most, of a molecule in a batch; the target averages over them.
        clip_norm: largest norm of the gradient.
        seed: of the order, times, noise.
        checkpoint_every: steps.
        precision: of the network's matrix products; the geometry is computed in float32, targets in float64.
    """

    steps: int
    batch_size: int = 32
    learning_rate: float = 1e-3
    warmup: int = 200
    weight_decay: float = 1e-4
    decay: float = 0.999
    conformers: int = 4
    clip_norm: float = 1.0
    seed: int = 0
    checkpoint_every: int = 500
    precision: Literal["float32", "bfloat16"] = "float32"

    def __post_init__(self) -> None:
        for name in ("steps", "batch_size", "conformers", "checkpoint_every"):
            check_range(name, getattr(self, name), 1)
        check_range("warmup", self.warmup, 0)
        check_range("learning_rate", self.learning_rate, 0, low_open=True)
        check_range("weight_decay", self.weight_decay, 0)
        check_range("decay", self.decay, 0, 1, high_open=True)
        check_range("clip_norm", self.clip_norm, 0, low_open=True)
        check_choice("precision", self.precision, ("float32", "bfloat16"))


class SizedBatches(Dataset):
    """Whole batches of molecules of like size, so that little is padding; an item is a batch.

    Item i is the i-th stretch of the molecules in order of size, shifted by a random part of a batch, so that
    neighbours change from epoch to epoch and each molecule is seen equally often. Frames are drawn anew.

    Args:
        graphs: molecules.
        frames: of each, (k, n, 3) conformers, or (k, 2, n, 3) pairs of noise and conformer.
        batch_size: molecules.
        draws: conformers taken of each molecule, all different; the rest is padding of weight 0.
    """

    def __init__(
        self,
        graphs: Sequence[MoleculeGraph],
        frames: Sequence[Float[np.ndarray, "..."]],
        batch_size: int,
        draws: int = 1,
    ) -> None:
        if len(graphs) != len(frames):
            raise InputError(f"{len(graphs)} molecules have {len(frames)} sets of conformers")
        for graph, frame in zip(graphs, frames, strict=True):
            if len(frame) == 0 or frame.shape[-2:] != (graph.atoms, 3):
                raise InputError(
                    f"{graph.smiles}: conformers of shape {frame.shape}; it must be (k > 0, {graph.atoms}, 3)"
                )
            if not np.isfinite(frame).all():
                raise InputError(f"{graph.smiles}: a conformer holds coordinates that are not finite")
        order = sorted(range(len(graphs)), key=lambda place: graphs[place].atoms)
        self.graphs = [graphs[place] for place in order]
        self.frames = [np.asarray(frames[place], np.float32) for place in order]
        self.batch_size, self.draws = min(batch_size, max(len(order), 1)), draws

    def __len__(self) -> int:
        return math.ceil(len(self.graphs) / self.batch_size)

    def __getitem__(self, index: int) -> tuple[Tensor, ...]:
        """Fields of a `MoleculeBatch`, frames (batch, draws, n, 3) and weights (batch, draws)."""
        start = index * self.batch_size + int(torch.randint(self.batch_size, ()))
        chosen = [(start + place) % len(self.graphs) for place in range(self.batch_size)]
        batch = collate([self.graphs[place] for place in chosen])
        paired = self.frames[0].ndim == 4
        frames = torch.zeros(len(chosen), 2 if paired else self.draws, batch.mask.shape[1], 3)
        weights = torch.zeros(frames.shape[:2])
        for row, place in enumerate(chosen):
            known, n = self.frames[place], self.graphs[place].atoms
            if paired:
                taken = known[int(torch.randint(len(known), ()))]
            else:
                taken = known[torch.randperm(len(known))[: self.draws].numpy()]
            frames[row, : len(taken), :n] = torch.from_numpy(taken)
            weights[row, : len(taken)] = 1
        return batch.node_features, batch.laplacian, batch.edge_types, batch.mask, frames, weights


class Trainee(nn.Module):
    """A network, its running average and its loss, as one module that Fabric can wrap and checkpoint."""

    def __init__(self, network: Network, loss: Loss, config: FlowTrainingConfig) -> None:
        super().__init__()
        self.network, self.loss, self.config = network, loss, config
        self.average = AveragedModel(network, multi_avg_fn=running_average(config.decay))
        self.average.requires_grad_(False)

    def forward(self, *item: Tensor) -> Float[Tensor, ""]:
        """The loss of a batch; the average takes in the last step's weights first."""
        self.average.update_parameters(self.network)
        *fields, frames, weights = item
        # Fabric's own mixed precision would round positions as they come in. Rounded weights are not kept:
        # inside a caller's autocast they would outlive the step, and training would go on with old ones.
        mixed = torch.autocast(
            frames.device.type,
            torch.bfloat16,
            enabled=self.config.precision == "bfloat16",
            cache_enabled=False,
        )
        with mixed:
            return self.loss(self.network, MoleculeBatch(*fields), frames, weights)


def running_average(decay: float) -> Callable[[Sequence[Tensor], Sequence[Tensor], Tensor | int], None]:
    """Exponential averaging whose window is a ninth of the past until it is 1 / (1 - decay) steps long.

    With a constant decay of 0.999 a run of some thousand steps would still hold a part of its first weights.
    """

    @torch.no_grad()
    def update(averages: Sequence[Tensor], weights: Sequence[Tensor], count: Tensor | int) -> None:
        steps = int(count)
        rate = min(decay, (1 + steps) / (10 + steps))
        torch._foreach_lerp_(list(averages), list(weights), 1 - rate)

    return update


def train_stage(
    network: Network,
    batches: SizedBatches,
    loss: Loss,
    config: FlowTrainingConfig,
    folder: str | Path,
    progress: Callable[[float, str], None] | None = None,
    objective: Mapping[str, Any] | None = None,
) -> tuple[Network, Float[np.ndarray, " steps"]]:
    """Train a copy of the network; return its averaged weights and the loss of every step.

    The same call continues an interrupted run from its folder; with more `steps` it goes on further. Another
    network, `objective` (JSON values that describe the loss), data or configuration is refused there.

    Raises:
        InputError: as `hexad.core.training.train`.
    """
    trainee = Trainee(copy.deepcopy(network), loss, config)
    parameters = list(trainee.network.parameters())
    optimizer = torch.optim.AdamW(parameters, config.learning_rate, weight_decay=config.weight_decay)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: learning_curve(step, config))
    history = train(
        trainee,
        optimizer,
        lambda model, item: model(*item),
        batches,
        TrainingConfig(
            steps=config.steps,
            batch_size=1,  # an item is a batch already
            seed=config.seed,
            checkpoint_every=config.checkpoint_every,
            clip_norm=config.clip_norm,
            accelerator="auto",
            devices=1,
        ),
        folder,
        scheduler=scheduler,
        collate=lambda items: items[0],
        progress=progress,
        identity=_identity(network, batches, config) | dict(objective or {}),
    )
    trainee.average.update_parameters(trainee.network)
    averaged = copy.deepcopy(network)
    averaged.load_state_dict(trainee.average.module.state_dict())
    return averaged.eval(), history


def _identity(network: Network, batches: SizedBatches, config: FlowTrainingConfig) -> dict[str, Any]:
    """What a run depends on: its sizes in words, its data and first weights as digests."""
    data, weights = hashlib.sha256(), hashlib.sha256()
    for graph, frames in zip(batches.graphs, batches.frames, strict=True):
        data.update(graph.smiles.encode())
        data.update(frames.tobytes())
    for tensor in network.state_dict().values():
        weights.update(tensor.detach().cpu().numpy().tobytes())
    free = ("steps", "checkpoint_every", "batch_size", "seed", "clip_norm", "learning_rate", "precision")
    settings = {name: value for name, value in asdict(config).items() if name not in free}
    return settings | {
        "molecules a step": config.batch_size,
        "matrix products": config.precision,
        "network": f"{type(network).__name__} {asdict(network.config)}",
        "data": data.hexdigest()[:12],
        "first weights": weights.hexdigest()[:12],
    }


def learning_curve(step: int, config: FlowTrainingConfig) -> float:
    """The part of the learning rate at a step: a linear rise, then half a cosine down to a hundredth."""
    if step < config.warmup:
        return (step + 1) / config.warmup
    done = min((step - config.warmup) / max(config.steps - config.warmup, 1), 1.0)
    return 0.01 + 0.99 * (1 + math.cos(math.pi * done)) / 2


def train_base(
    network: Network,
    graphs: Sequence[MoleculeGraph],
    conformers: Sequence[Float[np.ndarray, "_ n 3"]],
    config: FlowTrainingConfig,
    folder: str | Path,
    matcher: FlowMatcher = FlowMatcher(),
    progress: Callable[[float, str], None] | None = None,
) -> tuple[Network, Float[np.ndarray, " steps"]]:
    """Flow matching on ensembles: the first stage."""
    if (
        isinstance(network, ConformerFlow)
        and matcher.objective != "kabsch"
        and matcher.interpolant == "linear"
    ):
        raise InputError(
            "the linear interpolant leaves conformers unrotated, which a network that is not equivariant "
            "never sees when sampling; use interpolant='random_rotation'"
        )

    def loss(model: nn.Module, batch: MoleculeBatch, frames: Tensor, weights: Tensor) -> Tensor:
        with torch.autocast(frames.device.type, enabled=False):
            t, x, u = matcher.draw(frames, batch.mask, weights)
        return velocity_loss(model(x, t, batch).float(), u, batch.mask)

    batches = SizedBatches(graphs, conformers, config.batch_size, config.conformers)
    return train_stage(network, batches, loss, config, folder, progress, asdict(matcher))


def refine(
    network: Network,
    graphs: Sequence[MoleculeGraph],
    pairs: Sequence[Float[np.ndarray, "_ 2 n 3"]],
    kind: Literal["reflow", "distilled"],
    config: FlowTrainingConfig,
    folder: str | Path,
    progress: Callable[[float, str], None] | None = None,
) -> tuple[Network, Float[np.ndarray, " steps"]]:
    """Reflow, or distillation to one step, on pairs of `make_reflow_pairs`; molecules without pairs are left
    out.

    Raises:
        InputError: no molecule has pairs, or as `train_stage`.
    """
    objective = reflow_loss if kind == "reflow" else distill_loss
    kept = [(graph, np.asarray(frames)) for graph, frames in zip(graphs, pairs, strict=True) if len(frames)]
    if not kept:
        raise InputError("no molecule has a pair to learn from; all samples were refused")

    def loss(model: nn.Module, batch: MoleculeBatch, frames: Tensor, weights: Tensor) -> Tensor:
        return objective(model, batch, frames[:, 0], frames[:, 1])

    batches = SizedBatches([graph for graph, _ in kept], [frames for _, frames in kept], config.batch_size)
    return train_stage(network, batches, loss, config, folder, progress, {"objective": kind})
