import numpy as np
import polars as pl
import pytest
from scipy import stats
from toy import STUDY, Config

from hexad.core.errors import InputError
from hexad.core.store import SCHEMA
from hexad.core.studies import Arm, Claim, Metric, Preset, Study
from hexad.core.verdicts import bootstrap, judge, summarise


def table(rows):
    full = [("toy", arm, seed, case, "mean", value, "m") for arm, seed, case, value in rows]
    return pl.DataFrame(full, schema=SCHEMA, orient="row")


def test_interval_agrees_with_scipy():
    values = np.random.default_rng(1).gamma(2.0, size=40)
    ours = bootstrap(values)
    theirs = stats.bootstrap(
        (values,), np.mean, method="percentile", n_resamples=10_000, rng=np.random.default_rng(2)
    ).confidence_interval
    # Two Monte Carlo runs of 10,000 resamples differ by about 2 % of the interval's width.
    width = theirs.high - theirs.low
    assert ours.low == pytest.approx(theirs.low, abs=0.03 * width)
    assert ours.high == pytest.approx(theirs.high, abs=0.03 * width)


def test_interval_covers_the_truth_as_often_as_it_says():
    rng = np.random.default_rng(0)
    estimates = [bootstrap(rng.normal(size=50)) for _ in range(400)]
    share = np.mean([e.low <= 0 <= e.high for e in estimates])
    # 95 % nominal; the percentile interval at n = 50 covers about 94 %, and 400 trials have sd 1.1 %.
    assert 0.90 <= share <= 0.98


def test_pairs_are_resampled_together():
    noise = np.random.default_rng(0).normal(scale=100, size=30)
    estimate = bootstrap(noise + 1.0, noise)
    assert estimate.value == pytest.approx(1.0)
    assert estimate.high - estimate.low < 1e-9
    ratio = bootstrap(np.array([2.0, 4.0]), np.array([1.0, 2.0]), "ratio")
    assert (ratio.value, ratio.low, ratio.high) == (2.0, 2.0, 2.0)


@pytest.mark.parametrize(
    ("values", "direction", "threshold", "verdict"),
    [
        ([1.0, 1.1, 0.9], "at least", 0.8, "holds"),
        ([1.0, 1.1, 0.9], "at least", 1.2, "fails"),
        ([1.0, 1.1, 0.9], "at least", 1.0, "inconclusive"),
        ([1.0, 1.1, 0.9], "at most", 1.2, "holds"),
        ([1.0, 1.1, 0.9], "at most", 0.8, "fails"),
        ([1.0], "at most", 0.8, "fails"),
        ([0.8], "at most", 0.8, "holds"),
    ],
)
def test_verdicts(values, direction, threshold, verdict):
    records = table([("high", seed, "", value) for seed, value in enumerate(values)])
    claim = Claim("c", "statement", "mean", "high", direction, threshold)
    judged = judge(claim, records, "tiny")
    assert judged.verdict == verdict
    assert (judged.estimate.low is None) == (len(values) == 1)


def test_cases_are_fixed_and_seeds_are_the_sample():
    # Cases differ wildly, seeds hardly: the interval over seeds is narrow, over cases wide.
    records = table(
        [
            ("high", seed, case, base + seed / 100)
            for seed in range(3)
            for case, base in (("x/1", 0), ("x/2", 10))
        ]
    )
    by_seed = judge(Claim("c", "s", "mean", "high", "at least", 4.9), records, "tiny")
    assert by_seed.verdict == "holds"
    assert by_seed.estimate.n == 3
    by_case = judge(Claim("c", "s", "mean", "high", "at least", 4.9, resample="case"), records, "tiny")
    assert by_case.verdict == "inconclusive"
    assert by_case.estimate.n == 2
    one = judge(Claim("c", "s", "mean", "high", "at least", 9, cases="x/2"), records, "tiny")
    assert one.estimate.value == pytest.approx(10.01)


def test_only_pairs_count_and_a_missing_arm_is_said():
    records = table([("high", 0, "", 5.0), ("high", 1, "", 7.0), ("low", 1, "", 6.0)])
    claim = Claim("c", "s", "mean", "high", "at least", 0.0, baseline="low")
    assert judge(claim, records, "tiny").estimate.value == 1.0
    gone = judge(claim, records.filter(arm="high"), "tiny", {("low", 0): "ValueError: no"})
    assert gone.verdict == "not measured"
    assert "low (seed 0): ValueError: no" in gone.reason
    small = judge(Claim("c", "s", "mean", "high", "at least", 0.0, presets=("full",)), records, "tiny")
    assert small.verdict == "not measured"
    assert "full" in small.reason


def test_summary_is_in_the_studys_order():
    records = table([("low", 0, "a", 1.0), ("low", 0, "b", 3.0), ("high", 0, "a", 5.0)])
    rows = summarise(STUDY, records)
    assert [(r["arm"], r["value"]) for r in rows] == [("high", 5.0), ("low", 2.0)]
    assert len(summarise(STUDY, records, by_case=True)) == 3


def test_a_claim_about_nothing_is_refused_when_the_study_is_made():
    arm = Arm("a", "A", "method", lambda trial: [])
    parts = {"name": "s", "question": "?", "arms": (arm,), "metrics": (Metric("m", "M"),)}
    presets = {"tiny": Preset(Config(), 1)}
    with pytest.raises(InputError, match=r"unknown metric 'mm' in claim .*; did you mean 'm'"):
        Study(**parts, claims=(Claim("c", "s", "mm", "a", "at least", 0),), presets=presets)
    with pytest.raises(InputError, match="unknown baseline"):
        Study(**parts, claims=(Claim("c", "s", "m", "a", "at least", 0, baseline="b"),), presets=presets)
    with pytest.raises(InputError, match="two arms of one name"):
        Study(**{**parts, "arms": (arm, arm)}, claims=(), presets=presets)
    with pytest.raises(InputError, match="has no seeds"):
        Study(**parts, claims=(), presets={"tiny": Preset(Config(), 0)})


def ratio_claim():
    return Claim("r", "?", "mean", "high", "at least", 1.5, baseline="low", relation="ratio")


def test_a_ratio_to_nothing_is_not_measured():
    records = table(
        [(arm, seed, "", value) for arm, value in (("high", 1.0), ("low", 0.0)) for seed in (0, 1)]
    )
    judged = judge(ratio_claim(), records, "tiny")
    assert (judged.verdict, judged.estimate) == ("not measured", None)
    assert "mean is 0" in judged.reason


def test_a_ratio_to_what_may_be_nothing_is_inconclusive():
    rows = [("high", seed, "", 2.0) for seed in range(3)] + [("low", 0, "", 1.0), ("low", 1, "", 0.0)]
    judged = judge(ratio_claim(), table([*rows, ("low", 2, "", 0.0)]), "tiny")
    # A resample of seeds 1 and 2 alone has a mean of 0.
    assert judged.verdict == "inconclusive"
    assert judged.estimate.value == pytest.approx(6.0)
    assert judged.estimate.low is None


def test_pairs_that_are_missing_are_told():
    rows = [("high", seed, "", 2.0) for seed in range(3)] + [("low", 0, "", 1.0), ("low", 2, "", 1.0)]
    judged = judge(ratio_claim(), table(rows), "tiny")
    assert (judged.verdict, judged.estimate.n) == ("holds", 2)
    assert judged.reason == "of 3, the others lack an arm"
