"""Stage 1: pooling, the self-similarity judge, selection and assembly of the tile mask."""

from functools import partial
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hexad.kernels.sparse_attention import (
    available_backends,
    predict_block_mask,
    prediction,
    reference,
)
from hexad.kernels.sparse_attention.prediction import (
    causal_tiles,
    diagonal_tiles,
    pool_blocks,
    select_blocks,
)


@pytest.fixture(params=["torch", "native"], scope="module")
def predict(request):
    reason = available_backends("cpu")["native"]
    if request.param == "native" and reason is not None:
        pytest.skip(reason)
    return partial(predict_block_mask, backend=request.param)


def test_constant_blocks_have_self_similarity_one():
    x = torch.randn(1, 1, 3, 16, generator=torch.Generator().manual_seed(0)).repeat_interleave(32, dim=2)
    pooled, similarity = pool_blocks(x, 32)
    # A float32 sum of 32 unit vectors, squared: at most 64 roundings of 6e-8.
    torch.testing.assert_close(similarity, torch.ones(1, 1, 3), atol=4e-6, rtol=0)
    torch.testing.assert_close(pooled, x[:, :, ::32], atol=1e-6, rtol=0)


def test_two_orthogonal_halves_have_self_similarity_one_half():
    x = torch.zeros(1, 1, 64, 16)
    x[:, :, :32, 0] = 3.0
    x[:, :, 32:, 5] = 0.1  # the length of a token has no say
    assert pool_blocks(x, 64)[1].item() == pytest.approx(0.5, abs=1e-6)


def test_pooling_equals_the_mean_over_all_pairs(structured):
    x = structured(150, heads=3, d=32)[1]  # 150 = 2 * 64 + 22: the last block is short
    centred = x.double() - x.double().mean(-2, keepdim=True)
    for smooth, values in ((False, x.double()), (True, centred)):
        pooled, similarity = pool_blocks(x, 64, smooth=smooth)
        for j, tile in enumerate(values.split(64, dim=2)):
            cosine = torch.nn.functional.cosine_similarity(tile[..., None, :], tile[..., None, :, :], dim=-1)
            torch.testing.assert_close(similarity[..., j].double(), cosine.mean((-1, -2)), atol=1e-5, rtol=0)
            torch.testing.assert_close(pooled[..., j, :].double(), tile.mean(2), atol=1e-5, rtol=0)


def test_a_zero_token_is_orthogonal_to_everything():
    x = torch.ones(1, 1, 4, 8)
    x[:, :, 3] = 0
    # Nine of sixteen pairs are between the three equal tokens; the released code gives NaN here.
    assert pool_blocks(x, 4)[1].item() == pytest.approx(9 / 16, abs=1e-6)
    assert pool_blocks(torch.zeros(1, 1, 4, 8), 4)[1].item() == 0


def test_bfloat16_is_summed_in_float32():
    x = torch.full((1, 1, 1024, 8), 1.0).bfloat16()
    x[..., 0] = 1 / 256  # would vanish beside a running bfloat16 sum
    pooled, _ = pool_blocks(x, 1024)
    assert pooled.dtype == torch.float32
    torch.testing.assert_close(pooled[0, 0, 0, 0].item(), 1 / 256, atol=1e-8, rtol=0)


def test_pieces_of_any_size_give_the_same(structured, monkeypatch):
    x = torch.cat((structured(200, heads=5, d=16)[1], structured(200, heads=5, d=16, seed=1)[1]))
    whole = pool_blocks(x, 64, smooth=True)
    monkeypatch.setattr(prediction, "_CACHE_ELEMENTS", 2 * 200 * 16)  # two heads, two, one
    for ours, wanted in zip(pool_blocks(x, 64, smooth=True), whole, strict=True):
        torch.testing.assert_close(ours, wanted, atol=1e-6, rtol=0)


def test_selection_stops_before_tau_is_crossed():
    p = torch.tensor([[[[0.1, 0.5, 0.3, 0.1], [0.97, 0.01, 0.01, 0.01]]]], dtype=torch.float64)
    mask = select_blocks(p, torch.tensor([0.85]), None)[0, 0]
    assert mask.tolist() == [[False, True, True, False], [True, False, False, False]]
    # 0.5 + 0.3 is all that fits under 0.85; the second row takes its first entry though 0.97 > 0.85.


@pytest.mark.parametrize("is_causal", [False, True])
def test_all_of_the_mass_is_all_of_the_tiles(structured, is_causal, predict):
    # Float32 sums over 256 blocks pass 1 by rounding in many rows.
    q, k, _ = structured(4096, heads=4)
    mask = predict(q, k, theta=-1, tau=1.0, is_causal=is_causal, block_q=16, block_k=16)
    assert (mask == (causal_tiles(4096, 4096, 16, 16) if is_causal else torch.tensor(True))).all()


def test_topk_counts_as_python_does(predict):
    q, k = torch.randn(2, 1, 1, 100 * 4, 8).unbind()
    for share in (0.0, 0.004, 0.29, 0.3, 0.57, 1.0):  # 0.29 * 100 is 28.999...
        mask = predict(q, k, theta=-1, tau=None, topk=share, block_q=4, block_k=4)
        assert mask.sum(-1).unique().tolist() == [max(1, int(share * 100))]


def test_causal_tiles_are_those_with_a_visible_entry(expand):
    for n_q, n_k, block_q, block_k in (
        (512, 512, 128, 64),
        (300, 300, 128, 64),
        (70, 333, 32, 16),
        (9, 40, 8, 16),
    ):
        entries = torch.ones(n_q, n_k, dtype=torch.bool).tril(n_k - n_q)
        brute = torch.stack(
            [torch.stack([t.any() for t in rows.split(block_k, 1)]) for rows in entries.split(block_q, 0)]
        )
        assert torch.equal(causal_tiles(n_q, n_k, block_q, block_k), brute)


def test_causal_tiles_of_equal_lengths_follow_the_published_rule():
    i, j = torch.arange(6)[:, None], torch.arange(12)
    assert torch.equal(causal_tiles(768, 768, 128, 64), j < (i + 1) * 128 / 64)


def test_diagonal_tiles_hold_every_query_position():
    for n_q, n_k, block_q, block_k in (
        (512, 512, 128, 64),
        (100, 130, 32, 16),
        (130, 100, 32, 16),
        (9, 40, 8, 16),
    ):
        brute = torch.zeros_like(diagonal_tiles(n_q, n_k, block_q, block_k))
        for r in range(n_q):
            if r + n_k - n_q >= 0:
                brute[r // block_q, (r + n_k - n_q) // block_k] = True
        assert torch.equal(diagonal_tiles(n_q, n_k, block_q, block_k), brute)


@settings(max_examples=40, deadline=None)
@given(
    n_q=st.integers(1, 90),
    extra=st.integers(0, 60),
    group=st.sampled_from((1, 2)),
    block_q=st.sampled_from((8, 16, 24)),
    block_k=st.sampled_from((8, 16)),
    theta=st.sampled_from((-1.0, 0.0, 0.3, 0.6, 0.9, 1.0)),
    share=st.sampled_from((0.0, 0.3, 0.7, 0.98, 1.0)),
    by_mass=st.booleans(),
    is_causal=st.booleans(),
    attention_sink=st.booleans(),
    force_diagonal=st.booleans(),
    smooth_k=st.booleans(),
    seed=st.integers(0, 99),
)
def test_fast_prediction_equals_the_reference(
    structured, predict, n_q, extra, group, block_q, block_k, theta, share, by_mass, is_causal,
    attention_sink, force_diagonal, smooth_k, seed,
):  # fmt: skip
    q, k, _ = structured(n_q, n_q + extra, heads=2 * group, k_heads=2, d=8, seed=seed)
    options = {
        "theta": theta,
        "tau": share if by_mass else None,
        "topk": None if by_mass else share,
        "is_causal": is_causal,
        "attention_sink": attention_sink,
        "force_diagonal": force_diagonal,
        "block_q": block_q,
        "block_k": block_k,
        "smooth_k": smooth_k,
    }
    wanted = reference.predict(q, k, scale=8**-0.5, **options)
    assert torch.equal(predict(q, k, **options), wanted)


def test_adding_a_constant_to_all_keys_changes_no_tile(structured, predict):
    q, k, _ = structured(1024)
    generator = torch.Generator().manual_seed(1)
    q = q + torch.randn(64, generator=generator)  # or no query block would pass theta
    moved = k + 5 * torch.randn(64, generator=generator)
    for choice in ({"tau": 0.9}, {"tau": None, "topk": 0.3}):
        mask = predict(q, k, theta=0.87, **choice)
        assert 0.1 < mask.float().mean() < 0.9  # or the test could not fail
        assert torch.equal(predict(q, moved, theta=0.87, **choice), mask)
        # Without smoothing, the common offset makes every key block look alike within itself.
        assert not torch.equal(predict(q, moved, theta=0.87, smooth_k=False, **choice), mask)


@pytest.mark.parametrize("is_causal", [False, True])
def test_more_tau_or_topk_keeps_a_superset(structured, is_causal, predict):
    q, k, _ = structured(1024)
    for name in ("tau", "topk"):
        grid = [
            predict(q, k, theta=0.3, is_causal=is_causal, **{"tau": None, name: x})
            for x in torch.linspace(0, 1, 11).tolist()
        ]
        assert all(bool((b >= a).all()) for a, b in pairwise(grid))
        assert grid[0].sum() < grid[9].sum() < grid[10].sum()


def test_kept_tiles_counted_by_brute_force(structured, predict):
    q, k, _ = structured(512, heads=1, d=16)
    theta, tau = 0.5, 0.9
    k = k - k.mean(-2, keepdim=True)
    means_q = [t.mean(0) for t in q[0, 0].double().split(128)]
    tiles_k = k[0, 0].double().split(64)
    judged = [float(_cosines(t).mean()) > theta for t in tiles_k]
    rows_judged = [float(_cosines(t).mean()) > theta for t in q[0, 0].double().split(128)]
    kept = 0
    for mean, row_judged in zip(means_q, rows_judged, strict=True):
        score = torch.tensor(
            [float(mean @ t.mean(0)) / 4 if ok else -torch.inf for t, ok in zip(tiles_k, judged, strict=True)]
        )
        p = sorted(score.softmax(0).tolist(), reverse=True)
        taken = max(1, sum(sum(p[: n + 1]) <= tau for n in range(len(p))))
        kept += len(tiles_k) if not row_judged else taken + judged.count(False)
    mask = predict(q, k, theta=theta, tau=tau, smooth_k=False)
    assert int(mask.sum()) == kept < mask.numel()


def _cosines(x):
    unit = x / x.norm(dim=-1, keepdim=True)
    return unit @ unit.T


def test_one_value_a_head_equals_one_call_a_head(structured, predict):
    q, k, _ = structured(700, heads=4, k_heads=2)
    theta, tau = [0.1, 0.5, -0.3, 1.0], torch.tensor([0.5, 0.9, 0.98, 0.2])
    together = predict(q, k, theta=theta, tau=tau)
    for h in range(4):
        alone = predict(q[:, h : h + 1], k[:, h // 2 : h // 2 + 1], theta=theta[h], tau=float(tau[h]))
        assert torch.equal(together[:, h : h + 1], alone)
    assert together[:, 3].all()


def test_grouped_queries_equal_repeated_keys(structured, predict):
    q, k, _ = structured(500, heads=6, k_heads=2, batch=2)
    repeated = predict(q, k.repeat_interleave(3, 1), theta=0.3)
    assert torch.equal(predict(q, k, theta=0.3), repeated)


def test_a_layout_with_heads_inside_gives_the_same(structured, predict):
    q, k, _ = structured(500, heads=4)
    strided = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k)]
    assert not strided[0].is_contiguous()
    assert torch.equal(predict(*strided, theta=0.3), predict(q, k, theta=0.3))


def test_blocks_that_cannot_be_judged_are_kept_whole(predict):
    q, k = torch.randn(2, 1, 1, 512, 64, generator=torch.Generator().manual_seed(0)).unbind()
    # Independent Gaussian tokens have a mean cosine of about 1 / n, so no block passes 0.6.
    assert predict(q, k, theta=0.6).all()
    causal = predict(q, k, theta=0.6, is_causal=True)
    assert torch.equal(causal[0, 0], causal_tiles(512, 512, 128, 64))


def test_sink_and_diagonal_are_forced(structured, predict):
    q, k, _ = structured(1024)
    bare = {"theta": -1.0, "tau": 0.0, "is_causal": True}
    one_a_row = predict(q, k, force_diagonal=False, **bare)
    assert (one_a_row.sum(-1) == 1).all()
    assert predict(q, k, attention_sink=True, **bare)[..., 0].all()
    diagonal = diagonal_tiles(1024, 1024, 128, 64)
    assert torch.equal(predict(q, k, **bare), one_a_row | diagonal)


def test_long_inputs_need_no_square_of_memory(predict):
    # 2**18 tokens squared are 64 GiB even as booleans.
    q = torch.randn(1, 1, 1 << 18, 8)
    mask = predict(q, q, theta=-1, tau=None, topk=0.01, block_q=512, block_k=512)
    assert mask.shape == (1, 1, 512, 512)
    assert mask.sum(-1).unique().tolist() == [5]
