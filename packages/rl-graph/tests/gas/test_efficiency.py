"""Temporal efficiency: straight lines, loops, ends, and what does not change it."""

import numpy as np
import pytest

from hexad.core.errors import InputError
from hexad.rl_graph.gas import efficiency
from hexad.rl_graph.gas.efficiency import first_crossing, temporal_efficiency

RNG = np.random.default_rng(0)


def ends_of(*lengths):
    return np.repeat(np.cumsum(lengths) - 1, lengths)


def walks(dim=3, lengths=(40, 60, 5), seed=0):
    rng = np.random.default_rng(seed)
    steps = rng.normal(0.3, 1, (sum(lengths), dim))
    return np.concatenate([np.cumsum(part, 0) for part in np.split(steps, np.cumsum(lengths)[:-1])])


def by_definition(latents, ends, horizon):
    """Word by word, state by state."""
    found = np.ones(len(latents))
    crossing = np.array(ends)
    steps = round(horizon)
    for i, end in enumerate(ends):
        later = [j for j in range(i + 1, end + 1) if np.linalg.norm(latents[j] - latents[i]) >= horizon]
        crossing[i] = later[0] if later else end
        if i + steps <= end:
            a, b = latents[i + steps] - latents[i], latents[crossing[i]] - latents[i]
            found[i] = a @ b / (np.linalg.norm(a) * np.linalg.norm(b))
    return found, crossing


@pytest.mark.parametrize("block", [7, 65_536])
@pytest.mark.parametrize("horizon", [2.0, 4.0, 9.0])
def test_it_is_what_the_definition_says(horizon, block, monkeypatch):
    monkeypatch.setattr(efficiency, "BLOCK", block)
    latents, ends = walks(), ends_of(40, 60, 5)
    expected, crossing = by_definition(latents, ends, horizon)
    assert (first_crossing(latents, ends, horizon) == crossing).all()
    assert temporal_efficiency(latents, ends, horizon) == pytest.approx(expected, abs=1e-12)


def test_a_straight_line_at_unit_speed_has_exactly_one():
    line = np.arange(30.0)[:, None] * np.array([[0.6, 0.8]])
    assert (temporal_efficiency(line, ends_of(30), 8) > 1 - 1e-15).all()


def test_a_loop_back_to_the_start_has_none():
    # Four steps out, four back: after 8 steps it stands where it began, or has gone past it.
    out = np.concatenate([np.arange(5.0), np.arange(3.0, -8, -1)])[:, None]
    found = temporal_efficiency(out, ends_of(len(out)), 4)
    assert found[1] <= 0, "three steps on, one back: where it could have been lies behind it"
    assert temporal_efficiency(np.concatenate([out[:5], out[5:9]]), ends_of(9), 8)[0] == 0, "it has not moved"


def test_it_is_told_apart_from_one_index_for_both():
    latents, ends = walks(), ends_of(40, 60, 5)
    found = temporal_efficiency(latents, ends, 4)
    assert (found[: 40 - 4] < 0.99).any(), "with one index for both it would always be 1"


def test_the_last_horizon_of_each_trajectory_is_kept():
    found = temporal_efficiency(walks(), ends_of(40, 60, 5), 8)
    for last in (39, 99):
        assert (found[last - 7 : last + 1] == 1).all()
    assert (found[100:] == 1).all(), "a trajectory shorter than H is kept whole"
    assert (found[:32] < 0.9).any(), "others are judged"


def test_rotation_and_translation_change_nothing():
    latents, ends = walks(dim=5), ends_of(40, 60, 5)
    rotation, _ = np.linalg.qr(RNG.normal(size=(5, 5)))
    moved = latents @ rotation + 100
    assert temporal_efficiency(moved, ends, 6) == pytest.approx(
        temporal_efficiency(latents, ends, 6), abs=1e-9
    )


@pytest.mark.parametrize(
    ("latents", "ends", "horizon", "message"),
    [
        (np.full((3, 2), np.nan), ends_of(3), 8, "not finite"),
        (np.zeros(3), ends_of(3), 8, "latents are"),
        (np.zeros((0, 2)), np.zeros(0, int), 8, "latents are"),
        (np.zeros((3, 2)), np.array([2, 2]), 8, "must be 3 indices"),
        (np.zeros((3, 2)), np.array([0, 0, 2]), 8, "ends must not lie before"),
        (np.zeros((3, 2)), ends_of(3), 0, "horizon"),
    ],
)
def test_bad_input_is_refused(latents, ends, horizon, message):
    with pytest.raises(InputError, match=message):
        temporal_efficiency(latents, ends, horizon)


def test_ends_that_contradict_each_other_are_refused():
    latents = np.arange(6.0)[:, None]
    for ends in ([1, 3, 3, 3, 5, 5], [2, 2, 3, 3, 5, 5]):
        for call in (temporal_efficiency, first_crossing):
            with pytest.raises(InputError, match="contradict"):
                call(latents, np.array(ends), 2.0)


def test_crossings_are_looked_for_in_float64():
    ends = np.full(5, 4)
    small = np.array([0, 100, 200, 50, 0], np.uint8)[:, None]
    assert (
        first_crossing(small, ends, 50.0).tolist() == first_crossing(small.astype(float), ends, 50.0).tolist()
    )
    large = (np.arange(5) * 1e20).astype(np.float32)[:, None]
    assert first_crossing(large, ends, 1.5e20).tolist() == [2, 3, 4, 4, 4]


def test_one_and_the_same_way_has_efficiency_1_exactly():
    steps = np.random.default_rng(0).normal(size=(1, 7)) * np.arange(400)[:, None]
    latents = steps / np.linalg.norm(steps[1])
    assert (temporal_efficiency(latents * 1.0000001, np.full(400, 399), 3.0) == 1).all()
