"""A whole session in one process: for tests, studies and to see how the messages go.

    session = make_session(["a", "b", "c"], JanusConfig(length=10), folder)
    results = session.run_round({"a": update, "b": update, "c": update}, {"a": 3, "b": 1, "c": 2})

It is no deployment: whoever runs it has both servers' keys.
"""

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Float

from hexad.federated.janus.client import JanusClient, Protected, Result
from hexad.federated.janus.config import JanusConfig
from hexad.federated.janus.keys import Keys, Roster, Servers
from hexad.federated.janus.server import JanusServer


@dataclass
class Session:
    """Clients by name and both servers, which exchange nothing but messages in bytes."""

    clients: dict[str, JanusClient]
    s0: JanusServer
    s1: JanusServer

    def exchange(
        self, messages: Mapping[str, Protected], round_number: int, lost: Collection[str] = ()
    ) -> None:
        """Bring messages to the servers and let them sum; those to S_1 of clients in `lost` do not arrive."""
        for server in (self.s0, self.s1):
            server.begin(round_number)
        for name, message in messages.items():
            self.s0.submit(message.to_s0)
            if name not in lost:
                self.s1.submit(message.to_s1)
        self.settle()

    def settle(self) -> None:
        """Let the servers agree on the participants and sum."""
        first, second = self.s0.listing(), self.s1.listing()
        self.s0.close(second)
        self.s1.close(first)
        self.s0.aggregate()
        self.s1.aggregate()

    def run_round(
        self,
        updates: Mapping[str, Float[np.ndarray, " length"]],
        weights: Mapping[str, int],
        round_number: int | None = None,
        lost: Collection[str] = (),
    ) -> dict[str, Result]:
        """One round: every client in `updates` protects, and every client of the session verifies.

        Args:
            updates: by name; clients without one drop out before they send.
            weights: by name.
            round_number: the next one where None.
            lost: clients whose message to S_1 is lost.

        Raises:
            ProtocolError: too few take part.
        """
        number = self.s0.round + 1 if round_number is None else round_number
        messages = {
            name: self.clients[name].protect(update, weights[name], number)
            for name, update in updates.items()
        }
        self.exchange(messages, number, lost)
        return {
            name: client.verify_and_unmask(self.s0.reply(name), self.s1.reply(name), number)
            for name, client in self.clients.items()
        }

    def release(self) -> None:
        """Give the servers' folders free."""
        self.s0.release()
        self.s1.release()


def make_session(
    names: Sequence[str],
    config: JanusConfig,
    folder: str | os.PathLike[str],
    *,
    threads: int = 1,
    rounding_seed: int | None = None,
) -> Session:
    """New keys for clients of these names and two servers, whose state lies below `folder`."""
    s0, s1 = Keys.generate("s0"), Keys.generate("s1")
    servers = Servers(s0.public, s1.public)
    keys = [Keys.generate(name) for name in names]
    roster = Roster(key.public for key in keys)
    clients = {
        key.name: JanusClient(
            key,
            servers,
            config,
            threads=threads,
            rounding_seed=None if rounding_seed is None else rounding_seed + place,
        )
        for place, key in enumerate(keys)
    }
    return Session(
        clients,
        JanusServer(0, s0, servers, roster, config, Path(folder) / "s0"),
        JanusServer(1, s1, servers, roster, config, Path(folder) / "s1"),
    )
