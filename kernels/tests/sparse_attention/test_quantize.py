"""INT8 quantisation a tile, as SageAttention does it."""

import pytest
import torch

from hexad.kernels.sparse_attention.quantize import dequantize_tiles, quantize_tiles, smooth_keys


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_error_is_at_most_half_a_step(structured, dtype):
    x = structured(150, d=32, dtype=dtype)[1]
    x8, scale = quantize_tiles(x, 64)
    error = (dequantize_tiles(x8, scale, 64) - x.to(scale.dtype)).abs()
    bound = scale.repeat_interleave(64, -1)[..., :150, None] / 2
    # 1e-6 is the rounding of x / d and back in float32, relative to values near 10.
    assert (error <= bound + 1e-6).all()
    assert error.max() > bound.max() / 4  # it does round


def test_halves_round_away_from_zero():
    # With a largest entry of 127 the step is 1 + 1e-7, so the integers are the values themselves.
    x = torch.tensor([[127.0, 0.5, -0.5, 1.5, -1.5, 2.5, -2.5, 0.0]], dtype=torch.float64) * (1 + 1e-7)
    x[0, 0] = 127.0
    assert quantize_tiles(x, 1)[0].tolist() == [[127, 1, -1, 2, -2, 3, -3, 0]]


def test_a_tile_has_a_scale_of_its_own():
    x = torch.ones(3, 4)
    x[1] *= 1000
    x8, scale = quantize_tiles(x, 1)
    torch.testing.assert_close(scale, torch.tensor([1.0, 1000.0, 1.0]) / 127 + 1e-7)
    assert (x8 == 127).all()


def test_zeros_stay_zeros():
    x8, scale = quantize_tiles(torch.zeros(2, 100, 8), 64)
    assert not x8.any()
    torch.testing.assert_close(scale, torch.full((2, 2), 1e-7))


def test_smoothing_removes_the_mean_and_narrows_the_step(structured):
    k = structured(256)[1] + 20
    smooth = smooth_keys(k)
    torch.testing.assert_close(smooth.mean(-2), torch.zeros(1, 2, 64), atol=1e-5, rtol=0)
    assert quantize_tiles(smooth, 64)[1].max() < quantize_tiles(k, 64)[1].max() / 3
