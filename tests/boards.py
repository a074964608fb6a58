"""Boards for tests: serve a store, ask for an address, talk to the socket itself."""

from __future__ import annotations

import http.client
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from initmem.report.board import Board
from initmem.store.results import Results


@contextmanager
def serving(store: Results, **options: object) -> Iterator[Board]:
    board = Board(store, port=0, **options)  # type: ignore[arg-type]
    thread = threading.Thread(target=board.serve)
    thread.start()
    try:
        yield board
    finally:
        board.shutdown()
        thread.join(60)
        assert not thread.is_alive()


def until(true: Callable[[], object], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)


def settle(board: Board, true: Callable[[], object]) -> None:
    """Ask for updates until something is true of the sections."""

    def asked() -> object:
        board.watcher.refresh(1.0)
        return true()

    until(asked)


def ask(port: int, path: str, method: str = "GET", **headers: str) -> http.client.HTTPResponse:
    line = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    line.request(method, path, headers=headers)
    answer = line.getresponse()
    answer.body = answer.read()
    line.close()
    return answer


def request(port: int, path: str, method: str = "GET", *more: str) -> bytes:
    return "\r\n".join([f"{method} {path} HTTP/1.1", f"Host: 127.0.0.1:{port}", *more, "", ""]).encode()


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=60)


def rest(line: socket.socket) -> bytes:
    """Everything until the server closes the connection, which it must within the socket's timeout."""
    received = b""
    with suppress(ConnectionResetError):  # closed with bytes of ours unread
        while data := line.recv(65536):
            received += data
    return received
