"""The board's server: a few fixed addresses, read only, for this machine unless a token is set.

- It binds to a loopback address; any other demands a token, which is compared in constant time.
- The Host header must name this server, so that a page from elsewhere cannot reach it under its own name.
- The content-security policy allows scripts and styles from this server only, none inside a page.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import re
import secrets
import socket
from collections.abc import Callable
from http import HTTPStatus
from http.cookies import CookieError, SimpleCookie
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, quote, urlsplit

from initmem.errors import ConfigError
from initmem.report import html
from initmem.report.board.watch import Watcher, to_json
from initmem.report.report import title_of
from initmem.store.results import Results

PORT = 8765
PATIENCE = 0.7  # seconds to wait for the first verdicts before a page is sent without them
QUIET = 15.0  # seconds after which a silent line is kept open with a comment
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}
STATIC = {
    **dict.fromkeys(html.STYLES, "text/css; charset=utf-8"),
    **dict.fromkeys(html.LIVE_SCRIPTS, "text/javascript; charset=utf-8"),
}


class Board(ThreadingHTTPServer):
    """Serves one store. `token` is None where none is needed."""

    daemon_threads = True

    def __init__(
        self, store: Results, *, host: str = "127.0.0.1", port: int = PORT, token: str | None = None
    ) -> None:
        self.watcher = Watcher(store)
        self.token = token or (None if is_loopback(host) else secrets.token_urlsafe(18))
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            super().__init__((host, port), Handler)
        except OSError as error:
            raise ConfigError(
                f"host = {host!r}, port = {port}: {error.strerror} (--port 0 finds a free one)"
            ) from None
        except OverflowError:
            raise ConfigError(f"port = {port} (allowed: 0 to 65535)") from None
        self.host, self.port = host, self.server_address[1]
        self.names = self._names()

    def _names(self) -> set[str] | None:
        """What a Host header may name; None: any name this machine may have, a token guards it."""
        if self.host in ("0.0.0.0", "::"):
            return None
        return {"localhost", "127.0.0.1", "[::1]", self.host, f"[{self.host}]"}

    @property
    def url(self) -> str:
        """Where to look, token included."""
        name = socket.gethostname() if self.names is None else self.host
        place = f"[{name}]" if ":" in name else name
        return f"http://{place}:{self.port}/" + (f"?token={quote(self.token)}" if self.token else "")

    def serve(self) -> None:
        """Serve until interrupted."""
        self.watcher.start()
        try:
            self.serve_forever(poll_interval=0.2)
        finally:
            self.watcher.stop()
            self.server_close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A reader who goes away in the middle is no error."""


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class Handler(BaseHTTPRequestHandler):
    """Answers one reader."""

    server: Board
    protocol_version = "HTTP/1.1"
    timeout = 60

    def do_GET(self) -> None:
        """Check who asks, then answer from the fixed addresses."""
        path = urlsplit(self.path).path
        if not self._host_is_ours():
            return self._refuse(HTTPStatus.MISDIRECTED_REQUEST, "unknown Host")
        if not self._may_look():
            return (
                self._enter() if path == "/" else self._refuse(HTTPStatus.UNAUTHORIZED, "a token is needed")
            )
        for pattern, answer in ROUTES:
            found = re.fullmatch(pattern, path)
            if found:
                return answer(self, *found.groups())
        return self._refuse(HTTPStatus.NOT_FOUND, "nothing here")

    do_HEAD = do_GET

    def _not_allowed(self) -> None:
        self._refuse(HTTPStatus.METHOD_NOT_ALLOWED, "read only")

    do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = _not_allowed

    # -- who may look -----------------------------------------------------------------------------------

    def _host_is_ours(self) -> bool:
        names, header = self.server.names, self.headers.get("Host", "")
        if names is None:
            return True
        name, _, port = header.rpartition(":") if re.search(r":\d+$", header) else (header, "", "80")
        return name.lower() in names and port == str(self.server.port)

    def _may_look(self) -> bool:
        if self.server.token is None:
            return True
        try:
            cookie = SimpleCookie(self.headers.get("Cookie", "")).get(self._cookie)
        except CookieError:
            return False
        return cookie is not None and _equal(cookie.value, self._pass)

    @property
    def _cookie(self) -> str:
        return f"initmem-{self.server.port}"  # cookies are shared by all ports of a host

    @property
    def _pass(self) -> str:
        """What the cookie holds: made of the token, whatever characters that has."""
        return hashlib.sha256(f"initmem {self.server.token}".encode()).hexdigest()

    def _enter(self) -> None:
        """Change a token in the address for a cookie, so that it does not stay there."""
        given = parse_qs(urlsplit(self.path).query).get("token", [""])[0]
        if not _equal(given, self.server.token or ""):
            return self._refuse(
                HTTPStatus.UNAUTHORIZED, "a token is needed: open the address that initmem board printed"
            )
        cookie = f"{self._cookie}={self._pass}; HttpOnly; SameSite=Strict; Path=/"
        return self._send(HTTPStatus.SEE_OTHER, b"", "text/plain", {"Location": "/", "Set-Cookie": cookie})

    # -- what there is to see ---------------------------------------------------------------------------

    def page(self) -> None:
        """The whole page."""
        watcher = self.server.watcher
        with watcher.watching():
            watcher.first_look(PATIENCE)
        content = watcher.content
        title = title_of(content.survey) if content else "board"
        text = html.whole_page(f"{title}, live", watcher.parts(), scripts=html.LIVE_SCRIPTS, inline=False)
        self._send(HTTPStatus.OK, text.encode(), "text/html; charset=utf-8")

    def static(self, name: str) -> None:
        """A style sheet or a script."""
        if name not in STATIC:
            return self._refuse(HTTPStatus.NOT_FOUND, "nothing here")
        return self._send(HTTPStatus.OK, html.static(name).encode(), STATIC[name])

    def part(self, name: str) -> None:
        """The inside of one section."""
        part = self.server.watcher.parts().get(name)
        if part is None:
            return self._refuse(HTTPStatus.NOT_FOUND, "nothing here")
        return self._send(
            HTTPStatus.OK, part.html.encode(), "text/html; charset=utf-8", {"ETag": f'"{part.tag}"'}
        )

    def runs(self, recipe_id: str) -> None:
        """The runs of one recipe."""
        self._json(self.server.watcher.runs(recipe_id))

    def run(self, run_id: str) -> None:
        """One run with its curves."""
        self._json(self.server.watcher.run(run_id))

    def events(self) -> None:
        """Server-sent events: the tags of all sections, whenever one changes."""
        watcher, version = self.server.watcher, -1
        self.close_connection = True
        self._head(HTTPStatus.OK, "text/event-stream", {"Connection": "close"})
        with watcher.watching():
            while not watcher.stopped:
                news = watcher.tags(version, QUIET)
                if news is None:
                    self.wfile.write(b": still here\n\n")
                else:
                    version, tags = news
                    self.wfile.write(b"data: " + to_json(tags) + b"\n\n")
                self.wfile.flush()

    # -- answers ----------------------------------------------------------------------------------------

    def _json(self, value: dict[str, Any] | None) -> None:
        if value is None:
            return self._refuse(HTTPStatus.NOT_FOUND, "nothing here")
        return self._send(HTTPStatus.OK, to_json(value), "application/json")

    def _refuse(self, status: HTTPStatus, why: str) -> None:
        self.close_connection = True  # whatever else was sent is not read
        more = {"Allow": "GET, HEAD"} if status == HTTPStatus.METHOD_NOT_ALLOWED else {}
        self._send(status, f"{why}\n".encode(), "text/plain; charset=utf-8", more | {"Connection": "close"})

    def _send(self, status: HTTPStatus, body: bytes, kind: str, more: dict[str, str] | None = None) -> None:
        self._head(status, kind, {"Content-Length": str(len(body))} | (more or {}))
        if self.command != "HEAD":
            self.wfile.write(body)

    def _head(self, status: HTTPStatus, kind: str, more: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in ({"Content-Type": kind} | more).items():
            self.send_header(name, value)
        self.end_headers()

    def end_headers(self) -> None:
        """Every answer carries the same protection, also those of the base class."""
        for name, value in HEADERS.items():
            self.send_header(name, value)
        super().end_headers()

    def version_string(self) -> str:
        """Say no more than needed."""
        return "initmem"

    def log_message(self, format: str, *args: Any) -> None:
        """Keep quiet: the terminal belongs to the user."""


ROUTES: tuple[tuple[str, Callable[..., None]], ...] = (
    (r"/", Handler.page),
    (r"/events", Handler.events),
    (r"/static/([a-z]+\.[a-z]+)", Handler.static),
    (r"/part/([a-z]+)", Handler.part),
    (r"/runs/([0-9a-f]{16})", Handler.runs),
    (r"/run/([0-9a-f]{16})", Handler.run),
)


def _equal(given: str, wanted: str) -> bool:
    return bool(wanted) and hmac.compare_digest(given.encode(), wanted.encode())
