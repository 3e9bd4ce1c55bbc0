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
from collections.abc import Callable, Iterator
from typing import Literal, Self

from hexad.core.errors import InputError
from hexad.federated.janus.agreement import (
    Agreement,
    Entry,
    agree,
    commitment_hash,
    read_list,
    write_list,
)
from hexad.federated.janus.client_messages import (
    KINDS,
    Contribution,
    Part,
    add_up,
    contribution,
    read_part,
)
from hexad.federated.janus.config import JanusConfig, check_round
from hexad.federated.janus.envelopes import (
    SIGNATURE,
    check_header,
    check_signature,
    read_header,
    seal,
    unseal,
)
from hexad.federated.janus.errors import ProtocolError
from hexad.federated.janus.groups import get_group
from hexad.federated.janus.keys import Keys, Roster, Servers
from hexad.federated.janus.server_state import Phase, Store, Summed


class JanusServer:
    """S_0 or S_1 of a session.

    Args:
        role: 0 or 1.
        keys: its own; their name is "s0" or "s1".
        servers: the public keys of both.
        roster: who may take part; `roster` may be set anew between rounds, as clients join and leave.
        config: the session's parameters.
        folder: what it keeps; the same folder again goes on after a crash.
        mark: a file elsewhere, such as beside the keys, that remembers how far the folder was: an older copy
            of the folder, which could sum a round again, is then refused.

    Raises:
        InputError: the keys are not those of the role; the folder is another server's, in use, lost, or an
            older copy; a client of the roster has the name or a key of a server.
    """

    def __init__(
        self,
        role: Literal[0, 1],
        keys: Keys,
        servers: Servers,
        roster: Roster,
        config: JanusConfig,
        folder: str | os.PathLike[str],
        mark: str | os.PathLike[str] | None = None,
    ) -> None:
        if role not in (0, 1) or isinstance(role, bool):
            raise InputError(f"role is {role!r}; it must be 0 or 1")
        if keys.public != servers[role]:
            raise InputError(f"the keys of {keys.name} are not those that all know of {servers[role].name}")
        for client in roster.values():
            servers.check_other(client)
        self.role, self.keys, self.servers, self.roster, self.config = role, keys, servers, roster, config
        self.group = get_group(config.group)
        self._store = Store(folder, role, config, mark)
        self._entries: dict[str, Entry] = {}
        if self.phase == "open":
            for name, message in self._store.messages():
                self._entries[name] = self._entry(self._stored(message))

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
    def epoch(self) -> str:
        """Names the server's folder: a message for another one, lost or replaced, is refused."""
        return self._store.state.epoch

    @property
    def summed(self) -> int:
        """The last round with a sum, 0 before the first."""
        past = self._store.state.summed
        return self.round if self.phase == "aggregated" else past.round if past else 0

    @property
    def participants(self) -> tuple[str, ...]:
        """Who takes part in a closed round."""
        return self._store.state.names

    def begin(self, round_number: int) -> None:
        """Open a round for messages; again, where it is open already.

        Raises:
            ProtocolError: check `"round"`: the number is not above all before.
        """
        check_round(round_number)
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

    def _open(self, message: bytes, later: int = 0) -> Part:
        header, line, sealed = read_header(message)
        kind, own = KINDS[self.role], self.keys.name
        check_header(header, self.config, kind=kind, recipient=own, round=self.round + later)
        if header.epoch not in ("", self.epoch):
            raise ProtocolError(
                "epoch",
                f"{header.sender} knows another folder of {own} than this; if it was lost, end the session",
            )
        sender = self.roster.member(header.sender)
        payload = check_signature(line, unseal(line, sealed, self.keys), sender)
        return read_part(header, payload, self.role, self.config, self.group)

    def _stored(self, message: bytes) -> Part:
        """A message that was taken before; its sender may have left the roster since."""
        header, line, sealed = read_header(message)
        payload = unseal(line, sealed, self.keys)[SIGNATURE:]
        return read_part(header, payload, self.role, self.config, self.group)

    @staticmethod
    def _entry(part: Part) -> Entry:
        return Entry(commitment_hash(part.commitment), part.header.model, part.header.training)

    def submit(self, message: bytes, *, begin: bool = False) -> str:
        """Take a client's message of the open round; returns the client's name.

        Args:
            message: as it came.
            begin: where the round has ended, let a good message of the next number begin it.

        Raises:
            ProtocolError: it is malformed, not signed by a client of the roster, of another round, session
                or recipient, for a folder that was lost, or a second one of the same client.
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
        self._entries[name] = self._entry(part)
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

    def check_list(self, peer_list: bytes) -> int:
        """The round of a list that the other server has signed.

        Raises:
            ProtocolError: it has not, or the list is of another session.
        """
        number = read_header(peer_list)[0].round
        read_list(peer_list, self.config, number, self.servers[1 - self.role], self.keys.name)
        return number

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
            return Agreement(state.names, state.model, state.training, state.digest)
        own = read_list(self._store.read("own.list"), self.config, self.round, self.keys.public, peer.name)
        try:
            found = agree(self.config, self.round, own, theirs)
        except ProtocolError:
            self.abort()
            raise
        self._store.write("peer.list", peer_list)
        state.names, state.digest = found.names, found.digest
        state.model, state.training, state.phase = found.model, found.training, "closed"
        self._store.save()
        return found

    def abort(self) -> None:
        """End a round that has no sum yet without one."""
        self._need("open", "listed", "closed", "aborted")
        self._store.state.phase = "aborted"
        self._store.save()

    def aggregate(self, tell: Callable[[float, str], None] = lambda fraction, note: None) -> None:
        """Sum what the participants sent, once a round.

        Args:
            tell: called with the share that is done and a participant's name.

        Raises:
            ProtocolError: check `"round"`: it is not closed, or was summed before.
        """
        self._need("closed")
        names = self.participants

        def each() -> Iterator[Contribution]:
            for place, name in enumerate(names):
                tell(place / len(names), name)
                yield self.contribution(name)

        sums = add_up(each(), self.config, self.group)
        self._store.write("sums.bin", sums)
        self._store.state.phase = "aggregated"
        self._store.save()

    def contribution(self, name: str) -> Contribution:
        """What one client adds to the sums."""
        part = self._stored(self._store.read(f"{name}.message"))
        return contribution(part, self.role, self.config, self.group)

    def sums(self) -> bytes:
        """The round's sums as each client gets them, before they are signed and sealed.

        Raises:
            ProtocolError: check `"round"`: nothing was summed yet.
        """
        self._need("aggregated")
        return self._store.read("sums.bin")

    def reply(self, name: str, round_number: int | None = None) -> bytes:
        """A round's sums, signed and sealed to a client of the roster.

        Args:
            name: of the client.
            round_number: the current round, where it has a sum, or the one before that had one.

        Raises:
            ProtocolError: check `"round"`: it has no sum, yet or any more; `"roster"`: it is no client.
        """
        state, past, sums = self._store.state, self._store.state.summed, b""
        if past is not None and round_number == past.round:
            sums = self._store.read("sums.bin", past.round)
        elif round_number in (None, self.round):
            past, sums = Summed.of(state), self.sums()
        if past is None or not sums:
            raise ProtocolError("round", f"{self.keys.name} has no sum of round {round_number} any more")
        header = past.header(state, self.keys.name, name)
        return seal(header, sums, self.keys, self.roster.member(name))

    def __repr__(self) -> str:
        return f"JanusServer({self.role}, round={self.round}, phase={self.phase!r})"
