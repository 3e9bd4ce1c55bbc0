"""The reference itself against closed forms and against SDPA in float64."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import scaled_dot_product_attention

from hexad.kernels.sparse_attention import reference
from hexad.kernels.sparse_attention.quantize import dequantize_tiles, quantize_tiles, smooth_keys

EXACT = {"atol": 1e-12, "rtol": 0}  # float64 throughout; values are of order 1


def attend(q, k, v, mask, **options):
    defaults = {"is_causal": False, "scale": q.shape[-1] ** -0.5, "block_q": 32, "block_k": 16}
    return reference.attend(q, k, v, mask, **(defaults | options))


@settings(max_examples=25, deadline=None)
@given(
    n_q=st.integers(1, 80),
    extra=st.integers(0, 50),
    keep=st.floats(0, 1),
    group=st.sampled_from((1, 3)),
    is_causal=st.booleans(),
    seed=st.integers(0, 99),
)
def test_any_mask_equals_sdpa_with_the_expanded_mask(
    structured, oracle, random_mask, n_q, extra, keep, group, is_causal, seed
):
    q, k, v = structured(
        n_q, n_q + extra, heads=2 * group, k_heads=2, d=8, d_v=5, dtype=torch.float64, seed=seed
    )
    mask = random_mask(1, 2 * group, -(-n_q // 32), -(-(n_q + extra) // 16), keep, seed)
    out, pv_kept = attend(q, k, v, mask, is_causal=is_causal)
    wanted = oracle(q, k, v, mask, is_causal=is_causal, block_q=32, block_k=16)
    torch.testing.assert_close(out, wanted, **EXACT)
    assert torch.equal(pv_kept.any(-1), mask)


def test_infinite_lambda_equals_no_second_filter(structured, random_mask):
    q, k, v = structured(200, d=16, dtype=torch.float64)
    mask = random_mask(1, 2, 7, 13, 0.5)
    without, _ = attend(q, k, v, mask)
    out, pv_kept = attend(q, k, v, mask, pv_threshold=torch.full((2,), math.inf))
    assert torch.equal(out, without)
    assert torch.equal(pv_kept[..., 0], mask)


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("row_group", [None, 8])
def test_finite_lambda_equals_a_softmax_over_the_recorded_tiles(structured, expand, is_causal, row_group):
    q, k, v = structured(200, d=16, dtype=torch.float64, sink=2)
    mask = torch.ones(1, 2, 7, 13, dtype=torch.bool)
    out, pv_kept = attend(
        q, k, v, mask, is_causal=is_causal, pv_threshold=torch.tensor([1.0, 3.0]), row_group=row_group
    )
    # A recorded (query tile, key tile, group) is a tile of `row_group` rows of its own.
    by_group = pv_kept.movedim(-1, 3).flatten(2, 3)
    entries = expand(by_group, 200, 200, row_group or 32, 16, is_causal)
    wanted = scaled_dot_product_attention(q, k, v, attn_mask=entries)
    torch.testing.assert_close(out, wanted, **EXACT)
    dense = scaled_dot_product_attention(q, k, v, attn_mask=expand(mask, 200, 200, 32, 16, is_causal))
    assert (out[:, 0] - dense[:, 0]).abs().max() > 1e-3  # it does leave mass out
    skipped = 1 - by_group.double().mean((0, 2, 3))
    assert skipped[0] > skipped[1] > 0.05  # a smaller lambda skips more


def test_a_tile_is_skipped_where_all_its_row_groups_skip(structured):
    q, k, v = structured(256, d=16, dtype=torch.float64, sink=2)
    mask = torch.ones(1, 2, 8, 16, dtype=torch.bool)
    threshold = torch.full((2,), 3.0)
    _, by_tile = attend(q, k, v, mask, pv_threshold=threshold)
    _, by_group = attend(q, k, v, mask, pv_threshold=threshold, row_group=8)
    assert torch.equal(by_tile[..., 0], by_group.any(-1))
    assert by_group.double().mean() < by_tile.double().mean()


def test_quantised_scores_are_those_of_the_integers(structured, random_mask, expand):
    q, k, v = structured(150, heads=4, k_heads=2, d=32, dtype=torch.float64)
    mask = random_mask(1, 4, 5, 10, 0.5)
    out, _ = attend(q, k, v, mask, quantize=True)
    q_seen = dequantize_tiles(*quantize_tiles(q, 32), 32)
    k_seen = dequantize_tiles(*quantize_tiles(smooth_keys(k), 16), 16)
    entries = expand(mask, 150, 150, 32, 16, False)
    wanted = scaled_dot_product_attention(q_seen, k_seen, v, attn_mask=entries, enable_gqa=True)
    torch.testing.assert_close(out, wanted, **EXACT)
    plain, _ = attend(q, k, v, mask)
    error = (out - plain).abs().sum() / plain.abs().sum()
    # A step of 1 / 127 of the largest entry moves the output by a fraction of a percent, not by nothing.
    assert 1e-4 < error < 0.02


def test_adding_a_constant_to_all_keys_changes_no_output(structured, random_mask):
    q, k, v = structured(150, d=32, dtype=torch.float64)
    mask = random_mask(1, 2, 5, 10, 0.5)
    for quantize in (False, True):
        out, _ = attend(q, k, v, mask, quantize=quantize)
        moved, _ = attend(q, k + 7.0, v, mask, quantize=quantize)
        torch.testing.assert_close(moved, out, atol=1e-10, rtol=0)


def test_scores_below_every_usual_start_of_the_maximum():
    # The released kernels start the maximum at -5e6; these scores lie near -1e8.
    q, k = torch.full((1, 1, 40, 8), 1e4), torch.full((1, 1, 40, 8), -1e4)
    v = torch.randn(1, 1, 40, 8)
    out, _ = attend(q, k, v, torch.ones(1, 1, 2, 3, dtype=torch.bool))
    torch.testing.assert_close(out, v.mean(2, keepdim=True).expand_as(out), atol=1e-5, rtol=0)


@pytest.mark.parametrize("is_causal", [False, True])
def test_gradients_are_those_of_finite_differences(random_mask, is_causal):
    generator = torch.Generator().manual_seed(0)
    q, k, v = (
        torch.randn(1, 2, 11, 4, dtype=torch.float64, generator=generator, requires_grad=True)
        for _ in range(3)
    )
    mask = random_mask(1, 2, 3, 3, 0.5)
    assert torch.autograd.gradcheck(
        lambda *x: attend(*x, mask, is_causal=is_causal, block_q=4, block_k=4)[0], (q, k, v)
    )
