import torch

from hexad.llm_efficiency.spargeattn.masks import random_mask_like, window_mask_like


def some_mask():
    return (
        torch.rand(2, 3, 6, 12, generator=torch.Generator().manual_seed(0))
        < torch.linspace(0.1, 0.9, 6)[:, None]
    )


def test_random_tiles_keep_the_count_of_every_row_and_nothing_else():
    mask = some_mask()
    drawn = random_mask_like(mask, torch.Generator().manual_seed(1))
    assert torch.equal(drawn.sum(-1), mask.sum(-1))
    again = random_mask_like(mask, torch.Generator().manual_seed(1))
    assert torch.equal(drawn, again)
    assert not torch.equal(drawn, random_mask_like(mask, torch.Generator().manual_seed(2)))
    # Drawn tiles meet the mask's as often as chance says: the sum over rows of n^2 / 12, of about 240.
    expected = float((mask.sum(-1).float() ** 2 / 12).sum())
    assert abs(float((drawn & mask).sum()) - expected) < 0.15 * expected


def test_a_window_is_one_run_of_tiles_around_the_diagonal():
    mask = some_mask()
    window = window_mask_like(mask)
    assert torch.equal(window.sum(-1), mask.sum(-1))
    for row, tiles in enumerate(window[0, 0]):
        columns = tiles.nonzero().flatten()
        if len(columns):
            assert int(columns[-1] - columns[0]) == len(columns) - 1
            middle = float(columns.float().mean()) + 0.5
            edge = min(len(columns) / 2, 6)  # a window at the border cannot be centred
            assert abs(middle - 2 * (row + 0.5)) <= max(1.0, edge)
