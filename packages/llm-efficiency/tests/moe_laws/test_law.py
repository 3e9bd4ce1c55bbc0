"""The laws: the paper's tables, the saturating number of experts, files."""

import json
import math

import numpy as np
import pytest
from scipy.optimize import minimize_scalar

from hexad.core.errors import InputError
from hexad.llm_efficiency.moe_laws import ChinchillaLaw, ClarkLaw, JointMoELaw, Ranges, law_from_json
from hexad.llm_efficiency.moe_laws.published import TABLE_1, TABLE_4

# Half a unit of the last digit printed, which 1.7B and 990M leave open.
HALF_UNIT = {1.7e9: 5e7, 1.5e9: 5e7, 1.2e9: 5e7, 990e6: 5e6, 810e6: 5e6, 669e6: 5e5}


def test_one_expert_is_the_chinchilla_law_of_table_4(paper):
    m, mu, n, nu = TABLE_4[1]
    sizes, tokens = np.meshgrid(np.geomspace(8e7, 3e9, 7), np.geomspace(5e8, 8e10, 7))
    row = m * sizes**mu + n * tokens**nu + paper.c
    # The table's coefficients are rounded and its exponents differ by 1e-4: 0.01 nats at 1e10 tokens.
    assert np.abs(paper.loss(sizes, tokens, 1) - row).max() < 0.01
    own = paper.chinchilla(1)
    assert np.allclose(own.loss(sizes, tokens), paper.loss(sizes, tokens, 1), rtol=1e-13)


@pytest.mark.parametrize("experts", TABLE_4)
def test_table_4(paper, experts):
    m, mu, n, nu = TABLE_4[experts]
    law = paper.chinchilla(experts)
    # 0.3 % is what the rounding of the joint coefficients leaves; a wrong sign or log misses by far.
    assert law.m == pytest.approx(m, rel=3e-3)
    assert law.n == pytest.approx(n, rel=3e-3)
    assert law.mu == pytest.approx(mu, abs=2e-4)
    assert law.nu == pytest.approx(nu, abs=2e-4)
    assert law.c == paper.c


@pytest.mark.parametrize(("flops", "experts"), TABLE_1)
def test_table_1(paper, flops, experts):
    n_active, tokens = TABLE_1[flops, experts]
    found = paper.chinchilla(experts).optimum(flops)
    assert found.n_active == pytest.approx(n_active, abs=0.02 * n_active + HALF_UNIT.get(n_active, 0))
    assert found.tokens == pytest.approx(tokens, rel=0.02)
    assert found.tokens > found.n_active  # the printed sign of G's exponent would swap the two


@pytest.mark.parametrize("experts", [1, 2, 8, 32])
@pytest.mark.parametrize("flops", [1e19, 1e21, 1e24])
def test_closed_form_is_the_numeric_minimum_and_spends_the_budget(paper, flops, experts):
    law = paper.chinchilla(experts)
    found = law.optimum(flops)
    assert 6 * found.n_active * found.tokens == pytest.approx(flops, rel=1e-12)
    numeric = minimize_scalar(
        # The slope's square, since values of the loss determine the minimum to half the digits only.
        lambda x: (
            (
                law.m * law.mu * np.exp(law.mu * x)
                - law.n * law.nu * (flops / 6) ** law.nu * np.exp(-law.nu * x)
            )
            ** 2
        ),
        bounds=(math.log(found.n_active) - 3, math.log(found.n_active) + 3),
        method="bounded",
        options={"xatol": 1e-13},
    )
    assert math.exp(numeric.x) == pytest.approx(found.n_active, rel=1e-6)
    around = found.n_active * np.array([0.99, 1.01])
    assert (law.loss(around, flops / 6 / around) > found.loss).all()


def test_a_loss_worked_by_hand(paper):
    hat = 1 / (1 / (7 + 1 / (1 / 2.0732 - 1 / 290.4521)) + 1 / 290.4521)
    size = 35.91 * hat**-0.2285 * 1e9 ** (-0.1889 + 0.0098 * math.log(hat))
    data = 35.98 * hat**0.5529 * 2e10 ** (-0.1775 - 0.0259 * math.log(hat))
    assert float(paper.loss(1e9, 2e10, 8)) == pytest.approx(size + data + 1.3637, rel=1e-12)
    assert float(paper.loss(1.1e9, 8e9, 1)) == pytest.approx(2.6662, abs=1e-4)


def test_expert_hat(paper):
    counts = np.array([1, 1.5, 2, 4, 32, 1e3, 1e6])
    hats = paper.expert_hat(counts)
    assert hats[0] == pytest.approx(paper.e_start, rel=1e-14)
    assert (np.diff(hats) > 0).all()
    assert float(paper.expert_hat(1e15)) == pytest.approx(paper.e_max, rel=1e-10)
    assert (hats < paper.e_max).all()
    plain = JointMoELaw(e_start=1, e_max=math.inf)
    assert np.allclose(plain.expert_hat(counts), counts, rtol=1e-15)


def test_without_its_four_exponents_the_law_does_not_depend_on_experts():
    law = JointMoELaw(gamma=0, zeta=0, delta=0, omega=0)
    assert np.ptp(law.loss(1e9, 1e10, [1, 2, 8, 64])) == 0
    assert np.ptp(JointMoELaw().loss(1e9, 1e10, [1, 2, 8, 64])) > 0.05


def test_arguments_broadcast(paper):
    losses = paper.loss(np.ones((3, 1, 1)) * 1e9, np.ones((4, 1)) * 1e10, [1, 8])
    assert losses.shape == (3, 4, 2)
    assert float(losses[2, 1, 1]) == float(paper.loss(1e9, 1e10, 8))


LAWS = (
    JointMoELaw(),
    JointMoELaw(e_start=1, e_max=math.inf, ranges=None),
    ChinchillaLaw(30.0, -0.18, 54.0, -0.19, 1.3, Ranges((1, 2), (3, 4), (1, 1), (1, 3))),
    ClarkLaw(10.0, -0.1, -0.1, 0.01, 1.5, 300.0),
)


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.kind)
def test_laws_survive_json(law):
    assert law_from_json(law.to_json()) == law
    assert math.inf not in json.loads(law.to_json())["params"].values()


def test_from_json_takes_joint_laws_alone():
    assert JointMoELaw.from_json(LAWS[0].to_json()) == LAWS[0]
    with pytest.raises(InputError, match="clark"):
        JointMoELaw.from_json(LAWS[3].to_json())


def test_clark_is_the_first_term(paper):
    clark = ClarkLaw(paper.a, paper.alpha, paper.delta, paper.gamma, paper.e_start, paper.e_max)
    law = paper.chinchilla(8)
    assert float(clark.loss(1e9, 1e10, 8)) == pytest.approx(law.m * 1e9**law.mu, rel=1e-12)
    assert clark.loss(1e9, [1e9, 1e10], 8).shape == (2,)


def test_a_mark_before_the_text_is_no_matter():
    assert law_from_json("\ufeff" + LAWS[0].to_json()) == LAWS[0]


def _law(**change):
    return json.dumps(json.loads(JointMoELaw().to_json()) | change)


PARAMS = json.loads(JointMoELaw().to_json())["params"]
RANGES = json.loads(JointMoELaw().to_json())["ranges"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "no JSON"),
        ("[" * 100_000, "no JSON"),
        ("[]", "must be a JSON object with law, params, not"),
        ("null", "must be a JSON object"),
        ('{"law": "joint"}', "params is missing"),
        (_law(note="mine"), "note is none of them"),
        (_law(law=["joint"]), r"law is \['joint'\]; it must be a name"),
        (_law(law="cubic"), "unknown law 'cubic'"),
        (_law(params=[1]), r"params of the joint law is \[1\]"),
        (_law(params={}), "a, alpha.* is missing"),
        (_law(params=PARAMS | {"foo": 1}), "foo is none of them"),
        (_law(params=PARAMS | {"a": "x"}), "a must be a number.*not 'x'"),
        (_law(params=PARAMS | {"a": True}), "a must be a number.*not True"),
        (_law(params=PARAMS | {"e_max": "x"}), "e_max must be a number"),
        (JointMoELaw().to_json().replace('"alpha"', '"alfa"'), "alpha is missing"),
        (_law(ranges=3), "ranges must be a JSON object"),
        (_law(ranges={"n": [1, 2]}), "n_active, tokens, experts, tokens_per_parameter is missing"),
        (_law(ranges=RANGES | {"n": [1, 2]}), "n is none of them"),
        (_law(ranges=RANGES | {"n_active": [1, 2, 3]}), "ranges.n_active is .*two numbers"),
        (_law(ranges=RANGES | {"n_active": ["a", "b"]}), "ranges.n_active must be a number"),
        (_law(ranges=RANGES | {"n_active": [3e9, 1e8]}), "the lesser number must come first"),
    ],
)
def test_files_that_are_no_laws(text, words):
    with pytest.raises(InputError, match=words) as caught:
        law_from_json(text)
    assert "\n" not in str(caught.value)
    assert "__init__" not in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((0, 1e9, 1), "n_active is 0"),
        ((-1e9, 1e9, 1), "n_active"),
        ((1e9, 0, 1), "tokens is 0"),
        ((1e9, -1, 1), "tokens"),
        ((1e9, 1e9, 0.5), "experts is 0.5"),
        ((1e9, 1e9, math.inf), "experts is inf"),
        ((1e9, math.nan, 1), "tokens is nan"),
        (("many", 1e9, 1), "n_active"),
        (([1e9, 2e9], [1e9, 2e9, 3e9], 1), "must broadcast"),
    ],
)
def test_models_that_cannot_be(paper, arguments, words):
    with pytest.raises(InputError, match=words):
        paper.loss(*arguments)


@pytest.mark.parametrize(
    "given",
    [
        {"e_max": 2.0},
        {"e_max": 2.0732},
        {"e_start": 0.0},
        {"e_max": math.nan},
        {"a": -1.0},
        {"c": math.nan},
        {"alpha": math.inf},
        {"gamma": True},
        {"ranges": (1, 2)},
    ],
)
def test_coefficients_that_cannot_be(given):
    with pytest.raises(InputError, match=next(iter(given)) if "e_start" not in given else "e_start"):
        JointMoELaw(**given)


def test_no_optimum_without_a_fall():
    with pytest.raises(InputError, match="no optimum"):
        ChinchillaLaw(1.0, 0.1, 1.0, -0.1, 1.0).optimum(1e20)
    with pytest.raises(InputError, match="flops"):
        ChinchillaLaw(1.0, -0.1, 1.0, -0.1, 1.0).optimum(0)


@pytest.mark.parametrize("experts", [[1, 2], 0.5, math.nan, None])
def test_a_chinchilla_law_is_of_one_number_of_experts(paper, experts):
    with pytest.raises(InputError, match="experts"):
        paper.chinchilla(experts)
    assert paper.chinchilla(np.int64(8)).ranges.experts == (8, 8)
    assert paper.chinchilla(8).ranges.tokens == paper.ranges.tokens
    assert JointMoELaw(ranges=None).chinchilla(8).ranges is None


def test_ranges_say_what_is_left(paper):
    assert paper.ranges.left(1e9, 2e10, 8, 4e9) == []
    lines = paper.ranges.left(2e7, 1e12, 64, 1e10)
    assert [line.split()[0] for line in lines] == ["N", "D", "E", "D/N", "N_total"]
    assert "below" in lines[0]
    assert "above" in lines[1]
    assert [line.split()[0] for line in paper.ranges.left(2e7, None, 64)] == ["N", "E"]
