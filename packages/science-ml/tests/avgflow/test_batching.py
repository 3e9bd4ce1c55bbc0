"""Padding and batches."""

import numpy as np
import pytest
import torch

from hexad.core.errors import InputError
from hexad.science_ml.avgflow.batching import bucket_by_size, collate, pad_coordinates
from hexad.science_ml.avgflow.features import featurize
from hexad.science_ml.avgflow.molecules import read_molecule


def test_collate_pads_with_zeros_and_keeps_the_rest():
    graphs = [featurize(read_molecule(smiles)) for smiles in ("CCO", "C", "c1ccccc1")]
    batch = collate(graphs)
    assert batch.atoms.tolist() == [9, 5, 12]
    assert len(batch) == 3
    for place, graph in enumerate(graphs):
        n = graph.atoms
        assert np.array_equal(batch.node_features[place, :n].numpy(), graph.node_features)
        assert np.array_equal(batch.edge_types[place, :n, :n].numpy(), graph.edge_types)
        assert not batch.node_features[place, n:].any()
        assert not batch.laplacian[place, n:].any()
        assert not batch.edge_types[place, n:].any()
        assert not batch.edge_types[place, :, n:].any()
    assert collate(graphs, 20).mask.shape == (3, 20)
    assert batch.repeat(2).atoms.tolist() == [9, 9, 5, 5, 12, 12]


def test_coordinates_are_centred_without_the_padding():
    frames = [np.arange(9.0).reshape(3, 3), np.ones((1, 3))]
    padded = pad_coordinates(frames)
    assert padded.dtype == torch.float32
    assert padded[0].tolist() == [[-3, -3, -3], [0, 0, 0], [3, 3, 3]]
    assert not padded[1].any()


def test_bad_batches_are_refused():
    graph = featurize(read_molecule("CCO"))
    for call, message in (
        (lambda: collate([]), "at least one molecule"),
        (lambda: collate([graph], 8), "CCO has 9 atoms, more than the 8"),
        (lambda: pad_coordinates([]), "at least one conformer"),
        (lambda: pad_coordinates([np.zeros((3, 2))]), r"shape \(3, 2\); it must be \(atoms, 3\)"),
        (lambda: pad_coordinates([np.full((3, 3), np.nan)]), "not finite"),
        (lambda: pad_coordinates([np.zeros((3, 3))], 2), "3 atoms, more than the 2"),
    ):
        with pytest.raises(InputError, match=message):
            call()


def test_buckets_hold_each_index_once_and_waste_little():
    sizes = np.random.default_rng(0).integers(5, 40, 1000).tolist()
    batches = bucket_by_size(sizes, 32, seed=1)
    assert sorted(index for batch in batches for index in batch) == list(range(1000))
    padded = sum(len(batch) * max(sizes[index] for index in batch) for batch in batches)
    assert padded < 1.06 * sum(sizes)
    assert batches != bucket_by_size(sizes, 32, seed=2)
    assert batches == bucket_by_size(sizes, 32, seed=1)
    largest = [max(sizes[index] for index in batch) for batch in batches]
    assert largest != sorted(largest), "in random order"
