"""Data from OGBench's simulator: reproducible, of their kind, and of real moves."""

import numpy as np
import pytest

from hexad.core.errors import InputError
from hexad.rl_graph.gas.mazes import STEPS, cell_distances, cell_of, generate_pointmaze, make_env, make_maze


@pytest.mark.parametrize(("kind", "episodes"), [("stitch", 12), ("navigate", 2), ("explore", 4)])
def test_data_are_of_their_kind(kind, episodes):
    data = generate_pointmaze("medium", kind, episodes, seed=3)
    assert len(data) == episodes * (STEPS[kind] + 1)
    assert np.diff(data.last_states).tolist() == [STEPS[kind] + 1] * (episodes - 1)
    again = generate_pointmaze("medium", kind, episodes, seed=3)
    assert again.digest == data.digest
    assert generate_pointmaze("medium", kind, episodes, seed=4).digest != data.digest
    walls = make_maze("medium").unwrapped.maze_map
    rows, columns = cell_of(data.observations).T
    assert (walls[rows, columns] == 0).all(), "nobody stands in a wall"
    moved = np.diff(data.observations, axis=0)[~data.terminals[:-1]]
    pushed = data.actions[:-1][~data.terminals[:-1]]
    free = np.abs(moved - 0.2 * pushed).max(axis=1) < 1e-3
    assert free.mean() > 0.6, "a move is a fifth of its action, save at walls"


def test_stitch_episodes_go_four_cells_and_no_farther():
    data = generate_pointmaze("large", "stitch", 30, seed=0)
    first = np.concatenate([[0], data.last_states[:-1] + 1])
    starts, ends = data.observations[first], data.observations[data.last_states]
    gone = cell_distances("large", starts, ends)
    assert gone.max() <= 5, "four cells and some noise"
    assert (gone == 4).mean() > 0.7
    everywhere = np.repeat(starts, 201, axis=0)
    assert cell_distances("large", everywhere, data.observations).max() <= 6


def test_true_distances_go_round_walls():
    # In the medium maze rows 1 and 2 of column 3 are walls between (1, 2) and (1, 5).
    env = make_maze("medium").unwrapped
    a, b = (np.array([env.ij_to_xy(cell)]) for cell in ((1, 2), (1, 5)))
    straight = 3
    assert cell_distances("medium", a, b)[0] > straight
    assert cell_distances("medium", a, a)[0] == 0
    assert cell_distances("medium", a, b)[0] == cell_distances("medium", b, a)[0]


def test_bad_input_is_refused():
    for call, message in (
        (lambda: generate_pointmaze("mediun", "stitch", 1), "did you mean 'medium'"),
        (lambda: generate_pointmaze("medium", "stich", 1), "did you mean 'stitch'"),
        (lambda: generate_pointmaze("medium", "stitch", 0), "episodes"),
        (lambda: generate_pointmaze("medium", "stitch", 1, noise=-1), "noise"),
        (lambda: generate_pointmaze("medium", "stitch", 1, seed=-1), "seed"),
        (lambda: make_env("pointmaze-mediun-v0"), "did you mean 'pointmaze-medium-v0'"),
    ):
        with pytest.raises(InputError, match=message):
            call()
