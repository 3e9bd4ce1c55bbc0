"""Both groups against official vectors, and their sums of products against the plain ones."""

import hashlib
import itertools

import numpy as np
import pytest

from hexad.core.errors import InputError
from hexad.federated.janus import generators as generators_module
from hexad.federated.janus.errors import ProtocolError
from hexad.federated.janus.generators import BLOCK, blinding_generator, generators
from hexad.federated.janus.groups import GROUPS, get_group, scalar_from_bytes, scalar_to_bytes

both = pytest.mark.parametrize("group", [get_group(name) for name in GROUPS], ids=GROUPS)

# x coordinates of k G (SEC 2's generator; the widely published table of small multiples).
SECP256K1 = {
    1: "0279be667ef9dcbbac55a06295ce870b07029bfcdb2dce28d959f2815b16f81798",
    2: "02c6047f9441ed7d6d3045406e95c07cd85c778e4b8cef3ca7abac09b95c709ee5",
    3: "02f9308a019258c31049344f85f89d5229b531c845836f99b08601f113bce036f9",
    4: "02e493dbf1c10d80f3581e4904930b1404cc6c13900ee0758474fa94abe8c4cd13",
    5: "022f8bde4d1a07209355b4a7250a5c5128e88b84bddc619ab7cba8d569b240efe4",
    20: "024ce119c96e2fa357200b559b2f7dd5a5f02d5290aff74b03f3e471b273211c97",
}
# RFC 9496, appendix A.1: multiples 0 to 5 of the generator.
RISTRETTO255 = {
    0: "0000000000000000000000000000000000000000000000000000000000000000",
    1: "e2f2ae0a6abc4e71a884a961c500515f58e30b6aa582dd8db6a65945e08d2d76",
    2: "6a493210f7499cd17fecb510ae0cea23a110e8d5b901f8acadd3095c73a3b919",
    3: "94741f5d5d52755ece4f23f044ee27d5d1ea1e2bd196b462166b16152a9d0259",
    4: "da80862773358b466ffadfe0b3293ab3d9fd53c5ea6c955358f568322daf6a57",
    5: "e882b131016b52c1d3337080187cf768423efccbb517bb495ab812c4160ff44e",
}
# RFC 9496, appendix A.2: encodings that must be refused.
BAD_RISTRETTO255 = (
    "00ffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff",
    "ffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
    "0100000000000000000000000000000000000000000000000000000000000000",
    "01ffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff",
    "26948d35ca62e643e26a83177332e6b6afeb9d08e4268b650f1f5bbd8d81d371",
    "c34c4e1e2bc2e3a4b2b3b6c0dd8d3bbd5d3bfc1b2f0f0b8c4e4f7c0d2e3f4a00",
)
# RFC 9496, appendix A.3: SHA-512 of a text, mapped to the group.
MAPPED = {
    "Ristretto is traditionally a short shot of espresso coffee": (
        "3066f82a1a747d45120d1740f14358531a8f04bbffe6a819f86dfe50f44a0a46"
    ),
    "made with the normal amount of ground coffee but extracted with": (
        "f26e5b6f7d362d2d2a94c5d0e7602cb4773c95a2e5c31a64f133189fa76ed61b"
    ),
}


def test_secp256k1_gives_the_published_multiples():
    group = get_group("secp256k1")
    for k, expected in SECP256K1.items():
        assert group.base_mul(k).hex()[2:] == expected[2:]
        assert group.mul(group.base_mul(1), k) == group.base_mul(k)
    assert group.base_mul(1).hex() == SECP256K1[1]
    # (N - 1) G = -G, and N G is the identity.
    assert group.base_mul(group.order - 1) == group.neg(group.base_mul(1))
    assert group.base_mul(group.order) == group.identity


def test_ristretto255_gives_the_multiples_of_rfc_9496():
    group = get_group("ristretto255")
    assert {k: group.base_mul(k).hex() for k in RISTRETTO255} == RISTRETTO255
    assert group.base_mul(group.order) == group.identity
    for bad in BAD_RISTRETTO255:
        with pytest.raises(ProtocolError, match="no point of ristretto255"):
            group.decode(bytes.fromhex(bad))


def test_ristretto255_maps_texts_as_rfc_9496_does():
    import rbcl

    for text, expected in MAPPED.items():
        assert (
            rbcl.crypto_core_ristretto255_from_hash(hashlib.sha512(text.encode()).digest()).hex() == expected
        )


@both
def test_the_group_s_laws_hold_with_the_identity_too(group):
    points = [group.identity, group.base_mul(1), group.base_mul(7), group.hash_to_group(b"x")]
    for first, second in itertools.product(points, points):
        assert group.combine([first, second]) == group.combine([second, first])
    for point in points:
        assert group.combine([point, group.identity]) == point
        assert group.combine([point, group.neg(point)]) == group.identity
        assert group.combine([point, point, point]) == group.mul(point, 3)
        assert group.mul(point, 0) == group.mul(point, group.order) == group.identity
        assert group.decode(point) == point
    assert group.combine([group.identity, group.identity]) == group.identity


@both
def test_a_sum_of_products_is_that_of_plain_multiplications(group):
    n = 120
    table = generators(group, "test", n)
    rng = np.random.default_rng(0)
    cases = {
        "26 bits": rng.integers(0, 1 << 26, n, dtype=np.uint64),
        "64 bits": rng.integers(0, 1 << 64, n, dtype=np.uint64),
        "zeros": np.zeros(n, np.uint64),
        "ones": np.ones(n, np.uint64),
        "one hot": np.eye(1, n, 70, dtype=np.uint64)[0] * np.uint64(2**64 - 1),
        "alike": np.full(n, 0x8001, np.uint64),
        "sparse": rng.integers(0, 2, n, dtype=np.uint64) * rng.integers(0, 1 << 40, n, dtype=np.uint64),
    }
    for name, exponents in cases.items():
        products = [
            group.mul(group.table_element(row), int(e)) for row, e in zip(table, exponents, strict=True)
        ]
        expected = group.combine(products)
        for threads in (1, 3):
            assert group.multiply_sum(table, exponents, threads) == expected, name
    assert group.multiply_sum(table[:0], np.zeros(0, np.uint64)) == group.identity
    assert group.multiply_sum(table[5:6], np.array([1], np.uint64)) == group.table_element(table[5])


@both
def test_buckets_whose_points_cancel_are_the_identity(group):
    point = group.hash_to_group(b"p")
    both_signs = [point, group.neg(point)]
    if group.name == "secp256k1":
        table = np.stack([group._row(element) for element in both_signs])
    else:
        table = np.stack([np.frombuffer(element, np.uint8) for element in both_signs])
    for exponents in ([5, 5], [1 << 40, 1 << 40], [3, 3]):
        assert group.multiply_sum(table, np.array(exponents, np.uint64)) == group.identity
    assert group.multiply_sum(table, np.array([6, 5], np.uint64)) == point


@both
def test_no_sum_of_nothing_ends_the_process(group):
    with pytest.raises(InputError, match="sum of no group elements"):
        group.combine([])


@both
def test_what_is_no_element_is_refused(group):
    size = group.element_size
    for bad in (b"", bytes(size - 1), b"\xff" * size, bytes(size + 1), b"\x05" + bytes(size - 1)):
        with pytest.raises(ProtocolError) as caught:
            group.decode(bad)
        assert caught.value.check == "point"
    assert scalar_from_bytes(scalar_to_bytes(group.order - 1), group.order) == group.order - 1
    for bad in (scalar_to_bytes(group.order), b"\xff" * 32, bytes(31)):
        with pytest.raises(ProtocolError) as caught:
            scalar_from_bytes(bad, group.order)
        assert caught.value.check == "scalar"


def test_an_x_beyond_the_field_is_no_point():
    p = 2**256 - 2**32 - 977
    # x = 1 is on the curve; x = p + 1 would be the same point written otherwise.
    assert get_group("secp256k1").decode(b"\x02" + (1).to_bytes(32, "big"))
    with pytest.raises(ProtocolError):
        get_group("secp256k1").decode(b"\x02" + (p + 1).to_bytes(32, "big"))


@both
def test_generators_are_hashed_from_the_label_alone(group):
    table = generators(group, "one", 3)
    again = group.hash_to_group(generators_module.message_prefix("one") + (2).to_bytes(8, "big"))
    assert group.table_element(table[2]) == again
    elements = {group.table_element(row) for row in (*table, *generators(group, "two", 3))}
    elements |= {blinding_generator(group, "one"), blinding_generator(group, "two"), group.base_mul(1)}
    assert len(elements) == 9


def test_a_damaged_or_foreign_block_of_generators_is_made_again(tmp_path, monkeypatch):
    monkeypatch.setenv("HEXAD_CACHE", str(tmp_path))
    monkeypatch.setattr(generators_module, "BLOCK", 64)
    group = get_group("secp256k1")
    monkeypatch.setattr(generators_module, "_tables", {})
    expected = generators(group, "cached", 100).copy()
    files = sorted((tmp_path / "janus").iterdir())
    assert len(files) == 2
    for spoil in (
        lambda content: content[:-1],
        lambda content: content[:40] + bytes([content[40] ^ 1]) + content[41:],
        lambda content: b"",
    ):
        files[1].write_bytes(spoil(files[1].read_bytes()))
        monkeypatch.setattr(generators_module, "_tables", {})
        assert np.array_equal(generators(group, "cached", 100), expected)
    # Points that hash well but are not the label's: a generator with a known logarithm would break binding.
    import hashlib

    foreign = np.tile(generators(group, "other", 1), (64, 1)).tobytes()
    files[0].write_bytes(hashlib.sha256(foreign).digest() + foreign)
    monkeypatch.setattr(generators_module, "_tables", {})
    assert np.array_equal(generators(group, "cached", 100), expected)
    # What is there is read and not made.
    monkeypatch.setattr(generators_module, "_tables", {})
    monkeypatch.setattr(generators_module, "_make_block", None)
    assert np.array_equal(generators(group, "cached", 100), expected)


def test_a_cache_that_cannot_be_written_is_one_line(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("HEXAD_CACHE", str(tmp_path / "file"))
    with pytest.raises(InputError, match="cache of generators"):
        generators(get_group("secp256k1"), "elsewhere", 3)


def test_unknown_groups_are_refused():
    with pytest.raises(InputError, match="did you mean 'secp256k1'"):
        get_group("secp256r1")
    assert BLOCK % 2 == 0


def test_a_block_that_others_could_have_written_is_made_again(tmp_path, monkeypatch):
    """Somebody else's block, in which all is well but one generator, of which the logarithm is known."""
    monkeypatch.setenv("HEXAD_CACHE", str(tmp_path))
    monkeypatch.setattr(generators_module, "_tables", {})
    group = get_group("secp256k1")
    expected = generators(group, "foreign", 10).copy()
    (path,) = (tmp_path / "janus").glob("*.points")
    assert path.stat().st_mode & 0o777 == 0o600
    body = bytearray(path.read_bytes()[32:])
    body[:64] = body[64:128]
    path.write_bytes(hashlib.sha256(body).digest() + body)
    path.chmod(0o622)
    generators_module._tables.clear()
    assert np.array_equal(generators(group, "foreign", 10), expected)
    # And many false points are found in a file of one's own.
    path.write_bytes(hashlib.sha256(body[64:] + body[:64]).digest() + body[64:] + body[:64])
    generators_module._tables.clear()
    assert np.array_equal(generators(group, "foreign", 10), expected)
