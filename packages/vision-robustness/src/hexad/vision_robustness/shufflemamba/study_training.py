"""One arm of the study: a small Vision Mamba on 500 digits, with one way of shuffling."""

import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from hexad.core.studies import Measurement, Trial
from hexad.core.training import TrainingConfig, train
from hexad.vision_robustness.shufflemamba.digits import load_digits, split_digits
from hexad.vision_robustness.shufflemamba.network import VisionMamba
from hexad.vision_robustness.shufflemamba.shuffling import draw_permutation, layer_probs, permute_tokens
from hexad.vision_robustness.shufflemamba.wrapping import apply_slws, forced_shuffle

FIRST_SEED = 100
"""Of the digits of seed 0. Test figures of others were seen while the study was written."""

ORDERS = 5
"""Permutations of the test's layers, over which forced accuracy is averaged."""


@dataclass(frozen=True)
class Config:
    """Sizes of the study; the recipe is AdamW, decay 0.05, with a cosine from an arm's own rate to 0.

    Args:
        train: digits trained on.
        test: digits tested on.
        steps: optimiser steps.
        batch: digits a step.
        patch: side of a patch; 28 over it, squared, is the number of tokens.
        dim: width of a token.
        depth: blocks.
        states: numbers of state a channel.
        rate: of SLWS.
        drop_path: stochastic depth of that arm.
    """

    train: int = 500
    test: int = 1000
    steps: int = 900
    batch: int = 50
    patch: int = 4
    dim: int = 48
    depth: int = 6
    states: int = 4
    rate: float = 0.3
    drop_path: float = 0.2


@dataclass(frozen=True)
class Way:
    """How an arm trains: shuffles, and the better of the learning rates 1e-3 and 3e-3."""

    schedule: Literal["linear", "constant"] | None = None
    drop_path: bool = False
    restored: bool = True
    lr: float = 3e-3


WAYS = {
    "slws": Way("linear"),
    "none": Way(lr=1e-3),
    "drop-path": Way(drop_path=True),
    "slws-drop-path": Way("linear", drop_path=True),
    "constant": Way("constant"),
    "unrestored": Way("linear", restored=False),
}


class Digits(torch.utils.data.Dataset):
    """Digits in [-1, 1] as (1, 28, 28), with labels."""

    def __init__(self, places: Int[np.ndarray, " n"]) -> None:
        pictures, labels = load_digits()
        self.images = torch.from_numpy(pictures[places]).float().div(127.5).sub(1)[:, None]
        self.labels = torch.from_numpy(labels[places])

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Float[Tensor, "1 28 28"], Int[Tensor, ""]]:
        return self.images[index], self.labels[index]


def make_network(config: Config, seed: int, way: Way) -> VisionMamba:
    """The arm's network; all arms of a seed start from the same weights."""
    torch.manual_seed(seed)
    network = VisionMamba(
        img_size=28,
        patch_size=config.patch,
        in_chans=1,
        num_classes=10,
        embed_dim=config.dim,
        depth=config.depth,
        d_state=config.states,
        drop_path_rate=config.drop_path if way.drop_path else 0.0,
    )
    if way.schedule and way.restored:
        apply_slws(network, config.rate, way.schedule, network.layers)
    elif way.schedule:
        shuffle_for_good(network, layer_probs(config.depth, config.rate, way.schedule))
    return network


def shuffle_for_good(network: VisionMamba, probs: tuple[float, ...]) -> None:
    """The ablation: a layer's tokens are shuffled at its rate and stay so for the layers behind it.

    The head still reads the class token: after the last layer all shuffles are undone at once.
    """
    taken: list[Tensor] = []

    def before(p: float, first: bool) -> Any:
        def hook(block: nn.Module, args: tuple[Tensor, Tensor | None]) -> tuple[Tensor, Tensor | None] | None:
            if first:
                taken.clear()
            hidden, residual = args
            perm = draw_permutation(p if block.training else 0.0, *hidden.shape[:2], hidden.device)
            if perm is None:
                return None
            taken.append(perm)
            return permute_tokens(hidden, perm), None if residual is None else permute_tokens(residual, perm)

        return hook

    def undo(norm: nn.Module, args: tuple[Tensor]) -> tuple[Tensor]:
        stream = args[0]
        for perm in reversed(taken):
            stream = permute_tokens(stream, perm.argsort())
        taken.clear()
        return (stream,)

    for place, (block, p) in enumerate(zip(network.layers, probs, strict=True)):
        block.register_forward_pre_hook(before(p, place == 0))
    network.norm_f.register_forward_pre_hook(undo)


@contextmanager
def _evaluating(network: nn.Module) -> Generator[None]:
    was = network.training
    network.eval()
    with torch.no_grad():
        yield
    network.train(was)


def accuracy(network: VisionMamba, digits: Digits) -> float:
    """Share of digits named rightly."""
    with _evaluating(network):
        right = [
            network(images).argmax(1) == labels
            for images, labels in zip(digits.images.split(250), digits.labels.split(250), strict=True)
        ]
    return float(torch.cat(right).double().mean())


def forced_accuracy(network: VisionMamba, digits: Digits, seed: int) -> float:
    """The same with the last half of the blocks shuffled at test: the mean over `ORDERS` draws a batch."""
    generator = torch.Generator().manual_seed(seed)
    with forced_shuffle(network, 0.5, network.layers, generator):
        return float(np.mean([accuracy(network, digits) for _ in range(ORDERS)]))


def measure(trial: Trial, name: str) -> Iterator[Measurement]:
    """Train one arm at one seed and test it."""
    config: Config = trial.config
    way = WAYS[name]
    seed = FIRST_SEED + trial.seed
    known, unknown = (Digits(places) for places in split_digits(seed, config.train, config.test))
    network = make_network(config, seed, way)
    optimizer = torch.optim.AdamW(network.parameters(), way.lr, weight_decay=0.05)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, config.steps)
    losses = train(
        network,
        optimizer,
        lambda module, batch: functional.cross_entropy(module(batch[0]), batch[1]),
        known,
        TrainingConfig(
            config.steps,
            config.batch,
            seed,
            checkpoint_every=max(1, config.steps // 6),
            keep=1,
            accelerator="cpu",
        ),
        trial.folder / "checkpoints",
        scheduler=scheduler,
        progress=trial.progress,
    )
    np.save(trial.folder / "losses.npy", losses)
    seen, clean = accuracy(network, known), accuracy(network, unknown)
    forced = forced_accuracy(network, unknown, seed)
    yield Measurement("train", seen)
    yield Measurement("test", clean)
    yield Measurement("gap", seen - clean)
    yield Measurement("forced", forced)
    yield Measurement("kept", forced / max(clean, 1e-9))
    if name == "slws":
        yield Measurement("step_time", _step_time(config, seed))


def _step_time(config: Config, seed: int, rounds: int = 15) -> float:
    """Time of a training step with SLWS over one without, interleaved and warm: the median of the ratios."""
    batch = Digits(split_digits(seed, config.train, config.test)[0][: config.batch])
    networks = [make_network(config, seed, WAYS[name]).train() for name in ("slws", "none")]

    def step(network: VisionMamba) -> float:
        began = time.perf_counter()
        functional.cross_entropy(network(batch.images), batch.labels).backward()
        network.zero_grad()
        return time.perf_counter() - began

    for network in networks:
        step(network)
    times = np.array([[step(network) for network in networks] for _ in range(rounds)])
    return float(np.median(times[:, 0]) / np.median(times[:, 1]))
