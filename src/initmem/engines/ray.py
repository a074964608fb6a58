"""The Ray engine: every pack is a task, which Ray runs where a core or a GPU is free.

A task is a worker for one pack. Where its machine sees the store, it claims, saves and commits there like any
other worker. Where it does not, it works in a folder of its own machine and its records travel back to the
driver, which holds the claim meanwhile and commits them. A task that is lost with its process or machine is
started again by Ray; with a store in common it resumes at the last checkpoint.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import shutil
import socket
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from initmem.engines.engine import STOPPING, Listener, Settings, StopSign, StoreWatch, Tick, check_device
from initmem.engines.local import make_ready
from initmem.engines.provenance import crash_record, pack_id, whole_pack
from initmem.errors import ConfigError, InitmemError, StoreError
from initmem.files import explained, temporary
from initmem.store.encoding import decode, encode
from initmem.store.faults import Cause
from initmem.store.store import Store
from initmem.study import Run

RETRIES = 20  # by Ray, of a task whose process or machine was lost; the store gives a bad run up before
RETRIES_APART = 2  # where there is no store in common to count them
CONNECT_TIMEOUT = 10.0  # seconds; Ray itself would try for minutes where nobody listens
PAUSE = 0.25  # seconds between two looks


class Answer(NamedTuple):
    """What a task returns."""

    kind: str  # done; records; unseen: there is no such store here; or mistake
    content: Any = None


class _Job(NamedTuple):
    """A pack to train, where the store is or apart from it."""

    pack: list[Run]
    apart: bool = False
    claimed: Sequence[Run] = ()  # by the driver, while a job trains apart from the store


class RayEngine:
    """Runs packs as tasks of a Ray cluster.

    Without an address it is the one that $RAY_ADDRESS names, or one made of this machine.
    """

    def __init__(
        self, *, address: str | None = None, workers: int | None = None, settings: Settings | None = None
    ) -> None:
        self.settings = settings or Settings()
        check_device(self.settings.device)
        self._resource = "CPU" if self.settings.device == "cpu" else "GPU"  # each task takes one of them
        self._address, self._most = address or os.environ.get("RAY_ADDRESS"), workers
        self._ray: Any = None  # connected when it is first used
        self._in_flight: dict[Any, _Job] = {}
        self._held: list[Run] = []  # all that this process has claimed for tasks

    @property
    def workers(self) -> int:
        """How many packs the cluster can train at the same time, as it is now."""
        self._ray = _connected(self._address, self._most)
        fit = int(self._ray.cluster_resources().get(self._resource, 0))
        return max(1, fit if self._most is None else min(fit, self._most))

    def run(self, store: Store, packs: Sequence[list[Run]], listen: Listener) -> bool:
        """Train what has no record yet. False when interrupted: everything so far is kept."""
        left = [pack for pack in packs if not all(store.has(run) for run in pack)]
        if not left:
            return True
        self._ray = _connected(self._address, self._most)
        with contextlib.redirect_stdout(sys.stderr):  # Ray prints messages about nodes that die
            try:
                return self._run(store, left, listen)
            finally:
                self._ray.shutdown()

    def _run(self, store: Store, packs: Sequence[list[Run]], listen: Listener) -> bool:
        waiting = deque(_Job(pack) for pack in packs)
        watch = StoreWatch(store, [run for pack in packs for run in pack], listen)
        with StopSign(store) as sign, _beacon(store) as beacon, store.claims.kept_alive(self._held):
            try:
                while waiting or self._in_flight:
                    self._submit(store, waiting, beacon)
                    self._collect(store, waiting)
                    watch.look()
                    listen(Tick())
                watch.look(at_once=True)
            except KeyboardInterrupt:
                listen(STOPPING)
                self._stop(store, sign)
                return False
            except InitmemError:
                self._stop(store, sign)
                raise
        return True

    def _submit(self, store: Store, waiting: deque[_Job], beacon: Path) -> None:
        """Keep the cluster supplied, with some packs in reserve for when it grows."""
        for _ in range(len(waiting)):
            if len(self._in_flight) >= (self._most or 2 * self.workers):
                return
            job = waiting.popleft()
            if not job.apart:
                task = self._task(RETRIES).remote(beacon, store.session, job.pack, self.settings)
                self._in_flight[task] = job
            elif claimed := store.claims.take(job.pack):
                self._held.extend(claimed)
                pack = whole_pack(store, job.pack, claimed)
                task = self._task(RETRIES_APART).remote(None, store.session, pack, self.settings)
                self._in_flight[task] = job._replace(claimed=claimed)
            elif not all(store.has(run) for run in job.pack):
                waiting.append(job)  # another worker has it: wait, it may drop it

    def _task(self, retries: int) -> Any:
        gpu = {"num_gpus": 1} if self._resource == "GPU" else {}
        return self._ray.remote(_work).options(num_cpus=1, max_retries=retries, **gpu)

    def _collect(self, store: Store, waiting: deque[_Job]) -> None:
        """Take in the answers of tasks that have ended; what is to be tried again waits."""
        if not self._in_flight:
            time.sleep(PAUSE)
            return
        ended, _ = self._ray.wait(list(self._in_flight), num_returns=len(self._in_flight), timeout=PAUSE)
        for task in ended:
            job = self._in_flight.pop(task)
            try:
                waiting.extend(self._after_answer(store, job, self._ray.get(task)))
            except self._ray.exceptions.RayError as error:
                waiting.extend(self._after_loss(store, job, error))
            finally:
                self._release(store, job)

    def _after_answer(self, store: Store, job: _Job, answer: Answer) -> list[_Job]:
        if answer.kind == "mistake":
            raise answer.content
        if answer.kind == "unseen":
            return [_Job(job.pack, apart=True)]
        if answer.kind == "records":
            records = [decode(data) for data in answer.content]
            store.commit([record for record in records if record.run in job.claimed])
        return []

    def _after_loss(self, store: Store, job: _Job, error: Exception) -> list[_Job]:
        """When Ray gives a task up: try its runs one by one, then give up those that are lost alone."""
        cause: Cause = "lost worker"
        if isinstance(error, self._ray.exceptions.OutOfMemoryError):
            cause = "out of memory"
        elif isinstance(error, self._ray.exceptions.RayTaskError):
            cause = "exception"
        runs = job.claimed or store.claims.take(job.pack)
        if not runs and not all(store.has(run) for run in job.pack):
            return [job]  # the claim of a machine that is gone has not expired yet
        store.faults.note(runs, cause, str(error))
        if len(runs) > 1:
            store.claims.release(runs)
            return [_Job([run], job.apart) for run in runs]
        store.commit([crash_record(run, f"{cause}: {error}", store, self.settings) for run in runs])
        return []

    def _release(self, store: Store, job: _Job) -> None:
        store.claims.release(job.claimed)
        for run in job.claimed:
            self._held.remove(run)

    def _stop(self, store: Store, sign: StopSign) -> None:
        """Let tasks finish their batch and save; those without a store just end. Ctrl-C: at once."""
        with contextlib.suppress(StoreError):
            sign.put_up()
        for task, job in self._in_flight.items():
            if job.claimed:
                self._ray.cancel(task)
        try:
            if self._in_flight:
                self._ray.wait(list(self._in_flight), num_returns=len(self._in_flight), timeout=None)
        except KeyboardInterrupt:
            for task in self._in_flight:
                self._ray.cancel(task, force=True)
        for job in self._in_flight.values():
            with contextlib.suppress(StoreError):
                self._release(store, job)


def _connected(address: str | None, workers: int | None) -> Any:
    """Ray, connected to a cluster."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is sent anywhere
    try:
        ray: Any = importlib.import_module("ray")
    except ImportError:
        raise ConfigError("engine = 'ray' (needs Ray: pip install 'initmem[ray]')") from None
    if ray.is_initialized():
        return ray
    alone = {} if address else {"num_cpus": workers, "include_dashboard": False}
    host, colon, port = (address or "").removeprefix("ray://").rpartition(":")
    try:
        if colon and port.isdecimal():
            socket.create_connection((host.strip("[]"), int(port)), CONNECT_TIMEOUT).close()
        ray.init(address=address or "local", log_to_driver=False, logging_level="ERROR", **alone)
    except (OSError, OverflowError, ValueError, RuntimeError) as error:
        raise ConfigError(f"address = {address!r} (no Ray cluster answers there: {error})") from None
    return ray


@contextlib.contextmanager
def _beacon(store: Store) -> Iterator[Path]:
    """A file by which a task can tell that a folder of the same name on its machine is this very store."""
    path = temporary(store.path.resolve() / "beacon")
    with explained(store.path):
        path.touch()
    try:
        yield path
    finally:
        path.unlink(missing_ok=True)


def _work(beacon: Path | None, session: str, pack: list[Run], settings: Settings) -> Answer:
    """The body of a task: a worker for one pack, in the store if it is seen from here, or in a folder."""
    from initmem.engines.worker import Worker  # it loads torch, which the driver does without

    make_ready()
    try:
        if beacon is None:  # a store of this machine's own: after a crash the same machine resumes from it
            path = Path(tempfile.gettempdir()) / f"initmem-{session}-{pack_id(pack)}"
            store = Store.create(path, session=session)
            store.recover()
            Worker(store, settings).work([pack])
            records = [encode(store.read(run.id)) for run in pack]
            shutil.rmtree(path, ignore_errors=True)
            return Answer("records", records)
        if not beacon.exists():
            return Answer("unseen")
        store = Store(beacon.parent, session=session)
        Worker(store, settings, should_stop=StopSign(store).is_up).work([pack])
        return Answer("done")
    except InitmemError as error:
        return Answer("mistake", error)
