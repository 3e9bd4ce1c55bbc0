"""The registered operators: torch's own checks, and torch.compile without a graph break."""

import pytest
import torch

from hexad.kernels.sparse_attention import (
    available_backends,
    block_sparse_attention,
    op,
    predict_block_mask,
    sparse_attention,
)


@pytest.fixture
def inputs(structured):
    return structured(300, 333, heads=4, k_heads=2, d=32)


def needs_native():
    reason = available_backends("cpu")["native"]
    if reason is not None:
        pytest.skip(reason)


@pytest.mark.parametrize("native", [False, True])
@pytest.mark.parametrize("by_mass", [False, True])
def test_opcheck_of_the_prediction(inputs, by_mass, native):
    if native:
        needs_native()
    q, k, _ = inputs
    per_head = torch.full((4,), 0.5, dtype=torch.float64)
    tau, topk = (per_head, None) if by_mass else (None, per_head)
    arguments = (q, k, per_head, tau, topk, True, 0.2, False, True, 128, 64, True, native)
    results = torch.library.opcheck(op.predict_block_mask, arguments)
    assert set(results.values()) == {"SUCCESS"}


@pytest.mark.parametrize("backend", ["reference", "gather", "native"])
@pytest.mark.parametrize("is_causal", [False, True])
def test_opcheck_of_the_attention(inputs, backend, is_causal):
    if backend == "native":
        needs_native()
    q, k, v = inputs
    mask = predict_block_mask(q, k, theta=0.3, is_causal=is_causal)
    arguments = (q, k, v, mask, None, is_causal, 0.2, 128, 64, False, backend, False)
    results = torch.library.opcheck(op.block_sparse_attention, arguments)
    assert set(results.values()) == {"SUCCESS"}


# "aot_eager" traces, checks fake against real and runs; inductor adds minutes of C++ and no other check.
@pytest.mark.parametrize("compiler", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_compiles_whole(inputs, compiler):
    mask = predict_block_mask(*inputs[:2], theta=0.3)

    def attend(q, k, v, mask):
        return block_sparse_attention(2 * q, k, v, mask).relu()

    def whole(q, k, v):
        return sparse_attention(2 * q, k, v, theta=[0.1, 0.2, 0.3, 0.4], tau=0.7, is_causal=True).relu()

    for function, arguments in ((attend, (*inputs, mask)), (whole, inputs)):
        compiled = torch.compile(function, fullgraph=True, backend=compiler)
        torch.testing.assert_close(compiled(*arguments), function(*arguments), atol=1e-6, rtol=0)


def test_compiles_once_for_changing_masks(inputs):
    compilations = []

    def count(graph, _):
        compilations.append(graph)
        return graph

    compiled = torch.compile(block_sparse_attention, fullgraph=True, backend=count)
    for tau in (0.3, 0.9, 0.98):
        mask = predict_block_mask(*inputs[:2], theta=0.3, tau=tau)
        torch.testing.assert_close(compiled(*inputs, mask), block_sparse_attention(*inputs, mask))
    assert len(compilations) == 1
