"""The server's arithmetic against fractions by hand, and what it refuses."""

from fractions import Fraction

import numpy as np
import pytest
import torch

from hexad.core.errors import InputError
from hexad.federated.fedswa import cyclic_lrs, extrapolate, next_variate, update_momentum, update_scaffold
from hexad.federated.fedswa.averaging import check_alike, check_finite, trainable_names, weighted_mean
from hexad.federated.fedswa.memory import VariateMemory
from hexad.federated.fedswa.variates import correction, zeros_like


def round_by_hand(theta, m, c, centres, lr, steps, rho, alpha, gamma):
    """One round of FedMoSWA in one dimension with f_i = (x - b_i)^2 / 2, in exact fractions."""
    rates = [lr * (1 - Fraction(k, steps) + Fraction(k, steps) * rho) for k in range(steps)]
    ends, fresh = [], []
    for centre, own in zip(centres, c, strict=True):
        y = theta
        for rate in rates:
            y = y - rate * (y - centre - own + m)
        ends.append(y)
        fresh.append(own - m + (theta - y) / sum(rates))
    mean = sum(ends) / len(ends)
    momentum = m + gamma * sum(f - m for f in fresh) / len(fresh)
    return theta + alpha * (mean - theta), momentum, fresh


def test_one_round_by_hand():
    values = [Fraction(7, 4), Fraction(1, 3), Fraction(-2, 5), Fraction(5, 6), Fraction(3), Fraction(-1, 2)]
    theta, m, *c, first, second = values
    lr, rho, alpha, gamma, steps = Fraction(1, 8), Fraction(1, 4), Fraction(3, 2), Fraction(1, 5), 3
    wanted = round_by_hand(theta, m, c, (first, second), lr, steps, rho, alpha, gamma)

    rates = cyclic_lrs(float(lr), steps, float(rho))
    ends, fresh = [], []
    for centre, own in zip((first, second), c, strict=True):
        start = {"x": np.array(float(theta))}
        y = start["x"]
        shift = correction({"x": np.array(float(m))}, {"x": np.array(float(own))})["x"]
        for rate in rates:
            y = y - rate * (y - float(centre) + shift)
        delta = {"x": y - start["x"]}
        ends.append({"x": y})
        fresh.append(next_variate({"x": np.array(float(own))}, {"x": np.array(float(m))}, delta, sum(rates)))
    mean = weighted_mean(ends, [1, 1])
    after = extrapolate({"x": np.array(float(theta))}, mean, float(alpha), ["x"])
    update = weighted_mean([{"x": f["x"] - float(m)} for f in fresh], [1, 1])
    momentum = update_momentum({"x": np.array(float(m))}, update, float(gamma))
    assert float(after["x"]) == pytest.approx(float(wanted[0]), rel=1e-14)
    assert float(momentum["x"]) == pytest.approx(float(wanted[1]), rel=1e-14)
    assert [float(f["x"]) for f in fresh] == pytest.approx([float(f) for f in wanted[2]], rel=1e-13)


def test_the_server_extrapolates_parameters_and_averages_buffers():
    theta = {
        "w": np.array([1.0, 2.0]),
        "bn.running_var": np.array([1.0]),
        "bn.num_batches_tracked": np.array(3),
    }
    mean = {
        "w": np.array([2.0, 0.0]),
        "bn.running_var": np.array([0.2]),
        "bn.num_batches_tracked": np.array(5.6),
    }
    names = trainable_names(theta)
    assert names == ["w"]
    after = extrapolate(theta, mean, 1.5, names)
    np.testing.assert_allclose(after["w"], [2.5, -1.0])
    np.testing.assert_allclose(after["bn.running_var"], [0.2])  # extrapolated it would be negative
    assert after["bn.num_batches_tracked"] == 6
    assert after["bn.num_batches_tracked"].dtype == theta["bn.num_batches_tracked"].dtype


def test_alpha_one_is_the_mean_to_the_last_bit():
    theta = {"w": np.array([1e8], np.float32)}
    mean = {"w": np.array([0.1], np.float32)}
    assert extrapolate(theta, mean, 1.0, ["w"])["w"] == mean["w"]
    assert theta["w"] + (mean["w"] - theta["w"]) != mean["w"]


def test_tensors_work_as_arrays_do():
    theta, mean = {"w": torch.tensor([1.0, 2.0])}, {"w": torch.tensor([3.0, 0.0])}
    assert extrapolate(theta, mean, 2.0, ["w"])["w"].tolist() == [5.0, -2.0]
    assert update_momentum(theta, mean, 0.5)["w"].tolist() == [2.5, 2.0]
    fresh = next_variate(zeros_like(theta), theta, mean, 2.0)["w"]
    assert fresh.tolist() == [-2.5, -2.0]


@pytest.mark.parametrize("kind", [np.float16, torch.float16, torch.bfloat16])
def test_half_precision_is_summed_in_float32(kind):
    one = [1.0, 0.3, -2.5]
    array = np.array(one, kind) if kind is np.float16 else torch.tensor(one, dtype=kind)
    mean = weighted_mean([{"w": array}] * 1000, [1] * 1000)["w"]
    assert "float32" in str(mean.dtype)
    wanted = array.astype(float) if kind is np.float16 else array.double().numpy()
    np.testing.assert_allclose(np.asarray(mean), wanted, rtol=1e-4)
    stepped = extrapolate({"w": array}, {"w": mean}, 1.5, ["w"])["w"]
    assert stepped.dtype == array.dtype
    np.testing.assert_allclose(
        np.asarray(stepped.float() if kind is not np.float16 else stepped), wanted, rtol=1e-2
    )


def test_a_step_beyond_the_largest_number_is_refused():
    theta, mean = {"w": np.zeros(2, np.float16)}, {"w": np.full(2, 60000, np.float16)}
    with pytest.raises(InputError, match="'w' in the model after the server's step is not finite"):
        extrapolate(theta, mean, 1.5, ["w"])


def test_scaffold_s_mean_is_taken_over_the_clients_there_are():
    c = update_scaffold({"w": np.array([3.0])}, {"w": np.array([1.0])}, 2, 6, clients_before=2)
    np.testing.assert_allclose(c["w"], 3.0 * 2 / 6 + 2 / 6)


def test_the_mean_is_streamed_and_weighted():
    def updates():
        for value in (1.0, 2.0, 6.0):
            yield {"w": np.full(2, value)}

    np.testing.assert_allclose(weighted_mean(updates(), [1, 1, 2])["w"], 15 / 4)
    for weights in ([], [0.0, 0.0, 0.0], [1, -1, 2], [1, float("nan"), 1]):
        with pytest.raises(InputError, match=r"weights? (are|is)"):
            weighted_mean(updates(), weights)


def test_scaffold_keeps_the_mean_of_all_variates():
    generator = np.random.default_rng(0)
    variates = generator.normal(size=(5, 3))
    c = {"w": variates.mean(0)}
    for chosen in ([0, 3], [1], [2, 3, 4], [0]):
        fresh = generator.normal(size=(len(chosen), 3))
        c = update_scaffold(c, {"w": (fresh - variates[chosen]).mean(0)}, len(chosen), 5)
        variates[chosen] = fresh
        np.testing.assert_allclose(c["w"], variates.mean(0), atol=1e-14)
    with pytest.raises(InputError, match="clients is 2"):
        update_scaffold(c, c, 3, 2)


def test_the_order_of_names_does_not_matter():
    generator = np.random.default_rng(1)
    arrays = [{name: generator.normal(size=3) for name in "abc"} for _ in range(4)]
    c, m, delta, mean = arrays
    backwards = [dict(reversed(list(part.items()))) for part in arrays]
    for name in "abc":
        np.testing.assert_array_equal(
            next_variate(c, m, delta, 0.7)[name], next_variate(*backwards[:3], 0.7)[name]
        )
        np.testing.assert_array_equal(
            extrapolate(c, mean, 1.5, ["a", "b"])[name],
            extrapolate(backwards[0], backwards[3], 1.5, ["b", "a"])[name],
        )


def test_arrays_that_do_not_fit_are_refused():
    theta = {"w": np.zeros(2, np.float32), "b": np.zeros(1, np.float32)}
    cases = [
        ({"w": theta["w"]}, r"lacks \['b'\]"),
        ({**theta, "z": theta["b"]}, r"unknown \['z'\]"),
        ({**theta, "w": np.zeros(3, np.float32)}, "shape of 'w'"),
        ({**theta, "w": np.zeros(2)}, "dtype of 'w' in it is float64 and that of theta float32"),
    ]
    for given, message in cases:
        with pytest.raises(InputError, match=message) as caught:
            check_alike("it", given, theta, "theta")
        assert "\n" not in str(caught.value)
    with pytest.raises(InputError, match="device of 'w'"):
        check_alike("it", {"w": torch.zeros(1, device="meta")}, {"w": torch.zeros(1)}, "theta")
    for value in (np.nan, np.inf):
        with pytest.raises(InputError, match="'w' in it is not finite"):
            check_finite("it", {"w": np.array([0.0, value])})
    with pytest.raises(InputError, match="not finite"):
        check_finite("it", {"w": torch.tensor([float("nan")])})


@pytest.mark.parametrize(("alpha", "gamma"), [(0.0, 0.5), (-1.0, 0.5), (1.0, -0.1), (1.0, 1.1)])
def test_alpha_and_gamma_out_of_range_are_refused(alpha, gamma):
    theta = {"w": np.zeros(2)}
    with pytest.raises(InputError, match=r"server_alpha|gamma"):
        extrapolate(update_momentum(theta, theta, gamma), theta, alpha, ["w"])


@pytest.mark.parametrize("lr_sum", [0.0, -0.1, float("nan")])
def test_a_sum_of_rates_that_is_not_positive_is_refused(lr_sum):
    zeros = {"w": np.zeros(2)}
    with pytest.raises(InputError, match="lr_sum is"):
        next_variate(zeros, zeros, zeros, lr_sum)


def test_a_memory_keeps_what_the_server_may_go_back_to():
    memory = VariateMemory()
    assert memory.of(0) is None
    memory.remember(3, {"w": np.array(3.0)}, counted=0)
    assert memory.of(0) is None  # never counted: did not happen
    memory.remember(7, {"w": np.array(7.0)}, counted=3)
    memory.remember(9, {"w": np.array(9.0)}, counted=3)  # round 7's reply was lost
    assert list(memory.versions) == [3, 9]
    memory.remember(11, {"w": np.array(11.0)}, counted=9, kept=[3])  # a checkpoint is of before round 9
    assert list(memory.versions) == [3, 9, 11]
    memory.remember(12, {"w": np.array(12.0)}, counted=11, kept=[9, 11])
    assert list(memory.versions) == [9, 11, 12]
    assert memory.of(10) is None  # a round that is gone is not replaced by another
    memory.remember(10, {"w": np.array(10.0)}, counted=9)  # the server went back
    assert list(memory.versions) == [9, 10]
    assert memory.of(9)["w"] == 9.0
    with pytest.raises(InputError, match="round 9 comes after round 9"):
        memory.remember(9, {}, counted=9)


ONE = {"w": np.ones(2, np.float32)}
NOT_ARRAYS = [
    ({"v": np.ones(2, np.float32)}, r"lacks \['w'\] and has the unknown \['v'\]"),
    ({"w": np.ones(1, np.float32)}, "shape of 'w'"),
    ({"w": np.array([1, np.nan], np.float32)}, "not finite"),
    ({"w": torch.ones(2)}, r"'w' is a (Tensor|ndarray) in .* and a (Tensor|ndarray) in .*; use .* not both"),
    ({"w": "12"}, "'w' in .* is a str; pass numpy arrays"),
    ({"w": 1.0}, "'w' in .* is a float; pass numpy arrays"),
    ("ab", "is a str; pass a mapping of names to arrays"),
    ([np.ones(2)], "is a list; pass a mapping"),
]


@pytest.mark.parametrize(("wrong", "message"), NOT_ARRAYS)
@pytest.mark.parametrize(
    "call",
    [
        lambda x: correction(ONE, x),
        lambda x: next_variate(x, ONE, ONE, 1.0),
        lambda x: next_variate(ONE, ONE, x, 1.0),
        lambda x: update_momentum(ONE, x, 0.5),
        lambda x: update_scaffold(ONE, x, 1, 2),
        lambda x: weighted_mean([ONE, x], [1, 1]),
        lambda x: extrapolate(ONE, x, 1.5, ["w"]),
        lambda x: extrapolate(x, ONE, 1.5, []),
    ],
)
def test_what_does_not_fit_is_one_line_and_broadcasts_nowhere(call, wrong, message):
    if isinstance(wrong, dict) and "v" in wrong:
        message = r"lacks \['\w'\] and has the unknown \['\w'\]"  # whichever of the two is said to be wrong
    with pytest.raises(InputError, match=message) as caught:
        call(wrong)
    assert "\n" not in str(caught.value)


def test_names_and_numbers_of_averages_are_checked():
    with pytest.raises(InputError, match=r"parameters is the string 'w'; pass a list"):
        extrapolate(ONE, ONE, 1.5, "w")
    with pytest.raises(InputError, match=r"parameters names \['wait'\], which theta lacks"):
        extrapolate(ONE, ONE, 1.5, ["w", "wait"])
    with pytest.raises(InputError, match="server_alpha must be a number"):
        extrapolate(ONE, ONE, "1.5", ["w"])
    with pytest.raises(InputError, match="3 weights for 2 updates"):
        weighted_mean([ONE, ONE], [1, 1, 1])
    with pytest.raises(InputError, match="1 weights for more updates"):
        weighted_mean(iter([ONE, ONE]), [1])
    with pytest.raises(InputError, match="a weight must be a number"):
        weighted_mean([ONE], ["1"])


def test_zeros_are_zeros_whatever_they_are_like():
    for array in (np.array([np.nan, -1.0]), torch.tensor([float("inf"), -1.0])):
        zeros = zeros_like({"w": array})["w"]
        assert np.array_equal(np.asarray(zeros), [0.0, 0.0])
        assert zeros.dtype == array.dtype
