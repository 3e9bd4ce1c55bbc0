"""The large half of the study: a byte-level Llama on the sources of Python's standard library."""

import copy
import functools
import itertools
import json
import statistics
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import nn

from hexad.core.files import write_json
from hexad.core.studies import Measurement, Trial
from hexad.core.training import TrainingConfig, train
from hexad.llm_efficiency.quest.alignment import gradient_alignment
from hexad.llm_efficiency.quest.layer import QuestLinear
from hexad.llm_efficiency.quest.model import convert
from hexad.llm_efficiency.quest.packed import PackedLinear
from hexad.llm_efficiency.quest.recipe import (
    CLIP_NORM,
    byte_llama,
    evaluate,
    make_optimizer,
    make_scheduler,
    next_token_loss,
)
from hexad.llm_efficiency.quest.study_arms import Variant, case_of
from hexad.llm_efficiency.quest.texts import Windows, standard_library, unigram_entropy


@dataclass(frozen=True)
class Config:
    """Size of the study.

    Attributes:
        widths: bits of weights and activations that all arms train at.
        ordered: further widths of QuEST alone, for the order of the losses.
        steps: of training; the tiny models of `tiny` learn little.
        batch: windows a step.
        context: bytes that a window predicts.
        hidden, layers, heads: of the model.
        test_windows: to measure the loss on.
        digits_epochs: of the digits MLP.
        rates: learning rates to try instead of the arms' own: the sweep.
        first_seed: added to the trial's seed, so that the sweep's is not one that is reported.
    """

    widths: tuple[int, ...]
    ordered: tuple[int, ...] = ()
    steps: int = 600
    batch: int = 8
    context: int = 128
    hidden: int = 128
    layers: int = 3
    heads: int = 4
    test_windows: int = 256
    digits_epochs: int = 40
    rates: tuple[float, ...] = ()
    first_seed: int = 0


@functools.lru_cache(maxsize=2)
def _texts(context: int) -> tuple[Windows, Windows, float]:
    training, test = standard_library()
    return Windows(training, context), Windows(test, context), unigram_entropy(test)


def measure_language(trial: Trial, variant: Variant) -> Iterator[Measurement]:
    """Train at each width and rate; loss, gradient alignment and, for QuEST, the packed model."""
    config: Config = trial.config
    widths = (0,) if variant.quantise is None else config.widths
    if variant.is_method:
        widths = tuple(sorted({*config.widths, *config.ordered}, reverse=True))
    runs = [(bits, rate) for bits in widths for rate in config.rates or (variant.rate,)]
    losses: dict[int, float] = {}
    for done, (bits, rate) in enumerate(runs):
        run = _Run(trial, variant, bits, rate, done / len(runs), 1 / len(runs))
        loss = run.train()
        losses[bits] = loss
        cases = [case_of(bits)] if bits else [case_of(width) for width in config.widths]
        suffix = f"/lr{rate:g}" if config.rates else ""
        for case in cases:
            yield Measurement("loss", loss, case + suffix)
            yield Measurement("below_unigram", _texts(config.context)[2] - loss, case + suffix)
            if run.alignment is not None:
                yield Measurement("alignment", run.alignment, case + suffix)
            if variant.is_method and not config.rates:
                ratio, difference = run.packed()
                yield Measurement("packed_ratio", ratio, case)
                yield Measurement("packed_difference", difference, case)
    if variant.is_method and not config.rates:
        for wide, narrow in itertools.pairwise(widths):
            gap = losses[narrow] - losses[wide]
            yield Measurement("width_gap", gap, f"{case_of(narrow)}-{case_of(wide)}")


class _Run:
    """One model of an arm: a width, a learning rate, a seed."""

    def __init__(
        self, trial: Trial, variant: Variant, bits: int, rate: float, start: float, share: float
    ) -> None:
        self.trial, self.rate, self.bits = trial, rate, bits
        self.config: Config = trial.config
        self.start, self.share = start, share
        self.seed = trial.seed + self.config.first_seed
        # The seed draws the weights and the order of the windows; all arms start from the same.
        torch.manual_seed(self.seed)
        model: nn.Module = byte_llama(
            self.config.hidden, self.config.layers, self.config.heads, self.config.context
        )
        self.model = model if variant.quantise is None else variant.quantise(model, bits)
        self.windows, self.test, _ = _texts(self.config.context)
        self.alignment: float | None = None

    def train(self) -> float:
        """Train, with a look at the gradients half-way; the loss on the test text."""
        config = self.config
        folder = self.trial.folder / f"{case_of(self.bits)}-lr{self.rate:g}"

        def progress(fraction: float, note: str) -> None:
            self.trial.progress(self.start + self.share * fraction, f"{case_of(self.bits)} {note}")

        def train_to(steps: int) -> None:
            # `train` starts from the newest checkpoint, with fresh settings of the optimizer to compare.
            optimizer = make_optimizer(self.model, self.rate)
            train(
                self.model,
                optimizer,
                next_token_loss,
                self.windows,
                TrainingConfig(
                    steps=steps,
                    batch_size=config.batch,
                    seed=self.seed,
                    checkpoint_every=config.steps,
                    keep=1,
                    clip_norm=CLIP_NORM,
                    accelerator="cpu",
                ),
                folder,
                scheduler=make_scheduler(optimizer, self.rate, config.steps),
                progress=progress,
            )

        noted = folder / "alignment.json"
        if any(isinstance(module, QuestLinear) for module in self.model.modules()):
            if not noted.is_file():
                train_to(config.steps // 2)
                batch = self.test.spread(config.batch)
                found = gradient_alignment(self.model, batch, next_token_loss)
                write_json(noted, statistics.fmean(found.values()))
            self.alignment = json.loads(noted.read_text())
        train_to(config.steps)
        return evaluate(self.model, self.test.spread(config.test_windows))

    @torch.no_grad()
    def packed(self) -> tuple[float, float]:
        """Size of the packed layers over that in float32, and the largest difference of the logits."""
        self.model.eval()
        windows = self.test.spread(4)[:, :-1]
        before = self.model(input_ids=windows).logits
        converted = convert(copy.deepcopy(self.model))
        after = converted(input_ids=windows).logits
        layers = [module for module in converted.modules() if isinstance(module, PackedLinear)]
        whole = sum(4 * layer.in_features * layer.out_features for layer in layers)
        return sum(layer.nbytes for layer in layers) / whole, float((before - after).abs().max())
