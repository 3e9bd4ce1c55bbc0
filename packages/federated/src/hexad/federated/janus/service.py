"""A server behind HTTP, for organisations that run Janus without Flower: two of these, and clients' commands.

    POST /message            a client's message           -> 200, or 409 and the reason
    POST /list               the other server's list      -> 200 and this server's, or 202 if it is not ready
    GET  /reply/ROUND/NAME   the sums, sealed to a client -> 200, 202 not yet, 410 no such sum any more
    GET  /status             JSON: round, phase, clients heard

A round begins with the first good message of its number, and ends when enough clients were heard or its time
is up; then the servers exchange their lists and sum. All bodies are sealed or signed, so the transport needs
no secrecy; TLS before it would hide who takes part. The folder of the server remembers all that matters, so
the process may be killed and started again at any time.
"""

import json
import threading
import time
from collections.abc import Callable
from http.server import ThreadingHTTPServer
from pathlib import Path

from hexad.core.errors import HexadError, InputError
from hexad.federated.janus.envelopes import check_header, read_header
from hexad.federated.janus.errors import ProtocolError
from hexad.federated.janus.http_server import GONE, NOT_YET, READY, fetch, most_bytes
from hexad.federated.janus.server import JanusServer
from hexad.federated.janus.session_file import SessionFile

GRACE_SECONDS = 10.0
"""How long a server waits for clients that the other one heard, after that one has ended the round."""


class Service:
    """A server with its clock: takes requests from HTTP threads, one at a time.

    Args:
        server: S_0 or S_1.
        session: path of the session file, read anew before each round.
        peer: address of the other one, such as "http://127.0.0.1:8701".
        clients: a round ends when so many were heard.
        round_seconds: or when so much time is over since its first message.
        tell: called with a line for people.
    """

    def __init__(
        self,
        server: JanusServer,
        session: Path,
        peer: str,
        clients: int,
        round_seconds: float,
        tell: Callable[[str], None] = lambda line: None,
    ) -> None:
        self.server, self._session, self._peer = server, session, peer.rstrip("/")
        self._clients, self._seconds, self._tell = clients, round_seconds, tell
        self._lock = threading.Lock()
        self._stamp: tuple[int, int] | None = None
        self._said = ""
        self._due = time.monotonic() + round_seconds

    def message(self, body: bytes) -> tuple[int, bytes]:
        """A client's message."""
        with self._lock:
            if self.server.holds(body):
                return READY, b"taken\n"  # its answer was lost, and the client asks again
            before = self.server.round
            check_header(read_header(body)[0], self.server.config, recipient=self.server.keys.name)
            self._read_roster()
            name = self.server.submit(body, begin=True)
            if self.server.round != before:
                self._due = time.monotonic() + self._seconds
            self._tell(f"round {self.server.round}: {name} was heard")
        return READY, b"taken\n"

    def _read_roster(self) -> None:
        """Read the session file again where it has changed; if it is no good, the roster stays."""
        try:
            found = self._session.stat()
            if (stamp := (found.st_mtime_ns, found.st_ino)) == self._stamp:
                return
            self._stamp = stamp
            loaded = SessionFile.load(self._session)
            if (loaded.config, loaded.servers) != (self.server.config, self.server.servers):
                raise InputError(f"{self._session} has other parameters or servers now")
            self.server.roster = loaded.roster
        except (HexadError, OSError) as error:
            self._tell(f"the roster stays as it was: {error}")

    def list(self, body: bytes) -> tuple[int, bytes]:
        """The other server's list, in exchange for this one's."""
        number = self.server.check_list(body)  # strangers get no answer, and end no round
        with self._lock:
            if number == self.server.round + 1:
                self.server.expect(body)
            if number == self.server.round:
                if self.server.phase == "open":
                    # The other one has ended the round: those whom it heard have a little time to come.
                    self._due = min(self._due, time.monotonic() + GRACE_SECONDS)
                    if self.server.lacks(body):
                        return NOT_YET, b"no list yet\n"
                    self.server.listing()
                if self.server.phase in ("listed", "closed"):
                    self._close(body)
            own = self.server.past_list(number)
        return (NOT_YET, b"no list yet\n") if own is None else (READY, own)

    def _close(self, theirs: bytes) -> None:
        number = self.server.round
        try:
            self.server.close(theirs)
        except ProtocolError as error:
            self._tell(f"round {number}: {error}")
            return
        if self.server.phase == "closed":
            try:
                self.server.aggregate()
            except HexadError as error:  # such as a message that is gone from the disk
                self.server.abort()
                self._tell(f"round {number} ends without a sum: {error}")
                return
            self._tell(f"round {number}: summed {', '.join(self.server.participants)}")

    def reply(self, round_number: int, name: str) -> tuple[int, bytes]:
        """A client's sealed sums."""
        with self._lock:
            round_now, phase = self.server.round, self.server.phase
            if round_number > round_now or (
                round_number == round_now and phase in ("open", "listed", "closed")
            ):
                return NOT_YET, b"not summed yet\n"
            try:
                return READY, self.server.reply(name, round_number)
            except ProtocolError as error:
                if error.check != "round":
                    raise
                return GONE, f"round {round_number} has no sum (any more); at {round_now}, {phase}\n".encode()

    def status(self) -> tuple[int, bytes]:
        """Where the server is."""
        with self._lock:
            content = {
                "server": self.server.keys.name,
                "epoch": self.server.epoch,
                "round": self.server.round,
                "phase": self.server.phase,
                "heard": self.server.heard(),
            }
        return READY, json.dumps(content).encode()

    def tick(self) -> None:
        """End the round where it is due, and bring the list to the other server."""
        with self._lock:
            if self.server.phase == "open":
                if time.monotonic() < self._due and len(self.server.heard()) < self._clients:
                    return
                self.server.listing()
            if self.server.phase not in ("listed", "closed"):
                return
            own, number = self.server.listing(), self.server.round
        # Without the lock: the other server may be asking this one at the same moment.
        code, theirs = fetch(f"{self._peer}/list", own, most=512 * self.server.config.max_clients + 8192)
        if code != READY:
            return
        with self._lock:
            if self.server.round == number and self.server.phase in ("listed", "closed"):
                self._close(theirs)

    def say(self, line: str) -> None:
        """Tell people once what keeps going wrong."""
        if line != self._said:
            self._said = line
            self._tell(line)

    def most_bytes(self) -> int:
        """A body that is longer is no message."""
        return most_bytes(self.server.config)


def serve(service: Service, http: ThreadingHTTPServer, poll_seconds: float = 0.2) -> None:
    """Serve until the process ends or is interrupted."""
    threading.Thread(target=http.serve_forever, daemon=True).start()
    try:
        while True:
            try:
                service.tick()
            except (HexadError, OSError) as error:  # a full disk, say: the next tick tries again
                service.say(str(error))
            time.sleep(poll_seconds)
    finally:
        http.shutdown()
        http.server_close()
