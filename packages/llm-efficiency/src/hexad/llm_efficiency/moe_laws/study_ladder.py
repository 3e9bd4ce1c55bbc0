"""The study's real runs: a ladder of trained models, and what laws predict of its longest runs."""

import functools
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from hexad.core.files import atomic_path
from hexad.core.studies import Measurement, Trial
from hexad.llm_efficiency.moe_laws.architecture import SwitchArch
from hexad.llm_efficiency.moe_laws.fitting import fit
from hexad.llm_efficiency.moe_laws.ladder import Point, recorded_run
from hexad.llm_efficiency.moe_laws.runs import Runs
from hexad.llm_efficiency.moe_laws.variants import Config, Variant, fit_per_expert

ARCH = SwitchArch(vocab=256, aspect=16)
IRREDUCIBLE = (0.2, 0.4, 0.6, 0.8, 1.0)
"""The grid of c in nats per byte; the one that fits best is taken, for each law on its own."""


def ladder_folder(trial: Trial) -> Path:
    """Where all arms of a seed find its runs: not in a trial's own folder, so that each is trained once."""
    return trial.folder.parent.parent / "ladder" / f"seed-{trial.seed}"


def measure_ladder(trial: Trial, experts: int) -> Iterator[Measurement]:
    """Train the models with that many experts, or read them, and give their losses."""
    config: Config = trial.config
    widths = config.ladder.widths
    for done, width in enumerate(widths):
        tell = functools.partial(_part, trial, done / len(widths), 1 / len(widths))
        for point in recorded_run(ladder_folder(trial), width, experts, trial.seed, config.ladder, tell):
            yield Measurement("loss", point.loss, f"d{point.width}/{point.tokens}")


def _part(trial: Trial, start: float, share: float, fraction: float, note: str) -> None:
    trial.progress(start + share * fraction, note)


def ladder_runs(trial: Trial) -> Runs:
    """All runs of the seed's ladder; those that are not there yet are trained."""
    config: Config = trial.config
    points: list[Point] = []
    for width in config.ladder.widths:
        for experts in config.ladder.experts:
            points += recorded_run(
                ladder_folder(trial), width, experts, trial.seed, config.ladder, trial.progress
            )
    return runs_of(points)


def runs_of(points: list[Point]) -> Runs:
    """The points as runs of the law: N counts embedding and unembedding, as the paper's does."""
    return Runs.of(
        {
            "n_active": [ARCH.active(point.width) for point in points],
            "tokens": [point.tokens for point in points],
            "experts": [point.experts for point in points],
            "loss": [point.loss for point in points],
        }
    )


def measure_predictions(trial: Trial, variant: Variant) -> Iterator[Measurement]:
    """Fit the runs but for those of most tokens, and predict these."""
    config: Config = trial.config
    runs = ladder_runs(trial)
    held_out = runs.tokens == runs.tokens.max()
    best, predicted = np.inf, runs.loss
    for done, c in enumerate(IRREDUCIBLE):
        trial.progress(0.5 + 0.5 * done / len(IRREDUCIBLE), f"ladder, c {c:g}")
        if variant.per_expert:
            _, guess = fit_per_expert(
                runs, held_out, config.ladder_starts, trial.seed, c, lambda share, note: None
            )
        else:
            options: dict[str, Any] = {
                **variant.options,
                "fixed": {**variant.options.get("fixed", {}), "c": c},
            }
            found = fit(runs, n_starts=config.ladder_starts, seed=trial.seed, holdout=held_out, **options)
            guess = runs.loss + found.residuals
        error = _rmse((guess - runs.loss)[~held_out])
        if error < best:
            best, predicted = error, guess
    yield Measurement("ladder_train_rmse", best)
    yield Measurement("ladder_rmse", _rmse((predicted - runs.loss)[held_out]))
    trial.folder.mkdir(parents=True, exist_ok=True)
    with atomic_path(trial.folder / "ladder.npz") as path:
        np.savez(path, predicted=predicted, held_out=held_out, **asdict(runs))


def _rmse(errors: np.ndarray) -> float:
    return float(np.sqrt(np.mean(errors**2)))
