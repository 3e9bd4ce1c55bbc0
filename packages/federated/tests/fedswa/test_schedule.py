"""The cycle of rates within a round and their course over rounds."""

from fractions import Fraction

import pytest

from hexad.core.errors import InputError
from hexad.federated.fedswa import RoundSchedule, cyclic_lrs, sum_cyclic_lrs


def test_the_cycle_by_hand():
    # K = 4, rho = 1/5: 1 - (1 - rho) k / 4 is 1, 4/5, 3/5, 2/5; rho itself is not reached.
    assert cyclic_lrs(0.5, 4, 0.2) == pytest.approx([0.5, 0.4, 0.3, 0.2], rel=1e-15)
    assert cyclic_lrs(0.3, 7, 1.0) == pytest.approx([0.3] * 7, rel=1e-15)


@pytest.mark.parametrize("steps", [1, 2, 7, 50])
@pytest.mark.parametrize("rho", [0.1, 0.37, 1.0])
def test_the_sum_has_its_closed_form(steps, rho):
    lr = 0.07
    rates = cyclic_lrs(lr, steps, rho)
    assert rates[0] == lr
    assert len(rates) == steps
    exact = sum(
        (Fraction(lr) * (1 - Fraction(k, steps) + Fraction(k, steps) * Fraction(rho)) for k in range(steps)),
        Fraction(0),
    )
    assert sum_cyclic_lrs(lr, steps, rho) == pytest.approx(float(exact), rel=1e-14)
    assert sum(rates) == pytest.approx(float(exact), rel=1e-14)


def test_the_sum_is_not_the_shortcut_of_the_authors_later_code():
    # (1 + rho) / 2 eta K misses eta (1 - rho) / 2.
    assert sum_cyclic_lrs(1.0, 5, 0.5) - 0.75 * 5 == pytest.approx(0.25)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0.0, 5, 0.1), "lr is 0.0"),
        ((0.1, 0, 0.1), "local_steps is 0"),
        ((0.1, 5, 0.0), "rho is 0.0"),
        ((0.1, 5, 1.5), "rho is 1.5"),
        ((0.1, 5, -0.1), "rho is -0.1"),
        ((float("nan"), 5, 0.1), "lr is nan"),
    ],
)
@pytest.mark.parametrize("function", [cyclic_lrs, sum_cyclic_lrs])
def test_rates_out_of_range_are_refused(function, arguments, message):
    with pytest.raises(InputError, match=message) as caught:
        function(*arguments)
    assert "\n" not in str(caught.value)


def test_rates_over_rounds():
    assert RoundSchedule().rate(0.4, 9, 10) == 0.4
    cosine = RoundSchedule("cosine")
    assert cosine.rate(0.4, 1, 10) == 0.4
    assert cosine.rate(0.4, 6, 10) == pytest.approx(0.2)  # half way
    assert cosine.rate(0.4, 10, 10) > 0
    assert RoundSchedule("exponential", 0.5).rate(0.4, 3, 10) == pytest.approx(0.1)


def test_bad_courses_are_refused():
    with pytest.raises(InputError, match="unknown course 'linear'"):
        RoundSchedule("linear")
    with pytest.raises(InputError, match="decay is 0"):
        RoundSchedule("exponential", 0)
    with pytest.raises(InputError, match="rounds is 3"):
        RoundSchedule("cosine").rate(0.1, 4, 3)
