"""Reflow's times and pairs, and the two losses, beside closed forms."""

import math

import numpy as np
import pytest
import torch

from hexad.core.errors import InputError
from hexad.science_ml.avgflow.batching import collate
from hexad.science_ml.avgflow.features import featurize
from hexad.science_ml.avgflow.molecules import read_molecule
from hexad.science_ml.avgflow.reflow import RATE, distill_loss, make_reflow_pairs, reflow_loss, reflow_times
from hexad.science_ml.avgflow.targets import centre

GRAPHS = [featurize(read_molecule(smiles)) for smiles in ("CCO", "C", "CC(=O)N")]


def shrink(x, t, batch):
    """dx/dt = -x, whose Euler steps are known."""
    return -x


def test_times_of_reflow_have_an_exponential_density():
    torch.manual_seed(0)
    t = reflow_times(100_000, torch.zeros(1, dtype=torch.float64))
    assert t.min() >= 0
    assert t.max() < 1
    # P(t < s) = (1 - exp(-1.2 s)) / (1 - exp(-1.2)); standard error 0.0016.
    for s in (0.2, 0.5, 0.8):
        expected = math.expm1(-RATE * s) / math.expm1(-RATE)
        assert (t < s).double().mean() == pytest.approx(expected, abs=0.007)


def test_pairs_join_noise_to_where_the_flow_takes_it():
    pairs = make_reflow_pairs(shrink, GRAPHS, 5, steps=4, seed=3, sigma0=2.0, batch_size=4)
    assert [tuple(frames.shape) for frames in pairs] == [(5, 2, 9, 3), (5, 2, 5, 3), (5, 2, 9, 3)]
    for frames in pairs:
        torch.testing.assert_close(frames[:, 1], frames[:, 0] * 0.75**4, rtol=0, atol=1e-6)
        assert frames.mean(dim=2).abs().max() < 1e-6
    noise = torch.cat([frames[:, 0].flatten() for frames in pairs])
    # 345 numbers of deviation 2, a little less for centring.
    assert noise.std() == pytest.approx(2 * math.sqrt(1 - 3 / 23), rel=0.12)
    assert len({tuple(row) for row in pairs[0][:, 0].flatten(1).tolist()}) == 5


def test_pairs_depend_on_the_seed_alone():
    first = make_reflow_pairs(shrink, GRAPHS, 2, steps=1, seed=1)
    again = make_reflow_pairs(shrink, GRAPHS, 2, steps=1, seed=1)
    other = make_reflow_pairs(shrink, GRAPHS, 2, steps=1, seed=2)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not torch.equal(first[0], other[0])


def test_refused_samples_leave_no_pair():
    pairs = make_reflow_pairs(shrink, GRAPHS, 3, steps=1, keep=lambda place, x1: place != 1)
    assert [len(frames) for frames in pairs] == [3, 0, 3]
    assert pairs[1].shape == (0, 2, 5, 3)


def test_losses_vanish_on_the_straight_line_alone():
    batch = collate(GRAPHS)
    generator = torch.Generator().manual_seed(0)
    x0 = centre(torch.randn(*batch.mask.shape, 3, generator=generator), batch.mask)
    x1 = centre(torch.randn(*batch.mask.shape, 3, generator=generator), batch.mask)
    seen = []

    def right(x, t, batch):
        seen.append((x, t))
        return x1 - x0

    for loss in (reflow_loss, distill_loss):
        assert loss(right, batch, x0, x1) == 0
        expected = ((x1 - x0).square().sum((1, 2)) / batch.atoms).mean()
        assert loss(lambda x, t, batch: 0 * x, batch, x0, x1) == pytest.approx(expected.item(), rel=1e-6)
    (x, t), (start, zero) = seen
    time = t[:, None, None]
    torch.testing.assert_close(x, (1 - time) * x0 + time * x1)
    assert torch.equal(start, x0)
    assert (zero == 0).all()


@pytest.mark.parametrize("setting", ["pairs", "steps", "batch_size"])
def test_counts_below_one_are_refused(setting):
    with pytest.raises(InputError, match=f"{setting} is 0"):
        make_reflow_pairs(shrink, GRAPHS, **({"pairs": 1, "steps": 1} | {setting: 0}))


def test_no_molecules_are_refused():
    with pytest.raises(InputError, match="no molecules"):
        make_reflow_pairs(shrink, [], 1)


def test_pairs_are_float32_arrays_that_training_takes():
    pairs = make_reflow_pairs(shrink, GRAPHS, 2, steps=1)
    assert all(frames.dtype == torch.float32 for frames in pairs)
    assert np.asarray(pairs[0]).shape == (2, 2, 9, 3)
