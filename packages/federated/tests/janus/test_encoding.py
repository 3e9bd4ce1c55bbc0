"""Fixed point and pads: bounds, wrap-around, official ChaCha20, uniform pads."""

import numpy as np
import pytest
from scipy import stats

from hexad.core.errors import InputError
from hexad.federated.janus.config import JanusConfig
from hexad.federated.janus.errors import VerificationError
from hexad.federated.janus.groups import GROUPS, get_group
from hexad.federated.janus.masks import chacha20_block_stream, expand, new_seed, random_scalar, scalar_pad
from hexad.federated.janus.quantizer import Quantizer


def quantizer(**changes):
    return Quantizer(JanusConfig(**{"length": 4, **changes}))


def test_the_mean_is_exact_to_a_step():
    rng = np.random.default_rng(0)
    coder = quantizer(length=2000, bits=12, clip=0.5)
    updates, weights = rng.uniform(-0.7, 0.7, (7, 2000)), rng.integers(1, 100, 7)
    total = sum(coder.encode(u, int(w), rng) for u, w in zip(updates, weights, strict=True))
    mean, weight = coder.decode(total)
    assert weight == weights.sum()
    expected = (np.clip(updates, -0.5, 0.5) * weights[:, None]).sum(0) / weights.sum()
    assert np.abs(mean - expected).max() < coder.step
    # Rounding is unbiased: over 2000 coordinates the mean error is far below a step.
    assert abs((mean - expected).mean()) < 0.05 * coder.step


def test_rounding_is_unbiased_and_moves_less_than_a_step():
    coder = quantizer(length=20000, bits=3)
    value = 0.123
    encoded = coder.encode(np.full(20000, value), 1, np.random.default_rng(1))[:-1]
    assert set(np.unique(encoded)) == {np.floor((value + 1) / coder.step), np.ceil((value + 1) / coder.step)}
    assert encoded.mean() * coder.step - 1 == pytest.approx(value, abs=4 * coder.step / np.sqrt(20000))


def test_the_ends_of_the_range_are_exact():
    coder = quantizer(bits=8, clip=2.0)
    encoded = coder.encode(np.array([-2.0, 2.0, -99.0, 99.0]), 3, np.random.default_rng(0))
    assert encoded.tolist() == [0, 3 * 255, 0, 3 * 255, 3]
    assert coder.decode(encoded)[0] == pytest.approx([-2.0, 2.0, -2.0, 2.0], abs=1e-12)


@pytest.mark.parametrize("modulus_bits", [32, 64])
def test_the_largest_sum_that_a_session_allows_does_not_wrap(modulus_bits):
    bits = 16 if modulus_bits == 32 else 32
    weight, clients = (65535, 1) if modulus_bits == 32 else (1 << 20, 4095)
    with pytest.raises(InputError, match="threshold"):
        JanusConfig(4, bits=bits, max_weight=weight, max_clients=1, modulus_bits=modulus_bits)
    clients = max(3, clients)
    weight = ((1 << modulus_bits) - 1) // (clients * ((1 << bits) - 1))
    coder = quantizer(bits=bits, max_weight=weight, max_clients=clients, modulus_bits=modulus_bits)
    top = coder.encode(np.full(4, 9.0), weight, np.random.default_rng(0))
    total = sum(int(x) for x in [top[0]] * 3) if clients == 3 else int(top[0]) * clients
    assert total == coder.config.largest_sum < 1 << modulus_bits
    word = np.dtype(f"u{modulus_bits // 8}").type
    assert int(word(top[0]) * word(clients)) == total  # in the ring's own arithmetic
    # One weight more could wrap, and is refused when the session is made.
    with pytest.raises(InputError, match="so sums could wrap"):
        JanusConfig(4, bits=bits, max_weight=weight + 1, max_clients=clients, modulus_bits=modulus_bits)


def test_pads_cancel_in_the_ring_also_near_the_modulus():
    for modulus_bits in (32, 64):
        word = np.dtype(f"u{modulus_bits // 8}")
        top = np.full(50, (1 << modulus_bits) - 1, word)
        pads = [expand(new_seed(), 1, 50, modulus_bits) for _ in range(5)]
        values = [top - word.type(k) for k in range(5)]
        masked = sum((value + pad for value, pad in zip(values, pads, strict=True)), np.zeros(50, word))
        found = masked - sum(pads, np.zeros(50, word))
        expected = sum(int(value[0]) for value in values) % (1 << modulus_bits)  # python's big integers
        assert found.tolist() == [expected] * 50


def test_chacha20_gives_the_key_stream_of_rfc_8439():
    # Section 2.3.2: the block function's test vector.
    key = bytes(range(32))
    nonce = bytes.fromhex("000000090000004a00000000")
    expected = (
        "10f1e7e4d13b5915500fdd1fa32071c4c7d1f4c733c068030422aa9ac3d46c4e"
        "d2826446079faa0914c2d705d98b02a2b5129cd1de164eb9cbd083e8a2503c4e"
    )
    assert chacha20_block_stream(key, 1, nonce, 64).hex() == expected
    # Appendix A.1, test vector 1: all zeros.
    assert (
        chacha20_block_stream(bytes(32), 0, bytes(12), 64)
        .hex()
        .startswith("76b8e0ada0f13d90405d6ae55386bd28")
    )
    # Appendix A.1, test vector 5: another nonce.
    nonce = bytes(11) + b"\x02"
    assert chacha20_block_stream(bytes(32), 0, nonce, 64).hex().startswith("c2c64d378cd536374ae204b9ef933fcd")


def test_a_pad_is_the_key_stream_and_is_fresh_each_round():
    seed = bytes(range(32))
    stream = chacha20_block_stream(seed, 0, (7).to_bytes(12, "little"), 80)
    assert expand(seed, 7, 10, 64).tolist() == np.frombuffer(stream, "<u8").tolist()
    assert expand(seed, 7, 20, 32).tolist() == np.frombuffer(stream, "<u4").tolist()
    assert not np.array_equal(expand(seed, 7, 10, 64), expand(seed, 8, 10, 64))
    assert new_seed() != new_seed()


def test_scalar_pads_spread_over_the_group():
    for name in GROUPS:
        group = get_group(name)
        found = [scalar_pad(bytes([k]) * 32, group) for k in range(200)] + [
            random_scalar(group) for _ in range(200)
        ]
        assert len(set(found)) == 400
        assert all(0 <= value < group.order for value in found)
        # Of 400 uniform values, between 130 and 270 lie in the upper half (7 standard deviations).
        assert 130 < sum(value > group.order // 2 for value in found) < 270


def test_pads_and_masked_updates_are_uniform():
    """Chi-square on the 2^8 values of a byte; p above 1e-4 fails once in ten thousand runs of a right pad."""
    rng = np.random.default_rng(0)
    coder = quantizer(length=20000)
    encoded = coder.encode(rng.normal(scale=0.01, size=20000), 7, rng)
    # The generator of the test's seed, so that the test is the same each time.
    pad = expand(rng.bytes(32), 1, 20001, 64)
    for words in (pad, encoded + pad):
        for byte in range(8):
            counts = np.bincount(words.view(np.uint8).reshape(-1, 8)[:, byte], minlength=256)
            assert stats.chisquare(counts).pvalue > 1e-4
    plain = np.bincount(encoded.view(np.uint8).reshape(-1, 8)[:, 7], minlength=256)
    assert stats.chisquare(plain).pvalue < 1e-10  # the test sees what is not uniform


@pytest.mark.parametrize(
    ("update", "words"),
    [
        (np.array([1.0, np.nan, 2.0, 3.0]), "1 numbers not finite"),
        (np.array([1.0, np.inf, 2.0, 3.0]), "not finite"),
        (np.zeros(3), r"shape \(3,\), the session's \(4,\)"),
        (np.zeros((2, 2)), "shape"),
        (np.zeros(4, np.int64), "array of floats, not int64"),
        ([0.0] * 4, "array of floats, not list"),
    ],
)
def test_bad_updates_are_refused(update, words):
    with pytest.raises(InputError, match=words):
        quantizer().encode(update, 1, np.random.default_rng(0))


@pytest.mark.parametrize("weight", [0, -1, 11, 1.5, True, None])
def test_bad_weights_are_refused(weight):
    with pytest.raises(InputError, match=r"weight is .*\[1, 10\]"):
        quantizer(max_weight=10).encode(np.zeros(4), weight, np.random.default_rng(0))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"length": 0}, "length is 0"),
        ({"clip": 0}, "clip is 0"),
        ({"clip": 1e-300}, "clip is 1e-300"),
        ({"clip": 5e-324}, "clip is 5e-324"),
        ({"clip": 1e300}, "clip is"),
        ({"modulus_bits": 64.0}, "modulus_bits is 64.0"),
        ({"label": "\ud800"}, "label is"),
        ({"label": 3}, "label is 3"),
        ({"clip": float("nan")}, "clip is nan"),
        ({"bits": 0}, "bits is 0"),
        ({"bits": 33}, "bits is 33"),
        ({"bits": 25, "modulus_bits": 32, "max_clients": 3, "max_weight": 1}, "bits is 25"),
        ({"modulus_bits": 48}, "modulus_bits is 48"),
        ({"threshold": 2}, "threshold is 2"),
        ({"threshold": 1001}, "threshold is 1001"),
        ({"max_weight": 0}, "max_weight is 0"),
        ({"session": "a b"}, "session is 'a b'"),
        ({"session": "../up"}, "session is"),
        ({"group": "p256"}, "unknown group"),
        ({"label": ""}, "label is"),
        ({"modulus_bits": 32}, "so sums could wrap"),
        ({"max_clients": 66, "modulus_bits": 32, "max_weight": 1000}, "so sums could wrap"),
    ],
)
def test_bad_parameters_are_refused(changes, words):
    with pytest.raises(InputError, match=words) as caught:
        JanusConfig(**{"length": 4, **changes})
    assert "\n" not in str(caught.value)


def test_the_card_s_example_of_32_bits_fits():
    config = JanusConfig(4, max_clients=65, modulus_bits=32, max_weight=1000)
    assert config.largest_sum < 2**32
    assert config.digest != JanusConfig(4, max_clients=64, modulus_bits=32, max_weight=1000).digest


def test_a_sum_without_weight_has_no_mean():
    with pytest.raises(VerificationError, match="weights of the sum are zero"):
        quantizer().decode(np.zeros(5, np.uint64))


def test_seeds_of_another_length_are_refused():
    with pytest.raises(InputError, match="a seed has 31 bytes"):
        expand(bytes(31), 1, 3, 64)


def test_1_and_1_0_are_one_session_and_digests_have_128_bits():
    assert JanusConfig(4, clip=1).digest == JanusConfig(4, clip=1.0).digest
    assert type(JanusConfig(4, clip=1).clip) is float
    digests = {JanusConfig(4, clip=clip).digest for clip in (1, 2, 1.5)}
    assert len(digests) == 3
    assert {len(digest) for digest in digests} == {32}
