"""The public functions: exactness where everything is kept, statistics, options, and every refusal."""

import math
import os
import subprocess
import sys

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from hexad.core.errors import InputError
from hexad.kernels.sparse_attention import (
    available_backends,
    block_sparse_attention,
    predict_block_mask,
    reference,
    sparse_attention,
)
from hexad.kernels.sparse_attention.prediction import diagonal_tiles

DENSE = {"atol": 1e-5, "rtol": 0}  # float32, values of order 1


def test_importing_the_package_loads_no_torch():
    script = "import sys, hexad.kernels.sparse_attention as s; dir(s); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", script], check=True)


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize(
    ("n_q", "n_k", "heads", "k_heads", "d"),
    [(512, 512, 2, 2, 64), (300, 300, 4, 2, 64), (200, 333, 4, 1, 128), (1, 300, 2, 2, 64)],
    ids=["whole blocks", "ragged, grouped", "fewer queries", "one query"],
)
def test_theta_of_one_is_dense(structured, n_q, n_k, heads, k_heads, d, is_causal):
    q, k, v = structured(n_q, n_k, heads=heads, k_heads=k_heads, d=d)
    out, stats = sparse_attention(q, k, v, theta=1.0, tau=0.0, is_causal=is_causal, return_stats=True)
    # Aligned at the last query and key; torch's own is_causal would align the first ones.
    mask = torch.ones(n_q, n_k, dtype=torch.bool).tril(n_k - n_q) if is_causal else None
    wanted = scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)
    torch.testing.assert_close(out, wanted, **DENSE)
    assert stats.sparsity == 0


def test_constant_blocks_with_theta_of_one_are_dense_too():
    # The similarity of equal tokens is 1, or 1.0000001 after rounding: theta = 1 must not judge it.
    q = torch.ones(1, 1, 256, 64)
    k = torch.randn(1, 1, 256, 64)
    assert predict_block_mask(q, k, theta=1.0, tau=0.0).all()
    assert predict_block_mask(k, q, theta=[1.0], tau=None, topk=0.0, smooth_k=False).all()


def test_causal_chunks_of_a_prefill_equal_the_whole(structured):
    q, k, v = structured(640)
    whole = scaled_dot_product_attention(q, k, v, is_causal=True)
    for start, stop in ((0, 200), (200, 500), (500, 640)):
        chunk = sparse_attention(
            q[:, :, start:stop], k[:, :, :stop], v[:, :, :stop], theta=1.0, is_causal=True
        )
        torch.testing.assert_close(chunk, whole[:, :, start:stop], **DENSE)


def test_permuted_tokens_give_permuted_outputs(structured):
    q, k, v = structured(500)
    order = torch.randperm(500, generator=torch.Generator().manual_seed(0))
    out = sparse_attention(q[:, :, order], k[:, :, order], v[:, :, order], theta=1.0)
    restored = torch.empty_like(out)
    restored[:, :, order] = out
    torch.testing.assert_close(restored, scaled_dot_product_attention(q, k, v), **DENSE)


def test_adding_a_constant_to_all_keys_changes_no_output(structured):
    q, k, v = structured(1024)
    for quantize in (False, True):
        options = {"theta": 0.3, "tau": 0.9, "quantize": quantize}
        out, stats = sparse_attention(q, k, v, return_stats=True, **options)
        assert stats.sparsity > 0.2
        # A shift of 5 costs float32 scores of order 100 some 1e-5; with INT8 an entry on the edge
        # between two integers may fall to the other side.
        moved = sparse_attention(q, k + 5, v, **options)
        torch.testing.assert_close(moved, out, atol=5e-3 if quantize else 1e-4, rtol=0)


def test_what_is_skipped_is_what_matters_least(structured):
    q, k, v = structured(2048)
    dense = scaled_dot_product_attention(q, k, v)
    out, stats = sparse_attention(q, k, v, theta=0.3, tau=0.98, return_stats=True)
    random = torch.rand(1, 2, 16, 32, generator=torch.Generator().manual_seed(0)) > stats.sparsity
    random[..., 0] = True
    blind = block_sparse_attention(q, k, v, random)

    def error(x):
        return float((x - dense).abs().sum() / dense.abs().sum())

    assert stats.sparsity > 0.15
    assert error(out) < 0.05 < 4 * error(out) < error(blind)


def test_one_value_a_head_equals_one_call_a_head(structured):
    q, k, v = structured(400, heads=4, k_heads=2, sink=2)
    options = {
        "theta": [0.1, 0.5, -0.3, 1.0],
        "tau": [0.5, 0.9, 0.98, 0.2],
        "pv_threshold": torch.tensor([2.0, 50.0, 4.0, math.inf]),
    }
    out = sparse_attention(q, k, v, backend="reference", **options)
    for h in range(4):
        alone = sparse_attention(
            q[:, h : h + 1],
            k[:, h // 2 : h // 2 + 1],
            v[:, h // 2 : h // 2 + 1],
            backend="reference",
            **{name: float(value[h]) for name, value in options.items()},
        )
        torch.testing.assert_close(out[:, h : h + 1], alone, atol=0, rtol=0)


@pytest.mark.parametrize("n", [512, 1024])
def test_causal_sparsity_counts_what_causal_attention_needs(structured, n):
    q, k, v = structured(n)
    mask = diagonal_tiles(n, n, 128, 64).expand(1, 2, -1, -1)  # two tiles a row
    _, stats = block_sparse_attention(q, k, v, mask, is_causal=True, return_stats=True)
    # The released code divides by (k_blocks + 2) // 2 a row, which for 128 x 64 blocks is exact.
    assert stats.needed_tiles == 2 * (n // 128) * ((n // 64 + 2) // 2)
    assert stats.kept_tiles == 2 * 2 * (n // 128)
    assert stats.sparsity == pytest.approx(1 - 2 / ((n // 64 + 2) / 2))


def test_sparsity_averages_both_products(structured):
    q, k, v = structured(200, d=16, sink=2)
    mask = torch.ones(1, 2, 7, 13, dtype=torch.bool)
    mask[..., -3:] = False
    options = {"block_q": 32, "block_k": 16, "backend": "reference"}
    _, stats = block_sparse_attention(q, k, v, mask, pv_threshold=1.0, return_stats=True, **options)
    _, pv_kept = reference.attend(
        q, k, v, mask, is_causal=False, scale=0.25, block_q=32, block_k=16, pv_threshold=torch.ones(2)
    )
    assert stats.needed_tiles == 2 * 7 * 13
    assert stats.kept_tiles == 2 * 7 * 10
    entered = int(pv_kept.sum())
    assert stats.skipped_pv_tiles == 140 - entered > 0
    assert stats.sparsity == pytest.approx(1 - (140 + entered) / (2 * 182))
    assert stats.backend == "reference"


def test_hidden_tiles_of_a_causal_mask_are_not_computed(structured):
    q, k, v = structured(512)
    mask = torch.ones(1, 2, 4, 8, dtype=torch.bool)
    out, stats = block_sparse_attention(q, k, v, mask, is_causal=True, return_stats=True)
    assert stats.kept_tiles == stats.needed_tiles == 2 * (2 + 4 + 6 + 8)
    torch.testing.assert_close(out, scaled_dot_product_attention(q, k, v, is_causal=True), **DENSE)


def test_scale_and_layout(structured):
    q, k, v = structured(300)
    out = sparse_attention(q, k, v, theta=1.0, scale=0.3)
    torch.testing.assert_close(out, scaled_dot_product_attention(q, k, v, scale=0.3), **DENSE)
    strided = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k, v)]
    torch.testing.assert_close(sparse_attention(*strided, theta=1.0, scale=0.3), out, **DENSE)
    assert out.is_contiguous()


def test_large_finite_numbers_are_no_infinity():
    x = torch.full((1, 1, 256, 64), 1e16)
    v = torch.full((1, 1, 256, 64), 1e36)  # the sum over v is 1.6e40, beyond float32
    out = sparse_attention(x, x, v, theta=-1.0, scale=1e-34)
    torch.testing.assert_close(out, v, rtol=1e-5, atol=0)


@pytest.mark.parametrize("backend", ["native", "gather", "reference"])
def test_scores_that_overflow_are_named(structured, backend):
    if available_backends()[backend] is not None:
        pytest.skip(f"no {backend} here")
    q, k, v = structured(256)
    for factor, scale in ((1e30, 1e10), (1, 1e38)):
        with pytest.raises(InputError, match=r"the scores q k\^T \* scale pass the range"):
            sparse_attention(q * factor, k, v, theta=1.0, scale=scale, backend=backend)


GOOD = torch.zeros(1, 2, 256, 16)
BAD_CALLS = {
    "three dimensions": ({"q": GOOD[0]}, r"q must be a tensor of shape \(batch, heads, tokens, head_dim\)"),
    "no values": ({"v": None}, "v must be a tensor .* got NoneType"),
    "no tensor": ({"k": [1.0]}, "k must be a tensor of shape .* got list"),
    "integers": ({"q": GOOD.long()}, "q has dtype torch.int64; give float32"),
    "no tokens": ({"k": GOOD[:, :, :0]}, "k is empty"),
    "mixed dtypes": ({"v": GOOD.half()}, "q and v must share dtype and device"),
    "mixed devices": ({"k": GOOD.to("meta")}, "q and k must share dtype and device"),
    "batches": ({"k": GOOD.expand(2, -1, -1, -1)}, "must share the batch size, got 1 and 2"),
    "head dims": ({"k": GOOD[..., :8]}, "q and k must share head_dim, got 16 and 8"),
    "k and v": ({"v": GOOD[:, :, :100]}, r"k and v must share \(batch, heads, tokens\)"),
    "heads": ({"q": GOOD[:, :1].expand(-1, 3, -1, -1)}, "3 heads, which is no multiple of the 2 heads of k"),
    "causal": ({"q": GOOD.repeat(1, 1, 2, 1), "is_causal": True}, "is_causal needs at most as many queries"),
    "tau and topk": ({"topk": 0.5}, "exactly one of tau and topk"),
    "neither": ({"tau": None}, "exactly one of tau and topk"),
    "tau": ({"tau": 1.5}, r"tau must lie in \[0, 1\], got 1.5"),
    "tau not a number": ({"tau": math.nan}, r"tau must lie in \[0, 1\], got nan"),
    "topk": ({"tau": None, "topk": -0.1}, r"topk must lie in \[0, 1\], got -0.1"),
    "theta": ({"theta": [0.5, -1.01]}, r"theta must lie in \[-1, 1\], got -1.01"),
    "lambda": (
        {"pv_threshold": -3.0, "backend": "reference"},
        r"pv_threshold must lie in \[0, inf\], got -3",
    ),
    "per head": ({"theta": [0.1, 0.2, 0.3]}, r"theta must be one number or one for each of 2 query heads"),
    "per head tensor": ({"tau": torch.ones(3)}, r"tau must be one number or one for each of 2 query heads"),
    "block": ({"block_q": 0}, "block_q must be a positive integer, got 0"),
    "fractional block": ({"block_k": 64.0}, "block_k must be a positive integer, got 64.0"),
    "scale": ({"scale": math.inf}, "scale must be a finite number"),
    "scale of a word": ({"scale": "x"}, "scale must be a number, got 'x'"),
    "scale of a tensor": ({"scale": torch.ones(3)}, "scale must be a number"),
    "negative scale": ({"scale": -0.2}, "above zero, got -0.2"),
    "scale of zero": ({"scale": 0.0}, "above zero, got 0.0"),
    "huge block": ({"block_q": 2**62}, "no tile may be larger"),
    "backend": ({"backend": "cuda"}, "backend must be one of auto, reference, native, gather, triton, flex"),
    "lambda without a filter": (
        {"backend": "gather", "pv_threshold": 5.0},
        "'gather' cannot run this call: it has no second filter",
    ),
    "sparse": ({"q": GOOD.to_sparse()}, "q is a sparse_coo tensor; give a dense"),
    "flags": ({"is_causal": 1}, "is_causal is 1; it must be True or False"),
    "flag of the filter": ({"smooth_k": "yes"}, "smooth_k is .yes.; it must be True or False"),
    "no theta": ({"theta": None}, "theta must be one number or one for each of 2 query heads, got None"),
    "a word for two numbers": ({"tau": "12"}, "tau must be one number or one for each of 2"),
    "theta without numbers": ({"theta": torch.ones(2, device="meta")}, "theta is on the meta device"),
    "gradients": ({"q": GOOD.clone().requires_grad_()}, "inference and computes no gradient"),
}


@pytest.mark.parametrize("case", BAD_CALLS)
def test_bad_input_is_named(case):
    changes, message = BAD_CALLS[case]
    q, k, v = (changes.get(name, GOOD) for name in "qkv")
    options = {name: value for name, value in changes.items() if name not in "qkv"}
    with pytest.raises(InputError, match=message):
        sparse_attention(q, k, v, **options)


@pytest.mark.parametrize("name", ["q", "k", "v"])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_what_is_not_finite_is_named(structured, name, value, dtype):
    inputs = dict(zip("qkv", structured(300, dtype=dtype), strict=True))
    inputs[name][0, 1, 299, 5] = value
    for options in ({"theta": 0.3}, {"theta": 1.0}):
        with pytest.raises(InputError, match=f"{name} holds NaN or infinity"):
            sparse_attention(**inputs, **options)
    with pytest.raises(InputError, match=f"{name} holds NaN or infinity"):
        block_sparse_attention(**inputs, block_mask=torch.ones(1, 2, 3, 5, dtype=torch.bool))


def test_a_mask_that_does_not_fit_is_named():
    call = {"q": GOOD, "k": GOOD, "v": GOOD}
    mask = torch.ones(1, 2, 2, 4, dtype=torch.bool)
    with pytest.raises(InputError, match=r"block_mask must be a boolean tensor, got torch\.float32"):
        block_sparse_attention(**call, block_mask=mask.float())
    with pytest.raises(InputError, match=r"= \(1, 2, 2, 4\) for 256 queries .* got \(1, 2, 4, 4\)"):
        block_sparse_attention(**call, block_mask=mask.repeat(1, 1, 2, 1))
    with pytest.raises(InputError, match="block_mask is on meta, q on cpu"):
        block_sparse_attention(**call, block_mask=mask.to("meta"))


def test_an_empty_row_is_named():
    mask = torch.ones(1, 2, 2, 4, dtype=torch.bool)
    mask[0, 1, 1] = False
    with pytest.raises(InputError, match=r"row \(batch 0, head 1, q block 1\) is empty: it keeps no"):
        block_sparse_attention(GOOD, GOOD, GOOD, mask)
    # Tile 3 begins at key 192, after the first query of block 1 (128), which is left without a key.
    mask[0, 1, 1, 3] = True
    with pytest.raises(InputError, match="its first query sees none of the kept keys; keep the diagonal"):
        block_sparse_attention(GOOD, GOOD, GOOD, mask, is_causal=True)
    mask[0, 1, 1, 2] = True
    assert not block_sparse_attention(GOOD, GOOD, GOOD, mask, is_causal=True).isnan().any()


def test_gradient_inputs_pass_where_no_gradient_is_recorded(structured):
    q, k, v = structured(256)
    q.requires_grad_()
    with torch.no_grad():
        out = sparse_attention(q, k, v, theta=1.0)
    assert not out.requires_grad
    with torch.inference_mode():
        sparse_attention(q, k, v, theta=1.0)
    assert not predict_block_mask(q, k).requires_grad  # a mask carries none


def test_available_backends_say_why_not():
    reasons = available_backends("cpu", torch.float32)
    assert list(reasons) == ["reference", "native", "gather", "triton", "flex"]
    assert reasons["reference"] is None
    assert reasons["gather"] is None
    assert available_backends("cuda")["gather"] == "it is a CPU path"


def test_auto_honours_every_option(structured):
    q, k, v = structured(256, sink=2)
    _, stats = sparse_attention(q, k, v, theta=1.0, pv_threshold=1.0, return_stats=True)
    assert stats.skipped_pv_tiles > 0  # whichever ran, it did not drop the second filter
    _, stats = sparse_attention(q, k, v, theta=1.0, backend="reference", return_stats=True)
    assert stats.backend == "reference"
    _, stats = sparse_attention(q.double(), k.double(), v.double(), theta=1.0, return_stats=True)
    assert stats.backend == "gather"  # native code has no float64


ON_ANOTHER_MACHINE = """
import torch
from hexad.kernels.sparse_attention import predict_block_mask, sparse_attention
q, k, v = torch.randn(3, 1, 2, 300, 16)
for _ in range(2):
    out, stats = sparse_attention(q, k, v, theta=1.0, return_stats=True)
    predict_block_mask(q, k)
wanted = torch.nn.functional.scaled_dot_product_attention(q, k, v)
torch.testing.assert_close(out, wanted, atol=1e-5, rtol=0)
print(stats.backend)
"""


@pytest.mark.parametrize("why", ["no compiler", "switched off"])
def test_torch_serves_where_native_code_cannot(tmp_path, why):
    environment = {**os.environ, "HEXAD_CACHE": str(tmp_path)}
    environment |= (
        {"PATH": "", "CXX": "", "HEXAD_NATIVE": "1"} if why == "no compiler" else {"HEXAD_NATIVE": "0"}
    )
    command = [sys.executable, "-c", ON_ANOTHER_MACHINE]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["gather"]
    log = [line for line in done.stderr.splitlines() if "native" in line]
    # One line in the log; none where the user asked for it.
    assert len(log) == (1 if why == "no compiler" else 0), done.stderr
