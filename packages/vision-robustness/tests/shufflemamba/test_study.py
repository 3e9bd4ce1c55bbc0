"""The study at its tiny preset, from the command line, and what its arms are."""

import numpy as np
import pytest
import torch

from hexad.vision_robustness.shufflemamba.digits import load_digits, split_digits
from hexad.vision_robustness.shufflemamba.study_training import (
    WAYS,
    Config,
    Digits,
    accuracy,
    make_network,
    shuffle_for_good,
)

SMALL = Config(dim=16, depth=3, states=2)


@pytest.fixture(scope="module")
def proof(proof_of):
    return proof_of("shufflemamba")


def test_the_tiny_study_measures_every_arm(proof):
    page = proof[0]["pages"][0]
    assert not page["errors"]
    assert {item["verdict"] for item in page["judgements"]} == {"not measured"}
    assert len(list(proof[1].rglob("*.png"))) >= 2
    import polars as pl

    records = pl.concat([pl.read_parquet(path) for path in proof[1].rglob("*.parquet")])
    assert set(records["arm"]) == set(WAYS)
    for arm in WAYS:
        values = dict(records.filter(arm=arm).select("metric", "value").iter_rows())
        assert values["gap"] == pytest.approx(values["train"] - values["test"])
        assert values["train"] * 60 == pytest.approx(round(values["train"] * 60))


def test_the_digits_are_the_real_ones():
    pictures, labels = load_digits()
    assert pictures.shape == (5000, 28, 28)
    assert np.bincount(labels).tolist() == [500] * 10
    # A zero is hollow and a one is thin: facts about digits, not about the file's layout.
    centre = pictures[:, 12:16, 12:16].mean((1, 2))
    assert centre[labels == 0].mean() < 0.3 * centre[labels == 1].mean()
    assert pictures[labels == 1].mean() < 0.6 * pictures[labels == 0].mean()


def test_splits_do_not_overlap_and_differ_by_seed():
    train, test = split_digits(0, 500, 1000)
    assert not set(train) & set(test)
    assert set(train) != set(split_digits(1, 500, 1000)[0])
    assert np.bincount(load_digits()[1][train], minlength=10).min() > 25


def test_arms_start_from_the_same_weights():
    states = [make_network(SMALL, 3, way).state_dict() for way in WAYS.values()]
    for state in states[1:]:
        assert all(torch.equal(state[name], value) for name, value in states[0].items())
    probs = {}
    for arm, way in WAYS.items():
        probs[arm] = [getattr(block, "_slws", None) for block in make_network(SMALL, 3, way).layers]
    assert [shuffle.p for shuffle in probs["slws"]] == pytest.approx([0, 0.15, 0.3])
    assert [shuffle.p for shuffle in probs["constant"]] == pytest.approx([0, 0.3, 0.3])
    assert probs["none"] == probs["drop-path"] == [None] * 3


def test_without_restoration_layers_see_what_layers_before_left():
    network = make_network(SMALL, 0, WAYS["none"])
    for block in network.layers:
        torch.nn.init.zeros_(block.mixer.out_proj.weight)
    images = Digits(np.arange(4)).images
    plain = network.eval().forward_features(images)
    seen = []
    shuffle_for_good(network, (0.0, 1.0, 1.0))
    for block in network.layers:
        block.mixer.register_forward_pre_hook(lambda module, args: seen.append(args[0]))
    torch.manual_seed(0)
    # With dead mixers only the order can change, and the end undoes it.
    assert torch.equal(network.train().forward_features(images), plain)
    orders = [tokens.norm(dim=-1)[0] for tokens in seen]
    assert not torch.equal(orders[1], orders[0])
    assert torch.equal(orders[1].sort().values, orders[0].sort().values)
    assert not torch.equal(orders[2], orders[1])  # shuffled again, from the order the second layer had
    assert torch.equal(network.eval().forward_features(images), plain)


def test_accuracy_counts():
    network = make_network(SMALL, 0, WAYS["slws"]).train()
    digits = Digits(np.arange(600))
    with torch.no_grad():
        network.head.weight.zero_()
        network.head.bias.copy_(torch.eye(10)[0])
    assert accuracy(network, digits) == pytest.approx(500 / 600)  # the first 500 are zeros
    assert network.training
