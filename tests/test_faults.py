"""Every fault by its cause: named, counted in the record, and met by its policy."""

from __future__ import annotations

import ctypes
import errno
import io
import itertools
import multiprocessing
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from conftest import fake_record
from initmem.data.dataset import Dataset
from initmem.engines import local
from initmem.engines.engine import Faulted, Settings, Trainer
from initmem.engines.worker import Worker
from initmem.errors import ConfigError, FullDisk, StoreError
from initmem.recipe import Recipe
from initmem.record import RunRecord
from initmem.store.faults import MOST_LOSSES, Fault, cause_line, cause_of, from_lines, next_pack, to_line
from initmem.store.store import Store
from initmem.study import Run, Study
from initmem.train.loop import train_pack
from trainers import train_bundled


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.create(tmp_path / "store")


@pytest.fixture
def tiny() -> Recipe:
    return Recipe(dataset="synthetic:60x1x4x4", model="mlp", width=4, batch_size=16, epochs=3)


@pytest.fixture
def runs(tiny: Recipe) -> list[Run]:
    return [Run(tiny, scale, seed) for seed in (0, 1) for scale in (0.5, 1.0)]


def failing(error: BaseException, when) -> Trainer:
    """A trainer that raises for some packs."""

    def train(runs, on_epoch):
        if when(runs):
            raise error
        return train_bundled(runs)

    return train


def allocate_too_much() -> None:
    torch.empty(1 << 50)


@pytest.mark.parametrize("kind", ["python", "torch"])
def test_out_of_memory_halves_the_pack(store: Store, runs: list[Run], kind: str) -> None:
    sizes = []

    def train(runs, on_epoch):
        sizes.append(len(runs))
        if len(runs) > 1:
            if kind == "torch":
                allocate_too_much()
            raise MemoryError
        return train_bundled(runs)

    heard = []
    worker = Worker(store, Settings(trainer=train), listen=heard.append)
    worker.work([runs])
    assert sizes == [4, 2, 1, 1, 2, 1, 1]
    for run in runs:
        record = store.read(run.id)
        assert record.status == "completed"
        assert record.provenance["pack"] == 1
        assert record.provenance["faults"] == {"out of memory": 2}
        assert record.provenance["attempts"] == 1
    assert [event.cause for event in heard if isinstance(event, Faulted)] == ["out of memory"] * 3


def test_a_run_for_which_there_is_no_room_alone_is_recorded_as_failed(store: Store, runs: list[Run]) -> None:
    large = runs[1]
    trainer = failing(MemoryError("no room"), lambda pack: large in pack)
    Worker(store, Settings(trainer=trainer)).work([runs])
    assert [store.read(run.id).status for run in runs] == ["completed", "crashed", "completed", "completed"]
    record = store.read(large.id)
    assert "MemoryError: no room" in str(record.error)
    assert record.provenance["faults"] == {"out of memory": 3}
    assert store.read(runs[3].id).provenance["pack"] == 2  # its half had room


def test_an_exception_is_counted_with_the_pack_and_alone(store: Store, runs: list[Run]) -> None:
    trainer = failing(ValueError("odd"), lambda pack: runs[0] in pack)
    Worker(store, Settings(trainer=trainer)).work([runs])
    counts = [store.read(run.id).provenance["faults"] for run in runs]
    assert counts == [{"exception": 2}] + 3 * [{"exception": 1}]
    assert [store.read(run.id).status for run in runs[1:]] == 3 * ["completed"]


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (SystemExit(0), "SystemExit: 0 (the training code called sys.exit or quit)"),
        (KeyboardInterrupt(), "KeyboardInterrupt"),  # a worker process does not hear Ctrl-C
        (BaseException("odd"), "BaseException: odd"),
    ],
)
def test_a_network_that_exits_is_a_failed_run(
    store: Store, runs: list[Run], error: BaseException, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def exiting(pack: list[Run], data: Dataset, **how: Any) -> list[RunRecord]:
        if runs[0] in pack:
            raise error
        return train_pack(pack, data, **how)

    monkeypatch.setattr("initmem.engines.worker.train_pack", exiting)
    before = signal.signal(signal.SIGINT, lambda *_: None)  # as in a worker process
    try:
        Worker(store, Settings()).work([runs])
    finally:
        signal.signal(signal.SIGINT, before)
    assert str(store.read(runs[0].id).error).strip().endswith(words)
    assert [store.read(run.id).status for run in runs] == ["crashed"] + 3 * ["completed"]
    assert store.in_flight() == []


def test_divergence_is_a_result_and_a_counted_fault(store: Store, tiny: Recipe) -> None:
    wild = tiny.model_copy(update={"learning_rate": 1e30})
    run = Run(wild, 1.0, 0)
    Worker(store, Settings()).work([[run], [Run(tiny, 1.0, 0)]])
    assert store.read(run.id).status == "diverged"
    assert store.read(run.id).provenance["faults"] == {"divergence": 1}
    assert store.read(Run(tiny, 1.0, 0).id).provenance["faults"] == {}


def test_a_checkpoint_that_does_not_fit_is_dropped(store: Store, runs: list[Run], tmp_path: Path) -> None:
    strange = {run: ({"now/odd": torch.zeros(3)}, {"epoch": 1}) for run in runs}
    store.checkpoints.write(strange, 1)
    Worker(store, Settings()).work([runs])
    other = Store.create(tmp_path / "other")
    Worker(other, Settings()).work([runs])
    assert all(store.read(run.id).same_result(other.read(run.id)) for run in runs)
    assert store.read(runs[0].id).provenance["faults"] == {"exception": 1}


def test_a_mistake_of_the_user_stops_everything_and_keeps_what_is_done(
    store: Store, runs: list[Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    def mistaken(pack: list[Run], data: Dataset, **how: Any) -> list[RunRecord]:
        if runs[2] in pack:
            raise ConfigError("field = 1 (allowed: 2)")
        return train_pack(pack, data, **how)

    monkeypatch.setattr("initmem.engines.worker.train_pack", mistaken)
    with pytest.raises(ConfigError, match="field = 1"):
        Worker(store, Settings()).work([runs[:2], runs[2:]])
    assert [store.has(run) for run in runs] == [True, True, False, False]
    assert store.in_flight() == []


def test_a_full_disk_in_training_stops_everything(store: Store, runs: list[Run]) -> None:
    trainer = failing(OSError(errno.ENOSPC, "No space left on device"), lambda pack: runs[2] in pack)
    with pytest.raises(FullDisk, match="no room left"):
        Worker(store, Settings(trainer=trainer)).work([runs[:2], runs[2:]])
    assert [store.has(run) for run in runs] == [True, True, False, False]
    assert store.in_flight() == []
    Worker(store, Settings()).work([runs[:2], runs[2:]])
    assert store.read(runs[2].id).status == "completed"


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (MemoryError(), "out of memory"),
        (torch.OutOfMemoryError("CUDA out of memory."), "out of memory"),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory"), "out of memory"),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), "out of memory"),
        (OSError(errno.ENOSPC, "No space left on device"), "full disk"),
        (OSError(errno.EDQUOT, "Disk quota exceeded"), "full disk"),
        (RuntimeError("shapes do not match"), "exception"),
        (OSError(errno.ENOENT, "No such file"), "exception"),
    ],
)
def test_exceptions_are_named(error: Exception, cause: str) -> None:
    assert cause_of(error) == cause


# -- lost workers -------------------------------------------------------------------------------------------


def in_a_child(path: Path, session: str, pack: list[Run], settings: Settings) -> int:
    """Work in a process that may be lost; its exit code."""
    context = multiprocessing.get_context("fork")
    process = context.Process(target=_work, args=(path, session, pack, settings))
    process.start()
    process.join()
    return int(process.exitcode or 0)


def _work(path: Path, session: str, pack: list[Run], settings: Settings) -> None:
    torch.set_num_threads(1)
    Worker(Store(path, session=session), settings).work([pack])


def killing(culprit: Run) -> Trainer:
    def train(runs, on_epoch):
        if culprit in runs:
            os.kill(os.getpid(), signal.SIGKILL)
        return train_bundled(runs)

    return train


def test_a_run_that_takes_its_workers_with_it_is_found_and_the_rest_is_trained(
    store: Store, runs: list[Run]
) -> None:
    *others, culprit = runs
    settings = Settings(trainer=killing(culprit))
    codes = []
    while not codes or codes[-1] != 0:
        codes.append(in_a_child(store.path, "one session", runs, settings))
        assert len(codes) < 12
    assert set(codes[:-1]) == {-signal.SIGKILL}
    record = store.read(culprit.id)
    assert record.status == "crashed"
    assert str(record.error).startswith("lost worker: the worker was lost")
    assert record.provenance["faults"]["lost worker"] == record.provenance["attempts"]
    assert [store.read(run.id).status for run in others] == 3 * ["completed"]


def test_sessions_killed_by_the_user_never_make_a_run_fail(store: Store, runs: list[Run]) -> None:
    settings = Settings(trainer=killing(runs[0]))
    for number in range(MOST_LOSSES + 2):
        assert in_a_child(store.path, f"session {number}", runs[:1], settings) == -signal.SIGKILL
    Worker(store, Settings()).work([runs[:1]])
    assert store.read(runs[0].id).status == "completed"
    assert store.read(runs[0].id).provenance["faults"] == {"lost worker": MOST_LOSSES + 2}


def test_packs_shrink_with_losses_and_recover_with_progress() -> None:
    def after(*losses: Fault, update: int = 0, pack: int = 10) -> int:
        return next_pack(losses, session="now", update=update, pack=pack)

    def lost(pack: int, update: int = 0, session: str = "now") -> Fault:
        return Fault("lost worker", session, pack, update)

    assert after() == 10
    assert after(lost(10)) == 10
    assert after(lost(10), lost(10)) == 5
    assert after(lost(10), lost(10), lost(5), lost(2)) == 1
    assert after(lost(10), lost(10), lost(5), lost(2), lost(1), lost(1)) == 1
    assert after(lost(1), lost(1), lost(1)) == 0
    assert after(lost(1), lost(1, session="before"), lost(1, session="before"), pack=1) == 1
    assert after(*[lost(1, update=n) for n in (1, 2, 3, 4)], update=4, pack=1) == 1  # it moves on each time
    hung = Fault("timeout", "now", 1)
    assert after(hung, pack=1) == 1
    assert after(hung, hung, pack=1) == 0
    assert after(Fault("exception", "now", 1), *[Fault("out of memory", "now", 1)] * 5) == 10


def sleep_with_the_interpreter_locked() -> None:
    ctypes.PyDLL(None).sleep(600)


def test_a_pack_that_hangs_is_ended_tried_again_and_given_up(store: Store, runs: list[Run]) -> None:
    def train(pack, on_epoch):
        if runs[1] in pack:
            sleep_with_the_interpreter_locked()
        return [fake_record(run, 0.5) for run in pack]  # takes no time: a busy machine does not hang

    settings = Settings(trainer=train, timeout=1.0)
    codes = []
    while not codes or codes[-1] != 0:
        codes.append(in_a_child(store.path, "one session", runs[:2], settings))
        assert len(codes) < 6
    assert codes == [1, 1, 1, 1, 0]  # together twice, alone twice
    record = store.read(runs[1].id)
    assert record.status == "crashed"
    words = "timeout: training ended no epoch within 1 s (the worker was lost 4 times)"
    assert cause_line(record) == words
    assert "sleep_with_the_interpreter_locked" in str(record.error)  # where it hung
    assert record.provenance["faults"] == {"timeout": 4}
    assert store.read(runs[0].id).status == "completed"
    assert store.read(runs[0].id).provenance["faults"] == {"timeout": 2}


def test_every_epoch_starts_the_time_limit_again(
    store: Store, runs: list[Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []
    monkeypatch.setattr("faulthandler.dump_traceback_later", lambda *_, **__: events.append("start"))
    monkeypatch.setattr("faulthandler.cancel_dump_traceback_later", lambda: events.append("stop"))

    def train(pack, on_epoch):
        on_epoch(pack[0], {"epoch": 1})
        on_epoch(pack[0], {"epoch": 2})
        return [fake_record(run, 0.5) for run in pack]

    Worker(store, Settings(trainer=train, timeout=1000)).work([runs[:1]])
    assert events == ["start", "start", "start", "stop"]
    assert not store.paths.hang(runs[0].id).exists()


def test_notes_of_faults_survive_a_cut_off_line() -> None:
    first, second = Fault("lost worker", "a", 3, 2, "x"), Fault("timeout", "b")
    torn = to_line(first)[:-10] + to_line(second)
    assert list(from_lines(to_line(first) + torn)) == [first, second]
    assert list(from_lines(b'{"cause": "bad luck"}\n[]\n{"cause": "timeout", "pack": "many"}\n\xff\n')) == []


def test_a_session_that_is_killed_crashes_no_run(store: Store, tiny: Recipe) -> None:
    run, context = Run(tiny, 1.0, 0), multiprocessing.get_context("fork")

    def work() -> None:
        """What a worker of the local engine does; nobody reads its pipe any more when the epoch ends."""
        ours, theirs = context.Pipe(duplex=False)

        def train(runs, on_epoch):
            ours.close()
            on_epoch(run, {"epoch": 1})
            return [fake_record(run, 0.5)]

        with pytest.MonkeyPatch.context() as patch:  # this trainer cannot be pickled
            patch.setattr(local.pickle, "loads", lambda _: Settings(trainer=train))
            work = local._Work(store.path, "killed", [[run]], b"", {}, context.Event())
            local._main(theirs, os.getppid(), local._Place("cpu", {}), work)

    process = context.Process(target=work)
    process.start()
    process.join()
    assert process.exitcode == 1
    assert store.records() == []
    Worker(store, Settings()).work([[run]])
    assert store.read(run.id).status == "completed"


def test_workers_end_with_a_session_that_reads_no_more(store: Store, tiny: Recipe, tmp_path: Path) -> None:
    """Python would ask them to end and wait; they ignore that, and one with a full pipe never ends."""
    run, context = Run(tiny, 1.0, 0), multiprocessing.get_context("fork")
    reader, events = context.Pipe(duplex=False)

    def train(runs, on_epoch):
        (tmp_path / "worker").write_text(str(os.getpid()))
        for epoch in itertools.count(1):
            on_epoch(run, {"epoch": epoch})

    def serve() -> None:
        reader.close()
        with pytest.MonkeyPatch.context() as patch:  # this trainer cannot be pickled
            patch.setattr(local.pickle, "loads", lambda _: Settings(trainer=train))
            work = local._Work(store.path, "killed", [[run]], b"", {}, context.Event())
            local._serve(events, os.getppid(), [local._Place("cpu", {})], work)

    server = context.Process(target=serve)
    server.start()
    events.close()
    while not (tmp_path / "worker").exists():
        reader.recv()
    reader.close()
    server.join(timeout=300)
    ended = not server.is_alive()
    server.kill()
    assert ended


# -- the disk -----------------------------------------------------------------------------------------------

STUDY = """
scales = [0.5, 1.0]
seeds = [0]
[recipe]
dataset = "synthetic:60x1x4x4"
model = "mlp"
width = 4
epochs = 2
"""


def initmem(*args: object, before: Sequence[str] = (), **options) -> subprocess.CompletedProcess[str]:
    command = [*before, sys.executable, "-m", "initmem", *map(str, args)]
    return subprocess.run(command, capture_output=True, text=True, timeout=3600, **options)


class BadReads:
    """Fails reads of a store: so many of them, from the n-th on."""

    def __init__(self, store: Path, patch: pytest.MonkeyPatch) -> None:
        self.store, self.at, self.times, self.number = str(store), 0, 0, errno.EIO
        self.reads = 0
        for module, name in ((io, "open"), (os, "stat"), (os, "listdir")):
            patch.setattr(module, name, self._failing(getattr(module, name)))

    def plan(self, at: int, times: int, number: int) -> None:
        self.reads, self.at, self.times, self.number = 0, at, times, number

    def _failing(self, real):
        def read(path, *args, **kwargs):
            inside = isinstance(path, str | Path) and str(path).startswith(self.store)
            if inside and not (args and isinstance(args[0], str) and set(args[0]) & set("wax")):
                self.reads += 1
                if self.at <= self.reads < self.at + self.times:
                    raise OSError(self.number, os.strerror(self.number), str(path))
            return real(path, *args, **kwargs)

        return read


def train_with_epochs(runs, on_epoch):
    for run in runs:
        on_epoch(run, {"epoch": 1})
    return [fake_record(run, run.scale) for run in runs]


@pytest.mark.parametrize(("trainer", "number"), [(None, errno.EIO), (train_with_epochs, errno.ESTALE)])
def test_a_read_error_crashes_no_run_and_splits_no_pack(
    tmp_path: Path, runs: list[Run], monkeypatch: pytest.MonkeyPatch, trainer: Trainer | None, number: int
) -> None:
    """Once, it is not even noticed; twice, it stops the session, and the next one does the rest.

    Where the claim could not be given back, it expires.
    """
    monkeypatch.setattr("initmem.store.claims.EXPIRY", 0.1)
    monkeypatch.setattr("initmem.engines.worker.PAUSE", 0.01)
    study = Study("reads", "", "full", "", (runs[0].recipe,), (0.5, 1.0), (0, 1))

    def session(path: Path) -> Store:
        store = Store.create(path)
        store.recover()
        store.add_study(study)
        Worker(store, Settings(trainer=trainer, checkpoint_every=0.0)).work([runs[:2], runs[2:]])
        return store

    expected = {record.id: record for record in session(tmp_path / "undisturbed").records()}
    bad = BadReads(tmp_path / "store", monkeypatch)
    session(tmp_path / "store 0")
    reads = bad.reads
    assert reads > 50
    for at in range(1, reads + 1, 7):
        for times in (1, 2):
            path = tmp_path / f"store {at} {times}"
            bad.plan(at, times, number)
            try:
                session(path)
            except StoreError as error:
                assert times == 2
                assert "\n" not in str(error)
            bad.plan(0, 0, number)
            session(path)
            for record in Store(path).records():
                assert record.same_result(expected[record.id])
                assert record.provenance["pack"] == 2
                assert record.provenance["faults"] in ({}, {"lost worker": 1})[:times]
            assert len(Store(path).records()) == len(runs)
            assert Store(path).in_flight() == []


def small_files_only() -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (1500, resource.RLIM_INFINITY))


def test_a_full_disk_is_one_line_and_the_same_command_goes_on(tmp_path: Path) -> None:
    study = tmp_path / "study.toml"
    study.write_text(STUDY)
    command = ("run", study, "--store", tmp_path / "store", "--workers", 1, "--pack", 2)
    said = initmem(*command, preexec_fn=small_files_only)  # a record does not fit
    assert said.returncode == 2
    assert "Traceback" not in said.stderr
    assert said.stderr.splitlines()[-1].startswith(
        f"initmem: {tmp_path}/store: no room left (File too large)"
    )
    assert Store(tmp_path / "store").in_flight() == []
    assert initmem(*command).returncode == 0
    records = Store(tmp_path / "store").records()
    assert [record.status for record in records] == 2 * ["completed"]


def test_a_read_only_store_is_one_line_and_can_be_read(tmp_path: Path) -> None:
    place, study = tmp_path / "store", tmp_path / "study.toml"
    Store.create(place)
    study.write_text(STUDY)
    # The superuser may write everywhere but on a disk that is read-only. It is mounted for one process alone.
    mount = 'mount --bind -o ro "$0" "$0" && exec "$@"'
    inside = [] if os.geteuid() else ["unshare", "--mount", "sh", "-c", mount, str(place)]
    if inside and subprocess.run([*inside, "true"], capture_output=True).returncode != 0:
        pytest.skip("no disk may be mounted here")
    place.chmod(0o500)
    said = initmem("run", study, "--store", place, before=inside)
    place.chmod(0o700)
    assert said.returncode == 2
    assert "cannot be written" in said.stderr.splitlines()[-1]
    assert "Traceback" not in said.stderr
    assert Store(place).records() == []


def test_no_path_leaves_the_store(store: Store) -> None:
    for name in ("../../etc", "..", "", "0123456789abcde/", "0123456789ABCDEF", "0" * 15 + "\n"):
        with pytest.raises(StoreError, match="16 hexadecimal digits"):
            store.read(name)
        with pytest.raises(StoreError, match="16 hexadecimal digits"):
            store.live.rows(name)
