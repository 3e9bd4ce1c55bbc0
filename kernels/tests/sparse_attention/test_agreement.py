"""Every backend against SDPA in float64 and against the reference, over dtypes, shapes and options.

Triton runs such cases under its interpreter in test_triton.py, and flex_attention, which compiles for each
shape, a few of them in test_flex.py.
"""

import pytest
import torch

from hexad.kernels.sparse_attention import available_backends, block_sparse_attention, sparse_attention

BACKENDS = ["reference", "native", "gather"]
# Of outputs of order 1: float32 sums of some hundred terms; one rounding of the output to 11 (float16) or
# 8 bits (bfloat16), and one more of the softmax weights where the products run in that dtype.
TOLERANCE = {torch.float32: 3e-6, torch.float16: 2e-3, torch.bfloat16: 2e-2}

SHAPES = {
    "whole blocks": {"n_q": 384},
    "head dim 128": {"n_q": 256, "d": 128},
    "odd head dims": {"n_q": 256, "d": 40, "d_v": 24},
    "ragged": {"n_q": 333},
    "grouped queries, two in a batch": {"n_q": 300, "heads": 4, "k_heads": 2, "batch": 2},
    "more keys than queries": {"n_q": 200, "n_k": 477},
    "more queries than keys": {"n_q": 477, "n_k": 200},
    "one query": {"n_q": 1, "n_k": 200},
    "shorter than a block": {"n_q": 40},
}


@pytest.fixture
def backend(request):
    reason = available_backends("cpu")[request.param]
    if reason is not None:
        pytest.skip(reason)
    return request.param


@pytest.mark.parametrize("backend", BACKENDS, indirect=True)
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize(
    ("shape", "is_causal"),
    [(name, False) for name in SHAPES]
    + [(name, True) for name in SHAPES if name != "more queries than keys"],
)
def test_any_mask_equals_sdpa_with_the_expanded_mask(
    structured, oracle, random_mask, backend, dtype, is_causal, shape
):
    q, k, v = structured(dtype=dtype, **SHAPES[shape])
    mask = random_mask(q.shape[0], q.shape[1], -(-q.shape[2] // 128), -(-k.shape[2] // 64), 0.4)
    out, stats = block_sparse_attention(
        q, k, v, mask, is_causal=is_causal, backend=backend, return_stats=True
    )
    wanted = oracle(q, k, v, mask, is_causal=is_causal)
    assert stats.backend == backend
    assert out.dtype == dtype
    assert out.is_contiguous()
    torch.testing.assert_close(out.double(), wanted, atol=TOLERANCE[dtype], rtol=0)


@pytest.mark.parametrize("backend", BACKENDS, indirect=True)
@pytest.mark.parametrize("is_causal", [False, True], ids=["full", "causal"])
def test_predicted_tiles_equal_the_reference(structured, backend, is_causal):
    q, k, v = structured(1100, heads=4, k_heads=2)
    options = {"theta": 0.3, "tau": 0.9, "is_causal": is_causal, "scale": 0.2, "return_stats": True}
    out, stats = sparse_attention(q, k, v, backend=backend, **options)
    wanted, reference_stats = sparse_attention(q, k, v, backend="reference", **options)
    assert stats.sparsity == reference_stats.sparsity > 0.1
    torch.testing.assert_close(out, wanted, atol=2 * TOLERANCE[torch.float32], rtol=0)  # both are float32


@pytest.mark.parametrize("backend", BACKENDS, indirect=True)
@pytest.mark.parametrize("is_causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_int8_scores_cost_little(structured, backend, is_causal, dtype):
    q, k, v = structured(333, heads=4, k_heads=2, dtype=dtype)
    options = {"theta": 1.0, "is_causal": is_causal}
    out = sparse_attention(q, k, v, quantize=True, backend=backend, **options)
    wanted = sparse_attention(q, k, v, quantize=True, backend="reference", **options)
    # With INT8 scores the native path takes P V to bfloat16 too, where it has a matrix unit.
    tolerance = TOLERANCE[torch.bfloat16 if backend == "native" else dtype]
    torch.testing.assert_close(out, wanted, atol=tolerance, rtol=0)
    exact = sparse_attention(q, k, v, backend="reference", **options)
    error = float((out - exact).abs().sum() / exact.abs().sum())
    # A step of 1 / 127 of the largest entry of Q and K: seen here is about a quarter of a percent.
    assert 1e-4 < error < 0.02


@pytest.mark.parametrize("backend", ["native", "gather"], indirect=True)
def test_many_heads_and_long_rows(structured, oracle, random_mask, backend):
    q, k, v = structured(130, 3000, heads=8, k_heads=4)
    for keep in (0.02, 0.5):
        mask = random_mask(1, 8, 2, 47, keep)
        out = block_sparse_attention(q, k, v, mask, backend=backend)
        torch.testing.assert_close(out.double(), oracle(q, k, v, mask), atol=3e-6, rtol=0)
