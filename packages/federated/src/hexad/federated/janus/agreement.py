"""Who takes part in a round: what both servers hold alike.

Each server signs the list of clients that it heard from, with the hash of the commitment and the tags of the
model and of the training instructions that each named. The participants are those on both lists with the same
hash and tags; where clients have unlike tags, those of the most common ones. So a client that reached one
server alone drops out, one that told the servers two things drops out, one that was led to another model
drops out and finds it out, and one that was told to train otherwise (at a rate of 0, say) drops out too.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from hexad.federated.janus.config import NAME, JanusConfig
from hexad.federated.janus.envelopes import Header, check_header, check_signature, read_header, sign
from hexad.federated.janus.errors import ProtocolError
from hexad.federated.janus.keys import Keys, PublicKeys


@dataclass(frozen=True)
class Entry:
    """What a server heard of a client: the commitment's hash, and the tags of its model and training."""

    commitment: str
    model: str
    training: str = ""


@dataclass(frozen=True)
class Agreement:
    """The participants of a round.

    Attributes:
        names: theirs, sorted.
        model, training: the tags they share.
        digest: stands for all of it in the servers' replies.
    """

    names: tuple[str, ...]
    model: str
    training: str
    digest: str


def commitment_hash(commitment: bytes) -> str:
    """What stands for a commitment on a list."""
    return hashlib.sha256(b"hexad-janus-v1 commitment\x00" + commitment).hexdigest()


def write_list(
    config: JanusConfig, round_number: int, entries: Mapping[str, Entry], keys: Keys, peer: str
) -> bytes:
    """A server's signed list for the other one."""
    header = Header("list", config.session, config.digest, round_number, keys.name, peer)
    plain = {name: [entry.commitment, entry.model, entry.training] for name, entry in sorted(entries.items())}
    return sign(header, json.dumps(plain).encode(), keys)


def read_list(
    message: bytes, config: JanusConfig, round_number: int, peer: PublicKeys, own: str
) -> dict[str, Entry]:
    """The entries of the other server's list.

    Raises:
        ProtocolError: it is of another round, session or sender, or malformed.
    """
    header, line, signed = read_header(message)
    check_header(header, config, kind="list", round=round_number, sender=peer.name, recipient=own)
    payload = check_signature(line, signed, peer)
    try:
        plain = json.loads(payload)
        if not all(NAME.fullmatch(name) and _is_entry(values) for name, values in plain.items()):
            raise ValueError
    except (ValueError, TypeError, AttributeError, RecursionError):
        raise ProtocolError("envelope", f"the list of {peer.name} is malformed; ask for it again") from None
    return {name: Entry(*values) for name, values in plain.items()}


def _is_entry(values: object) -> bool:
    return isinstance(values, list) and len(values) == 3 and all(isinstance(value, str) for value in values)


def agree(
    config: JanusConfig, round_number: int, first: Mapping[str, Entry], second: Mapping[str, Entry]
) -> Agreement:
    """The participants by two lists, in either order.

    Raises:
        ProtocolError: check `"threshold"`: too few; `"capacity"`: too many; `"model"`: two models,
            or two ways to train, are equally common.
    """
    both = {name: entry for name, entry in first.items() if second.get(name) == entry}
    bases = Counter((entry.model, entry.training) for entry in both.values()).most_common(2)
    if len(bases) == 2 and bases[0][1] == bases[1][1]:
        raise ProtocolError(
            "model",
            f"round {round_number}: two models, or ways to train, are held by {bases[0][1]} clients each; "
            "bring them to one",
        )
    basis = bases[0][0] if bases else ("", "")
    chosen = {name: entry for name, entry in sorted(both.items()) if (entry.model, entry.training) == basis}
    if len(chosen) < config.threshold:
        raise ProtocolError(
            "threshold",
            f"round {round_number}: both servers hold {len(chosen)} clients alike, fewer than the threshold, "
            f"{config.threshold}; the round ends without a sum",
        )
    if len(chosen) > config.max_clients:
        raise ProtocolError(
            "capacity",
            f"round {round_number}: {len(chosen)} clients, above max_clients, {config.max_clients}",
        )
    members = [[name, entry.commitment] for name, entry in chosen.items()]
    content = json.dumps([config.session, config.digest, round_number, *basis, members])
    digest = hashlib.sha256(content.encode()).hexdigest()
    return Agreement(tuple(chosen), *basis, digest)
