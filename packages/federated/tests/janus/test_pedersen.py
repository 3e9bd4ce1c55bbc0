"""The commitment: additive, hiding in its form, and equal to the product of single ones."""

import numpy as np
import pytest

from hexad.core.errors import InputError
from hexad.federated.janus.groups import GROUPS, get_group
from hexad.federated.janus.masks import random_scalar
from hexad.federated.janus.pedersen import Pedersen

both = pytest.mark.parametrize("group", [get_group(name) for name in GROUPS], ids=GROUPS)


@both
def test_commitments_add(group):
    rng = np.random.default_rng(0)
    scheme = Pedersen(group, 5)
    m1, m2 = rng.integers(0, 1 << 40, (2, 5), dtype=np.uint64)
    r1, r2 = random_scalar(group), random_scalar(group)
    total = scheme.combine([scheme.commit(m1, r1), scheme.commit(m2, r2)])
    assert total == scheme.commit(m1 + m2, (r1 + r2) % group.order)
    assert scheme.open(total, m1 + m2, (r1 + r2) % group.order)
    assert scheme.open(total, m1 + m2, r1 + r2)  # scalars are taken modulo the order


@both
def test_it_separates_and_extracts(group):
    scheme = Pedersen(group, 1)
    c_m, c_r = scheme.separate([77], 5)
    assert c_m == group.mul(scheme.generator(0), 77)
    assert c_r == group.mul(scheme.h, 5)
    c = scheme.commit([77], 5)
    assert c == group.combine([c_m, c_r])
    assert scheme.extract(c, c_r) == c_m
    assert group.combine([scheme.extract(c, c_m), group.neg(c_r)]) == group.identity


@both
def test_a_vector_is_the_product_of_its_coordinates(group):
    scheme, m = Pedersen(group, 4), [3, 0, 2**63 + 5, 1]
    single = [group.mul(scheme.generator(j), m[j]) for j in range(4)]
    assert scheme.commit(m, 9) == group.combine([*single, group.mul(scheme.h, 9)])
    # A shorter scheme of the same label uses the same generators.
    assert Pedersen(group, 2).generator(1) == scheme.generator(1)


@both
def test_zeros_commit_to_the_identity_and_the_randomness_alone(group):
    scheme = Pedersen(group, 3)
    assert scheme.message_part([0, 0, 0]) == group.identity
    assert scheme.commit([0, 0, 0], 4) == group.mul(scheme.h, 4)
    assert scheme.commit([0, 0, 0], 0) == group.identity
    assert scheme.open(group.identity, [0, 0, 0], 0)


@both
def test_another_vector_order_or_randomness_does_not_open(group):
    scheme = Pedersen(group, 3)
    c = scheme.commit([1, 2, 3], 8)
    for m, r in (([1, 2, 4], 8), ([2, 1, 3], 8), ([1, 2, 3], 9), ([0, 0, 0], 8)):
        assert not scheme.open(c, m, r)


def test_both_groups_agree_on_what_opens():
    rng = np.random.default_rng(4)
    schemes = [Pedersen(get_group(name), 3) for name in GROUPS]
    for _ in range(20):
        m = rng.integers(0, 50, 3)
        claimed = m + rng.integers(0, 2, 3) * rng.integers(0, 2)
        r = int(rng.integers(1, 1000))
        verdicts = {scheme.open(scheme.commit(m, r), claimed, r) for scheme in schemes}
        assert verdicts == {bool(np.array_equal(m, claimed))}


@pytest.mark.parametrize(
    ("m", "words"),
    [
        ([1, 2], r"a vector of 3 whole numbers"),
        ([1.0, 2.0, 3.0], "whole numbers"),
        ([1, -2, 3], r"committed numbers lie in \[-2, 3\]"),
        ([1, 2, 2**70], "must lie in"),
        ([[1, 2, 3]], "whole numbers"),
    ],
)
def test_what_is_no_vector_is_refused(m, words):
    with pytest.raises(InputError, match=words):
        Pedersen(get_group("secp256k1"), 3).commit(m, 1)
    with pytest.raises(InputError, match="dim is 0"):
        Pedersen(get_group("secp256k1"), 0)
