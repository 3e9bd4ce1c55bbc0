"""How all networks are trained: batches drawn from memory, Adam, checkpoints that resume exactly."""

import contextlib
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.utils.data import Dataset

from hexad.core.devices import find_device
from hexad.core.training import TrainingConfig, train
from hexad.core.validation import check_choice, check_count, check_range

Progress = Callable[[float, str], None]


@dataclass(frozen=True)
class FitConfig:
    """How long and how to train a stage. The paper: 1e6 steps of 1024, learning rate 3e-4.

    Args:
        steps: optimiser steps in all; the same folder with more goes on further.
        batch_size: transitions a step.
        learning_rate: of Adam, constant.
        seed: of first weights and batches.
        checkpoint_every: steps between checkpoints.
        accelerator: `auto` takes a GPU where there is one.
    """

    steps: int = 1_000_000
    batch_size: int = 1024
    learning_rate: float = 3e-4
    seed: int = 0
    checkpoint_every: int = 2000
    accelerator: Literal["auto", "cpu", "cuda"] = "auto"

    def __post_init__(self) -> None:
        for name in ("steps", "batch_size", "checkpoint_every"):
            check_count(name, getattr(self, name))
        check_count("seed", self.seed, 0)
        check_range("learning_rate", self.learning_rate, 0, low_open=True)
        check_choice("accelerator", self.accelerator, ("auto", "cpu", "cuda"))

    def generator(self) -> torch.Generator:
        """Of the first weights."""
        return torch.Generator().manual_seed(self.seed)


class Draws(Dataset):
    """Random batches as a data set: an item is a whole batch, drawn anew from torch's generator."""

    def __init__(self, draw: Callable[[], tuple[Tensor, ...]]) -> None:
        self.draw = draw

    def __len__(self) -> int:
        # What an epoch is means nothing here; a length above 1 makes permutations rare.
        return 1000

    def __getitem__(self, index: int) -> tuple[Tensor, ...]:
        return self.draw()


def fit(
    trainee: nn.Module,
    parameters: list[nn.Parameter],
    draw: Callable[[], tuple[Tensor, ...]],
    config: FitConfig,
    identity: Mapping[str, Any],
    folder: str | Path | None = None,
    progress: Progress | None = None,
) -> Float[np.ndarray, " steps"]:
    """Minimise `trainee(*draw())` with Adam; return the loss of every step.

    Args:
        trainee: its `forward` gives the loss of a batch, and moves its own slow copies before that.
        parameters: those that learn.
        draw: a batch, from torch's global generator.
        config: see `FitConfig`.
        identity: what the run depends on, by name.
        folder: of checkpoints, from which an interrupted run goes on; None keeps none.
        progress: called as `progress(fraction, "loss 1.23")`.

    Raises:
        InputError: as `hexad.core.training.train`.
    """
    if config.accelerator != "auto":
        find_device(config.accelerator)  # what cannot be used is said in one line
    optimizer = torch.optim.Adam(parameters, config.learning_rate, fused=True)
    if folder is None:
        place = tempfile.TemporaryDirectory(prefix="hexad-gas-")
    else:
        place = contextlib.nullcontext(folder)
    with place as home:
        return train(
            trainee,
            optimizer,
            lambda module, batch: module(*batch),
            Draws(draw),
            TrainingConfig(
                steps=config.steps,
                batch_size=1,  # an item is a batch already
                seed=config.seed,
                checkpoint_every=config.checkpoint_every,
                accelerator=config.accelerator,
            ),
            home,
            collate=lambda items: items[0],
            progress=progress,
            identity={"transitions a step": config.batch_size, **identity},
        )
