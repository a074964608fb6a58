"""The board's server: a few fixed addresses, read only, for this machine unless a token is set.

- It binds to a loopback address; any other address needs a token.
- Every connection has a deadline, for the head of its request first, then for its response. The server closes
  those that miss it. When too many are open, a new one takes the place of the one whose deadline is next.
- The content security policy allows scripts and styles from this server only, none inside a page.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import io
import ipaddress
import re
import resource
import secrets
import socket
import threading
import time
from collections.abc import Callable
from email.message import Message
from http import HTTPStatus
from http.cookies import CookieError, SimpleCookie
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, quote, urlsplit

from initmem.errors import ConfigError
from initmem.report import page
from initmem.report.watch import Watcher
from initmem.store.results import Results

PORT = 8765
MOST = 512  # connections at once; never more than half of the files that this process may open
HEAD_SECONDS = 10.0  # for the whole head of a request to arrive
ANSWER_SECONDS = 30.0  # for a response to be taken
LARGEST_HEAD = 32 << 10  # bytes
PATIENCE = 0.7  # seconds to wait for an update before an answer is sent without it
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
    "Connection": "close",
}
HTML, JSON, TEXT = "text/html; charset=utf-8", "application/json", "text/plain; charset=utf-8"
STATIC = {
    **dict.fromkeys(page.STYLES, "text/css; charset=utf-8"),
    **dict.fromkeys(page.LIVE_SCRIPTS, "text/javascript; charset=utf-8"),
}


# -- access -----------------------------------------------------------------------------------------------


class Access:
    """The names and the token of a board. `token` is None where none is needed."""

    def __init__(self, host: str, port: int, token: str | None) -> None:
        self.host, self.port = host, port
        self.token = token or (None if is_loopback(host) else secrets.token_urlsafe(18))
        # None: whatever names this machine has; then there is a token
        everywhere = host in ("0.0.0.0", "::")
        self._names = None if everywhere else {"localhost", "127.0.0.1", "[::1]", host.lower(), f"[{host}]"}
        self._cookie = f"initmem-{port}"  # cookies are shared by all ports of a host
        # the cookie is derived from the token, which may contain any characters
        self._pass = hashlib.sha256(f"initmem {self.token}".encode()).hexdigest()

    @property
    def url(self) -> str:
        """The address to open, token included."""
        name = socket.gethostname() if self._names is None else self.host
        address = f"[{name}]" if ":" in name else name
        return f"http://{address}:{self.port}/" + (f"?token={quote(self.token)}" if self.token else "")

    def is_host(self, headers: Message) -> bool:
        """Whether the Host header names this board, so that no other page reaches it under its own name."""
        hosts = headers.get_all("Host", [])
        if len(hosts) != 1 or self._names is None:
            return len(hosts) == 1
        matched = re.fullmatch(r"(.+?)(?::(\d+))?", hosts[0])
        name, port = matched.groups(default="80") if matched else ("", "")
        return name.lower() in self._names and port == str(self.port)

    def is_allowed(self, headers: Message) -> bool:
        """Whether the cookie shows that the client had the token."""
        if self.token is None:
            return True
        try:
            cookie = SimpleCookie(headers.get("Cookie", "")).get(self._cookie)
        except CookieError:
            return False
        return cookie is not None and _equal(cookie.value, self._pass)

    def cookie_for(self, query: str) -> str | None:
        """The cookie to exchange for a token in the address, so that it does not stay there."""
        given = parse_qs(query).get("token", [""])[0]
        if self.token is None or not _equal(given, self.token):
            return None
        return f"{self._cookie}={self._pass}; HttpOnly; SameSite=Strict; Path=/"


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _equal(given: str, wanted: str) -> bool:
    """Compare in constant time."""
    return hmac.compare_digest(given.encode(errors="replace"), wanted.encode(errors="replace"))


# -- connections ------------------------------------------------------------------------------------------


class Board(ThreadingHTTPServer):
    """Serves one store: a thread per connection, bounded in number and time, so that idle clients cannot make
    it unreachable."""

    daemon_threads = True
    request_queue_size = 1024

    def __init__(
        self, store: Results, *, host: str = "127.0.0.1", port: int = PORT, token: str | None = None
    ) -> None:
        self.watcher = Watcher(store)
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._most = MOST if files == resource.RLIM_INFINITY else min(MOST, files // 2)
        self._deadlines: dict[socket.socket, float] = {}
        self._lock = threading.Lock()
        try:
            super().__init__((host, port), Handler)
        except OSError as error:
            raise ConfigError(
                f"host = {host!r}, port = {port}: {error.strerror} (--port 0 finds a free one)"
            ) from None
        self.port: int = self.server_address[1]
        self.access = Access(host, self.port, token)
        self.url = self.access.url

    def serve(self) -> None:
        """Serve until interrupted."""
        try:
            self.serve_forever(poll_interval=0.2)
        finally:
            self.server_close()

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


# -- requests ---------------------------------------------------------------------------------------------


class Handler(BaseHTTPRequestHandler):
    """Answers one request per connection. It reads a head of bounded size, never a body."""

    server: Board
    protocol_version = "HTTP/1.1"
    default_request_version = "HTTP/1.1"  # answers to anything else than a request have headers too
    error_content_type = TEXT
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

    def do_GET(self) -> None:
        """Check the client, then answer from the fixed addresses."""
        access, address = self.server.access, urlsplit(self.path)
        if not access.is_host(self.headers):
            self._refuse(HTTPStatus.MISDIRECTED_REQUEST, "unknown Host")
        elif access.is_allowed(self.headers):
            self._route(address.path)
        elif address.path == "/" and (cookie := access.cookie_for(address.query)):
            self._send(HTTPStatus.SEE_OTHER, "", TEXT, {"Location": "/", "Set-Cookie": cookie})
        else:
            reason = "a token is needed: open the address that initmem board printed"
            self._refuse(HTTPStatus.UNAUTHORIZED, reason)

    do_HEAD = do_GET

    def _not_allowed(self) -> None:
        self._refuse(HTTPStatus.METHOD_NOT_ALLOWED, "read only", {"Allow": "GET, HEAD"})

    do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = _not_allowed

    def _route(self, path: str) -> None:
        matches = ((answer, re.fullmatch(pattern, path)) for pattern, answer in ROUTES)
        if not any(answer(self, *matched.groups()) for answer, matched in matches if matched):
            self._refuse(HTTPStatus.NOT_FOUND, "nothing here")

    # -- the addresses: each answers, or returns False where there is nothing ---------------------------

    def page(self) -> bool:
        """The whole page."""
        watcher = self.server.watcher
        watcher.refresh(PATIENCE)
        title = page.title_of(watcher.content.survey) if watcher.content else "board"
        return self._send(HTTPStatus.OK, page.render_live(watcher.store, title, watcher.sections()), HTML)

    def static(self, name: str) -> bool:
        """A style sheet or a script."""
        return name in STATIC and self._send(HTTPStatus.OK, page.static(name), STATIC[name])

    def section(self, name: str) -> bool:
        """The inside of one section."""
        section = self.server.watcher.sections().get(name)
        return section is not None and self._send(
            HTTPStatus.OK, section.html, HTML, {"ETag": f'"{section.tag}"'}
        )

    def runs(self, recipe_id: str) -> bool:
        """The runs of one recipe."""
        return self._json(self.server.watcher.runs(recipe_id))

    def run(self, run_id: str) -> bool:
        """One run with its curves."""
        return self._json(self.server.watcher.run(run_id))

    def tags(self) -> bool:
        """The tags of all sections: a page fetches those that have changed."""
        self.server.watcher.refresh(PATIENCE)
        return self._json({name: one.tag for name, one in self.server.watcher.sections().items()})

    # -- answers ----------------------------------------------------------------------------------------

    def _json(self, value: dict[str, Any] | None) -> bool:
        return value is not None and self._send(HTTPStatus.OK, page.to_json(value), JSON)

    def _refuse(self, status: HTTPStatus, reason: str, headers: dict[str, str] | None = None) -> None:
        self._send(status, f"{reason}\n", TEXT, headers)

    def _send(self, status: HTTPStatus, text: str, kind: str, headers: dict[str, str] | None = None) -> bool:
        body = text.encode()
        self.send_response(status)
        about = {"Content-Type": kind, "Content-Length": str(len(body))} | (headers or {})
        for name, value in about.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
        return True

    def end_headers(self) -> None:
        """Every answer carries the same protection, also those of the base class."""
        for name, value in HEADERS.items():
            self.send_header(name, value)
        super().end_headers()

    def version_string(self) -> str:
        """Disclose no versions."""
        return "initmem"

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing: the terminal belongs to the user."""


ROUTES: tuple[tuple[str, Callable[..., bool]], ...] = (
    (r"/", Handler.page),
    (r"/tags", Handler.tags),
    (r"/static/([a-z]+\.[a-z]+)", Handler.static),
    (r"/part/([a-z]+)", Handler.section),
    (r"/runs/([0-9a-f]{16})", Handler.runs),
    (r"/run/([0-9a-f]{16})", Handler.run),
)
