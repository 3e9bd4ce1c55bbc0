"""A thin training loop over Lightning Fabric: progress, safetensors checkpoints, exact resume, any devices.

    history = train(model, optimizer, loss, dataset, TrainingConfig(steps=2000), folder="runs/a")

`loss(model, batch)` returns a scalar tensor. A run that is interrupted continues from its last checkpoint
when the same call is made again, and ends with the very same weights as one that was never interrupted: on a
CPU, in full precision and with `workers=0`. Worker processes draw new random numbers for augmentations after
a resume, and a GPU's own generator (dropout) and the loss scale of "16-mixed" begin anew.
"""

import json
import logging
import random
import signal
import threading
from collections.abc import Callable, Container, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import lightning_fabric
import numpy as np
import torch
from jaxtyping import Float
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, Sampler

from hexad.core.errors import InputError
from hexad.core.files import atomic_path, writable_folder
from hexad.core.validation import check_choice, check_count, check_range

logger = logging.getLogger("hexad.core")

Precision = Literal["32-true", "bf16-mixed", "16-mixed", "bf16-true", "64-true"]


@dataclass(frozen=True)
class TrainingConfig:
    """How long and how to train.

    Args:
        steps: optimiser steps in all.
        batch_size: samples a step, over all devices.
        seed: of weights drawn after the start, data order, dropout.
        checkpoint_every: steps between checkpoints.
        keep: how many of the newest checkpoints stay.
        clip_norm: largest gradient norm, or None.
        workers: data loading processes.
        accelerator: as in `lightning_fabric.Fabric`, as the next two.
        devices: how many. Several GPUs make Fabric start the whole command once for each.
        precision: of the arithmetic.
    """

    steps: int
    batch_size: int = 32
    seed: int = 0
    checkpoint_every: int = 200
    keep: int = 2
    clip_norm: float | None = None
    workers: int = 0
    accelerator: str = "auto"
    devices: int | Literal["auto"] = 1
    precision: Precision = "32-true"

    def __post_init__(self) -> None:
        for name in ("steps", "batch_size", "checkpoint_every", "keep"):
            check_count(name, getattr(self, name))
        check_count("workers", self.workers, 0)
        check_choice("precision", self.precision, get_args(Precision))
        if self.clip_norm is not None:
            check_range("clip_norm", self.clip_norm, 0, low_open=True)


class ResumableBatches(Sampler[list[int]]):
    """Endless shuffled batches of indices that can start at any step, one share of each to a device.

    Every epoch is a permutation seeded by (seed, epoch); a batch may span two epochs, so that no sample is
    dropped and all batches are full.
    """

    def __init__(
        self, length: int, batch_size: int, seed: int, start: int, stop: int, rank: int = 0, world: int = 1
    ) -> None:
        self.length, self.batch_size, self.seed = length, batch_size, seed
        self.start, self.stop, self.rank, self.world = start, stop, rank, world

    def _order(self, epoch: int) -> np.ndarray:
        return np.random.default_rng((self.seed, epoch)).permutation(self.length)

    def __iter__(self) -> Iterator[list[int]]:
        epoch, order = -1, np.empty(0, np.int64)
        for step in range(self.start, self.stop):
            place, batch = step * self.batch_size, []
            while len(batch) < self.batch_size:
                if (wanted := place // self.length) != epoch:
                    epoch, order = wanted, self._order(wanted)
                taken = order[place % self.length :][: self.batch_size - len(batch)]
                batch += taken.tolist()
                place += len(taken)
            yield batch[self.rank :: self.world]

    def __len__(self) -> int:
        return self.stop - self.start


def train(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    loss: Callable[[nn.Module, Any], Float[Tensor, ""]],
    dataset: Dataset,
    config: TrainingConfig,
    folder: str | Path,
    *,
    scheduler: torch.optim.lr_scheduler.LRScheduler | None = None,
    collate: Callable[[list], Any] | None = None,
    progress: Callable[[float, str], None] | None = None,
    identity: Mapping[str, Any] | None = None,
) -> Float[np.ndarray, " steps"]:
    """Train `model` in place and return the loss of every step.

    Args:
        model: trained in place; on return it is on the CPU again.
        optimizer: over the model's parameters.
        loss: `(model, batch) -> scalar`.
        dataset: map-style; its order is shuffled anew each epoch.
        config: see `TrainingConfig`.
        folder: checkpoints `step-<n>.safetensors`; the newest whole one is resumed from.
        scheduler: stepped once a step.
        collate: as in `torch.utils.data.DataLoader`.
        progress: called as `progress(fraction, "loss 1.23")`.
        identity: what else the run depends on, by name, as JSON values: a digest of the data, the first
            weights, options of the loss. A run goes on only with the same.

    Raises:
        InputError: an empty dataset, a batch smaller than the number of devices, a folder that cannot be
            written or that holds a run with other settings, or a loss that is not finite.
    """
    folder = writable_folder(folder, "training folder")
    length = len(dataset)  # ty: ignore[invalid-argument-type]
    if length == 0:
        raise InputError("the dataset is empty; nothing to train on")
    fabric = lightning_fabric.Fabric(
        accelerator=config.accelerator, devices=config.devices, precision=config.precision
    )
    fabric.launch()
    if config.batch_size < fabric.world_size:
        raise InputError(f"batch_size {config.batch_size} is smaller than the {fabric.world_size} devices")
    random.seed(config.seed)
    np.random.seed(config.seed % 2**32)  # noqa: NPY002 - the global generator is what augmentations use
    torch.manual_seed(config.seed)
    compared = ("batch_size", "seed", "clip_norm", "precision")
    settings = json.loads(json.dumps(dict(identity or {})))
    settings |= {key: value for key, value in asdict(config).items() if key in compared}
    settings |= {"length": length} | _described(optimizer)
    if scheduler is not None:
        state = _plain(scheduler.state_dict())
        settings |= {f"scheduler.{name}": value for name, value in state.items()}
    step, history = _resume(folder, model, optimizer, scheduler, settings, identity or (), config.steps)
    wrapped, stepper = fabric.setup(model, optimizer)
    batches = ResumableBatches(
        length, config.batch_size, config.seed, step, config.steps, fabric.global_rank, fabric.world_size
    )
    loader = DataLoader(
        dataset,
        batch_sampler=batches,
        num_workers=config.workers,
        collate_fn=collate,
        # The loader draws a seed for its workers; from the global generator a resumed run would do so twice.
        generator=torch.Generator().manual_seed(config.seed),
    )
    loader = fabric.setup_dataloaders(loader, use_distributed_sampler=False)
    wrapped.train()
    saved = step
    with _deferred_interrupt() as interrupted:
        for batch in loader:
            value = loss(wrapped, batch)
            number = float(value.detach())
            if not np.isfinite(number):
                # Weights just before they overflow are finite, so a checkpoint may lead straight here again.
                kept = f"the checkpoint of step {saved} is kept"
                if step == saved > 0:
                    kept = f"the checkpoint of step {saved} leads here: delete it"
                raise InputError(
                    f"the loss is {number} at step {step}; lower the learning rate or set clip_norm ({kept})"
                )
            fabric.backward(value)
            if config.clip_norm is not None:
                fabric.clip_gradients(wrapped, stepper, max_norm=config.clip_norm)
            stepper.step()
            stepper.zero_grad()
            if scheduler is not None:
                scheduler.step()
            history.append(number)
            step += 1
            if progress is not None:
                progress(step / config.steps, f"loss {number:.4g}")
            if step % config.checkpoint_every == 0 or step == config.steps or interrupted.is_set():
                _save(fabric, folder, step, model, optimizer, scheduler, history, settings, config.keep)
                saved = step
            if interrupted.is_set():
                raise KeyboardInterrupt
    model.to("cpu")
    return np.asarray(history, dtype=np.float64)


@contextmanager
def _deferred_interrupt() -> Generator[threading.Event]:
    """Turn the first Ctrl-C into a flag, so that the step in progress is finished and stored.

    A second one interrupts at once. Signals reach the main thread only; elsewhere nothing changes.
    """
    flag = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield flag
        return
    before = signal.getsignal(signal.SIGINT)

    def handle(number: int, frame: object) -> None:
        if flag.is_set():
            raise KeyboardInterrupt
        flag.set()

    # A parent that ignores Ctrl-C for its workers goes on ignoring it.
    if before is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, handle)
    try:
        yield flag
    finally:
        if before is not signal.SIG_IGN:
            signal.signal(signal.SIGINT, before)


def _described(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Kind and settings of a fresh optimizer as JSON values: a run that goes on must not change them."""
    groups = optimizer.param_groups
    names = sorted({name for group in groups for name in group} - {"params"})
    settings = {name: [group.get(name) for group in groups] for name in names}
    return {"optimizer": type(optimizer).__name__} | json.loads(json.dumps(settings, default=float))


def _generators() -> dict[str, Any]:
    """The state of the process's random generators."""
    return {"torch": torch.get_rng_state(), "python": random.getstate(), "numpy": np.random.get_state()}  # noqa: NPY002


def _set_generators(state: dict[str, Any]) -> None:
    torch.set_rng_state(state["torch"])
    random.setstate(state["python"])
    np.random.set_state(state["numpy"])  # noqa: NPY002


def _checkpoints(folder: Path) -> Sequence[Path]:
    """Checkpoints, oldest first."""
    return sorted(folder.glob("step-*.safetensors"))


def _save(
    fabric: lightning_fabric.Fabric,
    folder: Path,
    step: int,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    scheduler: torch.optim.lr_scheduler.LRScheduler | None,
    history: list[float],
    settings: dict[str, Any],
    keep: int,
) -> None:
    """Write one checkpoint atomically and drop the oldest beyond `keep`."""
    if fabric.is_global_zero:
        tensors: dict[str, Tensor] = {}
        aliases: dict[str, str] = {}
        owners: dict[tuple, str] = {}
        for name, tensor in model.state_dict().items():
            # safetensors refuses tensors that share memory (tied weights); the second name becomes an alias.
            identity = (tensor.data_ptr(), tensor.shape, tensor.stride())
            if tensor.numel() and identity in owners:
                aliases[name] = owners[identity]
            else:
                owners[identity] = name
                tensors[f"model.{name}"] = tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
        described = optimizer.state_dict()
        scalars: dict[str, dict[str, Any]] = {}
        for index, state in described["state"].items():
            for key, value in state.items():
                if isinstance(value, Tensor):
                    tensors[f"optimizer.{index}.{key}"] = value.detach().cpu().contiguous()
                else:
                    scalars.setdefault(str(index), {})[key] = value
        generators = _generators()
        tensors["generator.torch"] = generators["torch"]
        kind, keys, *rest = generators["numpy"]
        tensors["generator.numpy"] = torch.from_numpy(keys.astype(np.int64))
        tensors["history"] = torch.tensor(history, dtype=torch.float64)
        meta = {
            "step": step,
            "settings": settings,
            "aliases": aliases,
            "groups": described["param_groups"],
            "scalars": scalars,
            "scheduler": None if scheduler is None else _plain(scheduler.state_dict()),
            "python": generators["python"],
            "numpy": [kind, *rest],
        }
        if not all(bool(tensor.isfinite().all()) for name, tensor in tensors.items() if name[:6] == "model."):
            raise InputError(
                f"the weights are not finite after step {step}; lower the learning rate or set clip_norm "
                "(earlier checkpoints are kept)"
            )
        with atomic_path(folder / f"step-{step:09d}.safetensors") as path:
            save_file(tensors, path, metadata={"hexad": json.dumps(meta, default=float)})
        for old in _checkpoints(folder)[:-keep]:
            old.unlink()
    fabric.barrier()


def _plain(state: dict[str, Any]) -> dict[str, Any]:
    """The JSON part of a scheduler's state (the rest are functions, which the caller passes again)."""
    plain = {}
    for key, value in state.items():
        try:
            plain[key] = json.loads(json.dumps(value))
        except TypeError:
            continue
    return plain


def _resume(
    folder: Path,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    scheduler: torch.optim.lr_scheduler.LRScheduler | None,
    settings: dict[str, Any],
    identity: Container[str],
    steps: int,
) -> tuple[int, list[float]]:
    """Load the newest whole checkpoint, if any; return its step and the losses so far."""
    for path in reversed(_checkpoints(folder)):
        try:
            with safe_open(path, framework="pt") as file:
                meta = json.loads(file.metadata()["hexad"])
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - no mapping
        except (SafetensorError, OSError, KeyError, TypeError, ValueError) as error:
            aside = path.with_suffix(".damaged")
            path.replace(aside)
            logger.warning("checkpoint %s is damaged (%s); set aside as %s", path, error, aside.name)
            continue
        changed = {
            key: f"{key}: {meta['settings'][key]!s:.60} -> {value!s:.60}"
            for key, value in settings.items()
            if meta["settings"].get(key, value) != value  # a key that is not stored is of a later version
        }
        if changed:
            # What the caller named says more than what follows from it in the optimizer.
            named = [said for key, said in changed.items() if key in identity] or changed.values()
            raise InputError(
                f"{path} belongs to a run with other settings ({'; '.join(named)}); name another folder"
            )
        if meta["step"] > steps:
            raise InputError(f"{path} is {meta['step']} steps old, more than the {steps} asked for")
        weights = {name[6:]: tensor for name, tensor in tensors.items() if name.startswith("model.")}
        weights |= {name: weights[owner] for name, owner in meta["aliases"].items()}
        try:
            model.load_state_dict(weights)
        except RuntimeError as error:
            raise InputError(f"{path} is of another model: {str(error).splitlines()[-1].strip()}") from None
        state: dict[int, dict[str, Any]] = {int(i): dict(values) for i, values in meta["scalars"].items()}
        for name, tensor in tensors.items():
            if name.startswith("optimizer."):
                _, index, key = name.split(".", 2)
                state.setdefault(int(index), {})[key] = tensor
        optimizer.load_state_dict({"state": state, "param_groups": meta["groups"]})
        if scheduler is not None and meta["scheduler"] is not None:
            scheduler.load_state_dict(meta["scheduler"])
        version, internal, gauss = meta["python"]
        kind, *rest = meta["numpy"]
        _set_generators(
            {
                "torch": tensors["generator.torch"],
                "python": (version, tuple(internal), gauss),
                "numpy": (kind, tensors["generator.numpy"].numpy().astype(np.uint32), *rest),
            }
        )
        return meta["step"], tensors["history"].tolist()
    return 0, []
