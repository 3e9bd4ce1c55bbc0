import itertools

import pytest
import torch

from hexad.core.errors import InputError
from hexad.llm_efficiency.spargeattn.hilbert import hilbert_order

GRIDS = [
    (1,),
    (7,),
    (1, 1, 1),
    (4, 4),
    (16, 16),
    (5, 9),
    (30, 17),
    (1, 6, 10),
    (3, 5, 7),
    (8, 8, 8),
    (13, 1, 6),
]


@pytest.mark.parametrize("shape", GRIDS, ids=str)
def test_order_is_a_permutation_and_inverse_undoes_it(shape):
    order, inverse = hilbert_order(shape)
    points = torch.arange(torch.tensor(shape).prod())
    assert torch.equal(order.sort().values, points)
    assert torch.equal(order[inverse], points)
    assert torch.equal(inverse[order], points)


@pytest.mark.parametrize("shape", [(2, 2), (8, 8), (32, 32), (2, 2, 2), (16, 16, 16)], ids=str)
def test_neighbours_on_the_curve_are_neighbours_in_the_grid(shape):
    """The defining property of the curve on a power-of-two cube: every step has length one."""
    order, _ = hilbert_order(shape)
    points = torch.stack(torch.unravel_index(order, shape), 1)
    assert (points.diff(dim=0).abs().sum(1) == 1).all()


def test_each_power_of_four_run_fills_a_square():
    """Hilbert, unlike a snake of rows: any aligned run of 4^m points fills a 2^m x 2^m square."""
    order, _ = hilbert_order((32, 32))
    points = torch.stack(torch.unravel_index(order, (32, 32)), 1)
    for m in (1, 2, 3, 4):
        runs = points.reshape(-1, 4**m, 2)
        assert ((runs.amax(1) - runs.amin(1)) == 2**m - 1).all()


@pytest.mark.parametrize(
    ("shape", "cube"), [((5, 9), (16, 16)), ((3, 5, 7), (8, 8, 8)), ((16, 11), (16, 16))]
)
def test_other_grids_follow_the_enclosing_curve_with_outside_points_dropped(shape, cube):
    """Brute force: walk the enclosing power-of-two curve and keep what lies inside."""
    walk, _ = hilbert_order(cube)
    inside = [
        point
        for point in zip(*(axis.tolist() for axis in torch.unravel_index(walk, cube)), strict=True)
        if all(coordinate < side for coordinate, side in zip(point, shape, strict=True))
    ]
    flat = {point: index for index, point in enumerate(itertools.product(*(range(side) for side in shape)))}
    assert hilbert_order(shape)[0].tolist() == [flat[point] for point in inside]


def test_sides_of_one_are_left_out():
    assert torch.equal(hilbert_order((1, 6, 10))[0], hilbert_order((6, 10))[0])


@pytest.mark.parametrize(
    "shape", [(), (0, 4), (4, -1), (1 << 32, 1 << 32), (10**6, 10**6), (2.5, 3), 5, None, "ab", ("4", 4)]
)
def test_bad_shapes_are_refused(shape):
    with pytest.raises(InputError):
        hilbert_order(shape)
