"""The hand-over to torch's flex_attention. Compiling it takes seconds, so one case runs by default."""

import shutil

import pytest
import torch
from torch.nn.attention.flex_attention import flex_attention

from hexad.core.errors import InputError
from hexad.kernels.sparse_attention import block_sparse_attention, flex, to_flex_block_mask

compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs a C++ compiler")


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize(("n_q", "n_k"), [(512, 512), (300, 333)])
def test_converted_mask_lists_the_same_tiles(random_mask, expand, n_q, n_k, is_causal):
    mask = random_mask(2, 3, -(-n_q // 128), -(-n_k // 64), 0.5)
    entries = expand(mask, n_q, n_k, 128, 64, is_causal)
    blocks = to_flex_block_mask(mask, n_q, n_k, is_causal=is_causal)
    # flex counts a tile that it must mask as a tile; tiles wholly hidden are for the caller to drop.
    assert torch.equal(blocks.to_dense().bool(), mask)
    assert blocks.seq_lengths == (n_q, n_k)
    index = [torch.arange(n) for n in (2, 3, n_q, n_k)]
    grid = torch.meshgrid(*index, indexing="ij")
    assert torch.equal(blocks.mask_mod(*grid), entries)
    if not is_causal:
        assert blocks.kv_num_blocks.sum() == 0  # every tile is whole


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_uncompiled_flex_attention_equals_ours(structured, random_mask):
    q, k, v = structured(300, 333, heads=4, k_heads=2)
    mask = random_mask(1, 4, 3, 6, 0.5)
    for is_causal in (False, True):
        blocks = to_flex_block_mask(mask, 300, 333, is_causal=is_causal)
        wanted = flex_attention(q, k, v, block_mask=blocks, enable_gqa=True)
        out = block_sparse_attention(q, k, v, mask, is_causal=is_causal)
        torch.testing.assert_close(out, wanted, atol=3e-6, rtol=0)


@compiler
def test_backend_equals_sdpa_and_compiles_once(structured, oracle, random_mask):
    q, k, v = structured(300, 333, heads=4, k_heads=2)
    before = flex._compiled.cache_info()
    for seed in range(3):
        mask = random_mask(1, 4, 3, 6, 0.5, seed)
        out, stats = block_sparse_attention(q, k, v, mask, is_causal=True, backend="flex", return_stats=True)
        assert stats.backend == "flex"
        wanted = oracle(q, k, v, mask, is_causal=True)
        torch.testing.assert_close(out.double(), wanted, atol=3e-6, rtol=0)
        assert out.is_contiguous()
    after = flex._compiled.cache_info()
    assert after.misses - before.misses == 1
    assert after.hits - before.hits == 2


@compiler
@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("is_causal", [False, True])
def test_many_shapes_never_fall_back(structured, oracle, random_mask, dtype, is_causal):
    tolerance = {torch.float32: 3e-6, torch.float16: 3e-3, torch.bfloat16: 3e-2}[dtype]
    for n_q, n_k, d in ((256, 256, 64), (100, 300, 128)):
        q, k, v = structured(n_q, n_k, d=d, dtype=dtype)
        mask = random_mask(1, 2, -(-n_q // 128), -(-n_k // 64), 0.5)
        out = block_sparse_attention(q, k, v, mask, is_causal=is_causal, backend="flex")
        wanted = oracle(q, k, v, mask, is_causal=is_causal)
        torch.testing.assert_close(out.double(), wanted, atol=tolerance, rtol=0)


def test_what_flex_cannot_do_is_refused(structured, random_mask):
    q, k, v = structured(256)
    mask = random_mask(1, 2, 2, 4, 0.5)
    with pytest.raises(InputError, match="'flex' cannot run this call: it has no INT8 scores"):
        block_sparse_attention(q, k, v, mask, quantize=True, backend="flex")
    with pytest.raises(InputError, match="it has no second filter"):
        block_sparse_attention(q, k, v, mask, pv_threshold=3.0, backend="flex")
