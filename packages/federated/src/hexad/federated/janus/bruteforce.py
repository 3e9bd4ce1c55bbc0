"""What a curious server can find out by trying: all small numbers, against all that it was sent.

An update is whole numbers of a few bits, so whoever gets g^x of one finds x in about 2^(b/2) steps
(baby-step giant-step). Hence a server must never see a commitment and its randomness together.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from hexad.core.errors import InputError
from hexad.core.validation import check_count
from hexad.federated.janus.groups import Group
from hexad.federated.janus.pedersen import Pedersen


class SmallLogarithms:
    """Discrete logarithms to the base `generator` that lie in [0, 2^bits).

    Args:
        group: the group.
        generator: the base.
        bits: at most 40; memory and time grow as 2^(bits / 2).
    """

    def __init__(self, group: Group, generator: bytes, bits: int) -> None:
        if check_count("bits", bits) > 40:
            raise InputError(f"bits is {bits}; a table for more than 40 does not fit in memory")
        self.group, self.steps = group, 1 << -(-bits // 2)
        self._baby = {group.identity: 0}
        point = group.identity
        for k in range(1, self.steps):
            point = group.combine([point, generator])
            self._baby[point] = k
        self._giant = group.neg(group.combine([point, generator]))

    def find(self, element: bytes) -> int | None:
        """The logarithm, or None where there is no small one."""
        for giant in range(self.steps):
            if element in self._baby:
                return giant * self.steps + self._baby[element]
            element = self.group.combine([element, self._giant])
        return None


@dataclass(frozen=True)
class View:
    """What one server saw of one client's update of one number with a known weight.

    Attributes:
        commitment: to (x, weight).
        scalars: all scalars that it saw or can derive, of which one might be the randomness.
        words: all words that it saw or can derive, of which one might be x.
        weight: known from elsewhere.
    """

    commitment: bytes
    scalars: Sequence[int]
    words: Sequence[int]
    weight: int


def recover(view: View, pedersen: Pedersen, logarithms: SmallLogarithms) -> int | None:
    """x, if any scalar the server has, a difference of two, or none, opens the commitment; else None.

    A word that the server saw is believed only where it opens the commitment too.
    """
    group = pedersen.group
    tried = {0, *view.scalars}
    tried |= {a - b for a in view.scalars for b in view.scalars}
    weight = group.mul(pedersen.generator(1), view.weight)
    for scalar in tried:
        rest = group.combine([view.commitment, group.neg(group.mul(pedersen.h, scalar)), group.neg(weight)])
        guesses = [logarithms.find(rest), *view.words]
        for guess in guesses:
            if guess is not None and group.mul(pedersen.generator(0), guess) == rest:
                return guess
    return None
