import math

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from hexad.core.errors import InputError
from hexad.kernels.sparse_attention import block_sparse_attention
from hexad.llm_efficiency.spargeattn import (
    AttentionCall,
    HeadParams,
    SpargeTuner,
    block_mask,
    sparge_attention,
)
from hexad.llm_efficiency.spargeattn.scoring import relative_l1, score
from hexad.llm_efficiency.spargeattn.tuning import THETAS, Trials

BLOCKS = {"block_q": 32, "block_k": 16}


@pytest.fixture
def call(make_qkv):
    q, k, v = make_qkv(n_q=128, heads=2, noise=0.4)
    # Values follow the keys' runs, as in a trained model; independent ones would average to nothing.
    return AttentionCall(q, k, 0.3 * v + k @ torch.randn(32, 32, generator=torch.Generator().manual_seed(9)))


def brute_error(call, theta, tau, pv_threshold=None):
    """Relative L1 error of each head, by the public functions alone."""
    params = HeadParams(theta, tau, pv_threshold=pv_threshold, **BLOCKS)
    output = sparge_attention(call.q, call.k, call.v, params=params, is_causal=call.is_causal)
    dense = scaled_dot_product_attention(call.q, call.k, call.v, is_causal=call.is_causal)
    return (output - dense).abs().sum((0, 2, 3)) / dense.abs().sum((0, 2, 3))


@pytest.mark.parametrize("is_causal", [False, True])
def test_search_finds_what_a_fine_grid_of_taus_finds(call, is_causal):
    """The smallest tau of a brute-force grid that meets l1, at several thetas."""
    call = AttentionCall(call.q, call.k, call.v, is_causal)
    tuner = SpargeTuner(0.1, 0.11, second_filter=False, **BLOCKS)
    trials = tuner.search(call)
    for theta in (-1.0, 0.0, 0.5):
        t = THETAS.index(theta)
        found = trials.tau[t]
        assert (brute_error(call, theta, found.float()) < 0.1).all()
        for head in range(2):
            # Bisection needs an error that falls with tau to find the smallest; just below, it must not hold.
            below = torch.full((2,), float(found[head]) - 2e-3)
            assert brute_error(call, theta, below)[head] >= 0.1
        mask = block_mask(call.q, call.k, HeadParams(theta, found.float(), **BLOCKS), is_causal=is_causal)
        needed = block_mask(call.q, call.k, HeadParams(1.0, **BLOCKS), is_causal=is_causal)
        skipped = 1 - mask.sum((0, 2, 3)) / needed.sum((0, 2, 3))
        torch.testing.assert_close(trials.sparsity[t].float(), skipped)


def test_search_finds_the_smallest_lambda(call):
    tuner = SpargeTuner(0.1, 0.11, backend="reference", **BLOCKS)
    trials = tuner.search(call)
    t = THETAS.index(0.0)
    found = trials.pv_threshold[t].float()
    assert (found < 50).all()
    assert (brute_error(call, 0.0, trials.tau[t].float(), found) < 0.11).all()
    # Head 0 bears lambda = 0, head 1 does not: two widths of the bisection less and its error is too large.
    assert found[0] < 0.1 < 0.2 < found[1]
    assert brute_error(call, 0.0, trials.tau[t].float(), (found - 0.2).clamp(min=0))[1] >= 0.11


def test_search_stops_raising_theta_once_little_is_skipped(make_qkv):
    q, k, v = make_qkv(n_q=128, noise=0.8)
    trials = SpargeTuner(0.4, 0.5, second_filter=False, **BLOCKS).search(AttentionCall(q, k, v))
    for head in range(2):
        tried = trials.sparsity[:, head].isfinite()
        last = int(tried.nonzero().max())
        assert tried[: last + 1].all()
        assert (trials.sparsity[:last, head] >= 0.1).all()
        assert trials.sparsity[last, head] < 0.1
        assert 0 < last < len(THETAS) - 1


def test_cached_bisection_evaluates_each_mask_once(call, monkeypatch):
    """Equal masks have equal verdicts: no (head, mask) pair may be attended twice within a theta."""
    seen = []

    def counting(q, k, v, mask, **options):
        seen.extend((float(q[0, h, 0, 0]), mask[0, h].flatten().tolist()) for h in range(mask.shape[1]))
        return block_sparse_attention(q, k, v, mask, **options)

    monkeypatch.setattr("hexad.llm_efficiency.spargeattn.tuning.block_sparse_attention", counting)
    monkeypatch.setattr("hexad.llm_efficiency.spargeattn.tuning.THETAS", (-1.0,))
    SpargeTuner(second_filter=False, **BLOCKS).search(call)
    assert 2 <= len(seen) <= 2 * 11
    assert len({str(item) for item in seen}) == len(seen)


def make_trials(rows):
    """Trials of one head from {theta: (tau, lambda, sparsity)}."""
    tau, pv, sparsity = torch.full((3, len(THETAS), 1), math.nan, dtype=torch.float64)
    for theta, values in rows.items():
        t = THETAS.index(theta)
        tau[t, 0], pv[t, 0], sparsity[t, 0] = values
    return Trials(tau, pv, sparsity)


def test_pooling_takes_the_most_careful_values_of_the_bin_that_skips_most():
    """Worked by hand: bins [-1, -7/8) sum 0.9, [-7/8, -3/4) 1.5 and [-3/4, -5/8) 0.3."""
    first = make_trials(
        {-1.0: (0.5, 10, 0.4), -0.9375: (0.6, 11, 0.2), -0.875: (0.7, 12, 0.6), -0.75: (1, 9, 0.3)}
    )
    second = make_trials({-1.0: (0.9, 45, 0.3), -0.875: (0.65, 30, 0.5), -0.8125: (0.55, 20, 0.4)})
    tuner = SpargeTuner()
    params = tuner.pool([first, second])
    assert params.theta.tolist() == [-0.8125]
    assert params.tau.tolist() == pytest.approx([0.7])
    assert params.pv_threshold.tolist() == [30]
    assert params.attention_sink
    assert tuner.sparsity_.tolist() == pytest.approx([0.5])
    assert not tuner.dense_.any()


def test_a_head_that_skips_too_little_stays_dense():
    params = SpargeTuner().pool([make_trials({-1.0: (0.9, 5, 0.1)}), make_trials({-1.0: (0.9, 5, 0.1)})])
    assert (params.theta.item(), params.tau.item(), params.pv_threshold.item()) == (1.0, 1.0, 50.0)


def test_tuned_heads_keep_the_error_on_inputs_never_seen(make_qkv):
    """Tune on five inputs, test on three others of the same kind; 1.5 x l1 allows for the change of input."""
    mix = torch.randn(32, 32, generator=torch.Generator().manual_seed(9))

    def make(seed):
        q, k, v = make_qkv(n_q=256, heads=2, noise=0.4, seed=seed)
        q[:, 1] = torch.randn(q[:, 1].shape, generator=torch.Generator().manual_seed(seed))  # no structure
        return AttentionCall(q, k, 0.3 * v + k @ mix)

    notes = []
    tuner = SpargeTuner(0.07, 0.08, second_filter=False, **BLOCKS)
    params = tuner.fit([make(seed) for seed in range(5)], progress=lambda *note: notes.append(note))
    for seed in range(5, 8):
        result = score(params, make(seed))
        assert (result.rel_l1 < 0.07 * 1.5).all()
        assert result.sparsity[0] > 0.25
    fractions = [fraction for fraction, _ in notes]
    assert fractions == sorted(fractions)
    assert fractions[-1] == 1.0
    assert len(tuner.trials_) == 5


def test_a_tighter_bound_keeps_more(call):
    loose = SpargeTuner(0.15, 0.2, second_filter=False, min_inputs=1, **BLOCKS)
    tight = SpargeTuner(0.02, 0.03, second_filter=False, min_inputs=1, **BLOCKS)
    loose.fit([call])
    tight.fit([call])
    assert (tight.sparsity_ <= loose.sparsity_).all()
    assert (tight.sparsity_ < loose.sparsity_).any()


def test_grouped_queries_are_tuned_per_query_head(make_qkv):
    q, k, v = make_qkv(n_q=128, heads=4, k_heads=2)
    call = AttentionCall(q, k, v)
    grouped = SpargeTuner(second_filter=False, **BLOCKS).search(call)
    expanded = AttentionCall(q, k.repeat_interleave(2, 1), v.repeat_interleave(2, 1))
    torch.testing.assert_close(
        grouped.tau, SpargeTuner(second_filter=False, **BLOCKS).search(expanded).tau, equal_nan=True
    )


def test_relative_l1():
    dense = torch.tensor([[[[1.0, -3.0]], [[2.0, 2.0]]]])
    torch.testing.assert_close(
        relative_l1(dense + 0.5, dense), torch.tensor([0.25, 0.25], dtype=torch.float64)
    )


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_relative_l1_of_any_dtype(dtype):
    """1e-7: sums of 64 float32 numbers; a difference rounded to bfloat16 again would miss by 1e-3."""
    generator = torch.Generator().manual_seed(0)
    dense = torch.randn(2, 3, 50, 64, generator=generator).to(dtype)
    output = (dense.double() + 0.1 * torch.randn(dense.shape, generator=generator)).to(dtype)
    difference = (output.double() - dense.double()).abs().sum((0, 2, 3))
    expected = difference / dense.double().abs().sum((0, 2, 3))
    torch.testing.assert_close(relative_l1(output, dense), expected, rtol=1e-7, atol=0)


def test_bad_requests_are_refused(call, make_qkv):
    with pytest.raises(InputError, match="l2"):
        SpargeTuner(0.08, 0.08)
    assert SpargeTuner(0.3, second_filter=False).l1 == 0.3  # without a second filter there is no second bound
    for options, message in (
        ({"l1": "x"}, "l1 must be a number"),
        ({"block_q": 2.5}, "block_q is 2.5"),
        ({"smooth_k": 1}, "smooth_k is 1"),
        ({"second_filter": "no"}, "second_filter is 'no'"),
        ({"min_inputs": 2.5}, "min_inputs is 2.5"),
        ({"min_inputs": 0}, "min_inputs is 0"),
        ({"backend": "cuda"}, "unknown backend 'cuda'"),
    ):
        with pytest.raises(InputError, match=message):
            SpargeTuner(**options)
    for calls in ([(1, 2, 3)] * 5, [call, None], call, None, iter([call])):
        with pytest.raises(InputError, match="AttentionCall"):
            SpargeTuner().fit(calls)
    with pytest.raises(InputError, match="must be an AttentionCall"):
        SpargeTuner().search((call.q, call.k, call.v))
    with pytest.raises(InputError, match="params must be HeadParams, not dict"):
        score({}, call)
    with pytest.raises(InputError, match="l1"):
        SpargeTuner(0.0, 0.1)
    with pytest.raises(InputError, match="1 inputs to tune on, fewer than the 5"):
        SpargeTuner().fit([call])
    with pytest.raises(InputError, match="different numbers of heads"):
        SpargeTuner(min_inputs=2).fit([call, AttentionCall(*make_qkv(heads=1))])
