"""Oracles of the cost volume: an explicit loop, scikit-learn, and the invariants of matching."""

import subprocess
import sys

import numpy as np
import pytest
import torch
from sklearn.neighbors import NearestNeighbors

from hexad.core.errors import InputError
from hexad.vision_robustness.costfilter_ad.matching import cosine_costs, cost_volume, smallest_costs

# Unit vectors of float32: a dot product of 16 terms is off by some 1e-7.
CLOSE = {"atol": 2e-6, "rtol": 0}


@pytest.fixture
def features():
    generator = torch.Generator().manual_seed(0)
    return (
        torch.randn(2, 20, 16, generator=generator),
        torch.randn(2, 30, 16, generator=generator),
    )


def test_costs_equal_an_explicit_loop_and_lie_in_0_to_2(features):
    query, template = features
    costs = cosine_costs(query, template)
    assert costs.shape == (2, 20, 30)
    for b in range(2):
        for p in range(20):
            for q in range(30):
                f, t = query[b, p].double(), template[b, q].double()
                assert costs[b, p, q] == pytest.approx(float(1 - f @ t / (f.norm() * t.norm())), abs=2e-6)
    assert costs.min() >= 0
    assert costs.max() <= 2
    assert float(cosine_costs(query, -query).diagonal(dim1=1, dim2=2).min()) == pytest.approx(2, abs=1e-6)


def test_identical_query_and_template_cost_nothing_on_the_diagonal(features):
    query, _ = features
    costs = cosine_costs(query, query)
    torch.testing.assert_close(costs.diagonal(dim1=1, dim2=2), torch.zeros(2, 20), **CLOSE)
    grid = query.transpose(1, 2).unflatten(2, (4, 5))
    found = cost_volume([grid], [grid[:, None]], size=16)
    torch.testing.assert_close(found.minima, torch.zeros(2, 1, 16, 16), **CLOSE)
    # Off the diagonal they do cost.
    assert costs.sum() > 100


def test_swapping_query_and_template_transposes(features):
    query, template = features
    torch.testing.assert_close(cosine_costs(query, template), cosine_costs(template, query).mT, **CLOSE)


def test_all_costs_in_position_order_are_the_whole_matrix(features):
    query, template = features
    torch.testing.assert_close(
        smallest_costs(query, template, 30, "position"), cosine_costs(query, template), **CLOSE
    )


def test_rank_order_is_sorted_and_its_first_channel_is_the_map_of_minima(features):
    query, template = features
    kept = smallest_costs(query, template, 7, "rank")
    torch.testing.assert_close(kept, cosine_costs(query, template).sort(-1).values[..., :7], **CLOSE)
    assert bool((kept.diff(dim=-1) >= 0).all())
    grid, bank = query.transpose(1, 2).unflatten(2, (4, 5)), template.transpose(1, 2)[:, None]
    found = cost_volume([grid], [bank.unflatten(3, (5, 6))[:, :, :, :4, :5]], 7, "rank", 32)
    assert found.volume.shape == (2, 7, 1, 32, 32)
    torch.testing.assert_close(found.volume[:, 0], found.minima)


def test_fewer_costs_in_position_order_are_those_of_the_smallest_in_their_places(features):
    query, template = features
    costs, kept = cosine_costs(query, template), smallest_costs(query, template, 9, "position")
    chosen = costs.argsort(-1)[..., :9].sort(-1).values
    torch.testing.assert_close(kept, costs.gather(-1, chosen), **CLOSE)


def test_permuting_template_patches_changes_position_order_and_not_rank_order(features):
    query, template = features
    shuffled = template[:, torch.randperm(30, generator=torch.Generator().manual_seed(1))]
    for k in (5, 30):
        torch.testing.assert_close(
            smallest_costs(query, template, k, "rank"), smallest_costs(query, shuffled, k, "rank"), **CLOSE
        )
        before, after = (smallest_costs(query, t, k, "position") for t in (template, shuffled))
        assert float((before - after).abs().max()) > 0.1


@pytest.mark.parametrize("order", ["rank", "position"])
@pytest.mark.parametrize("k", [3, 3000])
def test_the_result_does_not_depend_on_the_blocks(order, k):
    generator = torch.Generator().manual_seed(3)
    query, bank = torch.randn(2, 11, 4, generator=generator), torch.randn(3000, 4, generator=generator)
    whole = smallest_costs(query, bank, k, order)
    for max_bytes in (1, 200_000):
        torch.testing.assert_close(smallest_costs(query, bank, k, order, max_bytes), whole, **CLOSE)


def test_minima_are_scikit_learns_nearest_neighbours():
    generator = torch.Generator().manual_seed(4)
    grids = [torch.randn(3, c, 6, 6, generator=generator) for c in (5, 9)]
    banks = [torch.randn(200, c, generator=generator) for c in (5, 9)]
    found = cost_volume(grids, banks, 1, "rank", 16)
    for grid, bank, nearest in zip(grids, banks, found.nearest, strict=True):
        neighbours = NearestNeighbors(n_neighbors=1, metric="cosine").fit(bank.numpy())
        distance, _ = neighbours.kneighbors(grid.movedim(1, -1).reshape(-1, grid.shape[1]).numpy())
        np.testing.assert_allclose(nearest.numpy().ravel(), distance[:, 0], atol=2e-6)


def test_layers_are_depth_and_are_scaled_bilinearly_with_aligned_corners():
    generator = torch.Generator().manual_seed(5)
    grids = [torch.randn(1, 4, 8, 8, generator=generator) for _ in range(3)]
    found = cost_volume(grids, [grid[:, None] for grid in grids], size=15)
    assert found.volume.shape == (1, 64, 3, 15, 15)
    for depth, grid in enumerate(grids):
        rows = grid.flatten(2).mT
        costs = cosine_costs(rows, rows).mT.unflatten(2, (8, 8))
        # 15 = 2 * 8 - 1: with aligned corners every second value is one of the grid.
        torch.testing.assert_close(found.volume[:, :, depth, ::2, ::2], costs, **CLOSE)
        between = (costs[..., :-1] + costs[..., 1:]) / 2
        torch.testing.assert_close(found.volume[:, :, depth, ::2, 1::2], between, **CLOSE)


def test_features_of_length_zero_cost_one(features):
    query, template = features
    query[0, 3] = 0
    assert bool((cosine_costs(query, template)[0, 3] == 1).all())


def test_matching_stays_below_its_bound():
    # 512 x 60 000 costs are 123 MB, and a sort of them three times as much; the bound is 16 MB.
    code = """
import resource, torch
from hexad.vision_robustness.costfilter_ad.matching import smallest_costs
torch.set_num_threads(1)
query, bank = torch.randn(1, 512, 2), torch.randn(60_000, 2)
smallest_costs(query[:, :64], bank[:2000], 64)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
smallest_costs(query, bank, 64, "rank", 16 * 2**20)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    grown = float(done.stdout)
    assert grown < 60


def grid(channels=4, side=4, batch=1):
    return torch.randn(batch, channels, side, side, generator=torch.Generator().manual_seed(6))


@pytest.mark.parametrize(
    ("queries", "templates", "options", "words"),
    [
        (
            [grid()],
            [grid(side=5)[:, None]],
            {},
            "the query's grid is (4, 4) and the templates' (5, 5)",
        ),
        ([grid()], [grid()[:, None]], {"k": 17}, "k is 17, but the templates have only 16 positions"),
        ([grid()], [grid()[:, None][:, :0]], {}, "layer 0: there are no templates"),
        ([grid()], [torch.zeros(0, 4)], {"order": "rank"}, "the bank of patches is empty"),
        ([], [], {}, "at least one"),
        ([grid()], [grid()[:, None] * float("nan")], {}, "features of the templates are not finite"),
        ([grid() / 0], [grid()[:, None]], {}, "features of the query are not finite"),
        ([grid()], [grid(5)[:, None]], {}, "the query has 4 channels and the templates 5"),
        ([grid()], [torch.ones(9, 4)], {}, 'a bank of patches has no positions; use order="rank"'),
        ([grid()], [grid()[:, None]], {"order": "near"}, "unknown order 'near'"),
        ([grid(batch=3)], [grid(batch=2)[:, None]], {}, "templates are of 2 images, queries of 3"),
    ],
)
def test_bad_input_is_refused_in_one_line(queries, templates, options, words):
    with pytest.raises(InputError) as caught:
        cost_volume(queries, templates, **{"size": 16} | options)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_features_of_length_zero_cost_one_and_large_ones_do_not_overflow(features):
    query, template = features
    for kind in (torch.float16, torch.float32, torch.float64):
        costs = cosine_costs((query * 0).to(kind), template.to(kind))
        torch.testing.assert_close(costs, torch.ones_like(costs))
    expected = cosine_costs(query, template)
    torch.testing.assert_close(cosine_costs(query * 1e30, template * 1e-20), expected, **CLOSE)
    torch.testing.assert_close(
        smallest_costs(query.double(), template, 30, "position"), expected.double(), **CLOSE
    )


def test_features_that_are_no_floats_are_refused(features):
    grid = features[0].transpose(1, 2).unflatten(2, (4, 5))
    with pytest.raises(InputError, match=r"the query must be a tensor of floats, not torch\.int64"):
        cost_volume([grid.long()], [grid[:, None]])
    with pytest.raises(InputError, match="the templates must be a tensor of floats, not ndarray"):
        cost_volume([grid], [grid[:, None].numpy()])
