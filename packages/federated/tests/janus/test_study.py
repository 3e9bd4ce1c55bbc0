"""The study at its tiny preset, from the command line, and the parts that its numbers rest on."""

import json
import sys

import numpy as np
import pytest

pytest.importorskip("flwr")
pytest.importorskip("mlxtend")

from hexad.core.cli import main
from hexad.federated.janus.attacks import ATTACKS
from hexad.federated.janus.study_costs import neighbours_of, secagg_costs, size_of
from hexad.federated.janus.study_learning import _digits, accuracy_of, plain_mean, shares_of


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """What `hexad prove janus --preset tiny` leaves."""
    out = tmp_path_factory.mktemp("results")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            sys, "argv", ["hexad", "prove", "janus", "--preset", "tiny", "--out", str(out), "--json"]
        )
        with pytest.raises(SystemExit) as end:
            main()
    assert not end.value.code
    return json.loads((out / "janus" / "tiny" / "page.json").read_text())


@pytest.fixture(scope="module")
def measured(page):
    assert page["errors"] == {}
    return {(row["arm"], row["metric"], row["case"]): row["value"] for row in page["cases"]}


def test_the_tiny_study_measures_every_arm(measured):
    assert {arm for arm, *_ in measured} == {
        "janus", "janus-ristretto", "one-commitment", "trusting", "secagg-plus", "secagg", "fedavg",
    }  # fmt: skip


def test_sums_are_exact_and_close_and_all_cheating_is_caught(measured):
    assert measured["janus", "exact", ""] == 1
    assert measured["janus", "gap", ""] <= 1
    assert measured["janus", "rejected", ""] == 0
    for attack in ATTACKS:
        assert measured["janus", "caught", attack.name] == 1, attack.name
    assert measured["janus", "named", ""] == 1


def test_weaker_clients_are_deceived_so_the_attacks_are_real(measured):
    assert measured["trusting", "caught", "wrong-sum"] == 0
    assert measured["trusting", "caught", "dropped-update"] == 0
    # S_0 forges and passes; S_1's forged commitment is not looked at, and its shifted pad does not open.
    assert measured["one-commitment", "caught", "forged-commitment"] == 0.5
    assert measured["one-commitment", "caught", "wrong-sum"] == 1


def test_brute_force_recovers_what_leaks_and_nothing_else(measured):
    found = {case: value for (arm, metric, case), value in measured.items() if metric == "recovered"}
    assert found == {"s0": 0, "s1": 0, "leaky": 1}


def test_bytes_do_not_grow_with_clients_and_secagg_s_do(measured):
    up = [measured["janus", "bytes", f"n{n}/l200"] for n in (3, 6)]
    # A digit more in the number of participants at most.
    assert abs(up[1] - up[0]) <= 4
    other = [measured["secagg-plus", "bytes", f"n{n}/l200"] for n in (3, 6)]
    assert other[1] > other[0] + 500
    assert measured["janus", "to_s1", "n3/l200"] <= 1024


def test_training_by_janus_is_training(measured):
    (case,) = {case for arm, metric, case in measured if metric == "accuracy"}
    both = [measured[arm, "accuracy", case] for arm in ("janus", "fedavg")]
    assert both[0] == pytest.approx(both[1], abs=0.003)
    assert both[0] > 0.6


def test_the_report_has_its_figures(page):
    assert [figure["name"] for figure in page["figures"]] == ["clients", "lengths", "tampering"]


def test_all_digits_are_dealt_out_once():
    shares = shares_of(20, np.random.default_rng(0))
    rows = np.concatenate(shares)
    assert len(rows) == len(set(rows.tolist())) == 4000
    assert min(len(share) for share in shares) >= 1
    labels = _digits()[1]
    mixtures = np.array([np.bincount(labels[share], minlength=10) / len(share) for share in shares])
    assert mixtures.max(1).mean() > 0.2  # unlike mixtures; 0.1 if all were alike


def test_more_rounds_of_training_learn_more():
    first, later = (accuracy_of(5, rounds, 1, 0.0, 0, plain_mean) for rounds in (1, 4))
    assert later > first


def test_secagg_is_flower_s_own_and_counts_what_is_sent():
    costs = secagg_costs([4, 8, 12], 100, 0, 1, complete=True)
    # Each neighbour adds the same: its keys, a sealed share each way and a share in the clear.
    assert costs[12].up - costs[8].up == costs[8].up - costs[4].up > 4 * 100
    assert costs[4].up > 8 * 100  # the masked vector itself, in numbers of 8 bytes
    assert size_of({"a": b"123", "b": [1, (b"45", "6")]}) == 3 + 8 + 2 + 1
    assert [neighbours_of(n, False) for n in (4, 10, 50, 200)] == [4, 10, 24, 32]
    assert neighbours_of(200, True) == 200
