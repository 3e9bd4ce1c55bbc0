import pytest
import torch

from hexad.core.errors import InputError
from hexad.llm_efficiency.spargeattn import HeadParams, block_mask
from hexad.llm_efficiency.spargeattn.prediction import Prediction


@pytest.mark.parametrize("smooth_k", [True, False])
@pytest.mark.parametrize(
    ("shape", "is_causal"),
    [
        ({}, False),
        ({}, True),
        ({"n_q": 150, "n_k": 275, "heads": 4, "k_heads": 2}, True),
        ({"n_q": 203}, False),
    ],
    ids=str,
)
def test_cached_prediction_equals_the_kernels(make_qkv, shape, is_causal, smooth_k):
    """For every theta and tau of a grid, with a different tau in each head."""
    q, k, _ = make_qkv(batch=2, noise=0.9, **shape)
    prediction = Prediction(q, k, is_causal, 0.3, 32, 16, smooth_k)
    heads = torch.arange(q.shape[1])
    seen = set()
    for theta in (-1.0, 0.0, 0.4, 0.6, 0.9):
        verdicts = prediction.judge(theta)
        ranking = prediction.rank(verdicts, heads)
        for first in (0.0, 0.5, 0.77, 0.95):
            tau = torch.linspace(first, 1.0, len(heads) + 1)[:-1]
            params = HeadParams(theta, tau, block_q=32, block_k=16, smooth_k=smooth_k)
            expected = block_mask(q, k, params, is_causal=is_causal, scale=0.3)
            mask = ranking.mask(tau)
            assert torch.equal(mask, expected)
            dense = block_mask(q, k, HeadParams(1.0, block_q=32, block_k=16), is_causal=is_causal)
            skipped = 1 - expected.sum((0, 2, 3)) / dense.sum((0, 2, 3))
            torch.testing.assert_close(ranking.sparsity(mask).float(), skipped)
            seen.add(int(mask.sum()))
    assert len(seen) > 6, seen  # the grid does move the mask


def test_a_subset_of_heads_ranks_as_within_all(make_qkv):
    q, k, _ = make_qkv(heads=4, noise=0.8)
    prediction = Prediction(q, k, False, None, 32, 16, True)
    verdicts = prediction.judge(0.5)
    chosen = torch.tensor([3, 1])
    whole = prediction.rank(verdicts, torch.arange(4)).mask(torch.full((4,), 0.7))
    assert torch.equal(prediction.rank(verdicts, chosen).mask(torch.full((2,), 0.7)), whole[:, chosen])


def test_same_tells_heads_whose_blocks_are_judged_alike(make_qkv):
    q, k, _ = make_qkv(heads=2, noise=0.05)
    q[:, 1] = torch.randn(q[:, 1].shape, generator=torch.Generator().manual_seed(2))
    prediction = Prediction(q, k, False, None, 32, 16, True)
    # Head 0 is made of tight runs (cosines near 1); the queries of head 1 are noise (cosines near 1/32).
    assert prediction.same(prediction.judge(-1.0), prediction.judge(0.5)).tolist() == [True, False]


def test_infinities_are_refused(make_qkv):
    q, k, _ = make_qkv()
    k[0, 0, 5, 5] = float("inf")
    with pytest.raises(InputError, match="NaN or infinity"):
        Prediction(q, k, False, None, 32, 16, True)
