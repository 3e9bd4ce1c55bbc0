"""Means with bootstrap intervals, and whether a claim holds.

Intervals are percentile bootstrap intervals at 95 %: with few seeds they are rough, and the number of
resampled units is always shown beside them.
"""

import dataclasses
import fnmatch
from dataclasses import dataclass
from typing import Literal

import numpy as np
import polars as pl
from jaxtyping import Float

from hexad.core.studies import Claim, Study

INTERVALS = (
    "Brackets: 95 % percentile bootstrap intervals over n seeds or cases. They are too narrow for small n: "
    "they cover the truth in about 75 % at n = 3, 83 % at n = 5, 89 % at n = 10."
)
CONFIDENCE = 0.95
RESAMPLES = 10_000


@dataclass(frozen=True)
class Estimate:
    """A mean (or a difference or ratio of two) with its interval over `n` resampled units.

    `low` and `high` are None where there is no interval: of a single unit, or of a ratio whose denominator
    comes out as zero in some of the resamples.
    """

    value: float
    low: float | None
    high: float | None
    n: int


Verdict = Literal["holds", "fails", "inconclusive", "not measured"]


@dataclass(frozen=True)
class Judgement:
    """A claim with what was measured and the verdict on it."""

    claim: Claim
    verdict: Verdict
    estimate: Estimate | None
    reason: str = ""


def bootstrap(
    values: Float[np.ndarray, " n"],
    baseline: Float[np.ndarray, " n"] | None = None,
    relation: Literal["difference", "ratio"] = "difference",
    seed: int = 0,
) -> Estimate:
    """The mean of `values`, or its difference from or ratio to the paired `baseline`, with an interval.

    Pairs are resampled together (Efron and Tibshirani 1993, section 8.3). The ratio is that of the means.
    """

    def statistic(rows: np.ndarray, base: np.ndarray | None) -> np.ndarray:
        means = rows.mean(axis=-1)
        if base is None:
            return means
        return means - base.mean(axis=-1) if relation == "difference" else means / base.mean(axis=-1)

    n = len(values)
    point = float(statistic(values, baseline))
    if n < 2:
        return Estimate(point, None, None, n)
    rows = np.random.default_rng(seed).integers(n, size=(RESAMPLES, n))
    with np.errstate(divide="ignore", invalid="ignore"):
        samples = statistic(values[rows], None if baseline is None else baseline[rows])
    if not np.isfinite(samples).all():
        return Estimate(point, None, None, n)
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(samples, [tail, 1 - tail])
    return Estimate(point, float(low), float(high), n)


def _units(records: pl.DataFrame, claim: Claim) -> pl.DataFrame:
    """One row a resampled unit, with the columns `value` and, given a baseline, `base`."""
    cases = [case for case in records["case"].unique() if fnmatch.fnmatchcase(case, claim.cases)]
    chosen = records.filter((pl.col("metric") == claim.metric) & pl.col("case").is_in(cases))
    rows = chosen.filter(pl.col("arm") == claim.arm).select("seed", "case", "value")
    if claim.baseline is not None:
        base = chosen.filter(pl.col("arm") == claim.baseline).select("seed", "case", base="value")
        rows = rows.join(base, on=["seed", "case"], how="inner")
    return rows.group_by(claim.resample).agg(pl.exclude("seed", "case").mean()).sort(claim.resample)


def _missing(records: pl.DataFrame, claim: Claim, n: int) -> str:
    """What to say where an arm has seeds or cases that the other lacks, so that fewer were compared."""
    whole = max(
        _units(records, dataclasses.replace(claim, arm=arm, baseline=None)).height
        for arm in (claim.arm, claim.baseline)
        if arm is not None
    )
    return f"of {whole}, the others lack an arm" if whole > n else ""


def judge(
    claim: Claim, records: pl.DataFrame, preset: str, errors: dict[tuple[str, int], str] | None = None
) -> Judgement:
    """Judge one claim by the records of a study.

    It holds (fails) when the whole interval lies on the right (wrong) side of the threshold, and is
    inconclusive when the interval straddles it. A single unit is judged by its value.
    """
    if claim.presets and preset not in claim.presets:
        return Judgement(claim, "not measured", None, f"judged in {', '.join(claim.presets)} only")
    units = _units(records, claim)
    if units.is_empty():
        wanted = [arm for arm in (claim.arm, claim.baseline) if arm is not None]
        failed = [
            f"{arm} (seed {seed}): {text}" for (arm, seed), text in (errors or {}).items() if arm in wanted
        ]
        return Judgement(claim, "not measured", None, failed[0] if failed else "no record of it in this run")
    base = units["base"].to_numpy() if claim.baseline is not None else None
    if base is not None and claim.relation == "ratio" and base.mean() == 0:
        return Judgement(claim, "not measured", None, "the baseline's mean is 0, so there is no ratio")
    estimate = bootstrap(units["value"].to_numpy(), base, claim.relation)
    if estimate.n > 1 and (estimate.low is None or estimate.high is None):
        reason = "no interval, as the baseline's mean may be 0"
        return Judgement(claim, "inconclusive", estimate, reason)
    reason = _missing(records, claim, estimate.n)
    low = estimate.value if estimate.low is None else estimate.low
    high = estimate.value if estimate.high is None else estimate.high
    if claim.direction == "at least":
        good, bad = low >= claim.threshold, high < claim.threshold
    else:
        good, bad = high <= claim.threshold, low > claim.threshold
    return Judgement(claim, "holds" if good else "fails" if bad else "inconclusive", estimate, reason)


def judge_all(
    study: Study, records: pl.DataFrame, preset: str, errors: dict[tuple[str, int], str] | None = None
) -> list[Judgement]:
    """The verdict on each of the study's claims, in their order."""
    return [judge(claim, records, preset, errors) for claim in study.claims]


def summarise(study: Study, records: pl.DataFrame, *, by_case: bool = False) -> list[dict]:
    """Mean and interval over seeds of each metric of each arm, over all cases or by case.

    Returns rows with the keys arm, metric, case, value, low, high, n, in the study's own order.
    """
    arms = {arm.name: place for place, arm in enumerate(study.arms)}
    metrics = {metric.name: place for place, metric in enumerate(study.metrics)}
    keys = ["arm", "metric", "case"] if by_case else ["arm", "metric"]
    rows = []
    for key, group in records.group_by(keys, maintain_order=True):
        by_seed = group.group_by("seed").agg(pl.col("value").mean()).sort("seed")
        estimate = bootstrap(by_seed["value"].to_numpy())
        arm, metric, *case = key
        rows.append(
            {
                "arm": arm,
                "metric": metric,
                "case": case[0] if case else "",
                "value": estimate.value,
                "low": estimate.low,
                "high": estimate.high,
                "n": estimate.n,
            }
        )
    return sorted(rows, key=lambda row: (metrics.get(row["metric"], 99), arms.get(row["arm"], 99)))
