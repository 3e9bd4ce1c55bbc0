"""The Triton kernel against the reference: interpreted on a CPU here, compiled where there is a GPU.

Triton decides when a kernel is defined whether to interpret it, so the interpreted tests run in a process
of their own that has TRITON_INTERPRET set from the start.
"""

import math
import os
import re

import pytest
import torch

from hexad.core.errors import InputError
from hexad.kernels.sparse_attention import block_sparse_attention, reference, sparse_attention
from hexad.kernels.sparse_attention.prediction import causal_tiles

triton = pytest.importorskip("triton")

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICES = ["cpu"] if INTERPRETED else [pytest.param("cuda", marks=pytest.mark.gpu)]
# One rounding of a value of order 1 to each dtype, a few times over (bfloat16 keeps 8 bits, float16 11).
TOLERANCE = {torch.float32: 3e-6, torch.float16: 2e-3, torch.bfloat16: 2e-2}


@pytest.mark.skipif(INTERPRETED, reason="is the process that it would start")
def test_under_the_interpreter(run_interpreted):
    run_interpreted(__file__)


@pytest.mark.skipif(INTERPRETED, reason="the interpreter takes CPU tensors")
def test_cpu_tensors_are_refused_without_the_interpreter():
    x = torch.randn(1, 1, 64, 16)
    with pytest.raises(InputError, match="'triton' cannot run this call: it needs CUDA tensors"):
        sparse_attention(x, x, x, backend="triton")


@pytest.mark.skipif(INTERPRETED, reason="an interpreted kernel has nothing to compile")
@pytest.mark.parametrize("capability", [80, 90])
@pytest.mark.parametrize(
    ("dtype", "quantized", "causal", "filtered"),
    [("fp16", False, False, False), ("bf16", True, True, True), ("fp16", True, False, False)],
)
def test_compiles_to_machine_code_without_a_gpu(
    tmp_path, monkeypatch, capability, dtype, quantized, causal, filtered
):
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from hexad.kernels.sparse_attention.triton import _forward_kernel

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", "1")
    sizes = {"HEAD_DIM": 64, "VALUE_DIM": 64, "PADDED_HEAD_DIM": 64, "PADDED_VALUE_DIM": 64}
    constants = sizes | {"BLOCK_Q": 128, "BLOCK_K": 64, "MAX_START": reference.RUNNING_MAX_START}
    constants |= {"CAUSAL": causal, "QUANTIZED": quantized, "FILTERED": filtered}
    scores = "*i8" if quantized else f"*{dtype}"
    types = {"q_ptr": scores, "k_ptr": scores, "v_ptr": f"*{dtype}", "out_ptr": f"*{dtype}"}
    types |= dict.fromkeys(("q_scale_ptr", "k_scale_ptr", "threshold_ptr"), "*fp32")
    types |= dict.fromkeys(("count_ptr", "index_ptr", "skipped_ptr"), "*i32") | {"score_scale": "fp32"}
    types |= dict.fromkeys(constants, "constexpr")
    signature = {name: types.get(name, "i32") for name in _forward_kernel.arg_names}
    source = ASTSource(_forward_kernel, signature, constants)
    target = GPUTarget("cuda", capability, 32)
    compiled = triton.compile(source, target=target, options={"num_warps": 8})
    assert len(compiled.asm["cubin"]) > 10_000
    # INT8 scores go to the integer tensor cores.
    assert bool(re.search(r"mma\S*\.s8", compiled.asm["ptx"])) == quantized


CASES = {
    "plain": {},
    "causal": {"is_causal": True},
    "head dim 128": {"d": 128},
    "head dim 40, value dim 24": {"d": 40, "d_v": 24},
    "ragged": {"n_q": 101, "n_k": 101},
    "ragged causal": {"n_q": 101, "n_k": 101, "is_causal": True},
    "grouped queries": {"heads": 4, "k_heads": 2},
    "more keys than queries, causal": {"n_q": 50, "n_k": 131, "is_causal": True},
    "more queries than keys": {"n_q": 131, "n_k": 50},
    "one query": {"n_q": 1, "n_k": 131, "is_causal": True},
    "two in a batch": {"batch": 2, "n_q": 64, "n_k": 64},
}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("case", CASES)
def test_equals_sdpa_with_the_expanded_mask(structured, oracle, random_mask, case, dtype, device):
    shape = {"n_q": 128, "n_k": 128, "heads": 2, "d": 64} | CASES[case]
    is_causal = shape.pop("is_causal", False)
    q, k, v = structured(dtype=dtype, **shape)
    mask = random_mask(q.shape[0], q.shape[1], -(-q.shape[2] // 32), -(-k.shape[2] // 16), 0.4)
    out = block_sparse_attention(
        *(x.to(device) for x in (q, k, v, mask)),
        is_causal=is_causal,
        block_q=32,
        block_k=16,
        backend="triton",
    )
    wanted = oracle(q, k, v, mask, is_causal=is_causal, block_q=32, block_k=16)
    assert out.dtype == dtype
    torch.testing.assert_close(out.cpu().double(), wanted, atol=TOLERANCE[dtype], rtol=0)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_int8_scores_equal_the_reference(structured, random_mask, is_causal, dtype, device):
    q, k, v = structured(101, 131, heads=4, k_heads=2, d=40, dtype=dtype)
    mask = random_mask(1, 4, 4, 9, 0.5)
    options = {"is_causal": is_causal, "block_q": 32, "block_k": 16, "quantize": True}
    out = block_sparse_attention(*(x.to(device) for x in (q, k, v, mask)), backend="triton", **options)
    wanted, _ = reference.attend(q, k, v, mask, scale=40**-0.5, **options)
    torch.testing.assert_close(out.cpu(), wanted, atol=TOLERANCE[dtype], rtol=0)
    plain, _ = reference.attend(q, k, v, mask, scale=40**-0.5, **(options | {"quantize": False}))
    assert (out.cpu() - plain).abs().max() > 10 * TOLERANCE[torch.float32]  # it does round


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("quantize", [False, True])
def test_second_filter_skips_the_same_tiles_as_the_reference(structured, is_causal, quantize, device):
    q, k, v = structured(101, d=16, sink=2)  # the last query tile holds 5 rows, which alone decide
    mask = torch.ones(1, 2, 4, 7, dtype=torch.bool)
    options = {"is_causal": is_causal, "block_q": 32, "block_k": 16, "quantize": quantize}
    threshold = torch.tensor([1.0, 3.0])
    out, stats = block_sparse_attention(
        *(x.to(device) for x in (q, k, v, mask)),
        pv_threshold=threshold,
        backend="triton",
        return_stats=True,
        **options,
    )
    if is_causal:
        mask = causal_tiles(101, 101, 32, 16).expand(1, 2, 4, 7)
    wanted, pv_kept = reference.attend(q, k, v, mask, scale=0.25, pv_threshold=threshold, **options)
    torch.testing.assert_close(out.cpu(), wanted, atol=3e-6, rtol=0)
    assert stats.skipped_pv_tiles == int(mask.sum() - pv_kept.sum()) > 0


@pytest.mark.parametrize("device", DEVICES)
def test_infinite_lambda_equals_no_second_filter(structured, device):
    q, k, v = (x.to(device) for x in structured(64, d=16))
    options = {"theta": 1.0, "block_q": 32, "block_k": 16, "backend": "triton"}
    out, stats = sparse_attention(q, k, v, pv_threshold=math.inf, return_stats=True, **options)
    assert torch.equal(out, sparse_attention(q, k, v, **options))
    assert stats.skipped_pv_tiles == 0


@pytest.mark.parametrize("device", DEVICES)
def test_blocks_must_be_powers_of_two(structured, device):
    q, k, v = (x.to(device) for x in structured(64, d=16))
    for blocks in ({"block_q": 48}, {"block_k": 8}):
        with pytest.raises(InputError, match="power of two of at least 16"):
            sparse_attention(q, k, v, backend="triton", **blocks)


@pytest.mark.parametrize("device", DEVICES)
def test_a_layout_with_heads_inside_gives_the_same(structured, device):
    q, k, v = (x.to(device) for x in structured(64, d=16))
    options = {"theta": 0.3, "block_q": 32, "block_k": 16, "backend": "triton"}
    strided = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k, v)]
    assert torch.equal(sparse_attention(*strided, **options), sparse_attention(q, k, v, **options))
