"""Data sets at the door: what is refused, what is made of them, what is drawn."""

import numpy as np
import pytest
import torch

from hexad.core.errors import InputError
from hexad.rl_graph.gas.trajectories import Trajectories


def arrays(**changes):
    found = {
        "observations": np.arange(12.0).reshape(6, 2),
        "actions": np.zeros((6, 1)),
        "terminals": np.array([0, 0, 1, 0, 0, 1]),
    }
    return found | changes


def put(array, place, value):
    array = np.array(array, float)
    array[place] = value
    return array


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"terminals": np.array([0, 0, 1, 0, 0, 0])}, "do not mark the last state"),
        ({"terminals": np.array([0, 0, 1, 0, 0, 2])}, "other values than 0 and 1"),
        ({"terminals": np.array([0, 0, 1])}, "one of each a state"),
        ({"terminals": np.array([1, 0, 1, 0, 0, 1])}, "trajectory 0 of data is a single state"),
        (
            {"observations": put(arrays()["observations"], (3, 1), np.nan)},
            "observation 3 of data is not finite",
        ),
        ({"observations": np.full((6, 2), 1e300)}, "too large for float32"),
        ({"observations": np.zeros((6, 8, 8, 3), np.uint8)}, "encode images"),
        ({"observations": np.array([{"a": 1}] * 6)}, "must be real numbers"),
        ({"observations": np.zeros((6, 0))}, "holds no states"),
        ({"observations": np.ones((6, 2)) * 1j}, "must be real numbers"),
        (
            {"actions": put(np.zeros((6, 1)), 1, 1.2)},
            "action 1 of data is [1.2]; actions must lie in [-1, 1]",
        ),
        ({"actions": put(np.zeros((6, 1)), 4, np.inf)}, "action 4 of data is not finite"),
        ({"actions": np.zeros(6, int)}, "discrete actions are not supported"),
        ({"actions": np.zeros((5, 1))}, "one of each a state"),
    ],
)
def test_bad_data_are_refused_in_one_line(changes, message):
    with pytest.raises(InputError) as caught:
        Trajectories(**arrays(**changes))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_last_action_of_a_trajectory_is_never_looked_at():
    data = Trajectories(**arrays(actions=put(np.zeros((6, 1)), [2, 5], np.nan)))
    assert np.isfinite(data.actions).all()


def test_ends_and_moves():
    data = Trajectories(**arrays())
    assert data.ends.tolist() == [2, 2, 2, 5, 5, 5]
    assert data.tensors().moves.tolist() == [0, 1, 3, 4]
    assert data.digest != Trajectories(**arrays(actions=np.full((6, 1), 0.5))).digest


def test_future_states_are_geometric_and_stay_in_their_trajectory():
    torch.manual_seed(0)
    terminals = np.zeros(2001, bool)
    terminals[[1000, 2000]] = True
    data = Trajectories(np.zeros((2001, 1)), np.zeros((2001, 1)), terminals).tensors()
    start = torch.zeros(200_000, dtype=torch.int64)
    ahead = data.draw_future(start, 0.9)
    assert int(ahead.min()) == 1, "a goal is never the state itself"
    # P(k) = 0.1 * 0.9^(k-1), of mean 10; four standard errors of 200,000 draws.
    assert abs(float(ahead.double().mean()) - 10) < 4 * 9.49 / 200_000**0.5
    for k in (1, 2, 5):
        share = 0.1 * 0.9 ** (k - 1)
        found = float((ahead == k).double().mean())
        assert abs(found - share) < 4 * (share * (1 - share) / 200_000) ** 0.5
    assert int(data.draw_future(torch.full((500,), 998), 0.999).max()) == 1000
    moves = data.draw_moves(20_000)
    assert not {1000, 2000} & set(moves.tolist())


def test_what_float32_would_blur_stays_float64():
    data = Trajectories(**arrays())
    assert data.observations.dtype == np.float32
    times = arrays()["observations"] + [1.7e9, 0]
    assert Trajectories(**arrays(observations=times)).observations.dtype == np.float64
    assert Trajectories(**arrays(observations=times.astype(np.int64))).observations.dtype == np.float64
    still = arrays()["observations"] * [0, 1] + [0.1, 0]
    assert Trajectories(**arrays(observations=still)).observations.dtype == np.float32, "0.1 does not vary"
    jitter = still + np.random.default_rng(0).normal(0, 1e-13, still.shape)
    assert Trajectories(**arrays(observations=jitter)).observations.dtype == np.float32
