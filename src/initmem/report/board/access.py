"""Who may look at a board: which names it answers to, and the token that other machines need."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import re
import secrets
import socket
from email.message import Message
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qs, quote


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
        place = f"[{name}]" if ":" in name else name
        return f"http://{place}:{self.port}/" + (f"?token={quote(self.token)}" if self.token else "")

    def host_is_ours(self, headers: Message) -> bool:
        """Whether the Host header names this board, so that no other page reaches it under its own name."""
        hosts = headers.get_all("Host", [])
        if len(hosts) != 1:
            return False
        matched = re.fullmatch(r"(.+?)(?::(\d+))?", hosts[0])
        if self._names is None or matched is None:
            return self._names is None
        name, port = matched.groups(default="80")
        return name.lower() in self._names and port == str(self.port)

    def may_look(self, headers: Message) -> bool:
        """Whether the cookie shows that the token was known."""
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
