"""The oracles of attention as a whole; those of the kernel alone are in the kernels' own tests."""

import numpy as np
import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from hexad.core.errors import InputError
from hexad.llm_efficiency.spargeattn import (
    AttentionCall,
    HeadParams,
    block_mask,
    dense_attention,
    sparge_attention,
)

BLOCKS = {"block_q": 64, "block_k": 32}


@pytest.mark.parametrize(
    ("shape", "is_causal"),
    [
        ({}, False),
        ({}, True),
        ({"n_q": 197}, False),
        ({"n_q": 197}, True),
        ({"heads": 6, "k_heads": 2}, False),
        ({"heads": 6, "k_heads": 2, "n_q": 131}, True),
        ({"n_q": 70, "n_k": 211}, False),
        ({"n_q": 70, "n_k": 211, "heads": 4, "k_heads": 1}, True),
        ({"n_q": 1, "n_k": 90}, True),
        ({"n_q": 211, "n_k": 70}, False),
    ],
    ids=str,
)
@pytest.mark.parametrize("layout", ["HND", "NHD"])
def test_theta_of_one_means_dense(make_qkv, shape, is_causal, layout):
    """Equal to torch's attention to 1e-5: float32 sums of up to 256 terms of order 1 in another order."""
    q, k, v = make_qkv(batch=2, **shape)
    group = q.shape[1] // k.shape[1]
    n_q, n_k = q.shape[2], k.shape[2]
    visible = torch.ones(n_q, n_k, dtype=torch.bool).tril(n_k - n_q) if is_causal else None
    expected = scaled_dot_product_attention(
        q, k.repeat_interleave(group, 1), v.repeat_interleave(group, 1), attn_mask=visible
    )
    given = (q, k, v) if layout == "HND" else tuple(x.transpose(1, 2) for x in (q, k, v))
    output = sparge_attention(*given, is_causal=is_causal, theta=1.0, tensor_layout=layout, **BLOCKS)
    output = output if layout == "HND" else output.transpose(1, 2)
    torch.testing.assert_close(output, expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(dense_attention(q, k, v, is_causal=is_causal), expected, atol=1e-5, rtol=1e-5)


def test_torchs_own_arguments_are_taken(make_qkv):
    """A call written for scaled_dot_product_attention with grouped queries needs no change but the name."""
    q, k, v = make_qkv(heads=4, k_heads=2)
    arguments = (q, k, v, None, 0.0, True)
    expected = scaled_dot_product_attention(*arguments, scale=0.2, enable_gqa=True)
    output = sparge_attention(*arguments, scale=0.2, enable_gqa=True, theta=1.0)
    torch.testing.assert_close(output, expected, atol=1e-5, rtol=1e-5)


def test_tensors_without_numbers_give_one_alike(make_qkv):
    """As torch's function does: shapes can be tried on the meta device."""
    q, k, v = (x.to("meta") for x in make_qkv())
    output = sparge_attention(q, k, v)
    assert (output.shape, output.device.type) == (q.shape, "meta")


@pytest.mark.parametrize("is_causal", [False, True])
def test_compiled_whole_with_vectors_from_outside(make_qkv, is_causal):
    """Thresholds captured by the compiled function, given to it, and held by parameters: equal to eager."""
    q, k, v = make_qkv()
    theta, tau = torch.tensor([0.5, 0.2]), torch.tensor([0.9, 0.6])
    params = HeadParams(theta=theta, tau=tau, **BLOCKS)

    def attend(q, k, v, given):
        options = {"is_causal": is_causal, **BLOCKS}
        return (
            sparge_attention(q, k, v, theta=theta, tau=tau, **options),
            sparge_attention(q, k, v, theta=given, tau=None, topk=[0.5, 0.25], **options),
            sparge_attention(q, k, v, is_causal=is_causal, params=params),
        )

    # The graph is what can break; turning it into C++ takes long and changes nothing in a custom operator.
    compiled = torch.compile(attend, fullgraph=True, backend="aot_eager")
    for found, expected in zip(compiled(q, k, v, theta), attend(q, k, v, theta), strict=True):
        assert torch.equal(found, expected)
    with pytest.raises(InputError, match="theta must lie in"):
        compiled(q, k, v, theta + 2)


def test_scale_is_honoured(make_qkv):
    q, k, v = make_qkv()
    expected = scaled_dot_product_attention(q, k, v, scale=0.05)
    torch.testing.assert_close(
        sparge_attention(q, k, v, scale=0.05, theta=1.0), expected, atol=1e-5, rtol=1e-5
    )


def test_a_constant_vector_added_to_all_keys_changes_nothing(make_qkv):
    (q, _, _), (_, k, v) = make_qkv(), make_qkv(noise=1.0)
    shifted = k + 3 * torch.randn(k.shape[-1], generator=torch.Generator().manual_seed(7))
    params = HeadParams(theta=0.5, tau=0.6, block_q=32, block_k=32)
    assert torch.equal(block_mask(q, k, params), block_mask(q, shifted, params))
    output, stats = sparge_attention(q, k, v, params=params, return_stats=True)
    assert stats.sparsity > 0.5
    # The scores carry an offset of about 20, so float32 leaves 20 * 6e-8 * a few in the exponent.
    torch.testing.assert_close(sparge_attention(q, shifted, v, params=params), output, atol=5e-5, rtol=5e-5)
    # Without smoothing a shift makes every block look alike, so the smoothing is what was tested.
    raw = HeadParams(theta=0.8, tau=0.6, block_q=32, block_k=32, smooth_k=False)
    assert not torch.equal(block_mask(q, k, raw), block_mask(q, shifted, raw))


def test_permuted_tokens_give_the_permuted_output_when_all_tiles_are_kept(make_qkv):
    q, k, v = make_qkv(n_q=200)
    order = torch.randperm(200, generator=torch.Generator().manual_seed(3))
    inverse = order.argsort()
    permuted = sparge_attention(q[:, :, order], k[:, :, order], v[:, :, order], theta=1.0)
    torch.testing.assert_close(
        permuted[:, :, inverse], scaled_dot_product_attention(q, k, v), atol=1e-5, rtol=1e-5
    )


def test_whole_blocks_may_be_permuted_even_when_tiles_are_skipped(make_qkv):
    """Nothing in the non-causal filter depends on where a block lies in the sequence."""
    q, k, v = make_qkv()
    generator = torch.Generator().manual_seed(5)
    rows = torch.arange(256).reshape(4, 64)[torch.randperm(4, generator=generator)].flatten()
    columns = torch.arange(256).reshape(8, 32)[torch.randperm(8, generator=generator)].flatten()
    options = {"theta": 0.5, "tau": 0.6, **BLOCKS}
    output, stats = sparge_attention(q, k, v, return_stats=True, **options)
    permuted, stats_permuted = sparge_attention(
        q[:, :, rows], k[:, :, columns], v[:, :, columns], return_stats=True, **options
    )
    assert 0.2 < stats.sparsity == stats_permuted.sparsity
    torch.testing.assert_close(permuted, output[:, :, rows], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("name", ["tau", "topk"])
def test_sparsity_falls_and_error_vanishes_as_more_is_kept(make_qkv, name, is_causal):
    q, k, v = make_qkv(n_q=320)
    dense = dense_attention(q, k, v, is_causal=is_causal)
    sparsity, error = [], []
    for value in (0.0, 0.2, 0.5, 0.8, 0.95, 1.0):
        options = {"tau": None, name: value, "theta": -1.0, "is_causal": is_causal, **BLOCKS}
        output, stats = sparge_attention(q, k, v, return_stats=True, **options)
        sparsity.append(stats.sparsity)
        error.append(float((output - dense).abs().mean()))
    assert sparsity == sorted(sparsity, reverse=True)
    assert sparsity[0] > 0.5
    assert sparsity[-1] == pytest.approx(0 if name == "topk" else sparsity[-1])
    assert error[0] > 0.05
    assert error[-1] < 1e-3 * error[0]


def test_values_per_head_act_on_their_head_alone(make_qkv):
    q, k, v = make_qkv(heads=2)
    both = sparge_attention(q, k, v, theta=torch.tensor([0.5, 1.0]), tau=torch.tensor([0.4, 0.9]), **BLOCKS)
    first = sparge_attention(q, k, v, theta=0.5, tau=0.4, **BLOCKS)
    torch.testing.assert_close(both[:, 0], first[:, 0])
    torch.testing.assert_close(both[:, 1], scaled_dot_product_attention(q, k, v)[:, 1], atol=1e-5, rtol=1e-5)
    assert not torch.allclose(both[:, 0], scaled_dot_product_attention(q, k, v)[:, 0], atol=1e-2)


def test_stats_say_what_ran_and_what_was_skipped(make_qkv):
    q, k, v = make_qkv()
    params = HeadParams(theta=0.5, tau=0.6, **BLOCKS)
    _, stats = sparge_attention(q, k, v, params=params, backend="reference", return_stats=True)
    mask = block_mask(q, k, params)
    assert stats.backend == "reference"
    assert stats.kept_tiles == int(mask.sum())
    assert stats.needed_tiles == mask.numel()
    assert stats.sparsity == pytest.approx(1 - float(mask.float().mean()))


def test_a_huge_lambda_is_no_second_filter_and_a_small_one_skips_more(make_qkv):
    q, k, v = make_qkv()
    options = {"theta": 0.5, "tau": 0.9, "backend": "reference", "return_stats": True, **BLOCKS}
    plain, none = sparge_attention(q, k, v, **options)
    same, huge = sparge_attention(q, k, v, pv_threshold=1e6, **options)
    assert torch.equal(plain, same)
    assert none.skipped_pv_tiles == huge.skipped_pv_tiles == 0
    _, small = sparge_attention(q, k, v, pv_threshold=0.0, **options)
    assert small.skipped_pv_tiles > 0
    assert small.sparsity > none.sparsity


BAD = [
    ({"attn_mask": torch.zeros(4, 4)}, "no attn_mask"),
    ({"dropout_p": 0.1}, "dropout_p is 0.1"),
    ({"tau": 0.5, "topk": 0.5}, "both set"),
    ({"tau": None}, "both None"),
    ({"tau": 1.2}, "tau is 1.2"),
    ({"theta": -1.2}, "theta is -1.2"),
    ({"theta": torch.zeros(3)}, "one for each of 2 query heads"),
    ({"pv_threshold": -5.0}, "pv_threshold is -5.0"),
    ({"block_q": 0}, "block_q"),
    ({"tensor_layout": "NDH"}, "tensor_layout"),
    ({"backend": "cuda"}, "backend"),
    ({"params": HeadParams(), "theta": 0.5}, "params already holds"),
    ({"params": HeadParams(), "theta": np.array([0.5, 0.5])}, "params already holds"),
    ({"params": HeadParams(), "theta": torch.full((2,), 0.6)}, "params already holds"),
    ({"params": {}}, "params must be HeadParams, not dict"),
    ({"theta": None}, "theta is None"),
    ({"theta": [0.5, 0.5, 0.5]}, "one for each of 2 query heads"),
    ({"block_q": "64"}, "block_q is '64'"),
    ({"scale": "x"}, "scale"),
    ({"scale": torch.ones(3)}, "scale"),
    ({"is_causal": "yes"}, "is_causal is 'yes'"),
    ({"quantize": 1}, "quantize is 1"),
    ({"enable_gqa": None}, "enable_gqa is None"),
    ({"return_stats": "no"}, "return_stats is 'no'"),
    ({"dropout_p": None}, "dropout_p is None"),
    ({"dropout_p": torch.zeros(2)}, "dropout_p is tensor"),
    ({"tensor_layout": None}, "tensor_layout None"),
    ({"backend": None}, "backend"),
]


@pytest.mark.parametrize(("options", "message"), BAD, ids=[str(options) for options, _ in BAD])
def test_bad_options_are_refused(make_qkv, options, message):
    with pytest.raises(InputError, match=message):
        sparge_attention(*make_qkv(), **options)


def test_bad_tensors_are_refused(make_qkv):
    q, k, v = make_qkv()
    with pytest.raises(InputError, match="multiple"):
        sparge_attention(q.repeat(1, 2, 1, 1)[:, :3], k, v)
    with pytest.raises(InputError, match="causal"):
        sparge_attention(*make_qkv(n_q=200, n_k=100), is_causal=True)
    with pytest.raises(InputError, match="gradient"):
        sparge_attention(q.clone().requires_grad_(), k, v)
    for value in (float("nan"), float("inf")):
        for which in range(3):
            bad = [x.clone() for x in (q, k, v)]
            bad[which][0, 1, 17, 3] = value
            with pytest.raises(InputError, match=f"{'qkv'[which]} holds NaN or infinity"):
                sparge_attention(*bad)
    with pytest.raises(InputError, match="shape"):
        sparge_attention(q[0], k, v)
    for unlike in (q.to_sparse(), torch.nested.nested_tensor(list(q), layout=torch.jagged)):
        with pytest.raises(InputError, match="q is a"):
            sparge_attention(unlike, k, v)
    with pytest.raises(InputError, match="meta device"):
        sparge_attention(*(x.to("meta") for x in (q, k, v)), return_stats=True)
    with pytest.raises(InputError, match="q must be a tensor"):
        dense_attention(1, k, v)
    for attend in (sparge_attention, dense_attention, AttentionCall):
        with pytest.raises(InputError, match="v is None"):
            attend(q, k, None)
        with pytest.raises(InputError, match="q and k must share dtype"):
            attend(q, k.half(), v)
        with pytest.raises(InputError, match="is_causal is 1"):
            attend(q, k, v, is_causal=1)
    with pytest.raises(InputError, match="params must be HeadParams"):
        block_mask(q, k, {})
    with pytest.raises(InputError, match="is_causal is 1"):
        block_mask(q, k, is_causal=1)
    with pytest.raises(InputError, match="q must be a tensor"):
        sparge_attention("q", k, v, tensor_layout="NHD")
