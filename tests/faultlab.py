"""A laboratory for faults: a small study is disturbed in every way we know, then finished and compared.

Children are forked from a process that has everything loaded, so that hundreds of kills cost seconds. In a
child, every call that changes something under the store is counted, and at a chosen one the child is killed
or the disk begins to refuse. Nothing of this is in the package itself.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import errno
import io
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch

from initmem.engines import worker as worker_module
from initmem.engines.engine import Settings, Trainer
from initmem.engines.worker import Worker
from initmem.errors import FullDisk, InitmemError, StoreError
from initmem.recipe import PipelineRecipe, Recipe
from initmem.record import RunRecord, summarize
from initmem.store import claims as claims_module
from initmem.store.store import Store
from initmem.study import Run, Study

RECIPE = Recipe(
    dataset="synthetic:60x1x4x4", model="mlp", width=4, batch_size=32, epochs=2, learning_rate=0.05
)
DONE, REFUSED, BROKEN = 0, 3, 4  # how a child ends by itself
GROWS = {"open", "write", "fsync", "mkdir", "link"}  # what a full disk refuses


@dataclass(frozen=True)
class Job:
    """A study and how it is cut into packs."""

    study: Study
    sizes: tuple[int, ...]
    trainer: Trainer | None = None  # of user code

    def packs(self) -> list[list[Run]]:
        runs = iter(self.study.all_runs())
        return [[next(runs) for _ in range(size)] for size in self.sizes]


# A pack of three and runs alone, as they are committed in different ways; and work for several processes.
SMALL = Job(Study("lab", "", "full", "", (RECIPE,), (0.5, 0.7, 1.0, 1.4, 2.0), (0,)), (3, 1, 1))
WIDE = Job(
    Study("lab", "", "full", "", (RECIPE.model_copy(update={"epochs": 12}),), (0.5, 2.0), (0, 1, 2, 3, 4)),
    (3, 1, 2, 2, 2),
)


def own_code(runs: list[Run], on_epoch: Callable[[Run, dict[str, float]], None]) -> list[RunRecord]:
    """A pipeline of the user: what it finds depends on the run alone."""
    records = []
    for run in runs:
        losses = [run.scale / epoch + run.seed for epoch in (1, 2, 3)]
        for epoch, loss in enumerate(losses, 1):
            on_epoch(run, {"epoch": float(epoch), "val_loss": loss})
        history = {"val_loss": np.array(losses)}
        records.append(RunRecord(run, "completed", summarize(history, norm_init=None), history))
    return records


@dataclass(frozen=True)
class Plan:
    """What shall happen at the n-th change of the store, or at its n-th read; at 0, nothing."""

    at: int = 0
    deed: str = "kill"  # tear: write half, then die; stop: until it is told to continue; or an error
    every: float = 0.0  # seconds between checkpoints
    reads: bool = False
    times: int = 1 << 30  # how often an error is raised


OWN = Job(
    Study("own", "", "full", "", (PipelineRecipe("own", (("epochs", 3),)),), (0.5, 1.0, 2.0), (0, 1)),
    (1, 1, 1, 1, 1, 1),
    own_code,
)


@dataclass
class Counts:
    """What was done, and what came of it."""

    kills: int = 0
    faults: int = 0
    runs: int = 0
    lost: int = 0
    doubled: int = 0
    unequal: int = 0
    crashed: int = 0  # and should not be
    broken: int = 0  # sessions that ended in a traceback
    problems: list[str] = field(default_factory=list)


# -- in a child ---------------------------------------------------------------------------------------------


class Saboteur:
    """Counts the calls that change something under a folder, and strikes at one of them."""

    def __init__(self, folder: Path, plan: Plan, log: Path | None) -> None:
        self.folder, self.plan, self.log = str(folder), plan, log
        self.calls = self.reads = 0
        self.open = io.open
        self.paths: dict[int, Any] = {}  # of open descriptors

    def install(self) -> None:
        for name in (
            "fsync",
            "replace",
            "link",
            "unlink",
            "mkdir",
        ):  # no heartbeats: time decides their number
            setattr(os, name, self._tapped(name, getattr(os, name)))
        for name in ("stat", "listdir"):
            setattr(os, name, self._read(getattr(os, name)))
        real_open = os.open

        def open_descriptor(path: Any, flags: int, *args: Any, **kwargs: Any) -> int:
            changes = flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT) and self._is_inside(path)
            if changes:
                self.strike("open", path)
            descriptor = real_open(path, flags, *args, **kwargs)
            self.paths[descriptor] = path if changes else None
            return descriptor

        real_stream = self._read(self.open)

        def open_stream(path: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
            if isinstance(path, int) and self.paths.get(path):
                return Tap(self.open(path, mode, *args, **kwargs), self, self.paths.pop(path))
            if not set(mode) & set("wax+") or not self._is_inside(path):
                return real_stream(path, mode, *args, **kwargs)
            self.strike("open", path)
            return Tap(self.open(path, mode, *args, **kwargs), self, path)

        os.open, io.open = open_descriptor, open_stream  # type: ignore[assignment]

    def _tapped(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def tapped(*args: Any, **kwargs: Any) -> Any:
            if name == "fsync" or self._is_inside(args[0]):
                self.strike(name, args[0])
            return real(*args, **kwargs)

        return tapped

    def _read(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def read(path: Any = ".", *args: Any, **kwargs: Any) -> Any:
            if self.plan.reads and self._is_inside(path):
                self.reads += 1
                if self.plan.at <= self.reads < self.plan.at + self.plan.times:
                    number = getattr(errno, self.plan.deed)
                    raise OSError(number, os.strerror(number), str(path))
            return real(path, *args, **kwargs)

        return read

    def _is_inside(self, path: Any) -> bool:
        return not isinstance(path, int) and os.fspath(path).startswith(self.folder)

    def strike(self, name: str, path: Any) -> bool:
        """Count a call; do the deed when it is its turn. True: the caller shall write half, then die."""
        self.calls += 1
        if self.log is not None:
            with self.open(self.log, "a") as stream:
                stream.write(json.dumps([self.calls, name, str(path)]) + "\n")
        if self.plan.reads or not self.plan.at or self.calls < self.plan.at:
            return False
        if self.calls >= self.plan.at + self.plan.times:
            return False
        if self.plan.deed == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif self.plan.deed == "tear":
            return True
        elif self.plan.deed == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        elif self.plan.deed != "ENOSPC" or name in GROWS:
            number = getattr(errno, self.plan.deed)
            raise OSError(number, os.strerror(number))
        return False


class Tap:
    """A stream whose writes are counted."""

    def __init__(self, stream: Any, saboteur: Saboteur, path: Any) -> None:
        self.stream, self.saboteur, self.path = stream, saboteur, path

    def write(self, data: bytes) -> int:
        if self.saboteur.strike("write", self.path):
            self.stream.write(data[: len(data) // 2])
            self.stream.flush()
            os.kill(os.getpid(), signal.SIGKILL)
        return int(self.stream.write(data))

    def __enter__(self) -> Tap:
        return self

    def __exit__(self, *_: object) -> None:
        self.stream.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def work(place: Path, job: Job, every: float) -> None:
    """What `initmem run` does, in this process."""
    store = Store.create(place)
    store.recover()
    store.add_study(job.study)
    Worker(store, Settings(checkpoint_every=every, trainer=job.trainer)).work(job.packs())


def fork(place: Path, job: Job, plan: Plan, log: Path | None = None) -> int:
    """Start a child that works on a store; the id of the process."""
    pid = os.fork()
    if pid:
        return pid
    code = BROKEN
    try:
        if plan.at or log:
            Saboteur(place, plan, log).install()
        work(place, job, plan.every)
        code = DONE
    except InitmemError as error:
        expected = FullDisk if plan.deed == "ENOSPC" else StoreError
        code = REFUSED if hasattr(errno, plan.deed) and isinstance(error, expected) else BROKEN
        if code == BROKEN:
            traceback.print_exc()
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def ended(pid: int) -> int:
    """Wait for a child: its exit code, negative for a signal."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


# -- in the parent ------------------------------------------------------------------------------------------


class Lab:
    """Does experiments, each on a store of its own, and counts."""

    def __init__(self, folder: Path, job: Job, seed: int = 0) -> None:
        self.folder, self.job, self.random = folder, job, random.Random(seed)
        self.counts = Counts()
        self.number = 0
        self.fresh()
        work(self.here, job, 0.0)  # warms everything up: children start with all of it in memory
        runs = job.study.all_runs()
        self.expected = {run.id: Store(self.here).read(run.id) for run in runs}
        assert all(record.status == "completed" for record in self.expected.values())

    def fresh(self) -> Path:
        """Begin with a new store; the one before is removed."""
        if self.number:
            shutil.rmtree(self.here, ignore_errors=True)
        self.number += 1
        self.here = self.folder / f"store-{self.number}"
        self.committed: dict[str, bytes] = {}
        return self.here

    def calls(self) -> list[tuple[int, str, str]]:
        """The calls of an undisturbed session that change the store: (number, name, path)."""
        log = self.folder / "calls"
        self.fresh()
        assert ended(self.start(Plan(), log)) == DONE
        return [tuple(json.loads(line)) for line in log.read_text().splitlines()]

    def start(self, plan: Plan | None = None, log: Path | None = None) -> int:
        return fork(self.here, self.job, plan or Plan(), log)

    def disturb(self, plan: Plan) -> int:
        """One session that ends badly, or too early for it."""
        return self.settled(self.seen(self.start(plan), plan), plan)

    def settled(self, code: int, plan: Plan) -> int:
        """How a session with a plan ended: in one of the ways that are allowed."""
        self.expect(code in (DONE, REFUSED, -signal.SIGKILL), f"{plan}: child ended with {code}")
        self.counts.faults += code == REFUSED
        return code

    def seen(self, pid: int, what: object) -> int:
        """Wait for a child; no record that was there may have changed, nor be unreadable."""
        code = ended(pid)
        self.counts.kills += code == -signal.SIGKILL
        self.counts.broken += code == BROKEN
        for path in self.here.glob("runs/*/record.json"):
            data = path.read_bytes()
            self.counts.doubled += self.committed.setdefault(path.parent.name, data) != data
        return code

    def finish(self, what: object, *, alone: bool = False) -> None:
        """The same command again, undisturbed, and with no time spent on checkpoints; then everything must be
        as if nothing had happened. `alone`: to rounding, for runs that were trained again without their pack.
        """
        code = self.seen(self.start(Plan(every=60.0)), what)
        self.expect(code == DONE, f"{what}: the session after it ended with {code}")
        self.compare(what, alone=alone)

    def compare(self, what: object, *, alone: bool = False) -> None:
        store = Store(self.here)
        found = store.records()
        by_id = {record.id: store.read(record.id) for record in found}
        for run_id, record in self.expected.items():
            self.counts.runs += 1
            if run_id not in by_id:
                self.counts.lost += 1
                self.expect(False, f"{what}: run {run_id} is lost")
            elif not (
                by_id[run_id].same_result(record) or (alone and in_another_pack(by_id[run_id], record))
            ):
                self.counts.unequal += 1
                self.counts.crashed += by_id[run_id].status == "crashed"
                self.expect(False, f"{what}: run {run_id} differs ({by_id[run_id].status})")
        self.counts.doubled += len(found) - len(by_id) + len(by_id.keys() - self.expected.keys())
        left = [str(path.relative_to(self.here)) for path in residue(self.here)]
        self.expect(not left, f"{what}: left behind {left}")

    def expect(self, truth: bool, problem: str) -> None:
        if not truth:
            self.counts.problems.append(problem)


def in_another_pack(record: RunRecord, expected: RunRecord) -> bool:
    """Whether a run was trained in another pack, and its record agrees to rounding."""
    ours, theirs = record.history["val_objective"], expected.history["val_objective"]
    same_pack = record.provenance["pack_id"] == expected.provenance["pack_id"]
    return not same_pack and ours.shape == theirs.shape and np.allclose(ours, theirs, rtol=1e-5)


def residue(place: Path) -> Iterator[Path]:
    """What should not be left in a store whose study is done."""
    yield from place.glob("pending/*")
    yield from place.glob("**/.*.tmp")
    for folder in place.glob("runs/*"):
        yield from (path for path in folder.iterdir() if path.name != "record.json")


# -- experiments --------------------------------------------------------------------------------------------


def chosen(lab: Lab, deeds: dict[str, set[str] | None], share: float) -> Iterator[tuple[Plan, str]]:
    """What to do at which call: a share of the calls, and the first of each kind.

    Calls of one kind are the same function on the same kind of file. A deed may be for some functions only.
    """
    seen = set()
    for number, name, path in lab.calls():
        file = re.sub("[0-9a-f]{6,}|[0-9]+", "#", Path(path).name)
        for deed, names in deeds.items():
            if names is not None and name not in names:
                continue
            if (deed, name, file) not in seen or lab.random.random() < share:
                seen.add((deed, name, file))
                yield Plan(number, deed), f"{deed} at call {number}, {name} {path}"


def kills(lab: Lab, times: float) -> None:
    """SIGKILL at calls that change the store: before, and in the middle of a write."""
    for plan, what in chosen(lab, {"kill": None, "tear": {"write"}}, times):
        lab.fresh()
        lab.disturb(plan)
        lab.finish(what)


def refusals(lab: Lab, times: float) -> None:
    """A disk that is full, or read-only, from each of these calls on."""
    for plan, what in chosen(lab, {"ENOSPC": GROWS, "EROFS": None}, times):
        lab.fresh()
        lab.expect(lab.disturb(plan) == REFUSED, f"{what}: not noticed")
        lab.finish(what)


def storms(lab: Lab, times: float) -> None:
    """One session after the other is killed, until there is nothing left to do, or for long enough."""
    for number in range(int(times)):
        lab.fresh()
        for _ in range(20):
            deed, every = lab.random.choice(["kill", "tear"]), lab.random.choice([0.0, 60.0])
            if lab.disturb(Plan(lab.random.randint(15, 120), deed, every)) == DONE:
                break
        lab.finish(f"storm {number}")


def crowds(lab: Lab, times: float) -> None:
    """Several processes on one store; now and then one is killed, or stopped for longer than claims live."""
    for number in range(int(times)):
        lab.fresh()
        children = [lab.start() for _ in range(3)]
        for _ in range(6):
            time.sleep(lab.random.uniform(0.01, 0.15))
            victim = children.pop(lab.random.randrange(3))
            if lab.random.random() < 0.3:
                os.kill(victim, signal.SIGSTOP)
                time.sleep(1.2 * SHORT_EXPIRY)
                os.kill(victim, signal.SIGCONT)
                lab.counts.faults += 1
                children.append(victim)
            else:
                os.kill(victim, signal.SIGKILL)
                lab.seen(victim, "crowd")
                children.append(lab.start())
        for child in children:
            code = lab.seen(child, "crowd")
            lab.expect(code == DONE, f"crowd {number}: child ended with {code}")
        lab.compare(f"crowd {number}")


def clocks(lab: Lab, times: float) -> None:
    """The time of all files jumps by years, back and forth, while two processes work."""
    for number in range(int(times)):
        lab.fresh()
        children = [lab.start() for _ in range(2)]
        while not any(os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) for child in children):
            jump = time.time() + lab.random.uniform(-3e8, 3e8)
            for path in lab.here.glob("**/*"):
                with contextlib.suppress(FileNotFoundError):
                    os.utime(path, (jump, jump))
            time.sleep(0.005)
        lab.counts.faults += 1
        for child in children:
            lab.expect(lab.seen(child, "clock") == DONE, f"clock {number}: a child did not end well")
        lab.compare(f"clock {number}")
        attempts = {record.provenance["attempts"] for record in Store(lab.here).records()}
        lab.expect(attempts == {1}, f"clock {number}: workers were taken for dead")


def damages(lab: Lab, times: float) -> None:
    """A killed session, then one file of its store is cut off or has a bit flipped."""
    calls = lab.calls()
    for number in range(int(times)):
        lab.fresh()
        if number % 3:
            lab.disturb(Plan(lab.random.randrange(20, len(calls))))
        else:
            ended(lab.start())
        files = [p for p in lab.here.glob("**/*") if p.suffix in (".json", ".jsonl", ".safetensors")]
        kinds = sorted({kind(path) for path in files})
        chosen = kinds[number % len(kinds)]
        victim = lab.random.choice(sorted(path for path in files if kind(path) == chosen))
        how = damage(victim, lab.random)
        lab.counts.faults += 1
        lab.committed.pop(victim.parent.name, None)  # a damaged record may, and must, be replaced
        what = f"damage {number}, {how} of {victim.relative_to(lab.here)}"
        if chosen == "store":
            code = ended(fork(lab.here, lab.job, Plan(deed="EROFS")))
            lab.expect(code == REFUSED, f"{what}: not noticed")
            victim.unlink()  # as the message says
        lab.finish(what, alone=chosen in ("record", "pending"))


def kind(path: Path) -> str:
    return path.parent.name if path.parent.name in ("pending", "studies") else path.stem.partition("-")[0]


def damage(path: Path, chance: random.Random) -> str:
    data = bytearray(path.read_bytes())
    if chance.random() < 0.3 or not data:
        path.write_bytes(data[: chance.randrange(len(data) + 1)])
        return "truncation"
    bit = chance.randrange(8 * len(data))
    data[bit // 8] ^= 1 << bit % 8
    path.write_bytes(data)
    return "flipped bit"


def disks(lab: Lab, times: float) -> None:
    """A real disk, of memory: too small, then larger; read-only, then not."""
    place = lab.folder / "disk"
    place.mkdir()
    # What is mounted from here on is for this process and its children alone, and goes with them.
    ctypes.CDLL(None).unshare(CLONE_NEWNS)
    mounted("--make-rprivate", "/")
    if not mounted("-t", "tmpfs", "-o", "size=4k", "none", str(place)):
        print("no disk may be mounted here", file=sys.stderr)
        return
    try:
        for number in range(int(times)):
            pages = 2 + 2 * number
            mounted("-o", f"remount,size={4 * pages}k", str(place))
            lab.here, lab.committed = place / f"store-{number}", {}
            large_enough = lab.disturb(Plan(deed="ENOSPC")) == DONE
            mounted("-o", "remount,size=4m", str(place))
            if number % 3 == 0:
                mounted("-o", "remount,ro", str(place))
                code = lab.disturb(Plan(deed="EROFS"))
                lab.expect(code == REFUSED, f"disk {number}: read-only, not noticed")
                mounted("-o", "remount,rw", str(place))
            lab.finish(f"disk of {pages} pages")
            shutil.rmtree(lab.here)
            if large_enough:
                break
    finally:
        subprocess.run(["umount", str(place)], check=True)
    lab.here = lab.folder / "none"


def mounted(*options: str) -> bool:
    return subprocess.run(["mount", *options], capture_output=True).returncode == 0


def memory_folder() -> Path | None:
    """A folder in memory, where there is one: these experiments would wear out a disk."""
    memory = Path("/dev/shm")
    return memory if memory.is_dir() else None


CLONE_NEWNS = 0x00020000  # of Linux

EXPERIMENTS = {
    "kills": (kills, SMALL),
    "refusals": (refusals, SMALL),
    "storms": (storms, SMALL),
    "crowds": (crowds, WIDE),
    "clocks": (clocks, WIDE),
    "damages": (damages, SMALL),
    "disks": (disks, SMALL),
}
SHORT_EXPIRY = 2.0
ALONE_EXPIRY = 0.2  # where one process works at a time, nobody waits for a heartbeat that comes late


def main() -> None:
    """Do the named experiments, as in `kills=1 storms=5`; print the counts of each as JSON."""
    parser = argparse.ArgumentParser()
    parser.add_argument("experiments", nargs="+")
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    worker_module.PAUSE = 0.02
    # Save and show at every chance: the same calls every time.
    worker_module.LOOK_EVERY = worker_module.SHOW_EVERY = 0.0
    found = {}
    for text in asked.experiments:
        name, _, times = text.partition("=")
        experiment, job = EXPERIMENTS[name]
        # Claims expire soon only where that is the experiment: a busy machine delays heartbeats as well.
        claims_module.EXPIRY = {"crowds": SHORT_EXPIRY, "damages": ALONE_EXPIRY}.get(name, 60.0)
        with tempfile.TemporaryDirectory(dir=memory_folder()) as folder:
            started = time.monotonic()
            lab = Lab(Path(folder), job, asked.seed)
            experiment(lab, float(times or 1))
            found[name] = asdict(lab.counts) | {"seconds": round(time.monotonic() - started, 1)}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
