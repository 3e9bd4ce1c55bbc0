"""The plain-torch CPU path: right for every mask, and built of few large calls."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hexad.kernels.sparse_attention import gather, reference
from hexad.kernels.sparse_attention.prediction import causal_tiles


def attend(q, k, v, mask, **options):
    options = {"is_causal": False, "scale": q.shape[-1] ** -0.5, "block_q": 32, "block_k": 16} | options
    if options["is_causal"]:
        mask = mask & causal_tiles(q.shape[2], k.shape[2], options["block_q"], options["block_k"])
    return gather.attend(q, k, v, mask, **options)


@pytest.fixture
def calls(monkeypatch):
    """The shapes of k in every call of the fused kernel."""
    seen = []
    fused = gather._fused

    def record(q, k, v, scale, attn_mask=None):
        seen.append((tuple(k.shape), attn_mask is not None))
        return fused(q, k, v, scale, attn_mask)

    monkeypatch.setattr(gather, "_fused", record)
    return seen


@settings(max_examples=60, deadline=None)
@given(
    n_q=st.integers(1, 100),
    extra=st.integers(0, 70),
    keep=st.floats(0, 1),
    group=st.sampled_from((1, 2)),
    block_q=st.sampled_from((1, 8, 24, 32)),
    block_k=st.sampled_from((1, 8, 16, 40)),
    is_causal=st.booleans(),
    seed=st.integers(0, 99),
)
def test_any_mask_equals_sdpa_with_the_expanded_mask(
    structured, oracle, random_mask, n_q, extra, keep, group, block_q, block_k, is_causal, seed
):
    q, k, v = structured(
        n_q, n_q + extra, heads=2 * group, k_heads=2, d=8, d_v=12, batch=2, dtype=torch.float64, seed=seed
    )
    mask = random_mask(2, 2 * group, -(-n_q // block_q), -(-(n_q + extra) // block_k), keep, seed)
    out = attend(q, k, v, mask, is_causal=is_causal, block_q=block_q, block_k=block_k)
    wanted = oracle(q, k, v, mask, is_causal=is_causal, block_q=block_q, block_k=block_k)
    # Float64, but torch's fused kernel takes its exponentials in a fast way that is good to about 1e-8.
    torch.testing.assert_close(out, wanted, atol=1e-7, rtol=0)


def test_more_queries_than_keys(structured, oracle, random_mask):
    q, k, v = structured(300, 70)
    mask = random_mask(1, 2, 10, 5, 0.5)
    wanted = oracle(q, k, v, mask, block_q=32, block_k=16)
    torch.testing.assert_close(attend(q, k, v, mask).double(), wanted, atol=2e-6, rtol=0)


def test_one_call_a_count_and_none_a_tile(structured, random_mask, calls):
    q, k, v = structured(1024, heads=4)
    mask = random_mask(1, 4, 32, 64, 0.3)
    attend(q, k, v, mask)
    assert len(calls) == mask.sum(-1).unique().numel() < 32
    assert sum(shape[0] for shape, _ in calls) == 4 * 32  # every row once
    assert not any(masked for _, masked in calls)


def test_a_short_last_tile_needs_no_mask(structured, oracle, random_mask, calls):
    q, k, v = structured(1000)
    mask = random_mask(1, 2, 32, 63, 0.3)
    out = attend(q, k, v, mask)
    assert not any(masked for _, masked in calls)
    wanted = oracle(q, k, v, mask, block_q=32, block_k=16)
    torch.testing.assert_close(out.double(), wanted, atol=2e-6, rtol=0)


def test_only_tiles_on_the_diagonal_are_masked(structured, calls):
    q, k, v = structured(1024)
    mask = torch.ones(1, 2, 32, 64, dtype=torch.bool)
    mask[0, :, 31, 0] = False  # or the head would be a dense one
    attend(q, k, v, mask, is_causal=True)
    # 32 queries cross two tiles of 16 keys; all else is attended to unmasked.
    assert {shape[1] for shape, masked in calls if masked} == {32}
    assert sum(shape[0] for shape, masked in calls if masked) == 2 * 32
    assert {shape[1] for shape, masked in calls if not masked} == {*range(32, 992, 32), 992 - 16}


def test_gathered_buffers_stay_under_the_cap(structured, random_mask, calls, monkeypatch):
    q, k, v = structured(1024, heads=4)
    mask = random_mask(1, 4, 32, 64, 0.3)
    whole = attend(q, k, v, mask, is_causal=True)
    calls.clear()
    cap = 2 * 64 * 16 * 64 * 4  # keys and values of 64 tiles
    monkeypatch.setattr(gather, "GATHER_BYTES", cap)
    torch.testing.assert_close(attend(q, k, v, mask, is_causal=True), whole, atol=1e-6, rtol=0)
    assert max(rows * tokens * d * 4 * 2 for (rows, tokens, d), _ in calls) <= cap
    assert gather.GATHER_BYTES <= 64 << 20


@pytest.mark.parametrize("is_causal", [False, True])
def test_heads_that_keep_everything_are_not_gathered(structured, oracle, random_mask, calls, is_causal):
    q, k, v = structured(300, heads=4, k_heads=2, d_v=24, batch=2)
    mask = random_mask(2, 4, 10, 19, 0.5)
    mask[0, 1] = mask[1, 2] = True
    out = attend(q, k, v, mask, is_causal=is_causal)
    wanted = oracle(q, k, v, mask, is_causal=is_causal, block_q=32, block_k=16)
    torch.testing.assert_close(out.double(), wanted, atol=2e-6, rtol=0)
    if not is_causal:
        assert sum(shape[0] for shape, _ in calls) == 6 * 10
    calls.clear()
    attend(q, k, v, torch.ones_like(mask), is_causal=is_causal)
    assert not calls


@pytest.mark.parametrize("is_causal", [False, True])
def test_quantised_equals_the_reference(structured, random_mask, is_causal):
    q, k, v = structured(200, heads=4, k_heads=2)
    mask = random_mask(1, 4, 7, 13, 0.5)
    options = {"is_causal": is_causal, "quantize": True}
    wanted, _ = reference.attend(
        q.double(), k.double(), v.double(), mask, scale=0.125, block_q=32, block_k=16, **options
    )
    # The scale is rounded to float32 here, so an entry on the edge between two integers may fall to
    # either side; the step of such an entry moves the output by less than this.
    torch.testing.assert_close(attend(q, k, v, mask, **options).double(), wanted, atol=2e-3, rtol=0)
    single, _ = reference.attend(q, k, v, mask, scale=0.125, block_q=32, block_k=16, **options)
    torch.testing.assert_close(attend(q, k, v, mask, **options), single, atol=2e-6, rtol=0)
