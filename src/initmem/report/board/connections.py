"""Connections bounded in number, time and size: idle or slow ones cannot make a server unreachable.

Every connection has a deadline, for the head of its request first, then for its answer. The server closes
those that miss it. When too many are open, a new one takes the place of the one whose deadline is next.
"""

from __future__ import annotations

import contextlib
import io
import resource
import socket
import threading
import time
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

MOST = 512  # connections at once; never more than half of the files that this process may open
HEAD_SECONDS = 10.0  # for the whole head of a request to arrive
ANSWER_SECONDS = 30.0  # for an answer, or the next piece of a stream, to be taken
LARGEST_HEAD = 32 << 10  # bytes


class BoundedServer(ThreadingHTTPServer):
    """A thread per connection, within the bounds."""

    daemon_threads = True
    request_queue_size = 1024

    def __init__(self, address: tuple[str, int], handler: type[OneRequest]) -> None:
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._most = MOST if files == resource.RLIM_INFINITY else min(MOST, files // 2)
        self._deadlines: dict[socket.socket, float] = {}
        self._lock = threading.Lock()
        super().__init__(address, handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Make room for a connection and start its thread."""
        with self._lock:
            if len(self._deadlines) >= self._most:
                self._close(min(self._deadlines, key=self._deadlines.__getitem__))
            self._deadlines[request] = time.monotonic() + HEAD_SECONDS
        super().process_request(request, client_address)

    def extend(self, connection: socket.socket, seconds: float) -> None:
        """Give a connection so many seconds from now, unless it has been closed."""
        with self._lock:
            if connection in self._deadlines:
                self._deadlines[connection] = time.monotonic() + seconds

    def service_actions(self) -> None:
        """Close the connections that missed their deadline; called several times a second."""
        now = time.monotonic()
        with self._lock:
            for connection in [one for one, deadline in self._deadlines.items() if deadline < now]:
                self._close(connection)

    def shutdown_request(self, request: Any) -> None:
        """Close a connection that has been answered."""
        with self._lock:
            self._deadlines.pop(request, None)
        super().shutdown_request(request)

    def _close(self, connection: socket.socket) -> None:
        """Wake the thread of a connection; the thread then frees it."""
        del self._deadlines[connection]
        with contextlib.suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that goes away in the middle is no error."""


class OneRequest(BaseHTTPRequestHandler):
    """Answers one request per connection. The head is read within the bounds, a body never."""

    server: BoundedServer
    protocol_version = "HTTP/1.1"
    default_request_version = "HTTP/1.1"  # answers to anything else than a request have headers too
    error_content_type = "text/plain; charset=utf-8"
    error_message_format = "%(message)s\n"

    def handle(self) -> None:
        """Read the head, then answer."""
        head = b""
        while b"\r\n\r\n" not in head:
            data = self.connection.recv(4096)
            if not data:
                return
            head += data
            if len(head) > LARGEST_HEAD:
                self.command = self.requestline = self.request_version = ""
                self.send_error(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
                return
        self.server.extend(self.connection, ANSWER_SECONDS)
        self.rfile = io.BufferedReader(io.BytesIO(head))
        self.close_connection = True
        self.handle_one_request()

    def version_string(self) -> str:
        """Disclose no versions."""
        return "initmem"

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing: the terminal belongs to the user."""
