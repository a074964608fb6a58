"""The board under load and abuse: idle, slow and oversized requests. All on 127.0.0.1, bounded in number."""

from __future__ import annotations

import json
import re
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from boards import ask, connect, request, rest, serving, until
from conftest import fake_record
from initmem.report import board as board_module
from initmem.report.board import HEADERS, Board
from initmem.store.store import Store
from initmem.study import Study


@pytest.fixture
def store(tmp_path: Path, tiny_study: Study) -> Store:
    store = Store.create(tmp_path / "store")
    store.add_study(tiny_study)
    store.commit([fake_record(run, 0.9) for run in tiny_study.all_runs()[:3]])
    return store


@pytest.fixture
def board(store: Store) -> Iterator[Board]:
    with serving(store) as board:
        yield board


@contextmanager
def board_process(store: Store, files: int) -> Iterator[int]:
    """The command in a process that may open so many files: its port. It ends at Ctrl-C, without a word."""

    def prepare() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a background shell may have it ignored

    command = [sys.executable, "-m", "initmem", "board", str(store.path), "--port", "0", "--json"]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=prepare
    )
    try:
        printed = ""
        while not printed.endswith("\n}\n"):
            printed += process.stdout.readline()
        yield int(json.loads(printed)["rows"][0]["board"].rpartition(":")[2].strip("/"))
        process.send_signal(signal.SIGINT)
        _, complaint = process.communicate(timeout=60)
        assert (process.returncode, complaint) == (0, "")
    finally:
        process.kill()
        process.communicate()


def test_idle_connections_leave_room_for_a_reader(store: Store) -> None:
    with ExitStack() as idle, board_process(store, files=100) as port:
        for _ in range(300):
            idle.enter_context(connect(port))
        assert ask(port, "/").status == 200
        idle.enter_context(connect(port))  # it stays open while the board ends


def test_the_oldest_connection_gives_way_when_all_are_idle(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(board_module, "MOST", 8)
    monkeypatch.setattr(board_module, "HEAD_SECONDS", 300.0)
    with serving(store) as board, ExitStack() as stack:
        lines = [stack.enter_context(connect(board.port)) for _ in range(8)]
        until(lambda: len(board._deadlines) == 8)
        assert ask(board.port, "/").status == 200
        assert rest(lines[0]) == b""
        for line in lines[1:]:
            line.setblocking(False)
            with pytest.raises(BlockingIOError):  # open, and nothing was sent
                line.recv(1)


def test_neither_a_silent_nor_a_slow_request_is_waited_for(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A byte now and then keeps no connection open: the whole head has to arrive in time."""
    monkeypatch.setattr(board_module, "HEAD_SECONDS", 0.5)
    with serving(store) as board, connect(board.port) as silent, connect(board.port) as slow:
        started = time.monotonic()
        slow.sendall(f"GET / HTTP/1.1\r\nHost: 127.0.0.1:{board.port}\r\n".encode())
        with pytest.raises(OSError):
            while time.monotonic() < started + 60:
                slow.sendall(b"X-Slow: 1\r\n")
                time.sleep(0.1)
        assert rest(silent) == b""


def test_a_connection_serves_one_request(board: Board) -> None:
    with connect(board.port) as line:
        line.sendall(request(board.port, "/part/verdicts"))
        assert rest(line).startswith(b"HTTP/1.1 200 OK")  # and does not wait for a second request


def test_an_answer_nobody_reads_is_given_up(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    large = "x" * (32 << 20)
    monkeypatch.setattr(board_module, "ANSWER_SECONDS", 1.0)
    monkeypatch.setattr("initmem.report.page.static", lambda name: large)
    with serving(store) as board, connect(board.port) as line:
        line.sendall(request(board.port, "/static/page.js"))
        assert line.recv(15) == b"HTTP/1.1 200 OK"
        until(lambda: not board._deadlines)
        assert len(rest(line)) < len(large)


def test_head_is_get_without_the_body(board: Board, tiny_study: Study) -> None:
    run = tiny_study.all_runs()[0]
    said = ("Content-Type", "Content-Length", "Content-Security-Policy")

    def agree(path: str) -> bool:  # between the two, a time that is shown may change, or the store be read
        with connect(board.port) as line:
            line.sendall(request(board.port, path, "HEAD", "Connection: close"))
            head, _, body = rest(line).partition(b"\r\n\r\n")
        assert body == b""
        got = ask(board.port, path)
        lines = head.decode().lower().split("\r\n")
        same = all(f"{name}: {got.headers[name]}".lower() in lines for name in said if name in got.headers)
        return same and int(head.split()[1]) == got.status

    for path in ("/", "/tags", "/static/page.css", f"/runs/{run.recipe.id}", f"/run/{run.id}", "/nothing"):
        until(lambda path=path: agree(path))


def test_a_bad_request_is_refused_with_the_same_protection(board: Board) -> None:
    heads = [
        b"GET / HTTP/1.1\r\n" + b"X: %s\r\n" % (b"x" * 60_000) * 2,
        b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 20_000,
        b"GET /" + b"x" * 100_000 + b" HTTP/1.1\r\n\r\n",
        b"nonsense\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",  # TLS
        b"GET / HTTP/9.9\r\n\r\n",
    ]
    for head in heads:
        with connect(board.port) as line:
            with suppress(OSError):  # closed before all of it was sent
                line.sendall(head)
            answer = rest(line)
        assert answer == b"" or re.match(rb"HTTP/1.1 (4|505)", answer), head[:20]
        for name, value in HEADERS.items() if answer else ():
            assert f"{name}: {value}".encode() in answer, name
    assert ask(board.port, "/").status == 200


def test_a_body_is_never_taken_for_the_next_request(board: Board) -> None:
    hidden = request(board.port, "/part/verdicts")
    with connect(board.port) as line:
        line.sendall(
            request(board.port, "/static/page.css", "GET", f"Content-Length: {len(hidden)}") + hidden
        )
        line.shutdown(socket.SHUT_WR)
        assert rest(line).count(b"HTTP/1.1 ") == 1


def test_two_hosts_are_none(board: Board) -> None:
    with connect(board.port) as line:
        line.sendall(request(board.port, "/", "GET", "Host: evil.example", "Connection: close"))
        assert re.match(rb"HTTP/1.1 4", rest(line))


def test_it_stops_at_once_whoever_is_connected(store: Store) -> None:
    with ExitStack() as lines:
        with serving(store) as board:
            for _ in range(20):
                lines.enter_context(connect(board.port))
            started = time.monotonic()
        assert time.monotonic() < started + 30


def test_100_pages_can_ask_at_once(board: Board, tiny_study: Study) -> None:
    with ExitStack() as stack:
        lines = [stack.enter_context(connect(board.port)) for _ in range(100)]
        for line in lines:
            line.sendall(request(board.port, "/tags"))
        for line in lines:
            assert set(json.loads(rest(line).partition(b"\r\n\r\n")[2])) > {"live"}
        assert ask(board.port, f"/runs/{tiny_study.recipes[0].id}").status == 200
