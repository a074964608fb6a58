"""The local engine as a user meets it: whole processes on one store."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import trainers
from clusters import assert_same, wait_for
from initmem.data.sources import load, sizes
from initmem.engines import worker
from initmem.engines.engine import Event, Note, Settings, WorkerLost, ignore
from initmem.engines.local import InlineEngine, LocalEngine
from initmem.engines.packs import pack_size, packs
from initmem.engines.worker import Worker
from initmem.errors import InitmemError
from initmem.recipe import Recipe
from initmem.record import RunRecord
from initmem.session import run_study
from initmem.store.faults import MOST_LOSSES
from initmem.store.store import Store
from initmem.study import Run, Study
from initmem.study_file import load_study
from initmem.train.loop import train_pack

STUDY = """
scales = [0.5, 1.0, 2.0]
seeds = [0]
[recipe]
dataset = "synthetic:400x1x8x8"
width = 2
batch_size = 16
epochs = 20
[[grid]]
optimizer = ["sgd", "adam"]
learning_rate = 0.01
"""


@pytest.fixture(scope="module")
def study_file(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("study") / "small.toml"
    path.write_text(STUDY)
    return path


def start(study: Path, store: Path, *options: str) -> subprocess.Popen[str]:
    """`initmem run` in packs of three: two of them."""
    command = [sys.executable, "-m", "initmem", "run", str(study), "--store", str(store), "--json"]
    return subprocess.Popen(
        [*command, "--pack", "3", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def finish(process: subprocess.Popen[str]) -> dict[str, object]:
    out, err = process.communicate(timeout=600)
    assert process.returncode == 0, err
    return json.loads(out)["summary"]


def stop(process: subprocess.Popen[str], how: signal.Signals) -> None:
    """Stop a command, which ends in good order."""
    process.send_signal(how)
    out, err = process.communicate(timeout=600)
    assert process.returncode == 130
    assert "Traceback" not in err
    assert json.loads(out)["summary"]["interrupted"] is True


@pytest.fixture(scope="module")
def undisturbed(study_file: Path, tmp_path_factory) -> dict[str, RunRecord]:
    store = Store.create(tmp_path_factory.mktemp("undisturbed") / "store")
    Worker(store, Settings()).work(packs(load_study(str(study_file)), size=3, workers=2))
    return {record.id: record for record in store.records()}


def test_a_killed_study_takes_its_workers_with_it_and_goes_on_to_the_same_records(
    study_file: Path, tmp_path: Path, undisturbed: dict[str, RunRecord]
) -> None:
    store = tmp_path / "store"
    first = start(study_file, store, "--checkpoint-every", "0")
    workers: set[int] = set()

    def a_worker_has_saved() -> bool:
        for path in store.glob("runs/*/claim.json"):
            with contextlib.suppress(FileNotFoundError):  # a run may end between the look and the reading
                workers.add(json.loads(path.read_text())["pid"])
        return bool(workers) and len(list(store.glob("runs/*/checkpoint-*"))) >= 3

    wait_for(a_worker_has_saved)
    os.kill(first.pid, signal.SIGKILL)
    first.communicate()
    wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in workers))
    assert len(Store(store).records()) < 6
    assert finish(start(study_file, store))["missing"] == 0
    assert_same(store, undisturbed)
    assert Store(store).in_flight() == []


@contextlib.contextmanager
def ctrl_c_ignored() -> Iterator[None]:
    """As after nohup, or with & in a script: Ctrl-C is ignored from the start, and SIGTERM has to do."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def test_ctrl_c_and_a_polite_kill_stop_cleanly_and_the_same_command_resumes(
    study_file: Path, tmp_path: Path, undisturbed: dict[str, RunRecord]
) -> None:
    store = tmp_path / "store"

    def in_training(done: int) -> bool:
        """Whether so many runs have a record, and three others have shown an epoch."""
        records, shown = (list(store.glob(f"runs/*/{name}")) for name in ("record.json", "history.jsonl"))
        return len(records) >= done and len(shown) >= 3

    first = start(study_file, store, "--workers", "1")
    wait_for(lambda: in_training(done=0))
    stop(first, signal.SIGINT)
    assert Store(store).in_flight() == []
    assert list(store.glob("runs/*/checkpoint-*"))
    with ctrl_c_ignored():
        second = start(study_file, store, "--workers", "1")
    wait_for(lambda: in_training(done=3))
    stop(second, signal.SIGTERM)
    finish(start(study_file, store, "--workers", "1"))
    assert_same(store, undisturbed)
    assert Store(store).in_flight() == []


def test_ctrl_c_while_workers_start_is_no_traceback(study_file: Path, tmp_path: Path) -> None:
    """It is for all processes of a terminal: the session, the server that starts workers, and workers."""
    process = start(study_file, tmp_path / "store")
    wait_for(lambda: list(tmp_path.glob("store/studies/*.json")))
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=600)
    assert process.returncode == 130
    assert "Traceback" not in err


def test_ctrl_c_while_the_starting_thread_begins_leaves_no_process(
    tiny: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = threading.Thread.start

    def interrupted(self: threading.Thread) -> None:
        monkeypatch.setattr(threading.Thread, "start", begin)
        begin(self)
        raise KeyboardInterrupt

    others = threading.enumerate()
    engine = LocalEngine(workers=1)
    monkeypatch.setattr(threading.Thread, "start", interrupted)
    assert not engine.run(Store.create(tmp_path / "store"), [[Run(tiny, 1.0, 0)]], ignore)
    for thread in threading.enumerate():
        if thread not in others:
            thread.join()
    assert not multiprocessing.active_children()


def test_a_lost_worker_costs_its_own_pack_only(tiny: Recipe, tmp_path: Path) -> None:
    """Killed or gone with code 0: a process that ends with runs claimed is a loss."""
    store = Store.create(tmp_path / "store")
    fine, deadly = Run(tiny, 1.0, 0), Run(tiny, 2.0, 0)
    heard: list[Event] = []
    engine = LocalEngine(workers=1, settings=Settings(trainer=trainers.Deadly(tmp_path)))
    assert engine.run(store, [[fine], [deadly]], heard.append)
    assert store.read(fine.id).status == "completed"
    record = store.read(deadly.id)
    assert record.status == "crashed"
    assert "lost worker: the worker was lost 3 times" in str(record.error)
    assert record.provenance["faults"] == {"lost worker": MOST_LOSSES}
    assert record.provenance["attempts"] == MOST_LOSSES
    codes = [event.exit_code for event in heard if isinstance(event, WorkerLost)]
    assert codes == [-signal.SIGKILL, 0, -signal.SIGKILL]


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nothing is forked")
def test_forked_workers_have_the_surroundings_of_the_session(
    tiny: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd
) -> None:
    monkeypatch.setenv("A_VARIABLE", "a value")
    monkeypatch.chdir(tmp_path)
    engine = LocalEngine(workers=2, settings=Settings(trainer=trainers.Surroundings(tmp_path)))
    store = Store.create(tmp_path / "store")
    assert engine.run(store, [[Run(tiny, 1.0, seed)] for seed in (0, 1)], ignore)
    found = [json.loads(path.read_text()) for path in tmp_path.glob("found-*.json")]
    assert [(one["variable"], one["folder"]) for one in found] == [("a value", str(tmp_path))] * 2
    assert [one["threads of the server"] for one in found] == [1, 1]  # a process with threads must not fork
    assert found[0]["draw"] != found[1]["draw"]  # code without a seed is random in every worker
    assert capfd.readouterr().out.count("printed by a worker") == 2
    assert len(list(tmp_path.glob("left-*"))) == 2  # what user code has to do at exit is done


def test_processes_that_leave_with_code_0_before_a_claim_are_not_taken_for_the_end(
    tiny: Recipe, tmp_path: Path
) -> None:
    engine = LocalEngine(workers=1, settings=Settings(trainer=trainers.LeavesOnArrival()))
    with pytest.raises(InitmemError, match=r"worker processes die at start-up \(exit code 0\)"):
        engine.run(Store.create(tmp_path / "store"), [[Run(tiny, 1.0, 0)]], ignore)


def test_a_worker_stops_inside_an_epoch_and_another_continues_there(
    tiny: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "LOOK_EVERY", 0.0)
    recipe = tiny.replace(epochs=1, batch_size=2)
    runs = [Run(recipe, scale, 0) for scale in (0.5, 2.0)]
    store, looks = Store.create(tmp_path / "store"), iter(range(10))
    Worker(store, Settings(), should_stop=lambda: next(looks, 10) > 4).work([runs])
    assert store.records() == [] and store.in_flight() == []
    assert 0 < store.checkpoints.newest(runs[0].id) < len(load(recipe).train) // 2
    Worker(store, Settings()).work([runs])
    for expected in train_pack(runs, load(recipe)):
        assert store.read(expected.id).same_result(expected)


def test_a_study_that_replaces_another_says_which_runs_stay(tiny_study: Study, tmp_path: Path) -> None:
    heard: list[Event] = []

    def notes(study: Study) -> list[str]:
        heard.clear()
        run_study(study, tmp_path / "store", InlineEngine(), watch=lambda runs, left: heard.append)
        return [event.text for event in heard if isinstance(event, Note)]

    assert notes(tiny_study) == notes(tiny_study) == []
    smaller = replace(tiny_study, scales=tiny_study.scales[:1])
    left = len(tiny_study.all_runs()) - len(smaller.all_runs())
    (note,) = notes(smaller)
    assert note.startswith(f"{left} runs of an earlier study {smaller.name!r} that this one does not ask for")
    assert len(Store(tmp_path / "store").records()) == len(tiny_study.all_runs())
    assert notes(tiny_study) == []  # it asks for all of them again


def test_packs_cover_every_run_once_and_the_same_way_every_time() -> None:
    study = load_study("quickstart")
    for size in (None, 1, 7, 100):
        cut = packs(study, size=size, workers=2)
        flat = [run.id for pack in cut for run in pack]
        assert sorted(flat) == sorted(run.id for run in study.all_runs())
        assert all(len({run.recipe.network.pack_key for run in pack}) == 1 for pack in cut)
        if size != 100:  # every recipe fills a pack of its own
            assert all(len({run.recipe for run in pack}) == 1 for pack in cut)
        assert cut == packs(study, size=size, workers=2)
    assert {len(pack) for pack in packs(study, workers=2)} == {15}


def test_small_work_is_packed_and_large_work_is_not() -> None:
    small = Recipe(dataset="digits", width=4, batch_size=16)
    large = Recipe(dataset="cifar10", width=64, batch_size=128)
    assert pack_size(small, sizes(small)) == 16
    assert pack_size(large, sizes(large)) == 1
