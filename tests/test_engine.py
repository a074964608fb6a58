"""The local engine as a user meets it: whole processes on one store."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import trainers
from clusters import assert_same, wait_for
from initmem.data.sources import load, sizes
from initmem.engines import training
from initmem.engines.engine import Event, Finished, Settings, WorkerLost, ignore
from initmem.engines.execute import pack_size, packs
from initmem.engines.local import LocalEngine
from initmem.engines.training import train_bundled
from initmem.engines.worker import Worker
from initmem.errors import InitmemError
from initmem.recipe import Recipe, network_of
from initmem.record import RunRecord
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
    command = [sys.executable, "-m", "initmem", "run", str(study), "--store", str(store), "--json", *options]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )


def finish(process: subprocess.Popen[str]) -> dict[str, object]:
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    return json.loads(out)["summary"]


@pytest.fixture(scope="module")
def undisturbed(study_file: Path, tmp_path_factory) -> dict[str, RunRecord]:
    study = load_study(str(study_file))
    store = Store.create(tmp_path_factory.mktemp("undisturbed") / "store")
    shapes = [sizes(recipe) for recipe in study.recipes]
    Worker(store, Settings()).work(packs(study, shapes, size=3, workers=2))
    return {record.id: record for record in store.records()}


def assert_equal(store: Path, expected: dict[str, RunRecord]) -> None:
    assert_same(store, expected)
    assert Store(store).in_flight() == []


def test_a_killed_study_takes_its_workers_with_it_and_goes_on_to_the_same_records(
    study_file: Path, tmp_path: Path, undisturbed: dict[str, RunRecord]
) -> None:
    store = tmp_path / "store"
    first = start(study_file, store, "--pack", "3", "--checkpoint-every", "0")
    workers: set[int] = set()

    def a_worker_has_saved() -> bool:
        for path in store.glob("runs/*/claim.json"):
            with contextlib.suppress(FileNotFoundError):  # a run may end between the look and the reading
                workers.add(json.loads(path.read_text())["pid"])
        return bool(workers) and len(list(store.glob("runs/*/checkpoint-*"))) >= 3

    wait_for(a_worker_has_saved, 60)
    os.kill(first.pid, signal.SIGKILL)
    first.communicate()
    wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in workers), 10)
    assert len(Store(store).records()) < 6
    assert finish(start(study_file, store, "--pack", "3"))["missing"] == 0
    assert_equal(store, undisturbed)


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_stops_cleanly_and_the_same_command_goes_on(
    study_file: Path, tmp_path: Path, undisturbed: dict[str, RunRecord], how: signal.Signals
) -> None:
    store = tmp_path / "store"
    command = (study_file, store, "--pack", "3", "--workers", "1")
    before = signal.getsignal(signal.SIGINT)
    # As after nohup, or with & in a script: Ctrl-C is ignored from the start, and SIGTERM has to do.
    signal.signal(signal.SIGINT, signal.SIG_IGN if how == signal.SIGTERM else signal.default_int_handler)
    try:
        first = start(*command)
    finally:
        signal.signal(signal.SIGINT, before)
    wait_for(lambda: len(list(store.glob("runs/*/history.jsonl"))) >= 3, 60)
    first.send_signal(how)
    out, err = first.communicate(timeout=60)
    assert first.returncode == 130
    assert "Traceback" not in err
    assert json.loads(out)["summary"]["interrupted"] is True
    assert Store(store).in_flight() == []
    assert list(store.glob("runs/*/checkpoint-*"))
    finish(start(*command))
    assert_equal(store, undisturbed)


def test_a_finished_study_trains_nothing(study_file: Path, tmp_path: Path, tiny_study: Study) -> None:
    store = Store.create(tmp_path / "store")
    heard: list[Event] = []
    packs = [tiny_study.all_runs()]
    assert LocalEngine(workers=1).run(store, packs, heard.append)
    before = {record.id: record for record in store.records()}
    again: list[Event] = []
    assert LocalEngine(workers=1).run(store, packs, again.append)
    assert any(isinstance(event, Finished) for event in heard)
    assert again == []
    assert_equal(store.path, before)


def test_a_run_that_raises_is_a_failed_record_and_the_rest_goes_on(tmp_path: Path, tiny_study: Study) -> None:
    unlucky = tiny_study.all_runs()[2]

    def explode(runs, on_epoch):
        if unlucky in runs:
            raise RuntimeError("the unlucky run")
        return train_bundled(runs)

    store = Store.create(tmp_path / "store")
    Worker(store, Settings(trainer=explode)).work([tiny_study.all_runs()])
    status = {record.id: record.status for record in store.records()}
    assert len(status) == 6
    assert [run_id for run_id, state in status.items() if state == "crashed"] == [unlucky.id]
    assert "RuntimeError: the unlucky run" in str(store.read(unlucky.id).error)


KILLER = """
import os, sys
from pathlib import Path
from initmem.engines.engine import Event, Finished
from initmem.engines.local import LocalEngine
from initmem.engines.training import train_bundled
from initmem.engines.engine import Settings
from initmem.pipeline.run import Sent

def deadly(runs, on_epoch):
    marker = Path(sys.argv[2]) / "crashes"
    crashes = int(marker.read_text()) if marker.exists() else 0
    if runs[0].scale == 2.0 and crashes < int(sys.argv[3]):
        marker.write_text(str(crashes + 1))
        os.kill(os.getpid(), 9)
    return train_bundled(runs)

if __name__ == "__main__":
    from initmem.engines.execute import packs
    from initmem.store.store import Store
    from initmem.study import Run
    from initmem.study_file import load_study
    from initmem.data.sources import sizes
    study = load_study(sys.argv[1])
    store = Store.create(sys.argv[2])
    cut = packs(study, [sizes(r) for r in study.recipes], size=1, workers=1)
    LocalEngine(workers=1, settings=Settings(trainer=Sent.pack(deadly))).run(store, cut, lambda *_: None)
"""


def test_a_crashing_worker_costs_its_own_pack_only(tmp_path: Path) -> None:
    study = tmp_path / "study.toml"
    study.write_text(
        'scales = [1.0, 2.0]\nseeds = [0]\n[recipe]\ndataset = "synthetic:100x1x8x8"\nwidth = 2\nepochs = 1\n'
    )
    script = tmp_path / "killer.py"
    script.write_text(KILLER)
    store = tmp_path / "store"
    command = [sys.executable, str(script), str(study), str(store), str(MOST_LOSSES)]
    subprocess.run(command, check=True, timeout=120)
    found = {record.run.scale: record for record in Store(store).records()}
    assert found[1.0].status == "completed"
    assert found[2.0].status == "crashed"
    assert "lost worker: the worker was lost 3 times" in str(found[2.0].error)
    assert found[2.0].provenance["faults"] == {"lost worker": MOST_LOSSES}


def test_packs_cover_every_run_once_and_the_same_way_every_time() -> None:
    study = load_study("quickstart")
    shapes = [sizes(recipe) for recipe in study.recipes]
    for size in (None, 1, 7, 100):
        cut = packs(study, shapes, size=size, workers=2)
        flat = [run.id for pack in cut for run in pack]
        assert sorted(flat) == sorted(run.id for run in study.all_runs())
        assert all(len({network_of(run.recipe).pack_key for run in pack}) == 1 for pack in cut)
        if size != 100:  # every recipe fills a pack of its own
            assert all(len({run.recipe for run in pack}) == 1 for pack in cut)
        assert cut == packs(study, shapes, size=size, workers=2)
    assert {len(pack) for pack in packs(study, shapes, size=None, workers=2)} == {15}


def test_a_worker_stops_inside_an_epoch_and_another_continues_there(
    tiny: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training, "LOOK_EVERY", 0.0)
    recipe = tiny.replace(epochs=1, batch_size=2)
    runs = [Run(recipe, scale, 0) for scale in (0.5, 2.0)]
    store, looks = Store.create(tmp_path / "store"), iter(range(10))
    Worker(store, Settings(), should_stop=lambda: next(looks, 10) > 4).work([runs])
    assert store.records() == [] and store.in_flight() == []
    assert 0 < store.checkpoints.newest(runs[0].id) < len(load(recipe).train) // 2
    Worker(store, Settings()).work([runs])
    for known in train_pack(runs, load(recipe)):
        assert store.read(known.id).same_result(known)


def test_a_process_that_leaves_with_code_0_and_a_claim_is_a_loss(tiny: Recipe, tmp_path: Path) -> None:
    store = Store.create(tmp_path / "store")
    run = Run(tiny, 1.0, 0)
    lost: list[Event] = []
    engine = LocalEngine(workers=1, settings=Settings(trainer=trainers.leaves_quietly))
    assert engine.run(store, [[run]], lost.append)
    assert store.read(run.id).status == "crashed"
    assert sum(isinstance(event, WorkerLost) for event in lost) == MOST_LOSSES


def test_processes_that_leave_with_code_0_before_a_claim_are_not_taken_for_the_end(
    tiny: Recipe, tmp_path: Path
) -> None:
    engine = LocalEngine(workers=1, settings=Settings(trainer=trainers.LeavesOnArrival()))
    with pytest.raises(InitmemError, match=r"worker processes die at start-up \(exit code 0\)"):
        engine.run(Store.create(tmp_path / "store"), [[Run(tiny, 1.0, 0)]], ignore)


def test_small_work_is_packed_and_large_work_is_not() -> None:
    small = Recipe(dataset="digits", width=4, batch_size=16)
    large = Recipe(dataset="cifar10", width=64, batch_size=128)
    assert pack_size(small, sizes(small)) == 16
    assert pack_size(large, sizes(large)) == 1
