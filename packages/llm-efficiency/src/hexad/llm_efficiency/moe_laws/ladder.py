"""Train a ladder of small Switch transformers and record their losses, the data of a scaling law.

One run of one width and number of experts gives a loss at each of several token counts: its learning rate is
warmed up and held (the trunk), and from the trunk a branch decays to zero over the last fifth of each count
(warm-up, stable, decay). Each run is one JSON file; a finished run is read and not trained again.
"""

import copy
import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from filelock import FileLock
from jaxtyping import Int
from torch import Tensor
from torch.nn.functional import cross_entropy

from hexad.core.errors import InputError
from hexad.core.files import write_json
from hexad.core.validation import check_count
from hexad.llm_efficiency.moe_laws.corpus import load_corpus
from hexad.llm_efficiency.moe_laws.switch import SwitchConfig, SwitchLM

BALANCE_WEIGHT = 1e-2  # of the load-balance loss (appendix A)
Z_WEIGHT = 1e-3  # of the router's z-loss (appendix A)
DECAY = 0.2  # share of the tokens over which the learning rate falls to 0 (appendix A)

Progress = Callable[[float, str], None]


@dataclass(frozen=True)
class LadderConfig:
    """What is trained, and how; every run of a ladder shares it.

    Args:
        widths: d of the models.
        experts: E of the models.
        tokens: counts D at which a loss is recorded, each a multiple of ten batches.
        context: tokens in a sequence.
        batch: sequences in a step.
        warmup: steps over which the learning rate rises.
        held_out: tokens that are evaluated.
    """

    widths: tuple[int, ...] = (16, 32, 48)
    experts: tuple[int, ...] = (1, 2, 4, 8)
    tokens: tuple[int, ...] = (245_760, 491_520, 983_040, 1_966_080)
    context: int = 64
    batch: int = 32
    warmup: int = 20
    held_out: int = 65_536

    def __post_init__(self) -> None:
        for name in ("context", "batch", "warmup", "held_out"):
            check_count(name, getattr(self, name))
        for tokens in self.tokens:
            if tokens % (10 * self.step_tokens):
                raise InputError(
                    f"tokens is {tokens}; it must be a multiple of ten batches, {10 * self.step_tokens}"
                )

    @property
    def step_tokens(self) -> int:
        """Tokens in a step."""
        return self.context * self.batch


@dataclass(frozen=True)
class Point:
    """One point of a ladder: `loss` in nats per byte on held-out files, no token dropped."""

    width: int
    experts: int
    tokens: int
    loss: float


def peak_learning_rate(width: int, experts: int) -> float:
    """The one rule for all runs, dense or not: 0.02 (16/d)^0.7 E^-0.25.

    The exponent of E is the paper's; the rest was chosen for E = 1 and 8 at d = 16, 32 and 64 among powers of
    two, on a seed that no study reports. The paper's own law is of models a thousand times larger.
    """
    return 0.02 * (16 / width) ** 0.7 * experts**-0.25


def _windows(text: np.ndarray, length: int) -> Int[Tensor, "windows length"]:
    """The text cut into windows that overlap by the one token that is only predicted."""
    count = (len(text) - 1) // (length - 1)
    starts = torch.arange(count)[:, None] * (length - 1)
    return torch.from_numpy(text.copy()).long()[starts + torch.arange(length)]


def _batches(seed: int, config: LadderConfig) -> Iterator[Int[Tensor, "batch length"]]:
    """Windows of the training text, every one once in an order drawn by the seed, over and over."""
    windows = _windows(load_corpus().train, config.context + 1)
    generator = torch.Generator().manual_seed(seed)
    while True:
        order = torch.randperm(len(windows), generator=generator)
        for chosen in order.split(config.batch)[: len(order) // config.batch]:
            yield windows[chosen]


@torch.no_grad()
def evaluate(model: SwitchLM, config: LadderConfig) -> float:
    """Mean cross-entropy of held-out bytes in nats."""
    windows = _windows(load_corpus().held_out, config.context + 1)
    # Spread over the files: the same windows for every model.
    count = min(len(windows), config.held_out // config.context)
    chosen = windows[torch.linspace(0, len(windows) - 1, count).long()]
    total = 0.0
    for batch in chosen.split(4 * config.batch):
        logits, _, _ = model(batch[:, :-1])
        total += float(cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten(), reduction="sum"))
    return total / (count * config.context)


def train_run(
    width: int, experts: int, seed: int, config: LadderConfig, progress: Progress = lambda share, note: None
) -> list[Point]:
    """Train one model and return its loss at each of the ladder's token counts.

    Args:
        width: d.
        experts: E; 1 is dense.
        seed: of the weights and of the order of the text; runs of a seed see the same batches.
        config: of the ladder.
        progress: called as `progress(share, note)`.
    """
    torch.manual_seed(seed)
    model = SwitchLM(SwitchConfig(width, experts))
    peak = peak_learning_rate(width, experts)
    optimizer = torch.optim.AdamW(model.parameters(), peak, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    steps = sorted(tokens // config.step_tokens for tokens in config.tokens)
    branches = {round((1 - DECAY) * stop): stop for stop in steps}
    total = max(branches) + sum(stop - start for start, stop in branches.items())
    done = 0
    batches: list[Tensor] = []  # kept from the earliest open branch on: branch and trunk read the same text
    source = _batches(seed, config)

    def step(at: int, rate: float) -> None:
        nonlocal done
        while len(batches) <= at:
            batches.append(next(source))
        tokens = batches[at]
        for group in optimizer.param_groups:
            group["lr"] = rate * min(1.0, (at + 1) / config.warmup)
        logits, balance, z = model(tokens[:, :-1])
        loss = cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        (loss + BALANCE_WEIGHT * balance + Z_WEIGHT * z).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        done += 1
        progress(done / total, f"d {width}, E {experts}, step {done} of {total}")

    points = []
    for at in range(max(branches) + 1):
        if at in branches:
            stop = branches[at]
            trunk = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
            for later in range(at, stop):
                step(later, peak * (stop - later) / (stop - at))
            points.append(Point(width, experts, stop * config.step_tokens, evaluate(model, config)))
            model.load_state_dict(trunk[0])
            optimizer.load_state_dict(trunk[1])
        if at < max(branches):
            step(at, peak)
    return points


def recorded_run(
    folder: Path, width: int, experts: int, seed: int, config: LadderConfig, progress: Progress
) -> list[Point]:
    """The points of one run: read from its file in `folder`, or trained and written there.

    Raises:
        InputError: the file is of a run with other settings, or no JSON.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"d{width}-e{experts}.json"
    shared = {key: value for key, value in asdict(config).items() if key not in ("widths", "experts")}
    settings = {"width": width, "experts": experts, "seed": seed, **shared}
    settings = json.loads(json.dumps(settings))  # tuples become lists, as in the file
    # Another worker may be training this very run; it is waited for.
    with FileLock(path.with_suffix(".lock")):
        if path.is_file():
            try:
                content = json.loads(path.read_text(encoding="utf-8"))
                points = [Point(**point) for point in content["points"]]
            except (ValueError, KeyError, TypeError) as error:
                raise InputError(
                    f"{path} is damaged ({error}); delete it and the run is trained again"
                ) from None
            if content["settings"] != settings:
                raise InputError(f"{path} is of a run with other settings; name another folder")
            return points
        points = train_run(width, experts, seed, config, progress)
        write_json(path, {"settings": settings, "points": [asdict(point) for point in points]})
        return points
