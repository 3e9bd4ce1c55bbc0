"""The HTTP around a service: bounded bodies, bounded patience, a bounded number of connections."""

import contextlib
import http.client
import math
import re
import socket
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

from hexad.core.errors import HexadError, InputError
from hexad.federated.janus.config import JanusConfig

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


def most_bytes(config: JanusConfig) -> int:
    """A body that is longer is no message, list or reply of a session."""
    return 8 * config.dim + 512 * config.max_clients + 8192


class _Bounded(urllib.request.HTTPSHandler, urllib.request.HTTPHandler):
    """Opens connections, and cuts them off whatever they are doing.

    The timeout of a socket bounds a single read alone.
    """

    def __init__(self) -> None:
        super().__init__()
        self.sockets: list[socket.socket] = []
        self.late = False

    def do_open(self, http_class: Any, req: urllib.request.Request, **options: Any) -> Any:
        """As for any request, and remember the socket."""
        handler = self

        class Kept(http_class):
            def connect(self) -> None:
                super().connect()
                handler.sockets.append(self.sock)
                if handler.late:
                    raise TimeoutError

        return super().do_open(Kept, req, **options)  # ty: ignore[invalid-argument-type]

    def cut(self) -> None:
        """End all connections."""
        self.late = True
        for open_socket in self.sockets:
            with contextlib.suppress(OSError):
                open_socket.shutdown(socket.SHUT_RDWR)


def fetch(
    url: str, body: bytes | None = None, timeout: float = math.inf, most: int = 1 << 16
) -> tuple[int, bytes]:
    """Status and body of a request; 0 where nobody answers, or not whole, or too slowly.

    Args:
        url: with http:// or https://.
        body: makes it a POST.
        timeout: seconds in all, besides what PATIENCE and SLOWEST allow to a body of `most` bytes.
        most: bytes of an answer; a longer one is none.
    """
    seconds = min(timeout, PATIENCE + (len(body or b"") + most) / SLOWEST)
    handler = _Bounded()
    timer = threading.Timer(seconds, handler.cut)
    timer.daemon = True
    timer.start()
    try:
        code, answer = _exchange(handler, urllib.request.Request(url, data=body), seconds, most)
        return (0, b"") if handler.late else (code, answer)
    except (OSError, ValueError, http.client.HTTPException):
        return 0, b""
    finally:
        timer.cancel()


def _exchange(
    handler: _Bounded, request: urllib.request.Request, seconds: float, most: int
) -> tuple[int, bytes]:
    try:
        with urllib.request.build_opener(handler).open(request, timeout=min(PATIENCE, seconds)) as reply:
            answer = reply.read(most + 1)
            whole = not reply.length and len(answer) <= most  # the length is what has not come yet
            return (reply.status, answer) if whole else (0, b"")
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read(most)


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
                code, body = REFUSED, f"{error}\n".encode(errors="replace")
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
