"""The grids' levels, and the constants against the card of the paper and against quadrature."""

import numpy as np
import pytest
import torch
from scipy import integrate, stats

from hexad.core.errors import InputError
from hexad.llm_efficiency.quest import scale_for
from hexad.llm_efficiency.quest.grids import check_bits, gaussian_error, grid_for

# Recomputed with 30 digits (mpmath), not by this package.
ALPHA = {
    1: 0.7978845608028654,
    2: 1.4935300289152595,
    3: 2.0510680450522045,
    4: 2.5140045914997952,
    5: 2.9161512493387330,
    6: 3.2779847974234605,
    7: 3.6110971962797671,
    8: 3.9222044167463877,
    "ternary": 1.2240063619249615,
    "fp4": 6 * 0.487079178562283,
}
ERROR = {
    1: 0.36338,
    2: 0.118846,
    3: 0.0374397,
    4: 0.0115429,
    5: 0.00349521,
    6: 0.00104005,
    7: 0.000304333,
    8: 8.76862e-5,
    "ternary": 0.190174,
    "fp4": 0.0126849,
}


@pytest.mark.parametrize("bits", ALPHA)
def test_alpha_is_the_optimum(bits):
    assert scale_for(bits) == pytest.approx(ALPHA[bits], rel=1e-11)
    assert gaussian_error(bits, scale_for(bits)) == pytest.approx(ERROR[bits], rel=1e-5)


def test_one_bit_has_a_closed_form():
    assert scale_for(1) == pytest.approx(np.sqrt(2 / np.pi), rel=1e-15)
    assert gaussian_error(1, scale_for(1)) == pytest.approx(1 - 2 / np.pi, rel=1e-14)


@pytest.mark.parametrize("bits", [2, 4, "ternary", "fp4"])
def test_the_error_by_quadrature_and_its_derivative(bits):
    grid = grid_for(bits)

    def error(alpha):
        levels = np.array(grid.levels) * alpha / grid.top
        middles = (levels[1:] + levels[:-1]) / 2
        edges = np.concatenate([[-12], middles, [12]])
        return sum(
            integrate.quad(lambda x, level=level: (x - level) ** 2 * stats.norm.pdf(x), low, high)[0]
            for level, low, high in zip(levels, edges[:-1], edges[1:], strict=True)
        )

    alpha = scale_for(bits)
    assert gaussian_error(bits, alpha) == pytest.approx(error(alpha), rel=1e-7)
    assert gaussian_error(bits, 1.1) == pytest.approx(error(1.1), rel=1e-7)
    slope = (gaussian_error(bits, alpha + 1e-4) - gaussian_error(bits, alpha - 1e-4)) / 2e-4
    assert abs(slope) < 1e-6
    assert min(gaussian_error(bits, alpha * 0.99), gaussian_error(bits, alpha * 1.01)) > error(alpha)


def test_official_constants_stray_at_six_to_eight_bits():
    assert scale_for(4, "official") == 2.5139306
    for bits in (6, 7, 8):
        assert gaussian_error(bits, scale_for(bits, "official")) > gaussian_error(bits, scale_for(bits))
    assert scale_for("ternary", "official") == pytest.approx(scale_for("ternary"), abs=3e-6)
    with pytest.raises(InputError, match="no constant for bits='fp4'"):
        scale_for("fp4", "official")
    with pytest.raises(InputError, match="did you mean 'exact'"):
        scale_for(4, "exakt")


def test_levels():
    # Mid-rise: no zero at any whole number of bits, evenly spaced, n = 2^b.
    for bits in (1, 2, 3, 4, 8):
        levels = np.array(grid_for(bits).levels)
        assert len(levels) == 2**bits
        assert 0 not in levels
        assert set(np.diff(levels)) == {2}
    # The ternary trap: 1.585 bits in the formula of whole bits would give +-a/2 and 3a/2.
    assert grid_for(1.585).levels == (-1, 0, 1)
    assert [level / 2 for level in grid_for("fp4").levels[7:]] == [0, 0.5, 1, 1.5, 2, 3, 4, 6]


@pytest.mark.parametrize("bits", [0, 9, 1.5, -1, True, "int4", None, 15, float("nan")])
def test_other_widths_are_refused(bits):
    with pytest.raises(InputError, match=r"bits is .*give 1 to 8, 'ternary'"):
        check_bits("bits", bits)


def test_constants_can_be_computed_while_a_model_is_built_on_the_meta_device():
    from hexad.llm_efficiency.quest import grids

    grids._optimal.cache_clear()
    with torch.device("meta"):
        assert scale_for(3) == pytest.approx(ALPHA[3], rel=1e-11)
