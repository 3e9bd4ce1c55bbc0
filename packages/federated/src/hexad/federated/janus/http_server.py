"""The HTTP around a service: bounded bodies, bounded patience, a bounded number of connections."""

import http.client
import re
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

from hexad.core.errors import HexadError, InputError

if TYPE_CHECKING:
    from hexad.federated.janus.service import Service

READY, NOT_YET, REFUSED, GONE = 200, 202, 409, 410

PATIENCE = 30.0
"""Seconds that a peer may be silent."""

SLOWEST = 20_000
"""Bytes a second; a body that comes more slowly for longer than PATIENCE is cut off."""

CONNECTIONS = 128
"""At a time; more are closed at once."""

REPLY = re.compile(r"/reply/([0-9]{1,10})/([A-Za-z0-9._-]{1,64})")


def fetch(url: str, body: bytes | None = None, timeout: float = 30) -> tuple[int, bytes]:
    """Status and body of a request; 0 where nobody answers."""
    try:
        with urllib.request.urlopen(urllib.request.Request(url, data=body), timeout=timeout) as reply:
            return reply.status, reply.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()
    except (OSError, ValueError, http.client.HTTPException):
        return 0, b""


class Http(ThreadingHTTPServer):
    """Threads for a bounded number of connections, and silence about those that break off."""

    daemon_threads = True

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        self._free = threading.BoundedSemaphore(CONNECTIONS)
        super().__init__(address, handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Start a thread, unless there are too many."""
        if self._free.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """In its thread."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Connections that break off are none of ours."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


def make_http(service: "Service", host: str, port: int) -> ThreadingHTTPServer:
    """An HTTP server that is bound and does not serve yet.

    Raises:
        InputError: the address cannot be bound.
    """

    class Handler(BaseHTTPRequestHandler):
        timeout = PATIENCE

        def _answer(self, work: Callable[[], tuple[int, bytes]]) -> None:
            try:
                code, body = work()
            except HexadError as error:
                code, body = REFUSED, f"{error}\n".encode()
            except OSError as error:  # a full disk, say
                code, body = 503, f"{error.strerror}\n".encode()
            self.send_response(code)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def _body(self, length: int) -> bytes:
            end, parts = time.monotonic() + PATIENCE + length / SLOWEST, []
            while length:
                part = self.rfile.read1(min(length, 1 << 20))
                if not part or time.monotonic() > end:
                    raise TimeoutError
                parts.append(part)
                length -= len(part)
            return b"".join(parts)

        def do_POST(self) -> None:
            length = self.headers.get("Content-Length") or ""
            if not re.fullmatch("[0-9]{1,15}", length) or not 0 < int(length) <= service.most_bytes():
                self.close_connection = True  # what follows is not read
                self._answer(lambda: (413, b"this is no message of the session\n"))
                return
            work = {"/message": service.message, "/list": service.list}.get(self.path)
            body = self._body(int(length))
            self._answer(lambda: work(body) if work else (404, b"unknown\n"))

        def do_GET(self) -> None:
            asked = REPLY.fullmatch(self.path)
            if self.path == "/status":
                self._answer(service.status)
            elif asked:
                self._answer(lambda: service.reply(int(asked[1]), asked[2]))
            else:
                self._answer(lambda: (404, b"unknown\n"))

        def log_message(self, format: str, *arguments: object) -> None:
            """Nothing: the service tells what matters."""

    try:
        return Http((host, port), Handler)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"{host}:{port} cannot be bound ({reason}); name another port") from None
