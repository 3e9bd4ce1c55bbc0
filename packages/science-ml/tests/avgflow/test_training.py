"""Batches of like size, averaged weights, resuming, and whether training teaches anything."""

import copy
import dataclasses

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from hexad.core.errors import InputError
from hexad.science_ml.avgflow.batching import collate, pad_coordinates
from hexad.science_ml.avgflow.equivariant import EquivariantFlow, EquivariantFlowConfig
from hexad.science_ml.avgflow.features import featurize
from hexad.science_ml.avgflow.flow import FlowMatcher, velocity_loss
from hexad.science_ml.avgflow.molecules import read_molecule
from hexad.science_ml.avgflow.network import ConformerFlow, ConformerFlowConfig
from hexad.science_ml.avgflow.reflow import distill_loss
from hexad.science_ml.avgflow.training import (
    FlowTrainingConfig,
    SizedBatches,
    learning_curve,
    refine,
    train_base,
    train_stage,
)

SIZES = EquivariantFlowConfig(layers=1, heads=2, width=16, vectors=4, pairs=8, radial=8, hops=2)
GRAPHS = [featurize(read_molecule(smiles)) for smiles in ("CCO", "C", "CC(=O)N", "CC")]


def frames(count=3, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.normal(size=(count, graph.atoms, 3)).astype(np.float32) for graph in GRAPHS]


def fresh():
    torch.manual_seed(0)
    return EquivariantFlow(SIZES)


def test_each_molecule_is_seen_equally_often():
    batches = SizedBatches(GRAPHS * 5, frames() * 5, batch_size=3)
    torch.manual_seed(0)
    seen = dict.fromkeys((5, 8, 9), 0)
    for _ in range(300):
        for index in range(len(batches)):
            for atoms in batches[index][3].sum(1).tolist():
                seen[atoms] += 1
    total = sum(seen.values())
    # 5, 5 and 10 of 20 molecules; the last stretch of an epoch runs over the end into the smallest.
    assert seen[8] / total == pytest.approx(0.25, abs=0.03)
    assert seen[9] / total == pytest.approx(0.5, abs=0.03)


def test_batches_hold_molecules_of_like_size():
    batches = SizedBatches(GRAPHS * 10, frames() * 10, batch_size=4)
    torch.manual_seed(0)
    spans = [np.ptp(batches[index][3].sum(1).numpy()) for index in range(1, len(batches) - 1)]
    assert np.mean(spans) < 1


def test_conformers_of_a_batch_are_the_molecules_own_and_differ():
    known = frames(count=3)
    batches = SizedBatches(GRAPHS[:1], known[:1], batch_size=1, draws=5)
    torch.manual_seed(0)
    *_, mask, X, weights = batches[0]
    assert X.shape == (1, 5, 9, 3)
    assert weights.tolist() == [[1, 1, 1, 0, 0]]
    drawn = {tuple(frame.flatten().tolist()) for frame in X[0, :3]}
    assert drawn == {tuple(frame.flatten().tolist()) for frame in known[0]}
    assert mask.all()


def test_pairs_of_a_batch_stay_together():
    known = [np.stack([frame, -frame], axis=1) for frame in frames()]
    *_, pairs, _ = SizedBatches(GRAPHS, known, batch_size=4)[0]
    assert pairs.shape[:2] == (4, 2)
    assert torch.equal(pairs[:, 0], -pairs[:, 1])


def test_learning_rate_rises_and_falls():
    config = FlowTrainingConfig(steps=110, warmup=10)
    assert learning_curve(0, config) == pytest.approx(0.1)
    assert learning_curve(9, config) == learning_curve(10, config) == pytest.approx(1)
    assert learning_curve(60, config) == pytest.approx(0.505)
    assert learning_curve(110, config) == pytest.approx(0.01)


def test_the_average_is_exponential(tmp_path):
    # The average starts as w0; the i-th update keeps min(decay, (1 + i) / (10 + i)) of it.
    network, visited = fresh(), []

    def loss(model, batch, X, weights):
        visited.append(model.out.weight.detach().clone())
        return model(X[:, 0], torch.full((len(X),), 0.5), batch).square().sum() + model.out.weight.sum()

    config = FlowTrainingConfig(steps=5, batch_size=2, warmup=0, decay=0.3, checkpoint_every=5)
    averaged, _ = train_stage(network, SizedBatches(GRAPHS, frames(), 2), loss, config, tmp_path)
    visited.append(load_file(tmp_path / "step-000000005.safetensors")["model.network.out.weight"])
    expected = visited[0]
    for count, weight in enumerate(visited[1:], start=1):
        rate = min(0.3, (1 + count) / (10 + count))
        expected = rate * expected + (1 - rate) * weight
    torch.testing.assert_close(averaged.out.weight, expected, rtol=1e-5, atol=1e-7)
    assert not torch.allclose(expected, visited[-1])


def test_an_interrupted_run_ends_as_one_that_was_not(tmp_path):
    config = FlowTrainingConfig(steps=6, batch_size=2, warmup=2, checkpoint_every=2, conformers=2)
    whole, losses = train_base(fresh(), GRAPHS, frames(), config, tmp_path / "whole")

    def stop(fraction, note):
        if fraction > 0.6:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_base(fresh(), GRAPHS, frames(), config, tmp_path / "parts", progress=stop)
    resumed, again = train_base(fresh(), GRAPHS, frames(), config, tmp_path / "parts")
    assert (again == losses).all()
    for name, weight in whole.state_dict().items():
        assert torch.equal(weight, resumed.state_dict()[name]), name


def test_training_leaves_the_given_network_as_it_was(tmp_path):
    network = fresh()
    before = copy.deepcopy(network.state_dict())
    train_base(network, GRAPHS, frames(), FlowTrainingConfig(steps=2, batch_size=2), tmp_path)
    assert all(torch.equal(weight, before[name]) for name, weight in network.state_dict().items())


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_training_learns_the_averaged_velocity(tmp_path, precision):
    known = frames(count=1)
    config = FlowTrainingConfig(
        steps=150, batch_size=4, warmup=10, learning_rate=1e-2, decay=0.9, precision=precision
    )
    network, _ = train_base(fresh(), GRAPHS, known, config, tmp_path)
    batch = collate(GRAPHS * 100)
    torch.manual_seed(1)
    t, x, u = FlowMatcher().draw(pad_coordinates([frame[0] for frame in known] * 100), batch.mask)
    with torch.no_grad():
        left = velocity_loss(network(x, t, batch), u, batch.mask)
    # A fresh network says 0. One layer takes a quarter away; 400 fixed draws leave no noise to speak of.
    assert left < 0.8 * velocity_loss(torch.zeros_like(u), u, batch.mask)


def test_training_inside_a_callers_autocast_is_the_same(tmp_path):
    config = FlowTrainingConfig(steps=12, batch_size=4, warmup=0, learning_rate=1e-2, precision="bfloat16")
    _, alone = train_base(fresh(), GRAPHS, frames(), config, tmp_path / "alone")
    with torch.autocast("cpu", torch.bfloat16):
        _, inside = train_base(fresh(), GRAPHS, frames(), config, tmp_path / "inside")
    # An outer context keeps rounded weights; a loop that used them would train against its first weights.
    np.testing.assert_allclose(inside, alone, rtol=1e-3)


def test_distillation_learns_the_pairs(tmp_path):
    rng = np.random.default_rng(0)
    pairs = []
    for graph in GRAPHS:
        x0 = rng.normal(size=(4, graph.atoms, 3))
        x0 -= x0.mean(axis=1, keepdims=True)
        pairs.append(np.stack([x0, 0.3 * x0], axis=1).astype(np.float32))
    config = FlowTrainingConfig(steps=200, batch_size=4, warmup=10, learning_rate=3e-3, decay=0.9)
    network, losses = refine(fresh(), GRAPHS, pairs, "distilled", config, tmp_path)
    # x1 = 0.3 x0 is a velocity of -0.7 x0: one number to learn. At first the loss is 0.49 |x0|^2.
    assert losses[-20:].mean() < 0.1 * losses[:5].mean()
    batch = collate(GRAPHS[:1])
    x0 = torch.from_numpy(pairs[0][:1, 0])
    value = distill_loss(network, batch, x0, torch.from_numpy(pairs[0][:1, 1]))
    assert value < 0.1 * (0.7 * x0).square().sum() / 9


def test_linear_interpolant_is_refused_for_a_network_that_is_not_equivariant(tmp_path):
    network = ConformerFlow(ConformerFlowConfig(layers=1, heads=2, width=16, pairs=8))
    config = FlowTrainingConfig(steps=1)
    with pytest.raises(InputError, match="unrotated"):
        train_base(network, GRAPHS, frames(), config, tmp_path, FlowMatcher(interpolant="linear"))
    assert not list(tmp_path.iterdir())


def test_bad_data_is_refused(tmp_path):
    config = FlowTrainingConfig(steps=1)
    with pytest.raises(InputError, match="4 molecules have 3 sets"):
        train_base(fresh(), GRAPHS, frames()[:3], config, tmp_path)
    with pytest.raises(InputError, match=r"CCO: conformers of shape \(3, 8, 3\)"):
        train_base(fresh(), GRAPHS[:1], [np.zeros((3, 8, 3))], config, tmp_path)
    with pytest.raises(InputError, match="CCO: a conformer holds coordinates that are not finite"):
        train_base(fresh(), GRAPHS[:1], [np.full((3, 9, 3), np.nan)], config, tmp_path)
    with pytest.raises(InputError, match="no molecule has a pair"):
        refine(fresh(), GRAPHS[:1], [np.zeros((0, 2, 9, 3))], "reflow", config, tmp_path)


@pytest.mark.parametrize(
    "settings",
    [{"steps": 0}, {"batch_size": 0}, {"learning_rate": 0.0}, {"decay": 1.0}, {"conformers": 0}],
)
def test_nonsense_is_refused(settings):
    with pytest.raises(InputError, match=next(iter(settings))):
        FlowTrainingConfig(**({"steps": 1} | settings))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"frames": frames(seed=1)}, "data: "),
        ({"matcher": FlowMatcher("kabsch")}, "objective: avg -> kabsch"),
        ({"matcher": FlowMatcher(times="mixed")}, "times: uniform -> mixed"),
        ({"config": {"conformers": 1}}, "conformers: 2 -> 1"),
        ({"config": {"precision": "bfloat16"}}, "matrix products: float32 -> bfloat16"),
        ({"sizes": {"layers": 2}}, "network: EquivariantFlow"),
        ({"seed": 1}, "first weights: "),
    ],
)
def test_a_run_goes_on_with_its_own_data_network_and_objective_alone(tmp_path, change, message):
    settings = {"steps": 2, "batch_size": 2, "warmup": 1, "conformers": 2}
    train_base(fresh(), GRAPHS, frames(), FlowTrainingConfig(**settings), tmp_path)
    torch.manual_seed(change.get("seed", 0))
    network = EquivariantFlow(dataclasses.replace(SIZES, **change.get("sizes", {})))
    config = FlowTrainingConfig(**(settings | change.get("config", {})))
    data, matcher = change.get("frames", frames()), change.get("matcher", FlowMatcher())
    with pytest.raises(InputError, match=f"other settings .*{message}"):
        train_base(network, GRAPHS, data, config, tmp_path, matcher)
