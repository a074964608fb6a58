"""The Ray engine: every pack is a task, which Ray runs where a core or a share of a GPU is free.

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

from initmem.engines.engine import Listener, Settings, Stopping, Tick, check_cluster_device
from initmem.engines.provenance import environment, pack_id
from initmem.engines.watch import StopSign, Watch
from initmem.engines.worker import Worker, heartbeat, make_ready, whole_pack
from initmem.errors import ConfigError, InitmemError, StoreError
from initmem.files import explained, temporary
from initmem.record import crashed
from initmem.store.encoding import decode, encode
from initmem.store.faults import Cause, counted
from initmem.store.store import Store
from initmem.study import Run

RETRIES = 20  # by Ray, of a task whose process or machine was lost; the store gives a bad run up before
TRAVEL_RETRIES = 2  # where there is no store in common to count them
KNOCKING = 10.0  # seconds
PAUSE = 0.25  # seconds between two looks


class Answer(NamedTuple):
    """What a task says in the end."""

    kind: str  # done; records; unseen: there is no such store here; or mistake
    content: Any = None


class _Parcel(NamedTuple):
    """A pack to train, and whether its records shall travel."""

    pack: list[Run]
    travels: bool


class _Place(NamedTuple):
    """Where the store should be, and a file that is in it."""

    path: Path
    beacon: str


class _Flight(NamedTuple):
    """A task under way; `claimed` by the driver for it, when the records travel."""

    parcel: _Parcel
    claimed: list[Run]


class RayEngine:
    """Runs packs as tasks of a Ray cluster.

    Without an address it is the one that $RAY_ADDRESS names, or one made of this machine.
    """

    def __init__(
        self,
        *,
        address: str | None = None,
        workers: int | None = None,
        settings: Settings | None = None,
        records_travel: bool = False,
    ) -> None:
        self.settings = settings or Settings()
        self.records_travel = records_travel
        check_cluster_device(self.settings.device, self.settings.slots)
        self._gpus = 0.0 if self.settings.device == "cpu" else 1 / self.settings.slots
        self._address, self._most = address or os.environ.get("RAY_ADDRESS"), workers
        self._ray = _connected(self._address, workers)
        self._flying: dict[Any, _Flight] = {}
        self._held: list[Run] = []  # all that this process has claimed for tasks

    @property
    def workers(self) -> int:
        """How many packs the cluster can train at the same time, as it is now."""
        self._ray = _connected(self._address, self._most)
        have = self._ray.cluster_resources()
        fit = int(have.get("GPU", 0) / self._gpus if self._gpus else have.get("CPU", 1))
        return max(1, fit if self._most is None else min(fit, self._most))

    def run(self, store: Store, packs: Sequence[list[Run]], listen: Listener) -> bool:
        """Train what has no record yet. False when interrupted: everything so far is kept."""
        left = [pack for pack in packs if not all(store.has(run) for run in pack)]
        if not left:
            return True
        self._ray = _connected(self._address, self._most)
        with contextlib.redirect_stdout(sys.stderr):  # Ray prints what it has to say of nodes that die
            try:
                return self._run(store, left, listen)
            finally:
                self._ray.shutdown()

    def _run(self, store: Store, packs: Sequence[list[Run]], listen: Listener) -> bool:
        waiting = deque(_Parcel(pack, self.records_travel) for pack in packs)
        watch = Watch(store, [run for pack in packs for run in pack], listen)
        with StopSign(store) as sign, _beacon(store) as beacon, heartbeat(store, self._held):
            try:
                while waiting or self._flying:
                    self._launch(store, waiting, beacon)
                    self._land(store, waiting)
                    watch.look()
                    listen(Tick())
                watch.look(at_once=True)
            except KeyboardInterrupt:
                listen(Stopping())
                self._wind_down(store, sign)
                return False
            except InitmemError:
                self._wind_down(store, sign)
                raise
        return True

    def _launch(self, store: Store, waiting: deque[_Parcel], beacon: str) -> None:
        """Keep the cluster supplied, with some packs in reserve for when it grows."""
        for _ in range(len(waiting)):
            if len(self._flying) >= (self._most or 2 * self.workers):
                return
            parcel = waiting.popleft()
            if not parcel.travels:
                place = _Place(store.path.resolve(), beacon)
                task = self._task(RETRIES).remote(place, store.session, parcel.pack, self.settings)
                self._flying[task] = _Flight(parcel, [])
            elif claimed := store.claims.take(parcel.pack):
                self._held.extend(claimed)
                pack = whole_pack(store, parcel.pack, claimed)
                task = self._task(TRAVEL_RETRIES).remote(None, store.session, pack, self.settings)
                self._flying[task] = _Flight(parcel, claimed)
            elif not all(store.has(run) for run in parcel.pack):
                waiting.append(parcel)  # in other hands: wait, they may drop it

    def _task(self, retries: int) -> Any:
        share = {"num_gpus": self._gpus} if self._gpus else {}
        return self._ray.remote(_work).options(num_cpus=1, max_retries=retries, **share)

    def _land(self, store: Store, waiting: deque[_Parcel]) -> None:
        """Take in what tasks say that have ended."""
        if not self._flying:
            time.sleep(PAUSE)
            return
        ended, _ = self._ray.wait(list(self._flying), num_returns=len(self._flying), timeout=PAUSE)
        for reference in ended:
            flight = self._flying.pop(reference)
            try:
                waiting.extend(self._taken_in(store, flight, self._ray.get(reference)))
            except self._ray.exceptions.RayError as error:
                waiting.extend(self._after_loss(store, flight, error))
            finally:
                self._give_back(store, flight)

    def _taken_in(self, store: Store, flight: _Flight, answer: Answer) -> list[_Parcel]:
        """Commit what has travelled; say what is to be done again."""
        if answer.kind == "mistake":
            raise answer.content
        if answer.kind == "unseen":
            return [flight.parcel._replace(travels=True)]
        if answer.kind == "records":
            records = [decode(data) for data in answer.content]
            store.commit([record for record in records if record.run in flight.claimed])
        return []

    def _after_loss(self, store: Store, flight: _Flight, error: Exception) -> list[_Parcel]:
        """When Ray gives a task up: try its runs one by one, then give up those that are lost alone."""
        cause: Cause = "lost worker"
        if isinstance(error, self._ray.exceptions.OutOfMemoryError):
            cause = "out of memory"
        elif isinstance(error, self._ray.exceptions.RayTaskError):
            cause = "exception"
        runs = flight.claimed or store.claims.take(flight.parcel.pack)
        if not runs and not all(store.has(run) for run in flight.parcel.pack):
            return [flight.parcel]  # the claim of a machine that is gone has some seconds to live
        store.faults.note(runs, cause, str(error))
        if len(runs) > 1:
            store.claims.release(runs)
            return [flight.parcel._replace(pack=[run]) for run in runs]
        for run in runs:
            origin = environment(self.settings.device) | self.settings.code_of(run.recipe)
            faults = {"faults": counted(store.faults.of(run.id))}
            store.commit([crashed(run, f"{cause}: {error}", origin | faults)])
        return []

    def _give_back(self, store: Store, flight: _Flight) -> None:
        store.claims.release(flight.claimed)
        for run in flight.claimed:
            self._held.remove(run)

    def _wind_down(self, store: Store, sign: StopSign) -> None:
        """Let tasks finish their batch and save; those without a store just end. Ctrl-C: at once."""
        with contextlib.suppress(StoreError):
            sign.put_up()
        for reference, flight in self._flying.items():
            if flight.claimed:
                self._ray.cancel(reference)
        try:
            if self._flying:
                self._ray.wait(list(self._flying), num_returns=len(self._flying), timeout=None)
        except KeyboardInterrupt:
            for reference in self._flying:
                self._ray.cancel(reference, force=True)
        for flight in self._flying.values():
            with contextlib.suppress(StoreError):
                self._give_back(store, flight)


def _connected(address: str | None, workers: int | None) -> Any:
    """Ray, connected to a cluster."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is sent anywhere
    try:
        ray: Any = importlib.import_module("ray")
    except ImportError:
        raise ConfigError("engine = 'ray' (needs Ray: pip install 'initmem[ray]')") from None
    if not ray.is_initialized():
        alone = {} if address else {"num_cpus": workers, "include_dashboard": False}
        try:
            _knock(address)
            ray.init(address=address or "local", log_to_driver=False, logging_level="ERROR", **alone)
        except (OSError, OverflowError, ValueError, RuntimeError) as error:
            raise ConfigError(f"address = {address!r} (no Ray cluster answers there: {error})") from None
    return ray


def _knock(address: str | None) -> None:
    """Ray itself would try for minutes where nobody listens."""
    host, colon, port = (address or "").removeprefix("ray://").rpartition(":")
    if colon and port.isdecimal():
        socket.create_connection((host.strip("[]"), int(port)), KNOCKING).close()


@contextlib.contextmanager
def _beacon(store: Store) -> Iterator[str]:
    """A file by which a task knows that a folder of the same name on its machine is this very store."""
    path = temporary(store.path / "beacon")
    with explained(store.path):
        path.touch()
    try:
        yield path.name
    finally:
        path.unlink(missing_ok=True)


def _work(place: _Place | None, session: str, pack: list[Run], settings: Settings) -> Answer:
    """The body of a task: a worker for one pack, in the store if it is seen from here, or in a folder."""
    make_ready()
    try:
        if place is None:
            return Answer("records", _train_apart(session, pack, settings))
        if not (place.path / place.beacon).exists():
            return Answer("unseen")
        store = Store(place.path, session=session)
        Worker(store, settings, should_stop=StopSign(store).is_up).work([pack])
        return Answer("done")
    except InitmemError as error:
        return Answer("mistake", error)


def _train_apart(session: str, pack: list[Run], settings: Settings) -> list[bytes]:
    """Train in a store of this machine's own. After a crash the same machine finds its checkpoints there."""
    place = Path(tempfile.gettempdir()) / f"initmem-{session}-{pack_id(pack)}"
    store = Store.create(place, session=session)
    store.recover()
    Worker(store, settings).work([pack])
    records = [encode(store.read(run.id)) for run in pack]
    shutil.rmtree(place, ignore_errors=True)
    return records
