"""A small study whose numbers are known, for the tests of the runner, the engines and the reports."""

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from hexad.core.plots import new_figure
from hexad.core.studies import Arm, Claim, Figure, Measurement, Metric, Preset, Results, Study, Trial


@dataclass(frozen=True)
class Config:
    n: int = 100
    sleep: float = 0.0


def noisy_mean(trial: Trial, centre: float) -> Iterator[Measurement]:
    log = os.environ.get("HEXAD_TOY_LOG")
    if log:
        with open(log, "a") as file:
            file.write(f"{trial.arm} {trial.seed}\n")
    # The same seed gives both arms the same noise: their difference is exact although each mean is not.
    noise = np.random.default_rng(trial.seed).normal(size=trial.config.n)
    for case in ("a", "b"):
        time.sleep(trial.config.sleep)
        yield Measurement("mean", centre + float(noise.mean()), case)
    trial.progress(1.0, "done")
    yield Measurement("pid", os.getpid())


def high(trial: Trial) -> Iterator[Measurement]:
    yield from noisy_mean(trial, 2.0)


def low(trial: Trial) -> Iterator[Measurement]:
    yield from noisy_mean(trial, 0.5)


def broken(trial: Trial) -> Iterator[Measurement]:
    if trial.seed == 0:
        raise ZeroDivisionError("this arm is broken")
    yield Measurement("mean", 0.0, "a")


def deadly(trial: Trial) -> Iterator[Measurement]:
    if trial.seed == 1:
        os._exit(9)
    yield Measurement("mean", 1.0)


def draw(results: Results):
    figure, axes = new_figure(3, 2)
    axes.plot(results.records.filter(metric="mean")["value"])
    return figure


STUDY = Study(
    name="toy",
    question="Is two more than a half?",
    arms=(Arm("high", "High", "method", high), Arm("low", "Low", "baseline", low)),
    metrics=(Metric("mean", "Mean", "m", better="higher"), Metric("pid", "Process")),
    claims=(
        Claim("gap", "the gap is one and a half", "mean", "high", "at least", 1.499, baseline="low"),
        Claim("too-much", "the gap is two", "mean", "high", "at least", 2.0, baseline="low"),
        Claim("half", "low is a half", "mean", "low", "at most", 0.5),
    ),
    presets={"tiny": Preset(Config(), seeds=2), "slow": Preset(Config(sleep=0.1), seeds=3)},
    figures=(Figure("means", "The means", draw),),
)

BROKEN = Study(
    name="toy-broken",
    question="Does one broken arm stop the others?",
    arms=(*STUDY.arms, Arm("broken", "Broken", "ablation", broken)),
    metrics=STUDY.metrics,
    claims=(Claim("never", "the broken arm is fine", "mean", "broken", "at least", 0.0),),
    presets={"tiny": Preset(Config(), seeds=1)},
)
