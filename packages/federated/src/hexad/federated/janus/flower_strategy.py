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
from collections.abc import Callable, Iterable, Sequence
from logging import INFO, WARNING
from typing import Any

from hexad.core.errors import HexadError, InputError
from hexad.federated.janus.errors import ProtocolError, printable
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
from hexad.federated.janus.flower_members import Member, Members, reason, said
from hexad.federated.janus.keys import Keys
from hexad.federated.janus.models import flat_length
from hexad.federated.janus.server import JanusServer
from hexad.federated.janus.session_file import SessionFile, beside_keys

log = logging.getLogger("flwr").log

BATCH_BYTES = 64 << 20
"""About how much S_1 is asked to send in one message."""


class JanusStrategy(Strategy):
    """S_0 of a session: lets clients train, sums with S_1, and brings the proven sums to the clients.

    Args:
        session: path of the session file; it is read anew each round, so that clients may join and leave.
        keys: path of S_0's private keys; beside it lies the mark of the folder.
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
        self.server = JanusServer(
            0,
            Keys.load(keys),
            loaded.servers,
            loaded.roster,
            loaded.config,
            folder,
            beside_keys(keys, loaded.config) / "mark.json",
        )
        self.min_clients = self.config.threshold if min_clients is None else min_clients
        self.evaluate = evaluate
        self.members = Members(self.server, poll_seconds)

    def summary(self) -> None:
        """Log the settings."""
        config = self.config
        log(INFO, "\t├──> session %r: %s numbers, clipped to %g", config.session, config.length, config.clip)
        log(INFO, "\t└──> at least %s clients, of which a round needs %s", self.min_clients, config.threshold)

    def _order(self, number: int) -> ConfigRecord:
        first, second = self.members.epochs
        return ConfigRecord({"round": number, "epoch-s0": first, "epoch-s1": second})

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Messages to all clients; the first model goes along where nobody holds one yet."""
        session = SessionFile.load(self._path)
        if session.config != self.config or session.servers != self.server.servers:
            raise InputError(f"{self._path} has other parameters or servers now; that needs another session")
        self.server.roster = session.roster
        self.members.gather(grid, self.min_clients)
        number = self.server.round + 1
        self.members.hand_over(number)
        self.server.begin(number)
        clients = self.members.clients
        first = not any(member.model for member in clients)
        if not first and server_round == 1:
            held = max(member.round for member in clients)
            log(INFO, "clients hold the model of round %s already; the initial arrays are ignored", held)
        content: dict[str, Any] = {"config": ConfigRecord({**config, "server-round": server_round})}
        content[RECORD] = self._order(number)
        if first:
            content["arrays"] = arrays
        taking = [member for member in clients if first or member.model]
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
                log(WARNING, "a client drops out: %s", reason(reply))
                continue
            record = said(reply)
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
        mine, number = self.server.listing(), self.server.round
        answer = self.members.ask_s1("sum", round=number, messages=list(to_s1), list=mine)
        for refused in answer.get("refused") or []:
            log(WARNING, "S_1 refuses a client: %s", printable(str(refused)))
        self.server.close(answer["list"])
        self.server.aggregate()

    def _finish(self) -> int:
        """Bring each client its two replies, a few at a time; returns how many accept."""
        size = self.config.dim * self.config.modulus_bits // 8
        batch, accepted = max(1, BATCH_BYTES // size), 0
        clients = self.members.clients
        for start in range(0, len(clients), batch):
            members = clients[start : start + batch]
            theirs = self.members.ask_s1("reply", names=[member.name for member in members])["replies"]
            messages = [self._replies(*pair) for pair in zip(members, theirs, strict=True) if pair[1]]
            for reply in self.members.receive(messages):
                if reply.has_error():
                    log(WARNING, "a client refuses the sum: %s", reason(reply))
                else:
                    accepted += 1
        return accepted

    def _replies(self, member: Member, sealed: bytes) -> Message:
        values: dict[str, Any] = {
            "round": self.server.round,
            "from-s0": self.server.reply(member.name),
            "from-s1": sealed,
        }
        content = RecordDict({RECORD: ConfigRecord(values)})
        return Message(content, member.node, f"{MessageType.TRAIN}.janus_finish")

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Let every client evaluate the model that it holds."""
        if not self.evaluate:
            return []
        content: dict[str, Any] = {"config": ConfigRecord({**config, "server-round": server_round})}
        content[RECORD] = self._order(self.server.round)
        return [
            Message(RecordDict(dict(content)), member.node, MessageType.EVALUATE)
            for member in self.members.clients
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
            train_config: goes to the train function; clients that were told unlike things are not summed.
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
        self.members.timeout = timeout
        self.summary()
        result = Result()
        for number in range(1, num_rounds + 1):
            log(INFO, "[ROUND %s/%s]", number, num_rounds)
            messages = self.configure_train(number, initial_arrays, train_config or ConfigRecord(), grid)
            _, metrics = self.aggregate_train(number, self.members.receive(messages))
            if metrics is not None:
                log(INFO, "\t└──> %s", dict(metrics))
                result.train_metrics_clientapp[number] = metrics
            asked = self.configure_evaluate(number, initial_arrays, evaluate_config or ConfigRecord(), grid)
            found_metrics = self.aggregate_evaluate(number, self.members.receive(asked))
            if found_metrics is not None:
                log(INFO, "\t└──> %s", dict(found_metrics))
                result.evaluate_metrics_clientapp[number] = found_metrics
        return result
