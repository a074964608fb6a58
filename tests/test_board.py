"""The board's server and what it watches, without a browser."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import planted
from boards import ask, serving, settle, until
from conftest import fake_record
from initmem.errors import ConfigError
from initmem.record import crashed
from initmem.report import board as board_module
from initmem.report import page as pages
from initmem.report import watch
from initmem.report.board import Board, is_loopback
from initmem.report.content import Content
from initmem.report.watch import live
from initmem.store.claims import EXPIRY, Claim, LiveRun
from initmem.store.results import Collection, open_results, store_status, surveyed, write_archive
from initmem.store.store import Store
from initmem.study import Run, Study

IMAGE = "<img src=x onerror=alert(1)>"


@pytest.fixture
def store(tmp_path: Path, tiny_study: Study) -> Store:
    store = Store.create(tmp_path / "store")
    store.add_study(replace(tiny_study, title=IMAGE))
    runs = tiny_study.all_runs()
    store.commit([fake_record(r, 0.9 - 0.1 * r.scale + 0.01 * r.seed) for r in runs[:4]])
    store.commit([crashed(runs[4], f"Traceback\n{IMAGE}\nOSError: {IMAGE}", {})])
    return store


@pytest.fixture
def board(store: Store, monkeypatch: pytest.MonkeyPatch) -> Iterator[Board]:
    monkeypatch.setattr(watch, "TICK", 0.05)
    monkeypatch.setattr(watch, "READ_EVERY", 0.05)
    with serving(store) as board:
        settle(board, lambda: "Reading" not in board.watcher.sections()["runs"].html)
        yield board


# -- who may look, and at what -------------------------------------------------------------------------------


def test_the_addresses_are_fixed_and_read_only_and_every_answer_is_protected(board: Board) -> None:
    there = ("/", "/static/page.css", "/static/charts.js", "/static/board.js", "/part/verdicts", "/part/live")
    not_there = (
        "/static/../server.py", "/static/page.html", "/static/", "/part/nothing", "/runs/0000000000000000",
        "/run/0000000000000000", "/run/../../store.json", "/run/..%2f..%2fstore.json", "/store.json",
    )  # fmt: skip
    for path in (*there, *not_there):
        answer = ask(board.port, path)
        assert answer.status == (200 if path in there else 404), path
        policy = answer.headers["Content-Security-Policy"]
        assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'")
        assert "unsafe" not in policy
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert answer.headers["Cross-Origin-Resource-Policy"] == "same-origin"
        assert "Python" not in answer.headers["Server"]
    for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS"):
        answer = ask(board.port, "/", method)
        assert (answer.status, answer.headers["Allow"]) == (405, "GET, HEAD"), method


def test_only_its_own_names_are_answered(board: Board) -> None:
    port = board.port
    for name in (f"127.0.0.1:{port}", f"localhost:{port}", f"LOCALHOST:{port}", f"[::1]:{port}"):
        assert ask(port, "/", Host=name).status == 200, name
    others = ("evil.example", f"evil.example:{port}", "127.0.0.1", f"127.0.0.1:{port + 1}", "", f"x:{port}")
    for name in others:
        assert ask(port, "/", Host=name).status == 421, name


def test_a_page_holds_no_script_of_its_own_and_everything_is_escaped(board: Board) -> None:
    page = ask(board.port, "/").body.decode()
    assert IMAGE not in page
    assert "&lt;img src=x onerror=alert(1)&gt;" in page
    for piece in page.split("<script")[1:]:
        assert piece.startswith((" src=", ' type="application/json"'))
    assert " style=" not in page


def test_another_host_demands_a_token(store: Store) -> None:
    with serving(store, host="0.0.0.0") as board:
        assert len(board.access.token or "") > 20
        assert ask(board.port, "/").status == 401
        assert ask(board.port, "/part/verdicts").status == 401
        assert ask(board.port, "/?token=wrong").status == 401
        assert ask(board.port, "/?token=").status == 401
        entered = ask(board.port, f"/?token={board.access.token}")
        assert (entered.status, entered.headers["Location"]) == (303, "/")
        cookie = entered.headers["Set-Cookie"]
        assert "HttpOnly" in cookie and "SameSite=Strict" in cookie
        name_and_value = cookie.split(";")[0]
        assert ask(board.port, "/", Cookie=name_and_value).status == 200
        assert ask(board.port, "/", Cookie=name_and_value[:-1]).status == 401
        assert f"?token={board.access.token}" in board.url


def test_a_token_can_be_given_and_holds_on_loopback_too(store: Store) -> None:
    with serving(store, token="open; sésame\r\nX: y") as board:
        assert ask(board.port, "/").status == 401
        entered = ask(board.port, board.url.partition(f":{board.port}")[2])
        assert entered.status == 303
        assert "X" not in entered.headers
        cookie = entered.headers["Set-Cookie"].split(";")[0]
        assert ask(board.port, "/", Cookie=cookie).status == 200


def test_what_is_loopback() -> None:
    assert all(map(is_loopback, ["127.0.0.1", "127.8.8.8", "::1", "localhost"]))
    assert not any(map(is_loopback, ["0.0.0.0", "::", "192.168.1.7", "board.example", ""]))


def test_a_port_in_use_is_one_clear_line(store: Store) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(ConfigError, match=r"port = \d+: Address already in use"):
            Board(store, port=taken.getsockname()[1])


# -- what it shows -------------------------------------------------------------------------------------------


def test_board_and_report_cannot_disagree(board: Board, store: Store) -> None:
    report = pages.sections(Content(surveyed(store)))
    for name, part in report.items():
        assert ask(board.port, f"/part/{name}").body.decode() == str(part.html), name


def test_tags_say_what_changed(board: Board, store: Store, tiny_study: Study) -> None:
    def tags() -> dict[str, str]:
        return json.loads(ask(board.port, "/tags").body)

    before = tags()
    assert set(before) == {"live", *pages.SECTIONS}
    store.commit([fake_record(tiny_study.all_runs()[-1], 0.5)])
    until(lambda: all(tags()[name] != before[name] for name in ("verdicts", "runs")))
    assert tags()["init"] == before["init"]
    assert ask(board.port, "/part/runs").headers["ETag"] == f'"{tags()["runs"]}"'


def test_a_run_in_flight_is_shown_epoch_by_epoch_also_with_a_torn_line(
    board: Board, store: Store, tiny_study
) -> None:
    run = tiny_study.all_runs()[-1]
    store.claims.take([run])
    for epoch in (1, 2):
        row = {"epoch": epoch, "val_accuracy": 0.3 * epoch, "train_accuracy": 0.25 * epoch, "seconds": 2.0}
        store.live.append(run, [row], fresh=epoch == 1)
    path = store.path / "runs" / run.id / "history.jsonl"
    path.write_bytes(b'[]\n{"epoch":"?"}\n' + path.read_bytes() + b'{"epoch":3,"val_acc')
    settle(board, lambda: f"2/{run.recipe.epochs}" in board.watcher.sections()["live"].html)
    shown = board.watcher.sections()["live"].html
    assert run.id in shown and "60.0" in shown
    history = json.loads(ask(board.port, f"/run/{run.id}").body)
    assert (history["status"], history["history"]["val_accuracy"]) == ("training", [0.3, 0.6])


def test_an_archive_can_be_looked_at_too(store: Store, tmp_path: Path) -> None:
    write_archive(tmp_path / "all.initmem", store.studies(), store.records())
    archive = open_results(tmp_path / "all.initmem")
    with serving(archive) as board:
        settle(board, lambda: "Reading" not in board.watcher.sections()["runs"].html)
        assert b"5</strong> of 6 runs done" in ask(board.port, "/part/live").body
        record = store.records()[0]
        assert json.loads(ask(board.port, f"/run/{record.id}").body)["status"] == record.status
        assert ask(board.port, "/run/0000000000000000").status == 404


def test_runs_and_a_run_on_demand(board: Board, store: Store, tiny_study: Study) -> None:
    (recipe,) = tiny_study.recipes
    rows = json.loads(ask(board.port, f"/runs/{recipe.id}").body)
    assert {row[0] for row in rows["rows"]} == {record.id for record in store.records()}
    record = next(r for r in store.records() if r.status == "completed")
    found = json.loads(ask(board.port, f"/run/{record.id}").body)
    assert found["history"]["norm"] == pytest.approx(record.history["norm"].tolist(), rel=1e-4)
    broken = next(r for r in store.records() if r.status == "crashed")
    assert json.loads(ask(board.port, f"/run/{broken.id}").body)["error"] == broken.error


def test_a_store_that_cannot_be_read_is_said_once_and_not_the_end(board: Board, store: Store, capsys) -> None:
    broken = store.path / "studies" / "broken.json"
    broken.write_text("{")
    settle(board, lambda: "cannot be read" in board.watcher.sections()["live"].html)
    for _ in range(5):
        board.watcher.refresh(1.0)
        time.sleep(watch.TICK)
    broken.unlink()
    settle(board, lambda: "cannot be read" not in board.watcher.sections()["live"].html)
    assert "runs done" in board.watcher.sections()["live"].html
    assert capsys.readouterr().err.count("\n") == 1  # once, not at every look


def test_a_budget_is_kept_whatever_things_take(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    kept = watch.Budget(0.1, least=1.0)
    assert kept.rest() <= 0
    with kept.spending():
        now += 0.05
    assert kept.rest() == pytest.approx(1.0)  # not sooner than that
    now += 1.0
    with kept.spending():
        now += 2.0
    assert kept.rest() == pytest.approx(18.0)  # 2 of 20 seconds
    with kept.spending():  # twice in a row counts twice
        now += 1.0
    assert kept.rest() == pytest.approx(17.0 + 9.0)


def test_nobody_asks_nobody_looks(board: Board, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[int] = []
    monkeypatch.setattr(store, "in_flight", lambda: looks.append(1) or [])
    time.sleep(4 * watch.TICK)
    assert not looks
    settle(board, lambda: len(looks) > 1)


def test_a_page_opened_after_a_sleep_is_up_to_date(
    board: Board, store: Store, tiny_study: Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(board_module, "PATIENCE", 10.0)
    run = tiny_study.all_runs()[-1]
    store.claims.take([run])
    while board.watcher._polling.rest() > 0:  # on a busy machine an update takes long, and the pause as well
        time.sleep(watch.TICK)
    assert run.id in ask(board.port, "/").body.decode()


# -- pace and time left --------------------------------------------------------------------------------------


def live_run(rows: int, seconds: float, *, pid: int = 1, heartbeat_age: float = 0.0) -> LiveRun:
    made = [{"seconds": seconds, "val_accuracy": 0.5, "train_accuracy": 0.5}] * rows
    return LiveRun(Claim("token", "here", pid, ""), heartbeat_age, made)


def worker_of(shown: dict[str, Any]) -> str:
    """What is said about the worker of the only run in training."""
    (row,) = shown["live_runs"]
    return row["worker"]


def test_the_time_left_is_the_time_of_the_last_worker() -> None:
    study = planted.study("s", planted.grid(optimizer=["sgd", "adam"]), scales=[1.0], seeds=[0, 1])
    runs = study.all_runs()  # two of each recipe, 6 epochs each
    done = replace(planted.record(runs[0]), provenance={"seconds": 24.0, "pack": 2})  # 2 s per epoch
    content = Content(Collection([done], [study]))
    live_runs = {runs[1].id: live_run(2, 2.0), runs[2].id: live_run(1, 5.0, pid=2)}
    shown = live(content, live_runs)
    assert shown["workers"] == 2
    # sgd: 4 epochs of 2 s; adam: 5 of 5 s in flight, and 6 of 5 s for the worker who is free first
    assert shown["seconds_left"] == pytest.approx(max(4 * 2 + 6 * 5, 5 * 5))
    assert shown["share"] == pytest.approx((6 + 2 + 1) / 24)
    assert (shown["finished"], shown["total"], shown["training"]) == (1, 4, 2)


def test_what_a_worker_has_begun_it_ends_alone() -> None:
    study = planted.study("s", planted.grid(optimizer=["sgd"]), scales=[1.0], seeds=[0, 1, 2])
    runs = study.all_runs()  # 6 epochs each
    content = Content(Collection([], [study]))
    pack = {run.id: live_run(1, 3.0) for run in runs[:2]}
    shown = live(content, pack | {runs[2].id: live_run(5, 3.0, pid=2)})
    assert shown["seconds_left"] == pytest.approx(2 * 5 * 3.0)


def test_a_recipe_that_has_not_begun_is_told_by_its_cost() -> None:
    small, large = planted.grid(width=[8, 16])  # twice as wide, four times the work
    study = planted.study("s", [small, large], scales=[1.0], seeds=[0])
    first, _ = study.all_runs()
    content = Content(Collection([], [study]))
    shown = live(content, {first.id: live_run(3, 1.0)})
    assert shown["seconds_left"] == pytest.approx(3 * 1.0 + 6 * 4.0)
    assert [row["run"] for row in shown["live_runs"]] == [first]


def test_a_dead_worker_is_not_counted_but_shown() -> None:
    study = planted.study("s", planted.grid(optimizer=["sgd"]), scales=[1.0], seeds=[0, 1])
    first, _ = study.all_runs()
    content = Content(Collection([], [study]))
    shown = live(content, {first.id: live_run(1, 1.0, heartbeat_age=600.0)})
    assert shown["seconds_left"] is None
    page = pages.fragment("live", {"problem": "", **shown})
    assert "no worker is running" in page and "no longer respond" in page
    assert worker_of(shown).endswith("no heartbeat for 10 min")


def live_now(store: Store) -> dict[str, Any]:
    """What a board that has only read this store shows."""
    content = Content(surveyed(store))
    return live(content, {run_id: store.live_run(run_id) for run_id in store.in_flight()})


def rewrite_claim(store: Store, run: Run, **changes: object) -> Path:
    path = store.path / "runs" / run.id / "claim.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    return path


@pytest.mark.parametrize("skew", [-3600.0, 3600.0])
def test_a_clock_that_is_wrong_by_an_hour_changes_nothing(
    store: Store, tiny_study: Study, monkeypatch: pytest.MonkeyPatch, skew: float
) -> None:
    run = tiny_study.all_runs()[-1]
    store.claims.take([run])
    claim = rewrite_claim(store, run, host="elsewhere", pid=1)
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    watching = Store(store.path)
    for beat in range(20):  # every 10 seconds, by a clock that is wrong
        os.utime(claim, (0, time.time() + skew + 10 * beat))
        assert "no heartbeat" not in worker_of(live_now(watching)), beat
        now += 10
    assert live_now(watching)["workers"] == 1
    now += EXPIRY
    shown = live_now(watching)
    assert worker_of(shown).endswith("no heartbeat for 70 s")
    assert shown["workers"] == 0


def test_a_worker_of_this_machine_that_has_ended_is_known_at_once(store: Store, tiny_study: Study) -> None:
    run = tiny_study.all_runs()[-1]
    store.claims.take([run])
    assert "ended" not in worker_of(live_now(store))
    (study,) = store_status(Store(store.path))["studies"]
    assert study["recipes"][0]["training"] == live_now(store)["training"] == 1
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    rewrite_claim(store, run, pid=ended.pid)
    assert worker_of(live_now(store)).endswith("process has ended")
    assert live_now(store)["training"] == 0  # a claim of a dead process is no run in training
    (study,) = store_status(Store(store.path))["studies"]
    assert (study["recipes"][0]["training"], study["recipes"][0]["missing"]) == (0, 1)
    parts = pages.sections(Content(surveyed(store)))
    assert "1 run to come" in parts["verdicts"].html
    shown = pages.fragment("live", {"problem": ""} | live_now(store))
    assert "process has ended" in shown


def test_the_summary_counts_in_english(store: Store) -> None:
    shown = {"problem": ""} | live_now(store)
    for (total, finished, training, lost), sentence in {
        (0, 0, 0, 0): "No study has been run in this store yet.",
        (3, 1, 1, 0): "1 run in training, 1 waiting.",
        (3000, 1, 2, 4): "2,997 waiting, 4 of them claimed by a worker that has ended.",
        (3, 2, 0, 0): "1 run is left, and no worker is running.",
        (3, 3, 0, 0): "All 3 runs are done.",
    }.items():
        counts = {"total": total, "finished": finished, "training": training, "lost": lost}
        assert f"{sentence}</span>" in pages.fragment("live", shown | counts)


def test_a_run_released_a_moment_ago_is_not_called_dead(store: Store, tiny_study: Study) -> None:
    run, content = tiny_study.all_runs()[-1], Content(surveyed(store))
    shown = live(content, {run.id: store.live_run(run.id)})
    assert worker_of(shown) == ""
