"""The target operation is fast enough to be computed anew for every molecule and step."""

import pytest
import torch

from hexad.science_ml.avgflow.benchmark import benchmark
from hexad.science_ml.avgflow.rotations import matrix_fisher_mean


@pytest.mark.slow
def test_256_matrices_take_at_most_five_milliseconds():
    found = benchmark(count=256, rounds=50)
    assert found["matrix_fisher_mean"] <= 5


def test_benchmark_times_all_four():
    found = benchmark(count=4, atoms=5, rounds=1)
    assert len(found) == 4
    assert all(milliseconds > 0 for milliseconds in found.values())


def test_large_batches_and_no_batch_are_taken():
    assert matrix_fisher_mean(torch.eye(3))[0].shape == (3, 3)
    assert matrix_fisher_mean(torch.zeros(0, 3, 3))[0].shape == (0, 3, 3)
    assert matrix_fisher_mean(torch.zeros(2, 5, 3, 3))[1].shape == (2, 5)
