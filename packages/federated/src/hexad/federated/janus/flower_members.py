"""The nodes of a Flower federation as S_0 sees them: who is there, and who gets the model from whom."""

import logging
import math
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from logging import INFO, WARNING
from typing import Any

from hexad.core.errors import HexadError
from hexad.federated.flower import InProcessGrid
from hexad.federated.janus.errors import ProtocolError, printable
from hexad.federated.janus.flower import RECORD
from hexad.federated.janus.flower_api import ConfigRecord, Grid, Message, MessageType, RecordDict
from hexad.federated.janus.flower_server1 import vouch
from hexad.federated.janus.server import JanusServer

log = logging.getLogger("flwr").log

RETRY_SECONDS = 5.0
"""Pause before a node that refused to say who it is is asked again."""

REFUSALS = 12
"""So often a node may refuse; it is then not expected to change its mind."""

NEWS_SECONDS = 10.0
"""Pause between lines that say what is waited for."""


@dataclass(frozen=True)
class Member:
    """A node that said hello.

    Attributes:
        node: its id.
        name: its name.
        model: tag of the model it holds, "" without one.
        round: the last one whose sum is in that model.
    """

    node: int
    name: str
    model: str
    round: int = 0


def reason(reply: Message) -> str:
    """The last line of an error, which in Flower is a traceback."""
    return printable(((reply.error.reason or "").strip().splitlines() or ["no reason given"])[-1])


def _told(refusals: Mapping[int, Sequence[str]]) -> str:
    """Why nodes refuse; of many nodes the first ones."""
    lines = [f"node {node} refuses: {reasons[-1]}" for node, reasons in sorted(refusals.items())[:3]]
    more = [f"{len(refusals) - 3} more refuse"] * (len(refusals) > 3)
    return "".join(f"; {line}" for line in lines + more)


def said(reply: Message) -> dict[str, Any]:
    """What a reply says, as plain values; nothing where it has no record of janus."""
    return dict(reply.content.config_records.get(RECORD, {}))


class Members:
    """S_0's side of talking to nodes.

    Args:
        server: S_0.
        poll_seconds: pause between looks for replies.

    Attributes:
        clients: those that take part.
        epochs: names of S_0's and S_1's folders.
        timeout: seconds that each kind of message is waited for.
    """

    def __init__(self, server: JanusServer, poll_seconds: float) -> None:
        self._server, self._poll = server, poll_seconds
        self.clients: list[Member] = []
        self.epochs = (server.epoch, "")
        self.timeout = 3600.0
        self._s1: int | None = None
        self._grid: Grid | None = None

    def receive(self, messages: Iterable[Message], timeout: float | None = None) -> Iterator[Message]:
        """The replies as they come, so that only those at hand are in memory."""
        assert self._grid is not None
        timeout = self.timeout if timeout is None else timeout
        waiting = set(self._grid.push_messages(messages))
        end = time.monotonic() + timeout
        while waiting:
            replies = list(self._grid.pull_messages(list(waiting)))
            while replies:
                reply = replies.pop(0)
                waiting.discard(reply.metadata.reply_to_message_id)
                yield reply
            if not waiting or time.monotonic() > end:
                break
            if not replies:
                time.sleep(self._poll)
        if waiting:
            log(WARNING, "%s nodes did not answer within %g s", len(waiting), timeout)

    def ask(self, node: int, action: str, **values: Any) -> dict[str, Any]:
        """One node's answer to one query.

        Raises:
            ProtocolError: it does not answer, or with an error.
        """
        message = Message(RecordDict({RECORD: ConfigRecord(values)}), node, f"{MessageType.QUERY}.{action}")
        for reply in self.receive([message]):
            if reply.has_error():
                raise ProtocolError("round", f"node {node} refuses {action}: {reason(reply)}")
            return said(reply)
        raise ProtocolError("round", f"node {node} does not answer {action}")

    def ask_s1(self, stage: str, **values: Any) -> dict[str, Any]:
        """S_1's answer; see `flower_server1.answer_s1`."""
        if self._s1 is None:
            raise ProtocolError("participants", "S_1 is not there; start it")
        return self.ask(self._s1, "janus_s1", stage=stage, **values)

    def gather(self, grid: Grid, min_clients: int) -> None:
        """Ask all nodes who they are, until S_1 and enough clients of the roster are there.

        A node that refuses is asked again, and what is waited for is logged.

        Raises:
            ProtocolError: check `"participants"`: they are not there in time, or the nodes that could be they
                refuse for good. In an `InProcessGrid` no others come, so there it is known at once.
        """
        self._grid, self._s1 = grid, None
        now = time.monotonic()
        end, news, alone = now + self.timeout, now + NEWS_SECONDS, isinstance(grid, InProcessGrid)
        members: dict[str, Member] = {}
        due: dict[int, float] = {}  # when a node is asked again
        refusals: dict[int, list[str]] = {}
        waiting: set[str] = set()
        while True:
            asked = [node for node in sorted(grid.get_node_ids()) if due.get(node, now) <= now]
            content = RecordDict({RECORD: ConfigRecord()})
            hellos = [Message(content, node, f"{MessageType.QUERY}.janus_hello") for node in asked]
            waiting.update(grid.push_messages(hellos) if hellos else ())
            due.update(dict.fromkeys(asked, math.inf))
            for reply in list(grid.pull_messages(list(waiting)) if waiting else ()):
                waiting.discard(reply.metadata.reply_to_message_id)
                node = reply.metadata.src_node_id
                if not reply.has_error():
                    refusals.pop(node, None)
                    self._meet(reply, members)
                    continue
                due[node] = now + RETRY_SECONDS
                before = refusals.setdefault(node, [])
                if reason(reply) not in before:
                    log(WARNING, "node %s cannot take part: %s", node, reason(reply))
                before.append(reason(reply))
            self.clients = [members[name] for name in sorted(members)]
            now, lacking = time.monotonic(), max(0, min_clients - len(members)) + (self._s1 is None)
            if now > end or alone or not waiting:
                if not lacking:
                    return
                stubborn = lacking <= len(refusals) and all(len(r) >= REFUSALS for r in refusals.values())
                if now > end or alone or stubborn:
                    missing = "S_1 is not there" if self._s1 is None else f"{len(members)} clients are there"
                    raise ProtocolError(
                        "participants",
                        f"{missing}{_told(refusals)}; S_1 and {min_clients} clients are needed, start them",
                    )
            if now > news:
                news = now + NEWS_SECONDS
                those = ["S_1"] * (self._s1 is None) + [f"{min_clients - len(members)} clients"] * (
                    len(members) < min_clients
                )
                what = " and ".join(those) or f"{len(waiting)} nodes to say who they are"
                log(INFO, "waiting for %s%s", what, _told(refusals))
            time.sleep(self._poll)

    def _meet(self, reply: Message, members: dict[str, Member]) -> None:
        told, node = said(reply), reply.metadata.src_node_id
        name, number = str(told.get("name")), told.get("round", 0)
        if told.get("s1"):
            self._s1, self.epochs = node, (self._server.epoch, str(told.get("epoch", "")))
        elif name in self._server.roster:
            known = number if isinstance(number, int) else 0
            members[name] = Member(node, name, str(told.get("model", "")), known)
        else:
            log(WARNING, "%r is not in the roster and is left out", name)

    def hand_over(self, number: int) -> None:
        """Let clients that joined, or missed a round, get the model of one that has it."""
        held = Counter((member.round, member.model) for member in self.clients if member.model)
        if not held:
            return
        # The furthest, and of those the most common.
        newest = max(held, key=lambda item: (item[0], held[item]))
        giver = next(member for member in self.clients if (member.round, member.model) == newest)
        for place, member in enumerate(self.clients):
            if member.model == giver.model:
                continue
            try:
                vouchers = self._vouchers(member.name, number)
                box = self.ask(giver.node, "janus_give", round=number, vouchers=vouchers)
                vouchers = self._vouchers(giver.name, number)
                done = self.ask(
                    member.node, "janus_take", round=number, vouchers=vouchers, model=box["model"]
                )
                self.clients[place] = Member(member.node, member.name, str(done["model"]), giver.round)
                log(INFO, "%s got the model of %s", member.name, giver.name)
            except HexadError as error:
                log(WARNING, "%s did not get the model: %s", member.name, error)

    def _vouchers(self, name: str, number: int) -> list[bytes]:
        mine = vouch(self._server, number, name)
        return [mine, self.ask_s1("vouch", round=number, name=name)["voucher"]]
