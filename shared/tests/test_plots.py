"""The curve of a training."""

import numpy as np
import pytest

from hexad.core.plots import draw_losses, new_figure


def test_the_curve_of_a_training():
    _, axis = new_figure()
    losses = np.linspace(3, 1, 90)
    draw_losses(axis, losses, "nats/byte")
    each, mean = axis.get_lines()
    assert np.array_equal(each.get_xdata(), np.arange(1, 91))
    assert np.array_equal(each.get_ydata(), losses)
    # The mean of three steps, drawn at the last of them.
    assert np.array_equal(mean.get_xdata(), np.arange(3, 91))
    assert mean.get_ydata() == pytest.approx(losses[1:-1])
    assert axis.get_ylabel() == "training loss [nats/byte]"


def test_a_short_training_has_whole_steps_and_no_mean():
    figure, axis = new_figure()
    draw_losses(axis, np.array([2.0, 1.0]))
    figure.canvas.draw()
    assert len(axis.get_lines()) == 1
    assert all(float(tick).is_integer() for tick in axis.get_xticks())
