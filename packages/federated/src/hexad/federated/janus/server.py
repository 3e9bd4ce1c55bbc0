"""One of the two aggregation servers: S_0 sums masked updates, S_1 sums the pads.

    server = JanusServer(0, keys, servers, roster, config, "folder")
    server.begin(1)
    server.submit(message)              # each client's
    mine = server.listing()             # to the other server, whose list comes back
    server.close(theirs)                # who takes part
    server.aggregate()
    server.reply("bank-a")              # sealed to each client

Vectors are read one at a time, so memory holds two of them, however many clients there are.
"""

import os
from collections.abc import Callable
from typing import Literal, NamedTuple, Self

import numpy as np
from jaxtyping import UInt

from hexad.core.errors import InputError
from hexad.core.validation import check_count
from hexad.federated.janus.agreement import (
    Agreement,
    Entry,
    agree,
    commitment_hash,
    read_list,
    write_list,
)
from hexad.federated.janus.client import word_type
from hexad.federated.janus.config import JanusConfig
from hexad.federated.janus.envelopes import Header, check_header, open_sealed, read_header, seal
from hexad.federated.janus.errors import ProtocolError
from hexad.federated.janus.groups import get_group, scalar_from_bytes, scalar_to_bytes
from hexad.federated.janus.keys import Keys, Roster, Servers
from hexad.federated.janus.masks import SEED_SIZE, expand, scalar_pad
from hexad.federated.janus.server_state import Phase, Store


class _Part(NamedTuple):
    """What a client's message adds to a server's sums."""

    header: Header
    words: bytes | memoryview
    scalar: int
    commitment: bytes


class JanusServer:
    """S_0 or S_1 of a session.

    Args:
        role: 0 or 1.
        keys: its own; their name is "s0" or "s1".
        servers: the public keys of both.
        roster: who may take part; `roster` may be set anew between rounds, as clients join and leave.
        config: the session's parameters.
        folder: what it keeps; the same folder again goes on after a crash.

    Raises:
        InputError: the keys are not those of the role; the folder is another server's, or in use.
    """

    def __init__(
        self,
        role: Literal[0, 1],
        keys: Keys,
        servers: Servers,
        roster: Roster,
        config: JanusConfig,
        folder: str | os.PathLike[str],
    ) -> None:
        if role not in (0, 1) or isinstance(role, bool):
            raise InputError(f"role is {role!r}; it must be 0 or 1")
        if keys.public != servers[role]:
            raise InputError(f"the keys of {keys.name} are not those that all know of {servers[role].name}")
        self.role, self.keys, self.servers, self.roster, self.config = role, keys, servers, roster, config
        self.group = get_group(config.group)
        self._kind = ("masked", "seed")[role]
        self._store = Store(folder, role, config)
        self._entries: dict[str, Entry] = {}
        if self.phase == "open":
            for name, message in self._store.messages():
                part = self._open(message)
                self._entries[name] = Entry(commitment_hash(part.commitment), part.header.model)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.release()

    def release(self) -> None:
        """Let another process have the folder; the server is of no use afterwards."""
        self._store.release()

    @property
    def round(self) -> int:
        """The current round, 0 before the first."""
        return self._store.state.round

    @property
    def phase(self) -> Phase:
        """How far the round is."""
        return self._store.state.phase

    @property
    def participants(self) -> tuple[str, ...]:
        """Who takes part in a closed round."""
        return self._store.state.names

    def begin(self, round_number: int) -> None:
        """Open a round for messages; again, where it is open already.

        Raises:
            ProtocolError: check `"round"`: the number is not above all before.
        """
        check_count("round_number", round_number)
        if round_number == self.round and self.phase == "open":
            return
        if round_number <= self.round:
            raise ProtocolError(
                "round",
                f"round {round_number} was begun before (the last is {self.round}); take a higher number",
            )
        self._store.begin(round_number)
        self._entries = {}

    def _need(self, *phases: Phase) -> None:
        if self.phase not in phases:
            raise ProtocolError(
                "round",
                f"round {self.round} of {self.keys.name} is {self.phase}; {' or '.join(phases)} is needed",
            )

    def _open(self, message: bytes, later: int = 0) -> _Part:
        header, line, sealed = read_header(message)
        check_header(header, self.config, kind=self._kind, recipient=self.keys.name, round=self.round + later)
        payload = open_sealed(line, sealed, self.keys, self.roster.member(header.sender))
        size, word = self.group.element_size, word_type(self.config).itemsize
        whole = (self.config.dim * word + 32 if self.role == 0 else SEED_SIZE) + size
        if len(payload) != whole:
            raise ProtocolError(
                "length", f"the payload of {header.sender} has {len(payload)} bytes, not {whole}"
            )
        commitment = self.group.decode(payload[-size:])
        if self.role == 1:
            return _Part(header, payload[:SEED_SIZE], 0, commitment)
        scalar = scalar_from_bytes(payload[-32 - size : -size], self.group.order)
        return _Part(header, memoryview(payload)[: -32 - size], scalar, commitment)

    def submit(self, message: bytes, *, begin: bool = False) -> str:
        """Take a client's message of the open round; returns the client's name.

        Args:
            message: as it came.
            begin: where the round has ended, let a good message of the next number begin it.

        Raises:
            ProtocolError: it is malformed, not signed by a client of the roster, of another round, session
                or recipient, or a second one of the same client.
        """
        if begin and self.phase in ("idle", "aggregated", "aborted"):
            self._open(message, later=1)
            self.begin(self.round + 1)
        self._need("open")
        part = self._open(message)
        name = part.header.sender
        if name in self._entries:
            raise ProtocolError("duplicate", f"{name} has sent its message of round {self.round} already")
        self._store.write(f"{name}.message", message)
        self._entries[name] = Entry(commitment_hash(part.commitment), part.header.model)
        return name

    def holds(self, message: bytes) -> bool:
        """Whether this very message was taken into the current round, in whatever phase that is."""
        name = read_header(message)[0].sender
        return name in self._store.names() and self._store.read(f"{name}.message") == message

    def heard(self) -> list[str]:
        """The names of the clients whose messages the round has."""
        return self._store.names()

    def listing(self) -> bytes:
        """The signed list of the clients that were heard; from now on the round takes no more.

        Raises:
            ProtocolError: check `"round"`: the round has ended, or none was begun.
        """
        self._need("open", "listed", "closed", "aggregated")
        if self.phase == "open":
            peer = self.servers[1 - self.role].name
            content = write_list(self.config, self.round, self._entries, self.keys, peer)
            self._store.write("own.list", content)
            self._store.state.phase = "listed"
            self._store.save()
        return self._store.read("own.list")

    def past_list(self, round_number: int) -> bytes | None:
        """The list of this round or the one before, if it was written: the other server may ask again."""
        return self._store.past_list(round_number)

    def lacks(self, peer_list: bytes) -> list[str]:
        """Who is on the other server's list of the round and was not heard here."""
        peer = self.servers[1 - self.role]
        theirs = read_list(peer_list, self.config, self.round, peer, self.keys.name)
        return [name for name in theirs if name not in self._entries and name in self.roster]

    def expect(self, peer_list: bytes) -> None:
        """Begin the next round where the other server's list says that it was there already."""
        if self.phase in ("idle", "aggregated", "aborted"):
            peer = self.servers[1 - self.role]
            read_list(peer_list, self.config, self.round + 1, peer, self.keys.name)
            self.begin(self.round + 1)

    def close(self, peer_list: bytes) -> Agreement:
        """Fix the participants by the other server's list, once.

        Raises:
            ProtocolError: check `"participants"`: the round was closed with another list; `"threshold"`,
                `"capacity"`, `"model"`: see `agreement.agree`, and the round has ended without a sum.
        """
        self._need("listed", "closed", "aggregated")
        peer = self.servers[1 - self.role]
        theirs = read_list(peer_list, self.config, self.round, peer, self.keys.name)
        state = self._store.state
        if self.phase != "listed":
            if peer_list != self._store.read("peer.list"):
                raise ProtocolError(
                    "participants", f"round {self.round} is closed; its participants cannot be changed"
                )
            return Agreement(state.names, state.model, state.digest)
        own = read_list(self._store.read("own.list"), self.config, self.round, self.keys.public, peer.name)
        try:
            found = agree(self.config, self.round, own, theirs)
        except ProtocolError:
            state.phase = "aborted"
            self._store.save()
            raise
        self._store.write("peer.list", peer_list)
        state.names, state.model, state.digest, state.phase = found.names, found.model, found.digest, "closed"
        self._store.save()
        return found

    def aggregate(self, tell: Callable[[float, str], None] = lambda fraction, note: None) -> None:
        """Sum what the participants sent, once a round.

        Args:
            tell: called with the share that is done and a participant's name.

        Raises:
            ProtocolError: check `"round"`: it is not closed, or was summed before.
        """
        self._need("closed")
        config, names = self.config, self.participants
        total = np.zeros(config.dim, word_type(config))
        scalar, commitments = 0, []
        for place, name in enumerate(names):
            tell(place / len(names), name)
            words, part, commitment = self.contribution(name)
            total += words
            scalar += part
            commitments.append(commitment)
        sums = total.tobytes() + scalar_to_bytes(scalar % self.group.order) + self.group.combine(commitments)
        self._store.write("sums.bin", sums)
        self._store.state.phase = "aggregated"
        self._store.save()

    def contribution(self, name: str) -> tuple[UInt[np.ndarray, " dim"], int, bytes]:
        """What one client adds to the sums: words, a scalar and its commitment."""
        part = self._open(self._store.read(f"{name}.message"))
        if self.role == 0:
            return np.frombuffer(part.words, word_type(self.config)), part.scalar, part.commitment
        seed, config = bytes(part.words), self.config
        pad = expand(seed, self.round, config.dim, config.modulus_bits)
        return pad, scalar_pad(seed, self.group), part.commitment

    def sums(self) -> bytes:
        """The round's sums as each client gets them, before they are signed and sealed.

        Raises:
            ProtocolError: check `"round"`: nothing was summed yet.
        """
        self._need("aggregated")
        return self._store.read("sums.bin")

    def reply(self, name: str) -> bytes:
        """The round's sums, signed and sealed to a client of the roster.

        Raises:
            ProtocolError: check `"round"`: nothing was summed yet; `"roster"`: it is no client.
        """
        self._need("aggregated")
        state, client = self._store.state, self.roster.member(name)
        header = Header(
            "sum",
            state.session,
            state.config,
            state.round,
            self.keys.name,
            name,
            state.model,
            state.digest,
            len(state.names),
            name in state.names,
        )
        return seal(header, self.sums(), self.keys, client)

    def __repr__(self) -> str:
        return f"JanusServer({self.role}, round={self.round}, phase={self.phase!r})"
