"""Every backend against SciPy's Hadamard matrix, and the exact agreement of those that sum alike."""

import pytest
import scipy.linalg
import torch
from torch import Tensor

from hexad.core.errors import InputError
from hexad.kernels.hadamard_transform import available_backends, cpu, hadamard_transform, pure

BACKENDS = ["reference", "torch", "native"]
# Sums of up to 4096 terms of order one in float32; one rounding of a result of up to 5 in the others.
TOLERANCE = {torch.float64: 1e-13, torch.float32: 3e-6, torch.float16: 2.5e-3, torch.bfloat16: 2e-2}
BUILDS = ["native", "AVX2 with int8 dot products", "x86-64"]
# Blocks below, at and above one vector, one set of registers and one pass over memory; ragged rows of blocks.
SHAPES = [
    ((3, 8), 8),
    ((5, 24), 8),
    ((2, 3, 20), 4),
    ((1, 6), 2),
    ((7, 5), 1),
    ((3, 96), 16),
    ((3, 96), 32),
    ((1, 192), 64),
    ((17, 384), 128),
    ((2, 768), 256),
    ((2, 1536), 512),
    ((3, 3072), 1024),
    ((1, 4096), 4096),
]
CASES = pytest.mark.parametrize(("shape", "block"), SHAPES, ids=str)


def skip_unless_served(backend: str, dtype: torch.dtype = torch.float32) -> None:
    reason = available_backends("cpu", dtype)[backend]
    if reason is not None:
        pytest.skip(reason)


def scipy_transform(x: Tensor, block: int) -> Tensor:
    matrix = torch.tensor(scipy.linalg.hadamard(block), dtype=torch.float64) / block**0.5
    return (x.double().unflatten(-1, (-1, block)) @ matrix).flatten(-2)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@CASES
def test_equals_scipy(shape, block, dtype, backend):
    skip_unless_served(backend, dtype)
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(dtype)
    y = hadamard_transform(x, block, backend=backend)
    assert y.dtype == dtype
    torch.testing.assert_close(y.double(), scipy_transform(x, block), atol=TOLERANCE[dtype], rtol=0)


@pytest.mark.parametrize("build", BUILDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@CASES
def test_native_code_agrees_with_the_recursion_to_the_bit(use_build, shape, block, dtype, build):
    use_build(cpu, build)
    x = torch.randn(shape, generator=torch.Generator().manual_seed(1)).to(dtype)
    assert torch.equal(cpu.transform(x, block), pure.by_steps(x, block))


@pytest.mark.parametrize("block", [2, 128, 512, 4096])
def test_matrix_products_agree_with_the_recursion(block):
    """Exactly so on integers, whose sums have no rounding."""
    x = torch.randint(-50, 50, (3, 4096), generator=torch.Generator().manual_seed(2)).float()
    assert torch.equal(pure.by_matmul(x, block), pure.by_steps(x, block))


@pytest.mark.parametrize("backend", BACKENDS)
def test_twice_is_nothing_and_the_norm_is_kept(backend):
    skip_unless_served(backend)
    x = torch.randn(4, 640, generator=torch.Generator().manual_seed(3))
    y = hadamard_transform(x, 128, backend=backend)
    torch.testing.assert_close(hadamard_transform(y, 128, backend=backend), x, atol=2e-6, rtol=0)
    torch.testing.assert_close(
        y.unflatten(-1, (-1, 128)).norm(dim=-1), x.unflatten(-1, (-1, 128)).norm(dim=-1)
    )
    assert (y - x).abs().max() > 1  # and it does something


@pytest.mark.parametrize("backend", BACKENDS)
def test_one_large_entry_is_spread_evenly(backend):
    skip_unless_served(backend)
    x = torch.zeros(128)
    x[77] = 128**0.5
    torch.testing.assert_close(hadamard_transform(x, backend=backend).abs(), torch.ones(128))


@pytest.mark.parametrize("backend", BACKENDS)
def test_any_strides_and_no_rows(backend):
    skip_unless_served(backend)
    x = torch.randn(6, 5, 64, generator=torch.Generator().manual_seed(4))
    for strided in (
        x.transpose(0, 1),
        x[::2],
        x[..., ::2],
        x.permute(2, 1, 0).contiguous().permute(2, 1, 0),
        x[:1].expand(4, 5, 64),
    ):
        y = hadamard_transform(strided, 32, backend=backend)
        assert torch.equal(y, hadamard_transform(strided.contiguous(), 32, backend=backend))
        assert y.is_contiguous()
    for empty in (x[:0], x[:, :0]):
        assert hadamard_transform(empty, 32, backend=backend).shape == empty.shape


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_nan_and_infinity_spread_over_their_block(dtype, backend):
    skip_unless_served(backend)
    x = torch.ones(3, 32, dtype=dtype)
    x[0, 3], x[1, 20], x[2, 9] = float("nan"), float("inf"), float("-inf")
    y = hadamard_transform(x, 16, backend=backend)
    for row, block in ((0, 0), (1, 1), (2, 0)):
        blocks = y[row].view(2, 16)
        assert not blocks[block].isfinite().any()
        assert torch.equal(blocks[1 - block], torch.tensor([4.0] + [0.0] * 15).to(dtype))


def test_float32_sums_under_autocast():
    x = torch.randn(16, 256, generator=torch.Generator().manual_seed(5))
    for backend in BACKENDS:
        skip_unless_served(backend)
        with torch.autocast("cpu", torch.bfloat16):
            y = hadamard_transform(x, backend=backend)
        assert y.dtype == torch.float32
        torch.testing.assert_close(y.double(), scipy_transform(x, 128), atol=3e-6, rtol=0)


def test_rows_of_many_threads(use_build):
    use_build(cpu, "native")
    x = torch.randn(300, 1024, generator=torch.Generator().manual_seed(6))
    one_row = torch.stack([cpu.transform(row, 128) for row in x])
    assert torch.equal(cpu.transform(x, 128), one_row)


def test_auto_takes_native_code_where_there_is_some():
    """And plain torch for what native code does not compute."""
    x = torch.randn(3, 128)
    served = available_backends("cpu")["native"] is None
    assert torch.equal(hadamard_transform(x), hadamard_transform(x, backend="native" if served else "torch"))
    wide = x.double()
    assert torch.equal(hadamard_transform(wide), hadamard_transform(wide, backend="torch"))
    with pytest.raises(InputError, match="'native' cannot run this call: it does not compute in float64"):
        hadamard_transform(wide, backend="native")
