"""The public function: what it refuses, and how it takes part in autograd and torch.compile."""

import pytest
import torch

from hexad.core.errors import InputError
from hexad.kernels.hadamard_transform import available_backends, hadamard_transform, op

BACKENDS = [
    pytest.param(
        name, marks=pytest.mark.skipif(available_backends("cpu")[name] is not None, reason="not here")
    )
    for name in ("reference", "torch", "native")
]


@pytest.mark.parametrize(
    ("x", "block", "message"),
    [
        ([[1.0, 2.0]], 2, "x must be a tensor, got list"),
        (torch.ones(4, dtype=torch.int32), 2, "x has dtype torch.int32; give float32"),
        (torch.ones(4, dtype=torch.complex64), 2, "x has dtype torch.complex64"),
        (torch.ones(()), 1, r"x has shape \(\); its last dimension must hold numbers"),
        (torch.ones(3, 0), 1, r"x has shape \(3, 0\)"),
        (torch.ones(2, 4).to_sparse(), 2, "x is a sparse_coo tensor"),
        (torch.nested.nested_tensor([torch.ones(4)]), 2, "x is a nested tensor"),
        (torch.ones(12), 3, "block must be a power of two, got 3"),
        (torch.ones(12), 0, "block must be a power of two, got 0"),
        (torch.ones(12), -4, "block must be a power of two, got -4"),
        (torch.ones(12), True, "block must be a power of two, got True"),
        (torch.ones(12), 4.0, "block must be a power of two, got 4.0"),
        (torch.ones(12), 8, "block 8 does not divide the 12 entries .*; the largest that does is 4"),
        (torch.ones(2**16), 2**16, "block is 65536; the largest is 32768"),
    ],
)
def test_bad_input_is_named(x, block, message):
    with pytest.raises(InputError, match=message):
        hadamard_transform(x, block)


def test_unknown_backend():
    with pytest.raises(
        InputError, match="backend must be one of auto, reference, torch, native, triton, got"
    ):
        hadamard_transform(torch.ones(2), 2, backend="cuda")  # ty: ignore[invalid-argument-type]


@pytest.mark.parametrize("backend", ["reference", "torch"])
def test_gradient_by_finite_differences(backend):
    x = torch.randn(2, 24, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: hadamard_transform(x, 8, backend=backend), x)
    assert torch.autograd.gradgradcheck(lambda x: hadamard_transform(x, 8, backend=backend).square(), x)


@pytest.mark.parametrize("backend", BACKENDS)
def test_gradient_is_the_transform_of_the_gradient(backend):
    x = torch.randn(3, 128, requires_grad=True)
    outer = torch.randn(3, 128)
    (gradient,) = torch.autograd.grad(hadamard_transform(x, 64, backend=backend), x, outer)
    assert torch.equal(gradient, hadamard_transform(outer, 64, backend=backend))


@pytest.mark.parametrize("backend", BACKENDS)
def test_under_vmap(backend):
    x = torch.randn(4, 3, 16)
    mapped = torch.vmap(lambda row: hadamard_transform(row, 16, backend=backend), in_dims=1, out_dims=1)(x)
    assert torch.equal(mapped, hadamard_transform(x, 16, backend=backend))


@pytest.mark.parametrize("backend", BACKENDS)
def test_opcheck(backend):
    for x in (torch.randn(3, 64, requires_grad=True), torch.randn(2, 3, 64).transpose(0, 1)):
        results = torch.library.opcheck(op.hadamard_transform, (x, 32, backend))
        assert set(results.values()) == {"SUCCESS"}


@pytest.mark.parametrize("compiler", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_compiles_whole_with_its_gradient(compiler):
    def loss(x):
        return (hadamard_transform(2 * x, 32).relu() ** 2).sum()

    x = torch.randn(5, 64, requires_grad=True)
    compiled = torch.compile(loss, fullgraph=True, backend=compiler)
    compiled(x).backward()
    gradient, x.grad = x.grad, None
    loss(x).backward()
    torch.testing.assert_close(gradient, x.grad, atol=1e-5, rtol=0)


def test_meta_tensors_have_a_shape():
    y = hadamard_transform(torch.empty(3, 64, device="meta", dtype=torch.bfloat16), 32, backend="reference")
    assert (y.shape, y.dtype, y.device.type) == ((3, 64), torch.bfloat16, "meta")
