"""The Ray engine: every pack is a task, which Ray runs where a core or a GPU is free.

A task is a worker for one pack. It claims, saves and commits in the store like any other worker, so every
node has to see the store. A task that is lost with its process or machine is started again by Ray, and
resumes at the last checkpoint.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from initmem.engines.engine import STOPPING, Listener, Settings, StopSign, StoreWatch, Tick, library
from initmem.engines.local import make_ready
from initmem.engines.provenance import crash_record
from initmem.errors import ConfigError, InitmemError, StoreError
from initmem.files import explained, temporary
from initmem.store.faults import Cause
from initmem.store.store import Store
from initmem.study import Run

RETRIES = 20  # by Ray, of a task whose process or machine was lost; the store gives a bad run up before
CONNECT_TIMEOUT = 10.0  # seconds; Ray itself would try for minutes where nobody listens
PAUSE = 0.25  # seconds between two looks


class RayEngine:
    """Runs packs as tasks of a Ray cluster.

    Without an address it is the one that $RAY_ADDRESS names, or one made of this machine.
    """

    def __init__(self, *, address: str | None, workers: int | None, settings: Settings) -> None:
        self.settings = settings
        self._resource = "CPU" if settings.device == "cpu" else "GPU"  # each task takes one of them
        self._address, self._most = address or os.environ.get("RAY_ADDRESS"), workers
        self._ray: Any = None  # connected when it is first used
        self._in_flight: dict[Any, list[Run]] = {}  # the pack of each task

    @property
    def workers(self) -> int:
        """How many packs the cluster can train at the same time, as it is now."""
        self._ray = _connected(self._address, self._most)
        fit = int(self._ray.cluster_resources().get(self._resource, 0))
        return max(1, fit if self._most is None else min(fit, self._most))

    def run(self, store: Store, packs: Sequence[list[Run]], listen: Listener) -> bool:
        """Train what has no record yet. False when interrupted: everything so far is kept."""
        waiting = deque(pack for pack in packs if not all(store.has(run) for run in pack))
        if not waiting:
            return True
        with contextlib.ExitStack() as stack:
            stack.enter_context(contextlib.redirect_stdout(sys.stderr))  # Ray tells of nodes that die
            self._ray = _connected(self._address, self._most)
            stack.callback(self._ray.shutdown)
            watch = StoreWatch(store, waiting, listen)
            sign = StopSign(store)
            stack.callback(sign.path.unlink, missing_ok=True)
            # By this file a task can tell that a folder of the same name on its machine is this very store.
            beacon = temporary(store.path.resolve() / "beacon")
            stack.callback(beacon.unlink, missing_ok=True)
            with explained(store.path):
                beacon.touch()
            try:
                while waiting or self._in_flight:
                    self._submit(store, waiting, beacon)
                    self._collect(store, waiting)
                    watch.look()
                    listen(Tick())
                watch.look(at_once=True)
            except KeyboardInterrupt:
                listen(STOPPING)
                self._stop(sign)
                return False
            except InitmemError:
                self._stop(sign)
                raise
        return True

    def _submit(self, store: Store, waiting: deque[list[Run]], beacon: Path) -> None:
        """Keep the cluster supplied, with some packs in reserve for when it grows."""
        gpu = {"num_gpus": 1} if self._resource == "GPU" else {}
        work = self._ray.remote(_work).options(num_cpus=1, max_retries=RETRIES, **gpu)
        while waiting and len(self._in_flight) < (self._most or 2 * self.workers):
            pack = waiting.popleft()
            self._in_flight[work.remote(beacon, store.session, pack, self.settings)] = pack

    def _collect(self, store: Store, waiting: deque[list[Run]]) -> None:
        """Take in the answers of tasks that have ended; what is to be tried again waits."""
        ended, _ = self._ray.wait(list(self._in_flight), num_returns=len(self._in_flight), timeout=PAUSE)
        for task in ended:
            pack = self._in_flight.pop(task)
            try:
                mistake = self._ray.get(task)
            except self._ray.exceptions.RayError as error:
                waiting.extend(self._after_loss(store, pack, error))
            else:
                if mistake is not None:
                    raise mistake

    def _after_loss(self, store: Store, pack: list[Run], error: Exception) -> list[list[Run]]:
        """When Ray gives a task up: try its runs one by one, then give up those that are lost alone."""
        cause: Cause = "lost worker"
        if isinstance(error, self._ray.exceptions.OutOfMemoryError):
            cause = "out of memory"
        elif isinstance(error, self._ray.exceptions.RayTaskError):
            cause = "exception"
        runs = store.claims.take(pack)
        if not runs and not all(store.has(run) for run in pack):
            return [pack]  # the claim of a machine that is gone has not expired yet
        store.faults.note(runs, cause, str(error))
        if len(runs) > 1:
            store.claims.release(runs)
            return [[run] for run in runs]
        store.commit([crash_record(run, f"{cause}: {error}", store, self.settings) for run in runs])
        return []

    def _stop(self, sign: StopSign) -> None:
        """Let tasks finish their batch and save; Ctrl-C ends them at once."""
        with contextlib.suppress(StoreError):
            sign.put_up()
        try:
            if self._in_flight:
                self._ray.wait(list(self._in_flight), num_returns=len(self._in_flight), timeout=None)
        except KeyboardInterrupt:
            for task in self._in_flight:
                self._ray.cancel(task, force=True)


def _connected(address: str | None, workers: int | None) -> Any:
    """Ray, connected to a cluster."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is sent anywhere
    ray = library("ray", "ray")
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


def _work(beacon: Path, session: str, pack: list[Run], settings: Settings) -> InitmemError | None:
    """The body of a task: a worker for one pack. It returns the mistake that stops everything, if any."""
    from initmem.engines.worker import Worker  # it loads torch, which the driver does without

    make_ready()
    try:
        if not beacon.exists():
            raise ConfigError(
                f"engine = 'ray': node {socket.gethostname()} does not see the store {beacon.parent} "
                "(allowed: a folder that all nodes of the cluster share)"
            )
        store = Store(beacon.parent, session=session)
        Worker(store, settings, should_stop=StopSign(store).is_up).work([pack])
    except InitmemError as error:
        return error
    return None
