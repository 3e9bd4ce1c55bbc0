"""The native CPU path: every engine, built for several processors, against dense float64 attention."""

import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from hexad.core.errors import InputError
from hexad.kernels.sparse_attention import cpu, prediction, reference
from hexad.kernels.sparse_attention.quantize import dequantize_tiles, quantize_tiles, smooth_keys

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="no g++ on this machine")

BUILDS = ["native", "native without AMX", "AVX2 with int8 dot products", "x86-64-v3", "x86-64"]
# Error of the output relative to its norm. Float32: sums of some hundred terms. The others: one rounding of
# the output (2^-12 and 2^-9 in the mean) and, in bfloat16, one of the softmax weights.
TOLERANCE = {torch.float32: 1e-6, torch.float16: 4e-4, torch.bfloat16: 4e-3}
DTYPES = pytest.mark.parametrize("dtype", TOLERANCE, ids=["float32", "float16", "bfloat16"])


@pytest.fixture(params=BUILDS)
def build(request: pytest.FixtureRequest, use_build: Callable[..., None]) -> str:
    use_build(cpu, request.param)
    return request.param


def relative_error(out: Tensor, expected: Tensor) -> float:
    return float((out.double() - expected.double()).norm() / expected.double().norm())


def tiling(
    is_causal: bool = False, block_q: int = 128, block_k: int = 64, scale: float | None = None
) -> dict:
    return {"is_causal": is_causal, "block_q": block_q, "block_k": block_k, "scale": scale}


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, **options) -> Tensor:
    call = {**tiling(), **options}
    if call["scale"] is None:
        call["scale"] = q.shape[-1] ** -0.5
    return cpu.attend(q, k, v, mask, **call)[0]


CASES = {
    "whole blocks": ({"n_q": 256}, {}),
    "head dim 128": ({"n_q": 256, "d": 128}, {}),
    "head dim 80": ({"n_q": 200, "d": 80}, {}),
    "odd head dims": ({"n_q": 150, "d": 42, "d_v": 23}, {}),
    "ragged, grouped queries, a batch": ({"n_q": 333, "heads": 4, "k_heads": 2, "batch": 2}, {}),
    "more keys than queries": ({"n_q": 140, "n_k": 477}, {}),
    "one query": ({"n_q": 1, "n_k": 200}, {}),
    "shorter than a block": ({"n_q": 5}, {}),
    "small blocks": ({"n_q": 177, "n_k": 190}, {"block_q": 16, "block_k": 16}),
    "blocks of odd size": ({"n_q": 177}, {"block_q": 24, "block_k": 33}),
    "large blocks": ({"n_q": 400}, {"block_q": 320, "block_k": 256}),
}


@pytest.mark.parametrize("is_causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("case", CASES)
@DTYPES
def test_any_mask_equals_dense_attention_under_it(
    structured, oracle, random_mask, build, dtype, case, is_causal
) -> None:
    inputs, blocks = CASES[case]
    q, k, v = structured(**inputs, dtype=dtype)
    call = tiling(is_causal, **blocks)
    grid = [-(-x.shape[2] // block) for x, block in ((q, call["block_q"]), (k, call["block_k"]))]
    mask = random_mask(*q.shape[:2], *grid, 0.5)
    expected = oracle(q, k, v, mask, **call)
    assert relative_error(attend(q, k, v, mask, **call), expected) < TOLERANCE[dtype]


@pytest.mark.parametrize("factor", [3e4, 1e9, 1e15])
def test_scores_far_beyond_the_integers_of_float32(structured, oracle, build, factor) -> None:
    # At 2^31 a float32 is 256 from the next, so a fused product-and-subtraction may miss by 2^128.
    q, k, v = structured(300, heads=4)
    mask = torch.ones(1, 4, 3, 5, dtype=torch.bool)
    for is_causal in (False, True):
        out = attend(q * factor, k * factor, v, mask, is_causal=is_causal)
        expected = oracle(q * factor, k * factor, v, mask, is_causal=is_causal)
        # Softmax is a choice of one key here; where the best two round alike, float32 takes their mean.
        alike = ((out - expected).abs().amax(-1) < 1e-5).double().mean()
        assert out.isfinite().all()
        assert alike > 0.99


def test_scores_beyond_float32_are_named(structured, build) -> None:
    q, k, v = structured(256)
    for sign in (1, -1):  # all scores +infinity, or all below what the kernel takes for no key at all
        with pytest.raises(InputError, match=r"the scores q k\^T \* scale pass the range"):
            attend(q.abs() * 1e19, k.abs() * 1e19 * sign, v, torch.ones(1, 2, 2, 4, dtype=torch.bool))


@DTYPES
def test_no_less_exact_than_sdpa(structured, build, dtype) -> None:
    q, k, v = structured(512, dtype=dtype, seed=3)
    q = q * 4  # peaked softmax: errors of the scores count in full
    mask = torch.ones(1, 2, 4, 8, dtype=torch.bool)
    expected = scaled_dot_product_attention(q.double(), k.double(), v.double())
    sdpa = relative_error(scaled_dot_product_attention(q, k, v), expected)
    assert relative_error(attend(q, k, v, mask), expected) < 2 * sdpa


@pytest.mark.parametrize("is_causal", [False, True], ids=["full", "causal"])
@DTYPES
def test_int8_scores_are_those_of_the_quantised_tiles(
    structured, oracle, random_mask, build, dtype, is_causal
):
    q, k, v = structured(333, heads=4, k_heads=2, dtype=dtype)
    mask = random_mask(1, 4, 3, 6, 0.5)
    q8, k8 = quantize_tiles(q, 128), quantize_tiles(smooth_keys(k), 64)
    expected = oracle(dequantize_tiles(*q8, 128), dequantize_tiles(*k8, 64), v, mask, is_causal=is_causal)
    out = attend(q, k, v, mask, is_causal=is_causal, quantize=True)
    # P V in bfloat16 at the least; a key whose rounding falls the other way moves one score by 1 / 127.
    assert relative_error(out, expected) < 4e-3
    exact = attend(q, k, v, mask, is_causal=is_causal)
    if dtype == torch.float32:
        assert 1e-4 < relative_error(out, exact) < 2e-2  # it does round


def test_int8_does_not_see_a_constant_added_to_all_keys(structured, build) -> None:
    q, k, v = structured(256)
    mask = torch.ones(1, 2, 2, 4, dtype=torch.bool)
    plain = attend(q, k, v, mask, quantize=True)
    shifted = attend(q, k + 100 * torch.randn(64), v, mask, quantize=True)
    # Float32 keys near 100 carry steps of 1e-5, a thousandth of the int8 step.
    assert relative_error(shifted, plain) < 5e-3


@pytest.mark.parametrize("row_group", [None, 32])
@pytest.mark.parametrize("is_causal", [False, True], ids=["full", "causal"])
def test_second_filter_skips_what_the_reference_skips(structured, build, is_causal, row_group) -> None:
    q, k, v = structured(500, heads=4, k_heads=2, sink=12.0)
    mask = torch.ones(1, 4, 4, 8, dtype=torch.bool)
    call = {**tiling(is_causal, scale=0.4), "row_group": row_group}
    threshold = torch.tensor([0.0, 2.0, 5.0, 50.0])
    if is_causal:
        mask &= prediction.causal_tiles(500, 500, 128, 64)
    expected, entered = reference.attend(q, k, v, mask, pv_threshold=threshold, **call)
    out, skipped = cpu.attend(q, k, v, mask, pv_threshold=threshold, **call)
    groups = 1 if row_group is None else 4
    rows_a_tile = torch.tensor([groups, groups, groups, -(-(500 - 384) // (row_group or 128))])
    assert skipped == int((mask.sum(-1) * rows_a_tile).sum()) - int(entered.sum())
    assert skipped > 0
    assert relative_error(out, expected) < 1e-5
    without, none = cpu.attend(q, k, v, mask, pv_threshold=torch.full((4,), torch.inf), **call)
    assert none == 0
    assert relative_error(without, reference.attend(q, k, v, mask, **call)[0]) < 1e-5


def test_large_scores_neither_overflow_nor_vanish(structured, oracle, build) -> None:
    q, k, v = structured(256)
    mask = torch.ones(1, 2, 2, 4, dtype=torch.bool)
    for factor in (1e-3, 1.0, 300.0):
        out = attend(q * factor, k * factor, v, mask)
        # Tiny scores make a mean of values that cancel; scores of order 1e6 leave float32 an absolute error
        # of some hundredths in the exponent.
        assert relative_error(out, oracle(q * factor, k * factor, v, mask)) < (3e-6 if factor <= 1 else 0.05)


def test_any_positive_scale(structured, oracle, build) -> None:
    q, k, v = structured(200)
    mask = torch.ones(1, 2, 2, 4, dtype=torch.bool)
    expected = oracle(q, k, v, mask, scale=0.5)
    # The error of a score grows with the scale, here up to four times the default one.
    assert relative_error(attend(q, k, v, mask, scale=0.5), expected) < 3e-6


def strided(x: Tensor) -> Tensor:
    """The same numbers with heads inside tokens and a gap after each row."""
    b, h, n, d = x.shape
    room = torch.full((b, n, h, d + 3), float("nan"), dtype=x.dtype)
    room[..., :d] = x.transpose(1, 2)
    return room[..., :d].transpose(1, 2)


@pytest.mark.parametrize("quantize", [False, True])
@DTYPES
def test_strided_inputs_give_the_same_bits(structured, random_mask, build, dtype, quantize) -> None:
    q, k, v = structured(300, heads=4, k_heads=2, dtype=dtype)
    mask = random_mask(1, 4, 3, 5, 0.5)
    plain = attend(q, k, v, mask, quantize=quantize)
    assert torch.equal(attend(strided(q), strided(k), strided(v), mask, quantize=quantize), plain)
    turned = k.transpose(-1, -2).contiguous().transpose(-1, -2)
    assert torch.equal(attend(q, turned, v, mask, quantize=quantize), plain)


def test_threads_do_not_change_a_bit(structured, random_mask, build) -> None:
    q, k, v = structured(700, heads=3)
    mask = random_mask(1, 3, 6, 11, 0.5)
    before = torch.get_num_threads()
    try:
        outs = []
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            outs.append(attend(q, k, v, mask))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(outs[0], outs[1])
    assert torch.equal(outs[0], outs[2])


def test_callers_on_several_threads(structured, random_mask, build) -> None:
    calls = [structured(300 + 50 * i, seed=i) for i in range(4)]
    masks = [random_mask(1, 2, -(-q.shape[2] // 128), -(-q.shape[2] // 64), 0.5) for q, _, _ in calls]
    alone = [attend(*call, mask) for call, mask in zip(calls, masks, strict=True)]
    with ThreadPoolExecutor(4) as pool:
        for _ in range(5):
            together = list(pool.map(lambda i: attend(*calls[i], masks[i]), range(4)))
            assert all(torch.equal(a, b) for a, b in zip(alone, together, strict=True))


def test_leaves_the_matrix_unit_as_torch_expects_it(structured, build) -> None:
    a = torch.randn(256, 256).bfloat16()
    before = a @ a
    q, k, v = structured(256, dtype=torch.bfloat16)
    attend(q, k, v, torch.ones(1, 2, 2, 4, dtype=torch.bool))
    assert torch.equal(a @ a, before)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("broken", ["q", "k", "v"])
@DTYPES
def test_nan_and_infinity_are_named(structured, build, dtype, broken, value) -> None:
    inputs = dict(zip("qkv", structured(333, dtype=dtype), strict=True))
    inputs[broken][0, 1, 332, 63] = value
    mask = torch.ones(1, 2, 3, 6, dtype=torch.bool)
    for quantize in (False, True):
        with pytest.raises(InputError, match=f"^{broken} holds NaN or infinity"):
            attend(**inputs, mask=mask, quantize=quantize)


def test_largest_finite_numbers_are_no_infinity(structured, build) -> None:
    q, k, v = structured(128, dtype=torch.float16)
    v[0, 0, 3, 5] = torch.finfo(torch.float16).max
    v[0, 0, 4, 5] = 2.0**-24  # the smallest subnormal
    out = attend(q * 0, k, v, torch.ones(1, 2, 1, 2, dtype=torch.bool))
    assert relative_error(out[..., 5], v.double().mean(2, keepdim=True).expand_as(out)[..., 5]) < 1e-3


def test_query_without_a_key_is_an_error(structured, build) -> None:
    q, k, v = structured(256)
    mask = torch.ones(1, 2, 2, 4, dtype=torch.bool)
    mask[0, 1, 1] = False
    with pytest.raises(InputError, match=r"row \(batch 0, head 1, q block 1\) is empty"):
        attend(q, k, v, mask)
    mask = torch.zeros(1, 2, 2, 4, dtype=torch.bool)
    mask[..., 1] = True  # keys 64 to 127: the first 64 queries of a causal call see none of them
    with pytest.raises(InputError, match=r"row \(batch 0, head 0, q block 0\) is empty"):
        attend(q, k, v, mask, is_causal=True)


def predict(q: Tensor, k: Tensor, path: Callable[..., Any], **options) -> Any:
    """The mask of one of the two paths, with options of its own over a common set."""
    common = {
        "theta": torch.full((q.shape[1],), 0.3),
        "tau": None,
        "topk": None,
        "is_causal": False,
        "scale": 0.3,
        "attention_sink": False,
        "force_diagonal": False,
        "block_q": 128,
        "block_k": 64,
        "smooth_k": True,
    }
    return path(q, k, **{**common, **options})


PREDICTIONS: dict[str, dict] = {
    "tau": {"tau": torch.tensor([0.9, 0.95, 0.5, 0.98])},
    "topk": {"topk": torch.tensor([1, 3, 5, 8])},
    "causal": {"tau": torch.full((4,), 0.9), "is_causal": True, "force_diagonal": True},
    "causal with a sink": {"topk": torch.full((4,), 2), "is_causal": True, "attention_sink": True},
    "keys as they are": {"tau": torch.full((4,), 0.9), "smooth_k": False},
    "other blocks": {"tau": torch.full((4,), 0.9), "block_q": 40, "block_k": 24},
    "a dense head, a strict one": {
        "tau": torch.full((4,), 0.9),
        "theta": torch.tensor([1.0, 0.999, 0.4, -1.0]),
    },
}


@pytest.mark.parametrize("case", PREDICTIONS)
@DTYPES
def test_predicts_what_the_plain_torch_path_predicts(structured, build, dtype, case) -> None:
    q, k, _ = structured(700, 777, heads=4, k_heads=2, batch=2, dtype=dtype)
    expected, _ = predict(q, k, prediction.block_mask_from_inputs, **PREDICTIONS[case])
    mask = predict(q, k, cpu.block_mask_from_inputs, **PREDICTIONS[case])
    assert 0.05 < float(expected.float().mean()) < 0.98
    assert torch.equal(mask, expected)
    again = predict(strided(q), strided(k), cpu.block_mask_from_inputs, **PREDICTIONS[case])
    assert torch.equal(again, mask)


@pytest.mark.parametrize("broken", ["q", "k"])
def test_prediction_names_nan(structured, build, broken) -> None:
    inputs = dict(zip("qk", structured(333), strict=False))
    inputs[broken][0, 1, 200, 3] = float("nan")
    with pytest.raises(InputError, match=f"^{broken} holds NaN"):
        predict(**inputs, path=cpu.block_mask_from_inputs, topk=torch.tensor([1, 1]))


def test_says_what_it_cannot_do() -> None:
    assert cpu.reason_against(torch.float64) == "it does not compute in float64"
