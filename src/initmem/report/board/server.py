"""The board's server: a few fixed addresses, read only, for this machine unless a token is set.

- It binds to a loopback address; any other needs a token (`access`).
- Connections are bounded in number, time and size (`connections`).
- The content-security policy allows scripts and styles from this server only, none inside a page.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Callable
from http import HTTPStatus
from typing import Any
from urllib.parse import urlsplit

from initmem.errors import ConfigError
from initmem.report import page
from initmem.report.board.access import Access
from initmem.report.board.connections import ANSWER_SECONDS, BoundedServer, OneRequest
from initmem.report.board.watch import Watcher, to_json
from initmem.report.page import title_of
from initmem.store.results import Results

PORT = 8765
PATIENCE = 0.7  # seconds to wait for the first verdicts before a page is sent without them
QUIET = ANSWER_SECONDS / 2  # seconds after which a stream without news gets a comment
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
STATIC = {
    **dict.fromkeys(page.STYLES, "text/css; charset=utf-8"),
    **dict.fromkeys(page.LIVE_SCRIPTS, "text/javascript; charset=utf-8"),
}
NOTHING = "nothing here"


class Board(BoundedServer):
    """Serves one store."""

    def __init__(
        self, store: Results, *, host: str = "127.0.0.1", port: int = PORT, token: str | None = None
    ) -> None:
        self.watcher = Watcher(store)
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            super().__init__((host, port), Handler)
        except OSError as error:
            raise ConfigError(
                f"host = {host!r}, port = {port}: {error.strerror} (--port 0 finds a free one)"
            ) from None
        except OverflowError:
            raise ConfigError(f"port = {port} (allowed: 0 to 65535)") from None
        self.port: int = self.server_address[1]
        self.access = Access(host, self.port, token)

    @property
    def url(self) -> str:
        """The address to open, token included."""
        return self.access.url

    def serve(self) -> None:
        """Serve until interrupted."""
        self.watcher.start()
        try:
            self.serve_forever(poll_interval=0.2)
        finally:
            self.watcher.stop()
            self.server_close()


class Handler(OneRequest):
    """Answers one request."""

    server: Board

    def do_GET(self) -> None:
        """Check who asks, then answer from the fixed addresses."""
        access, address = self.server.access, urlsplit(self.path)
        if not access.host_is_ours(self.headers):
            return self._refuse(HTTPStatus.MISDIRECTED_REQUEST, "unknown Host")
        if not access.may_look(self.headers):
            return self._enter(access.cookie_for(address.query) if address.path == "/" else None)
        for pattern, answer in ROUTES:
            if matched := re.fullmatch(pattern, address.path):
                return answer(self, *matched.groups())
        return self._refuse(HTTPStatus.NOT_FOUND, NOTHING)

    do_HEAD = do_GET

    def _not_allowed(self) -> None:
        self._refuse(HTTPStatus.METHOD_NOT_ALLOWED, "read only", {"Allow": "GET, HEAD"})

    do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = _not_allowed

    def _enter(self, cookie: str | None) -> None:
        if cookie is None:
            why = "a token is needed: open the address that initmem board printed"
            return self._refuse(HTTPStatus.UNAUTHORIZED, why)
        return self._send(HTTPStatus.SEE_OTHER, b"", "text/plain", {"Location": "/", "Set-Cookie": cookie})

    # -- the addresses ----------------------------------------------------------------------------------

    def page(self) -> None:
        """The whole page."""
        watcher = self.server.watcher
        with watcher.watching():
            watcher.first_look(PATIENCE)
        content = watcher.content
        title = title_of(content.survey) if content else "board"
        text = page.whole_page(
            f"{title}, live",
            watcher.parts(),
            scripts=page.LIVE_SCRIPTS,
            inline=False,
            origin=f"Live, opened {page.now()}",
            command=page.command_for("board", watcher.store),
        )
        self._send(HTTPStatus.OK, text.encode(), "text/html; charset=utf-8")

    def static(self, name: str) -> None:
        """A style sheet or a script."""
        if name not in STATIC:
            return self._refuse(HTTPStatus.NOT_FOUND, NOTHING)
        return self._send(HTTPStatus.OK, page.static(name).encode(), STATIC[name])

    def part(self, name: str) -> None:
        """The inside of one section."""
        part = self.server.watcher.parts().get(name)
        if part is None:
            return self._refuse(HTTPStatus.NOT_FOUND, NOTHING)
        tag = {"ETag": f'"{part.tag}"'}
        return self._send(HTTPStatus.OK, part.html.encode(), "text/html; charset=utf-8", tag)

    def runs(self, recipe_id: str) -> None:
        """The runs of one recipe."""
        self._json(self.server.watcher.runs(recipe_id))

    def run(self, run_id: str) -> None:
        """One run with its curves."""
        self._json(self.server.watcher.run(run_id))

    def events(self) -> None:
        """Server-sent events: the tags of all sections, whenever one changes."""
        watcher, version = self.server.watcher, -1
        self._head(HTTPStatus.OK, "text/event-stream", {})
        if self.command == "HEAD":
            return
        with watcher.watching():
            while not watcher.stopped:
                news = watcher.tags(version, QUIET)
                self.server.extend(self.connection, ANSWER_SECONDS)
                if news is None:
                    self.wfile.write(b": still here\n\n")
                else:
                    version, tags = news
                    self.wfile.write(b"data: " + to_json(tags) + b"\n\n")

    # -- answers ----------------------------------------------------------------------------------------

    def _json(self, value: dict[str, Any] | None) -> None:
        if value is None:
            return self._refuse(HTTPStatus.NOT_FOUND, NOTHING)
        return self._send(HTTPStatus.OK, to_json(value), "application/json")

    def _refuse(self, status: HTTPStatus, why: str, more: dict[str, str] | None = None) -> None:
        self._send(status, f"{why}\n".encode(), "text/plain; charset=utf-8", more)

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


ROUTES: tuple[tuple[str, Callable[..., None]], ...] = (
    (r"/", Handler.page),
    (r"/events", Handler.events),
    (r"/static/([a-z]+\.[a-z]+)", Handler.static),
    (r"/part/([a-z]+)", Handler.part),
    (r"/runs/([0-9a-f]{16})", Handler.runs),
    (r"/run/([0-9a-f]{16})", Handler.run),
)
