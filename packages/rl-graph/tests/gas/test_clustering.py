"""Clustering in one pass: the same as state by state, and what holds of the result."""

import json
import subprocess
import sys

import numpy as np
import pytest

from hexad.core.errors import InputError
from hexad.rl_graph.gas import clustering
from hexad.rl_graph.gas.clustering import cluster_states


def one_by_one(latents, horizon):
    """The pass as it is written in the paper."""
    seeds, labels = [], []
    for place, state in enumerate(latents.astype(float)):
        if seeds:
            away = np.linalg.norm(latents[seeds].astype(float) - state, axis=1)
            if away.min() <= horizon / 2:
                labels.append(int(away.argmin()))
                continue
        seeds.append(place)
        labels.append(len(seeds) - 1)
    return seeds, labels


@pytest.mark.parametrize(("rows", "columns"), [(2048, 2048), (64, 10), (1, 1)])
@pytest.mark.parametrize("horizon", [0.5, 2.0, 6.0])
def test_blocks_change_nothing(rows, columns, horizon, monkeypatch):
    monkeypatch.setattr(clustering, "ROWS", rows)
    monkeypatch.setattr(clustering, "COLUMNS", columns)
    latents = np.cumsum(np.random.default_rng(0).normal(0, 0.3, (700, 4)), axis=0).astype(np.float32)
    found = cluster_states(latents, horizon)
    seeds, labels = one_by_one(latents, horizon)
    assert found.seeds.tolist() == seeds
    assert found.labels.tolist() == labels


def blobs():
    rng = np.random.default_rng(4)
    return rng.uniform(-1e6, 1e6, (5, 3))[rng.integers(0, 5, 1500)] + rng.normal(0, 0.01, (1500, 3))


@pytest.mark.parametrize(
    ("latents", "horizon"),
    [
        (blobs(), 0.01),
        (np.round(np.random.default_rng(5).normal(size=(3000, 3)), 3), 2.0),
        (np.random.default_rng(6).integers(-15, 15, (3000, 3)).astype(float), 8.0),
        (np.random.default_rng(7).normal(1e6, 3, (2000, 4)).astype(np.float32), 2.0),
        (np.round(np.random.default_rng(8).normal(0, 3, (3000, 2))), 2.0),
    ],
    ids=["blobs", "rounded", "grid", "offset", "coarse"],
)
def test_ties_and_digits_are_those_of_the_pass_state_by_state(latents, horizon, monkeypatch):
    monkeypatch.setattr(clustering, "ROWS", 300)
    monkeypatch.setattr(clustering, "COLUMNS", 70)
    found = cluster_states(latents, horizon)
    seeds, labels = one_by_one(latents, horizon)
    assert found.seeds.tolist() == seeds
    assert found.labels.tolist() == labels


def test_members_lie_within_half_a_horizon_of_their_seed_and_seeds_apart():
    latents = np.random.default_rng(1).normal(0, 3, (3000, 3))
    found = cluster_states(latents, 2.0)
    away = np.linalg.norm(latents - latents[found.seeds][found.labels], axis=1)
    assert away.max() <= 1.0
    seeds = latents[found.seeds]
    apart = np.linalg.norm(seeds[:, None] - seeds[None], axis=2)
    assert apart[~np.eye(len(seeds), dtype=bool)].min() > 1.0
    for node in (0, 7, len(seeds) - 1):
        assert found.nodes[node] == pytest.approx(latents[found.labels == node].mean(0), abs=1e-12)
    assert found.counts.sum() == 3000


def test_the_ends_of_the_horizon():
    latents = np.repeat(np.random.default_rng(2).normal(size=(50, 2)), 2, axis=0)
    assert len(cluster_states(latents, 1e-9).nodes) == 50, "one node a distinct state"
    one = cluster_states(latents, 1e9)
    assert len(one.nodes) == 1
    assert one.nodes[0] == pytest.approx(latents.mean(0), abs=1e-12)


def test_a_state_at_exactly_half_a_horizon_joins():
    found = cluster_states(np.array([[0.0], [1.0], [2.0], [1.5]]), 2.0)
    assert found.seeds.tolist() == [0, 2], "1 lies within, 2 strictly farther"
    assert found.labels.tolist() == [0, 0, 1, 1], "1.5 is nearer to the later seed"


def test_bad_input_is_refused():
    for latents, horizon, message in (
        (np.zeros((0, 2)), 1, "latents are"),
        (np.full((2, 2), np.inf), 1, "not finite"),
        (np.zeros((2, 2)), -1, "horizon"),
    ):
        with pytest.raises(InputError, match=message):
            cluster_states(latents, horizon)


@pytest.mark.slow
def test_a_million_states_cluster_in_two_minutes_and_four_gibibytes():
    done = subprocess.run(
        [sys.executable, "-m", "hexad.rl_graph.gas.benchmark", "--json"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["states"] == 1_000_000
    assert found["nodes"] > 5_000
    assert found["cluster_s"] < 120
    assert found["peak_gib"] < 4
