"""Training the filter, and choosing its mixture and its step on held-out synthetic images.

Adam with betas (0.9, 0.98); the learning rate is halved when the loss has not fallen for five rounds of
steps. After each part of the training lam is chosen by pixel AP on the validation bank; the weights of the
best part are kept. No test image is ever looked at.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau
from torch.utils.data import Dataset

from hexad.core.errors import InputError, MissingExtraError
from hexad.core.files import atomic_path, write_json
from hexad.core.validation import check_count, check_range
from hexad.vision_robustness.costfilter_ad.detectors import Detector
from hexad.vision_robustness.costfilter_ad.filter import CostFilter, Mixture, base_map, mix, smooth
from hexad.vision_robustness.costfilter_ad.losses import LossWeights, filter_loss
from hexad.vision_robustness.costfilter_ad.matched import MatchedSamples
from hexad.vision_robustness.costfilter_ad.metrics import EXTRA, average_precision, best_f1
from hexad.vision_robustness.costfilter_ad.samples import BATCH, SampleBank

try:
    from hexad.core.training import TrainingConfig, train
except ImportError as error:
    raise MissingExtraError(f'training needs {error.name}; run: pip install "{EXTRA}"') from None

LAMBDAS = (0.0, 0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 1.0)
SIGMAS = (0.0, 2.0, 4.0, 6.0)
STRIDE = 2
"""Every second pixel each way is looked at when something is chosen."""

Progress = Callable[[float, str], None]


def _silent(fraction: float, note: str) -> None:
    """Show nothing."""


@dataclass(frozen=True)
class FitConfig:
    """How the filter is trained.

    Args:
        steps: optimiser steps in all.
        parts: the training is cut into so many parts; after each, lam is chosen and the weights are judged.
        batch_size: samples a step; 8 to 12 in the paper's code.
        lr: 1e-3 (GLAD, HVQ-Trans) or 1e-4 (Dinomaly).
        weights: of the loss.
        patience: rounds of `round_steps` without a lower loss until the learning rate is halved.
        round_steps: steps over which the loss is averaged for that.
        seed: of the order of the samples. First weights are drawn when the `CostFilter` is made, by torch's
            own generator.
        accelerator: as in `hexad.core.training.TrainingConfig`.
    """

    steps: int = 600
    parts: int = 6
    batch_size: int = 8
    lr: float = 1e-3
    weights: LossWeights = field(default_factory=LossWeights)
    patience: int = 5
    round_steps: int = 50
    seed: int = 0
    accelerator: str = "auto"

    def __post_init__(self) -> None:
        for name in ("steps", "parts", "round_steps"):
            check_count(name, getattr(self, name))
        # Batch norm needs two values a channel at least.
        check_count("batch_size", self.batch_size, 2)
        check_count("patience", self.patience, 0)
        if check_count("seed", self.seed, 0) >= 2**32:
            raise InputError(f"seed is {self.seed}; it must lie below 2^32")
        check_range("lr", self.lr, 0, low_open=True)
        if self.parts > self.steps:
            raise InputError(f"parts is {self.parts}, more than the {self.steps} steps")


@dataclass(frozen=True)
class Part:
    """What was chosen after a part of the training.

    Attributes:
        step: steps so far.
        loss: mean of the part's losses.
        ap: pixel AP of the mixture on the validation bank.
        ap_filter: of the filter alone.
        lam: the best weight.
        threshold: of the largest F1.
    """

    step: int
    loss: float
    ap: float
    ap_filter: float
    lam: float
    threshold: float


class Plateau(ReduceLROnPlateau):
    """ReduceLROnPlateau over rounds of steps, stepped once a step: it is told each loss by `observe`."""

    def __init__(self, optimizer: torch.optim.Optimizer, patience: int, every: int) -> None:
        self.every, self.total, self.count = every, 0.0, 0
        super().__init__(optimizer, factor=0.5, patience=patience)

    def observe(self, loss: float) -> None:
        """Take note of a loss."""
        self.total, self.count = self.total + loss, self.count + 1

    def step(self, metrics: Any = None, epoch: int | None = None) -> None:
        """At the end of a round, judge its mean loss."""
        if self.count >= self.every:
            super().step(self.total / self.count)
            self.total, self.count = 0.0, 0


def choose_base(
    detectors: Sequence[Detector], bank: SampleBank, sigmas: Sequence[float] = SIGMAS
) -> tuple[Detector, float, float]:
    """The detector and smoothing whose own map has the largest pixel AP on a validation bank.

    Returns:
        the detector, sigma, and that AP.
    """
    _check_bank(bank)
    best: tuple[float, Detector, float] | None = None
    for detector in detectors:
        plain = _maps(bank, lambda f, c, d=detector: base_map(d, f, c), stride=1)
        for sigma in sigmas:
            maps = smooth(torch.from_numpy(plain), sigma).numpy()[:, ::STRIDE, ::STRIDE]
            ap = average_precision(maps, _masks(bank))
            if best is None or ap > best[0]:
                best = (ap, detector, sigma)
    assert best is not None
    return best[1], best[2], best[0]


def fit(
    model: CostFilter,
    samples: SampleBank,
    validation: SampleBank,
    config: FitConfig,
    folder: str | Path,
    *,
    identity: Mapping[str, Any] | None = None,
    progress: Progress = _silent,
) -> list[Part]:
    """Train the network of `model` in place, and choose its lam, its threshold and its step.

    The same call goes on where an interrupted one stopped, and one with more steps where it had ended.

    Args:
        model: its network is trained and its mixture set; the detector stays as it is.
        samples: to train on.
        validation: to choose on, of other images.
        config: how.
        folder: for checkpoints and what was chosen so far.
        identity: what else the run depends on, so that another is not gone on with by mistake; the samples
            themselves are compared.
        progress: called as `progress(fraction, note)`.

    Returns:
        what was chosen after each part.

    Raises:
        InputError: a validation bank without anomalies, a folder of a run with other settings, or a network
            whose outputs are not finite.
    """
    _check_bank(validation)
    folder = Path(folder)
    network = model.network
    free = ("steps", "parts", "accelerator")
    described = dict(identity or {}) | {
        "network": asdict(network.config),
        "fit": {key: value for key, value in asdict(config).items() if key not in free},
        "sigma": model.mixture.sigma,
        "training samples": samples.digest(),
        "validation samples": validation.digest(),
    }
    described = json.loads(json.dumps(described))
    parts = _parts_so_far(folder, described, config.steps)
    base = _maps(validation, model.base)
    dataset: Dataset = samples
    done = parts[-1].step if parts else 0
    ends = [round((n + 1) * config.steps / config.parts) for n in range(config.parts)]
    ends = [end for end in ends if end > done]
    if ends and MatchedSamples.suits(model, samples):
        dataset = MatchedSamples(model, samples)
    for end in ends:
        before = parts[-1].step if parts else 0
        # New ones each time: `train` compares their first settings, and reads the rest from its checkpoint.
        optimizer = torch.optim.Adam(network.parameters(), lr=config.lr, betas=(0.9, 0.98))
        plateau = Plateau(optimizer, config.patience, config.round_steps)
        history = train(
            network,
            optimizer,
            _loss_of(model, config.weights, plateau),
            dataset,
            TrainingConfig(
                steps=end, batch_size=config.batch_size, seed=config.seed, checkpoint_every=100,
                accelerator=config.accelerator,
            ),
            folder,
            scheduler=cast(LRScheduler, plateau),
            progress=lambda fraction, note, end=end: progress(fraction * end / config.steps, note),
            identity={"hexad": described},
        )  # fmt: skip
        progress(end / config.steps, "judging")
        part = _judge(model, validation, base, end, float(history[before:].mean()))
        if not parts or part.ap > max(other.ap for other in parts):
            with atomic_path(folder / "best.safetensors") as temporary:
                save_file({name: t.contiguous() for name, t in network.state_dict().items()}, temporary)
        parts.append(part)
        write_json(
            folder / "parts.json", {"settings": described, "parts": [asdict(other) for other in parts]}
        )
    try:
        network.load_state_dict(load_file(folder / "best.safetensors"))
    except (OSError, SafetensorError, RuntimeError):
        raise InputError(
            f"{folder / 'best.safetensors'} is missing or damaged; delete {folder} and train again"
        ) from None
    network.eval()
    best = max(parts, key=lambda part: part.ap)
    model.mixture = Mixture(lam=best.lam, sigma=model.mixture.sigma, threshold=best.threshold)
    return parts


def _loss_of(model: CostFilter, weights: LossWeights, plateau: Plateau) -> Callable[[nn.Module, Any], Tensor]:
    """The loss of a batch, the mean over the runs that its templates make."""

    def loss(network: nn.Module, batch: Any) -> Tensor:
        features, mask, classes, *matched = batch
        if matched:
            kept, base = matched
            runs, base = [kept], base if base.numel() else None
        else:
            matching = model.detector.match(features, classes)
            runs, base = model.kept(matching), matching.base
        values = []
        for kept in runs:
            volume, maps = model.inputs(kept, base)
            values.append(filter_loss(*network(volume, features, maps), mask, classes, weights))
        value = torch.stack(values).mean()
        plateau.observe(float(value.detach()))
        return value

    return loss


def _judge(model: CostFilter, bank: SampleBank, base: np.ndarray, step: int, loss: float) -> Part:
    """Choose lam for the network as it is."""
    filtered, masks = _maps(bank, model.filtered), _masks(bank)
    if not np.isfinite(filtered).all():
        raise InputError(f"the network's outputs are not finite after step {step}; lower lr")
    found = {lam: average_precision(mix(filtered, base, lam), masks) for lam in LAMBDAS}
    lam = max(found, key=lambda value: found[value])
    _, threshold = best_f1(mix(filtered, base, lam).ravel(), masks.ravel())
    return Part(step, loss, found[lam], found[1.0], lam, threshold)


def _parts_so_far(folder: Path, described: dict[str, Any], steps: int) -> list[Part]:
    try:
        stored = json.loads((folder / "parts.json").read_text(encoding="utf-8"))
        parts = [Part(**part) for part in stored["parts"]]
        settings = stored["settings"]
    except FileNotFoundError:
        return []
    except (OSError, ValueError, KeyError, TypeError):
        raise InputError(f"{folder / 'parts.json'} is damaged; delete {folder} and train again") from None
    if settings != described or (parts and parts[-1].step > steps):
        changed = [key for key in described if settings.get(key) != described[key]] or ["steps"]
        raise InputError(
            f"{folder} holds a training with other settings ({', '.join(changed)}); name another folder"
        )
    return parts


def _check_bank(bank: SampleBank) -> None:
    if not bank.masks[:].any():
        raise InputError("the validation samples hold no anomaly to choose by; make more of them")


def _maps(bank: SampleBank, of: Callable[[list[Tensor], Tensor], Tensor], stride: int = STRIDE) -> np.ndarray:
    """Maps of all samples, thinned."""
    parts = [of(*bank.batch(n, min(n + BATCH, len(bank)))) for n in range(0, len(bank), BATCH)]
    return torch.cat(parts).numpy()[:, ::stride, ::stride]


def _masks(bank: SampleBank) -> np.ndarray:
    return bank.masks[:, ::STRIDE, ::STRIDE].astype(bool)
