"""The study's computed parts: the paper's tables again, and the recovery of a known law from noisy losses."""

import math
import time
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from hexad.core.studies import Measurement, Trial
from hexad.llm_efficiency.moe_laws.fitting import fit
from hexad.llm_efficiency.moe_laws.law import ChinchillaLaw, JointMoELaw
from hexad.llm_efficiency.moe_laws.planning import plan
from hexad.llm_efficiency.moe_laws.published import (
    TABLE_1,
    TABLE_2,
    TABLE_2_TOKENS,
    TABLE_4,
    TRAINING_GRID,
)
from hexad.llm_efficiency.moe_laws.runs import Runs
from hexad.llm_efficiency.moe_laws.variants import Config, Variant, fit_per_expert

NOISE = 0.0025  # standard deviation of ln L, which gives the paper's residuals
HELD_OUT = 30  # the runs of lowest loss (appendix on fitting)
JUDGED_EXPERTS = (1, 8, 32)
JUDGED_FLOPS = (1e20, 1e21, 1e22)

PAPER = JointMoELaw()


def measure_tables() -> Iterator[Measurement]:
    """The paper's Tables 1, 2 and 4, computed from its coefficients."""
    gaps = []
    for (flops, experts), (n_active, tokens) in TABLE_1.items():
        found = PAPER.chinchilla(experts).optimum(flops)
        gaps += [_beyond_rounding(found.n_active, n_active), _beyond_rounding(found.tokens, tokens)]
    yield Measurement("table1_error", max(gaps))
    laws = {experts: PAPER.chinchilla(experts) for experts in TABLE_4}
    yield Measurement(
        "table4_error",
        max(
            max(abs(laws[experts].m / m - 1), abs(laws[experts].n / n - 1))
            for experts, (m, _, n, _) in TABLE_4.items()
        ),
    )
    agree, largest = 0, 0.0
    for (flops, memory_bytes), experts in TABLE_2.items():
        found = plan(flops, memory_bytes=memory_bytes, kv_tokens=TABLE_2_TOKENS)
        agree += found.best.experts == experts
        printed = next(row for row in found.rows if row.experts == experts)
        largest = max(largest, printed.loss - found.best.loss)
    yield Measurement("table2_agree", agree)
    yield Measurement("table2_gap", largest)


def _beyond_rounding(value: float, printed: float) -> float:
    """The relative distance from the interval of numbers that are printed so."""
    digits = f"{printed:.6g}".replace(".", "").split("e")[0].rstrip("0") or "0"
    unit = 10.0 ** (math.floor(math.log10(printed)) - max(len(digits), 2) + 1)
    return max(0.0, abs(value - printed) - unit / 2) / printed


def noisy_grid(seed: int) -> tuple[Runs, np.ndarray]:
    """The paper's 252 runs with losses of its law times log-normal noise, and the losses without noise."""
    n_active, tokens, experts = np.array(TRAINING_GRID, dtype=np.float64).T
    truth = PAPER.loss(n_active, tokens, experts)
    noise = np.random.default_rng([252, seed]).normal(0, NOISE, len(truth))
    return Runs(n_active, tokens, experts, truth * np.exp(noise)), truth


def measure_recovery(trial: Trial, variant: Variant) -> Iterator[Measurement]:
    """How well a fit to the noisy grid predicts the noise-free losses that it was not shown."""
    config: Config = trial.config
    runs, truth = noisy_grid(trial.seed)
    start = time.perf_counter()
    held_out = np.zeros(len(runs), dtype=bool)
    held_out[np.argsort(runs.loss)[:HELD_OUT]] = True
    laws: Mapping[float, ChinchillaLaw]
    if variant.per_expert:
        laws, predicted = fit_per_expert(
            runs, held_out, config.starts, trial.seed, None, lambda s, n: trial.progress(s / 2, n)
        )
    else:
        options: dict[str, Any] = {"n_starts": config.starts, "seed": trial.seed, "holdout": held_out}
        found = fit(runs, **options, **variant.options, progress=lambda s, n: trial.progress(s / 2, n))
        assert isinstance(found.law, JointMoELaw)
        laws = {experts: found.law.chinchilla(experts) for experts in np.unique(runs.experts)}
        predicted = runs.loss + found.residuals
    yield Measurement("fit_seconds", time.perf_counter() - start)
    kept = ~held_out
    yield Measurement("train_rmse", _rmse((predicted - runs.loss)[kept]))
    yield Measurement("heldout_error", _rmse((predicted - truth)[held_out]))
    errors = []
    for experts in JUDGED_EXPERTS:
        for flops in JUDGED_FLOPS:
            wanted = PAPER.chinchilla(experts).optimum(flops).n_active
            errors.append(abs(_optimum(laws[experts], flops) / wanted - 1))
    yield Measurement("n_star_error", max(errors))
    yield Measurement("n_star_mean_error", float(np.mean(errors)))


def _optimum(law: ChinchillaLaw, flops: float) -> float:
    """N*, or 0 where a law that was badly fitted has none: an error of 100 %."""
    falls = law.mu < 0 and law.nu < 0 and law.m > 0 and law.n > 0
    return law.optimum(flops).n_active if falls else 0.0


def _rmse(errors: np.ndarray) -> float:
    return float(np.sqrt(np.mean(errors**2)))
