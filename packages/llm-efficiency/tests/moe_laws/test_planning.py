"""Plans: agreement with the closed form, monotonicity, the paper's findings, bad budgets."""

import json
import math
from dataclasses import dataclass

import numpy as np
import pytest

from hexad.core.errors import InputError
from hexad.llm_efficiency.moe_laws import (
    ChinchillaLaw,
    ClarkLaw,
    JointMoELaw,
    Ranges,
    SwitchArch,
    flop_savings,
    isoflop,
    learning_rate,
    plan,
)
from hexad.llm_efficiency.moe_laws.published import TABLE_2, TABLE_2_TOKENS


@pytest.mark.parametrize("flops", [1e19, 1e21, 1e23])
def test_without_limits_the_plan_is_the_compute_optimum(paper, flops):
    for row in plan(flops, memory_bytes=math.inf, inference_tokens=0).rows:
        closed = paper.chinchilla(row.experts).optimum(flops)
        assert row.n_active == pytest.approx(closed.n_active, rel=1e-6)
        assert row.tokens == pytest.approx(closed.tokens, rel=1e-6)
        assert row.loss == pytest.approx(closed.loss, rel=1e-12)
        assert row.limit == "compute"


def test_ample_memory_changes_nothing():
    assert [row.loss for row in plan(1e21, memory_bytes=1e15).rows] == pytest.approx(
        [row.loss for row in plan(1e21).rows], rel=1e-12
    )


def test_budgets_are_kept():
    arch = SwitchArch()
    found = plan(1e22, memory_bytes=80e9, kv_tokens=16_384, inference_tokens=2e11)
    for row in found.rows:
        spent = 6 * row.n_active * row.tokens + 2 * row.n_active * 2e11
        assert spent == pytest.approx(1e22, rel=1e-9)
        held = 2 * (arch.total(row.width, row.experts) + arch.cache(row.width, row.experts, 16_384))
        assert held == pytest.approx(row.memory_bytes, rel=1e-12)
        assert held <= 80e9 * (1 + 1e-9)
        if row.limit == "memory":
            assert held == pytest.approx(80e9, rel=1e-6)
            assert row.n_active == pytest.approx(row.most_active, rel=1e-6)
    assert {row.limit for row in found.rows} == {"compute", "memory"}


def test_memory_counts_cache_and_bytes():
    # Twice the bytes a parameter is half the memory; a cache takes room from the model.
    tight = {"experts": (8,), "memory_bytes": 24e9}
    four = plan(1e22, bytes_per_param=4, **tight).rows[0]
    half = plan(1e22, experts=(8,), memory_bytes=12e9).rows[0]
    assert four.width == pytest.approx(half.width, rel=1e-9)
    small = plan(1e22, kv_tokens=65_536, **tight).rows[0]
    assert small.width < 0.95 * plan(1e22, **tight).rows[0].width


def _best(**budget):
    return plan(**budget).best.loss


@pytest.mark.parametrize(
    ("name", "values", "sign", "rest"),
    [
        ("memory_bytes", np.geomspace(2e9, 1e12, 12), -1, {"flops": 1e22, "kv_tokens": 16_384}),
        ("flops", np.geomspace(1e20, 1e24, 12), -1, {"memory_bytes": 8e10, "kv_tokens": 16_384}),
        ("inference_tokens", [0, 1e8, 1e10, 1e11, 1e12], 1, {"flops": 1e22, "memory_bytes": 8e10}),
        ("kv_tokens", [0, 1e3, 1e4, 1e5, 1e6], 1, {"flops": 1e22, "memory_bytes": 8e10}),
    ],
)
def test_more_means_never_cost(name, values, sign, rest):
    losses = np.array([_best(**{name: float(value)}, **rest) for value in values])
    assert (sign * np.diff(losses) >= -1e-9).all()
    assert sign * (losses[-1] - losses[0]) > 1e-4


def test_the_width_is_the_best_of_a_grid():
    arch, law = SwitchArch(), JointMoELaw()
    for inference in (0, 3e11):
        row = plan(1e22, experts=(8,), memory_bytes=640e9, inference_tokens=inference).rows[0]
        widths = np.linspace(0.5 * row.width, 1.5 * row.width, 2001)
        n_active = np.array([arch.active(width) for width in widths])
        tokens = 1e22 / (6 * n_active) - inference / 3
        good = tokens > 0
        assert row.loss <= law.loss(n_active[good], tokens[good], 8).min() + 1e-9


def test_discrete_widths_are_buildable_and_fit():
    real = plan(1e22, memory_bytes=80e9, kv_tokens=16_384)
    built = plan(1e22, memory_bytes=80e9, kv_tokens=16_384, discrete=True)
    for free, row in zip(real.rows, built.rows, strict=True):
        assert row.width % 64 == 0
        assert abs(row.width - free.width) < 64
        assert row.memory_bytes <= 80e9
        assert free.loss <= row.loss <= free.loss + 0.01


def test_table_2_is_met_in_nine_of_twelve_budgets():
    other = []
    for (flops, memory_bytes), printed in TABLE_2.items():
        found = plan(flops, memory_bytes=memory_bytes, kv_tokens=TABLE_2_TOKENS)
        if found.best.experts != printed:
            row = next(row for row in found.rows if row.experts == printed)
            other.append((found.best.experts / printed, row.loss - found.best.loss))
    # The paper's details are not all published: a loose check.
    assert len(other) <= 3
    assert all(ratio in (0.5, 2.0) and gap < 0.007 for ratio, gap in other)


def test_findings_of_the_paper(paper):
    rows = plan(1e21).rows
    assert (np.diff([row.tokens_per_parameter for row in rows]) > 0).all()
    assert (np.diff([row.loss for row in rows]) < 0).all()
    # At equal total parameters, E times the tokens: an MoE beats the compute-optimal dense model of 1.1B.
    dense = paper.loss(1.1e9, 8e9, 1)
    arch = SwitchArch()
    for experts, loss in ((2, 2.6263), (4, 2.5939), (8, 2.5654)):
        widths = np.linspace(200, 2000, 20_001)
        totals = np.array([arch.total(width, experts) for width in widths])
        width = widths[np.abs(totals - 1.1e9).argmin()]
        found = float(paper.loss(arch.active(width), 8e9 * experts, experts))
        assert found < dense
        assert found == pytest.approx(loss, abs=0.002)


def test_flop_savings_at_1e20():
    found = [flop_savings(1e20, experts) for experts in (2, 4, 8, 16, 32)]
    assert found == pytest.approx([0.122, 0.263, 0.405, 0.534, 0.641], abs=6e-4)
    assert flop_savings(1e20, 1) == pytest.approx(0, abs=1e-9)


def test_isoflop_has_its_minimum_at_the_optimum(paper):
    for curve in isoflop(1e21, (1, 8), points=2001):
        assert 6 * curve.n_active * curve.tokens == pytest.approx(np.full(2001, 1e21), rel=1e-12)
        closed = paper.chinchilla(curve.experts).optimum(1e21)
        assert curve.n_active[curve.loss.argmin()] == pytest.approx(closed.n_active, rel=0.01)
    served = isoflop(1e21, (8,), inference_tokens=1e11)[0]
    spent = 6 * served.n_active * served.tokens + 2 * served.n_active * 1e11
    assert spent == pytest.approx(np.full(len(spent), 1e21), rel=1e-9)


def test_learning_rate():
    assert learning_rate(1e8) == pytest.approx(math.exp(8.39) * 1e8**-0.81, rel=1e-12)
    assert learning_rate(1e8, 16) == pytest.approx(learning_rate(1e8) / 2, rel=1e-12)
    with pytest.raises(InputError, match="experts"):
        learning_rate(1e8, 0)


@dataclass(frozen=True)
class SharedExpert(SwitchArch):
    """One expert more that all tokens pass, a quarter of the keys and values, and routing that costs."""

    def active(self, width, experts=1):
        return super().active(width) + 9 * width**3 / 64

    def total(self, width, experts=1):
        return super().total(width, experts + 1)

    def cache(self, width, experts, tokens):
        return super().cache(width, experts, tokens) / 4

    def train_flops(self, width, experts):
        return 6 * self.active(width, experts) * (1 + 0.01 * experts)


def test_an_architecture_of_ones_own():
    arch = SharedExpert()
    found = plan(1e22, memory_bytes=80e9, kv_tokens=16_384, arch=arch)
    for row in found.rows:
        assert row.n_active == arch.active(row.width, row.experts)
        assert row.tokens * arch.train_flops(row.width, row.experts) == pytest.approx(1e22, rel=1e-9)
    assert found.rows[3].width != pytest.approx(plan(1e22, memory_bytes=80e9).rows[3].width, rel=0.01)


def test_a_chinchilla_law_plans_too():
    law = ChinchillaLaw(406.4, -0.34, 410.7, -0.28, 1.69)
    row = plan(5.76e23, law=law, experts=(1,)).best
    assert row.n_active == pytest.approx(law.optimum(5.76e23).n_active, rel=1e-6)
    assert row.warnings == ()


def test_a_chinchilla_law_warns_of_other_numbers_of_experts(paper):
    rows = plan(1e20, law=paper.chinchilla(8), experts=(1, 8, 32)).rows
    assert [[line for line in row.warnings if line.startswith("E ")] for row in rows] == [
        ["E 1 is below the fitted 8 to 8"],
        [],
        ["E 32 is above the fitted 8 to 8"],
    ]


@pytest.mark.parametrize(
    ("law", "words"),
    [
        (JointMoELaw(beta=0.2), r"no optimum with 1 expert\(s\): .* does not fall with tokens"),
        (JointMoELaw(alpha=0.2), r"no optimum with 1 expert\(s\): .* does not fall with active parameters"),
        # beta + zeta ln Eh turns positive with E: dense models have an optimum, 32 experts have none.
        (JointMoELaw(beta=-0.2, zeta=0.08), r"no optimum with 16 expert\(s\): .* tokens"),
        (JointMoELaw(a=0), "does not fall with active parameters"),
        (JointMoELaw(a=1e308, delta=2), "predicts no finite loss"),
        (ClarkLaw(35.0, -0.18, -0.2, 0.01, 2.0, 290.0), "does not fall with tokens"),
        (ChinchillaLaw(1.0, -0.1, 1.0, 0.1, 1.0), "does not fall with tokens"),
    ],
)
@pytest.mark.filterwarnings("error")
def test_laws_without_an_optimum_are_not_planned_by(law, words):
    for budget in ({}, {"memory_bytes": 80e9, "kv_tokens": 16_384}, {"inference_tokens": 1e10}):
        with pytest.raises(InputError, match=words):
            plan(1e21, law=law, **budget)


def test_a_law_is_planned_by_where_it_has_an_optimum():
    law = JointMoELaw(beta=-0.2, zeta=0.08)
    assert plan(1e21, law=law, experts=(1, 2)).best.tokens > 1e9


@pytest.mark.parametrize("flops", [1e15, 1e30, 1e44])
def test_budgets_of_any_size_are_planned_to_their_optimum(paper, flops):
    row = plan(flops, experts=(8,)).best
    closed = paper.chinchilla(8).optimum(flops)
    if flops == 1e15:  # below the smallest width
        assert row.width == 64
    else:
        assert row.n_active == pytest.approx(closed.n_active, rel=1e-4)
        assert row.tokens == pytest.approx(closed.tokens, rel=1e-4)


def test_memory_beyond_the_search_is_no_limit():
    assert plan(1e21, memory_bytes=1e60).best.most_active == math.inf
    assert plan(1e21, memory_bytes=1e60).best.loss == plan(1e21).best.loss


def test_extrapolation_is_listed():
    assert plan(1e20, experts=(8,)).best.warnings == ()
    lines = plan(1e24, experts=(64,)).best.warnings
    assert [line.split()[0] for line in lines] == ["N", "D", "E", "N_total"]
    assert any(line.startswith("D/N") for line in plan(1e22, memory_bytes=2e9, experts=(4,)).best.warnings)


def test_plans_are_json_and_sentences():
    found = plan(1e22, memory_bytes=80e9, kv_tokens=16_384)
    content = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert content["best"]["experts"] == 16
    assert len(content["rows"]) == 6
    assert "16 experts" in found.recommendation()
    assert "memory keeps it" in found.recommendation()
    assert "dense model" in plan(1e24, memory_bytes=24e9, kv_tokens=16_384).recommendation()
    json.dumps(plan(1e20).to_dict(), allow_nan=False)


def test_plans_of_numpys_numbers_are_json():
    found = plan(
        np.int64(10**18),
        memory_bytes=np.float32(1e9),
        kv_tokens=np.int32(100),
        inference_tokens=np.int64(10),
        bytes_per_param=np.int8(2),
        experts=np.array([8, 1, 8]),
    )
    content = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert [row["experts"] for row in content["rows"]] == [1, 8]
    assert content["flops"] == 1e18


def test_experts_that_do_not_fit_are_said():
    found = plan(1e20, memory_bytes=2 * SwitchArch().total(64, 4) + 1, experts=(1, 4, 32))
    assert [row.experts for row in found.rows] == [1, 4]
    assert list(found.skipped) == [32]
    assert found.to_dict()["skipped"].keys() == {"32"}


@pytest.mark.parametrize(
    ("budget", "words"),
    [
        ({"flops": 0}, "flops"),
        ({"flops": math.nan}, "flops"),
        ({"flops": 1e14}, "too few for the smallest model"),
        ({"flops": 1e60}, "flops 1e.60 are beyond what is searched"),
        ({"flops": 10**400}, "flops"),
        ({"flops": 1e21, "law": None}, "law is None; give one with `loss`"),
        ({"flops": 1e21, "law": JointMoELaw}, "law is <class"),
        ({"flops": 1e21, "arch": None}, "arch is None; give one with the methods"),
        ({"flops": 1e21, "experts": 8}, r"experts is 8; give a sequence of numbers, such as \(1, 8\)"),
        ({"flops": 1e21, "experts": (1, 2.5)}, "experts is 2.5; it must be a whole number"),
        ({"flops": 1e21, "experts": "18"}, "experts must be a number"),
        (
            {"flops": 1e21, "memory_bytes": 1e7},
            r"^10 MB of memory hold no model: with 1 expert\(s\) .* takes 13 MB",
        ),
        ({"flops": 1e21, "memory_bytes": -1}, "memory_bytes"),
        ({"flops": 1e21, "memory_bytes": 1e10, "kv_tokens": 1e9}, "hold no model"),
        ({"flops": 1e18, "inference_tokens": 1e13}, "use up the budget"),
        ({"flops": 1e21, "inference_tokens": -1}, "inference_tokens"),
        ({"flops": 1e21, "experts": (0.5,)}, "experts"),
        ({"flops": 1e21, "experts": (math.inf,)}, "experts"),
        ({"flops": 1e21, "experts": ()}, "experts"),
        ({"flops": 1e21, "bytes_per_param": 0}, "bytes_per_param"),
        ({"flops": 1e21, "kv_tokens": "16k"}, "kv_tokens"),
        ({"flops": 1e21, "discrete": 1}, "discrete"),
    ],
)
def test_budgets_that_cannot_be(budget, words):
    with pytest.raises(InputError, match=words) as caught:
        plan(**budget)
    assert "\n" not in str(caught.value)


def test_inference_that_uses_up_a_curve():
    with pytest.raises(InputError, match="use up"):
        isoflop(1e18, (1,), inference_tokens=1e14)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: isoflop(1e20, experts=8), "experts is 8; give a sequence"),
        (lambda: isoflop(1e20, span=1e300), "span is 1e.300"),
        (lambda: isoflop(1e20, law=None), "law is None"),
        (lambda: flop_savings(1e20, 2, law=JointMoELaw().chinchilla(1)), "give a JointMoELaw"),
        (lambda: flop_savings(1e20, 0.5), "experts"),
        (lambda: flop_savings(1, 2), "flops 1 are beyond what the law can compare"),
        (lambda: flop_savings(1e300, 2), "flops 1e.300 are beyond what the law can compare"),
        (lambda: plan(1e20, law=JointMoELaw(ranges=Ranges((2, 1), (1, 2), (1, 2), (1, 2)))), "lesser number"),
    ],
)
def test_curves_that_cannot_be(call, words):
    with pytest.raises(InputError, match=words) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_savings_are_resolved_wherever_they_are_given():
    found = [flop_savings(flops, 8) for flops in (1e12, 1e20, 1e30, 1e40)]
    assert all(0 < saving < 1 for saving in found[1:])
