"""S_0 as a Flower strategy.

    app = ServerApp()

    @app.main()
    def main(grid, context):
        strategy = JanusStrategy("session.json", "s0.key.json", "s0-state")
        strategy.start(grid, initial_arrays, num_rounds=10)

The server app never holds a model after the first, an update or a sum; it relays what is sealed to S_1 and to
clients. `Result.arrays` stays empty: the model is with the clients.
"""

import logging
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from logging import INFO, WARNING
from typing import Any

from hexad.core.errors import HexadError, InputError
from hexad.federated.janus.errors import ProtocolError
from hexad.federated.janus.flower import RECORD
from hexad.federated.janus.flower_api import (
    ArrayRecord,
    ConfigRecord,
    Grid,
    Message,
    MessageType,
    MetricRecord,
    RecordDict,
    Result,
    Strategy,
    aggregate_metricrecords,
)
from hexad.federated.janus.flower_server1 import vouch
from hexad.federated.janus.keys import Keys
from hexad.federated.janus.models import flat_length
from hexad.federated.janus.server import JanusServer
from hexad.federated.janus.session_file import SessionFile

log = logging.getLogger("flwr").log

BATCH_BYTES = 64 << 20
"""About how much S_1 is asked to send in one message."""


@dataclass(frozen=True)
class Member:
    """A node that said hello.

    Attributes:
        node: its id.
        name: its name.
        model: digest of the model it holds, "" without one.
    """

    node: int
    name: str
    model: str


class JanusStrategy(Strategy):
    """S_0 of a session: lets clients train, sums with S_1, and brings the proven sums to the clients.

    Args:
        session: path of the session file; it is read anew each round, so that clients may join and leave.
        keys: path of S_0's private keys.
        folder: S_0's state; the same folder goes on with the next round after a crash.
        min_clients: wait for so many clients before a round; the session's threshold where None.
        evaluate: let clients evaluate the new model after each round; their metrics are not protected.
        poll_seconds: pause between looks for replies.

    Raises:
        InputError: a file is missing or wrong.
    """

    def __init__(
        self,
        session: str | os.PathLike[str],
        keys: str | os.PathLike[str],
        folder: str | os.PathLike[str],
        *,
        min_clients: int | None = None,
        evaluate: bool = True,
        poll_seconds: float = 0.2,
    ) -> None:
        self._path = session
        loaded = SessionFile.load(session)
        self.config = loaded.config
        self.server = JanusServer(0, Keys.load(keys), loaded.servers, loaded.roster, loaded.config, folder)
        self.min_clients = self.config.threshold if min_clients is None else min_clients
        self.evaluate = evaluate
        self._poll = poll_seconds
        self._members: list[Member] = []
        self._s1: int | None = None
        self._grid: Grid | None = None
        self._timeout = 3600.0

    def summary(self) -> None:
        """Log the settings."""
        config = self.config
        log(INFO, "\t├──> session %r: %s numbers, clipped to %g", config.session, config.length, config.clip)
        log(INFO, "\t└──> at least %s clients, of which a round needs %s", self.min_clients, config.threshold)

    def _receive(self, grid: Grid, messages: Iterable[Message], timeout: float) -> Iterator[Message]:
        """The replies as they come, so that only those at hand are in memory."""
        waiting = set(grid.push_messages(messages))
        end = time.monotonic() + timeout
        while waiting:
            replies = list(grid.pull_messages(list(waiting)))
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

    def _ask(self, node: int, action: str, timeout: float, **values: Any) -> dict[str, Any]:
        """One node's answer to one query.

        Raises:
            ProtocolError: it does not answer, or with an error.
        """
        assert self._grid is not None
        message = Message(RecordDict({RECORD: ConfigRecord(values)}), node, f"{MessageType.QUERY}.{action}")
        for reply in self._receive(self._grid, [message], timeout):
            if reply.has_error():
                raise ProtocolError("round", f"node {node} refuses {action}: {_reason(reply)}")
            return _said(reply)
        raise ProtocolError("round", f"node {node} does not answer {action}")

    def gather(self, grid: Grid, timeout: float) -> None:
        """Ask all nodes who they are, until S_1 and enough clients are there.

        Raises:
            ProtocolError: check `"participants"`: they are not there in time.
        """
        self._grid = grid
        session = SessionFile.load(self._path)
        if session.config != self.config or session.servers != self.server.servers:
            raise InputError(f"{self._path} has other parameters or servers now; that needs another session")
        self.server.roster = session.roster
        end = time.monotonic() + timeout
        self._s1, members, asked = None, {}, set()
        while True:
            new = sorted(set(grid.get_node_ids()) - asked)
            asked.update(new)
            content = RecordDict({RECORD: ConfigRecord()})
            hellos = [Message(content, node, f"{MessageType.QUERY}.janus_hello") for node in new]
            for reply in self._receive(grid, hellos, max(0.0, end - time.monotonic())):
                if reply.has_error():
                    log(WARNING, "a node cannot take part: %s", _reason(reply))
                    continue
                said = _said(reply)
                node, name = reply.metadata.src_node_id, str(said["name"])
                if said["s1"]:
                    self._s1 = node
                elif name in session.roster:
                    members[name] = Member(node, name, str(said["model"]))
                else:
                    log(WARNING, "%s is not in the roster and is left out", name)
            self._members = [members[name] for name in sorted(members)]
            if self._s1 is not None and len(members) >= self.min_clients:
                return
            if time.monotonic() > end:
                missing = "S_1 is not there" if self._s1 is None else f"{len(members)} clients are there"
                raise ProtocolError(
                    "participants", f"{missing}; S_1 and {self.min_clients} clients are needed, start them"
                )
            time.sleep(self._poll)

    def hand_over(self, number: int, timeout: float) -> None:
        """Let clients that joined, or missed a round, get the model of one that has it."""
        held = Counter(member.model for member in self._members if member.model)
        if not held:
            return
        current = held.most_common(1)[0][0]
        giver = next(member for member in self._members if member.model == current)
        for place, member in enumerate(self._members):
            if member.model == current:
                continue
            try:
                box = self._ask(
                    giver.node,
                    "janus_give",
                    timeout,
                    round=number,
                    vouchers=self._vouchers(member.name, number, timeout),
                )
                done = self._ask(
                    member.node,
                    "janus_take",
                    timeout,
                    round=number,
                    vouchers=self._vouchers(giver.name, number, timeout),
                    model=box["model"],
                )
                self._members[place] = Member(member.node, member.name, str(done["model"]))
                log(INFO, "%s got the model of %s", member.name, giver.name)
            except HexadError as error:
                log(WARNING, "%s did not get the model: %s", member.name, error)

    def _vouchers(self, name: str, number: int, timeout: float) -> list[bytes]:
        assert self._s1 is not None
        mine = vouch(self.config, number, self.server.keys, self.server.roster, name)
        theirs = self._ask(self._s1, "janus_s1", timeout, stage="vouch", round=number, name=name)
        return [mine, theirs["voucher"]]

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Messages to all clients; the first model goes along where nobody holds one yet."""
        self.gather(grid, self._timeout)
        number = self.server.round + 1
        self.hand_over(number, self._timeout)
        self.server.begin(number)
        first = not any(member.model for member in self._members)
        content: dict[str, Any] = {"config": ConfigRecord({**config, "server-round": server_round})}
        content[RECORD] = ConfigRecord({"round": number})
        if first:
            content["arrays"] = arrays
        taking = [member for member in self._members if first or member.model]
        return [Message(RecordDict(dict(content)), member.node, MessageType.TRAIN) for member in taking]

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Take the masked updates as they come, sum with S_1, and let the clients verify.

        Returns:
            no arrays, and how many clients took part and accepted; both 0 where the round failed.
        """
        to_s1: list[bytes] = []
        for reply in replies:
            if reply.has_error():
                log(WARNING, "a client drops out: %s", _reason(reply))
                continue
            record = _said(reply)
            try:
                if not {"to-s0", "to-s1"} <= set(record):
                    raise ProtocolError(
                        "envelope", "a reply has no messages of janus; add janus_mod to the app"
                    )
                self.server.submit(record["to-s0"])
                to_s1.append(record["to-s1"])
            except HexadError as error:
                log(WARNING, "a client drops out: %s", error)
        try:
            self._sum(to_s1)
            accepted = self._finish()
        except HexadError as error:
            log(WARNING, "round %s has no sum: %s", self.server.round, error)
            return None, MetricRecord({"participants": 0, "accepted": 0})
        return None, MetricRecord({"participants": len(self.server.participants), "accepted": accepted})

    def _sum(self, to_s1: Sequence[bytes]) -> None:
        assert self._s1 is not None
        mine, number = self.server.listing(), self.server.round
        said = self._ask(
            self._s1, "janus_s1", self._timeout, stage="sum", round=number, messages=list(to_s1), list=mine
        )
        for refused in said.get("refused") or []:
            log(WARNING, "S_1 refuses a client: %s", refused)
        self.server.close(said["list"])
        self.server.aggregate()

    def _finish(self) -> int:
        """Bring each client its two replies, a few at a time; returns how many accept."""
        assert self._s1 is not None
        assert self._grid is not None
        size = self.config.dim * self.config.modulus_bits // 8
        batch, accepted = max(1, BATCH_BYTES // size), 0
        for start in range(0, len(self._members), batch):
            members = self._members[start : start + batch]
            names = [member.name for member in members]
            theirs = self._ask(self._s1, "janus_s1", self._timeout, stage="reply", names=names)["replies"]
            messages = []
            for member, sealed in zip(members, theirs, strict=True):
                values = {
                    "round": self.server.round,
                    "from-s0": self.server.reply(member.name),
                    "from-s1": sealed,
                }
                content = RecordDict({RECORD: ConfigRecord(values)})
                messages.append(Message(content, member.node, f"{MessageType.TRAIN}.janus_finish"))
            for reply in self._receive(self._grid, messages, self._timeout):
                if reply.has_error():
                    log(WARNING, "a client refuses the sum: %s", _reason(reply))
                else:
                    accepted += 1
        return accepted

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Let every client evaluate the model that it holds."""
        if not self.evaluate:
            return []
        content: dict[str, Any] = {"config": ConfigRecord({**config, "server-round": server_round})}
        content[RECORD] = ConfigRecord({"round": self.server.round})
        return [
            Message(RecordDict(dict(content)), member.node, MessageType.EVALUATE) for member in self._members
        ]

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """The mean of the clients' metrics, weighted by `num-examples`."""
        good = [reply.content for reply in replies if not reply.has_error()]
        return aggregate_metricrecords(good, "num-examples") if good else None

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """Run rounds.

        Args:
            grid: of the server app.
            initial_arrays: the first model, which is public; clients that hold one keep theirs.
            num_rounds: how many; rounds of the session go on counting after a restart.
            timeout: seconds that each kind of message is waited for.
            train_config: goes to the train function.
            evaluate_config: goes to the evaluate function.
            evaluate_fn: must be None, as the server has no model to evaluate.

        Raises:
            InputError: evaluate_fn is given, or the model has another length than the session's.
            ProtocolError: S_1 or too few clients are there.
        """
        if evaluate_fn is not None:
            raise InputError("evaluate_fn needs the model, which S_0 never has; evaluate on the clients")
        found = flat_length(initial_arrays.to_numpy_ndarrays())
        if found != self.config.length:
            raise InputError(f"the model has {found} numbers, the session's length is {self.config.length}")
        self._timeout = timeout
        self.summary()
        result = Result()
        for number in range(1, num_rounds + 1):
            log(INFO, "[ROUND %s/%s]", number, num_rounds)
            messages = self.configure_train(number, initial_arrays, train_config or ConfigRecord(), grid)
            _, metrics = self.aggregate_train(number, self._receive(grid, messages, timeout))
            if metrics is not None:
                log(INFO, "\t└──> %s", dict(metrics))
                result.train_metrics_clientapp[number] = metrics
            asked = self.configure_evaluate(number, initial_arrays, evaluate_config or ConfigRecord(), grid)
            found_metrics = self.aggregate_evaluate(number, self._receive(grid, asked, timeout))
            if found_metrics is not None:
                log(INFO, "\t└──> %s", dict(found_metrics))
                result.evaluate_metrics_clientapp[number] = found_metrics
        return result


def _reason(reply: Message) -> str:
    """The last line of an error, which in Flower is a traceback."""
    return ((reply.error.reason or "").strip().splitlines() or ["no reason given"])[-1]


def _said(reply: Message) -> dict[str, Any]:
    """What a reply says, as plain values; nothing where it has no record of janus."""
    return dict(reply.content.config_records.get(RECORD, {}))
