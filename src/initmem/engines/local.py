"""The engines of this machine: one process per core, one thread each; or this very process."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import math
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from types import ModuleType
from typing import Any

from initmem.engines.engine import (
    Claimed,
    Event,
    Finished,
    Listener,
    Released,
    Settings,
    Stopping,
    Tick,
    WorkerLost,
    devices,
    ignore,
)
from initmem.errors import ConfigError, InitmemError
from initmem.store.store import Store
from initmem.study import Run

MOST_CRASHES = 3  # of workers that have not claimed anything yet


@dataclass(slots=True)
class _Process:
    process: SpawnProcess
    connection: Connection
    device: str
    slot: int  # the least number that no other living worker has
    claimed: tuple[str, ...] = ()
    mistake: InitmemError | None = None  # for which the worker stopped


class LocalEngine:
    """Runs workers as processes of this machine, and replaces the ones that crash."""

    def __init__(self, *, workers: int | None = None, settings: Settings | None = None) -> None:
        self.settings = settings or Settings()
        self._devices = devices(self.settings.device)
        slots = len(self.settings.slots)
        self.workers = workers or slots or len(self._devices)
        if self.workers > slots > 0:
            raise ConfigError(f"workers = {workers} with gpus = {slots} (allowed: one worker per GPU)")
        self._context = multiprocessing.get_context("spawn")
        self._stop = self._context.Event()
        self._alive: list[_Process] = []
        self._crashes = 0  # at start-up

    def run(self, store: Store, packs: Sequence[list[Run]], listen: Listener) -> bool:
        """Train what has no record yet. False when interrupted: everything so far is kept."""
        packs = [pack for pack in packs if not all(store.has(run) for run in pack)]
        try:
            for _ in range(min(self.workers, len(packs))):
                self._start(store, packs)
            while self._alive:
                self._tend(store, packs, listen)
        except KeyboardInterrupt:
            listen(Stopping())
            self.stop()
            return False
        except InitmemError:
            self.stop()
            raise
        return True

    def stop(self) -> None:
        """Let every worker finish its batch and write its checkpoint; Ctrl-C ends them at once."""
        self._stop.set()
        try:
            while self._alive:
                self._listen(ignore)
                self._alive = [worker for worker in self._alive if worker.process.is_alive()]
        except KeyboardInterrupt:
            for worker in self._alive:
                worker.process.kill()

    def _tend(self, store: Store, packs: Sequence[list[Run]], listen: Listener) -> None:
        """Pass on the events of the workers; replace those that crashed."""
        ended = self._listen(listen)
        for worker in ended:
            _drain(worker, listen)  # its messages between the last look and its end
            self._alive.remove(worker)
            if worker.mistake is not None:
                raise worker.mistake
            # User code can end its process with exit code 0, also before the first claim.
            left = any(not store.has(run) for pack in packs for run in pack)
            if worker.process.exitcode != 0 or worker.claimed or left:
                self._after_crash(worker, listen)
                self._start(store, packs)
        listen(Tick())

    def _listen(self, listen: Listener) -> list[_Process]:
        """Pass on the events of all workers; return those that have ended."""
        wait([p.connection for p in self._alive] + [p.process.sentinel for p in self._alive], timeout=0.5)
        for worker in self._alive:
            _drain(worker, listen)
        return [worker for worker in self._alive if not worker.process.is_alive()]

    def _after_crash(self, worker: _Process, listen: Listener) -> None:
        """Another worker takes over its runs. If workers end before they claim any, there is no hope."""
        code = worker.process.exitcode
        listen(WorkerLost(code, worker.claimed))
        self._crashes += not worker.claimed
        if self._crashes == MOST_CRASHES:
            raise InitmemError(f"worker processes die at start-up (exit code {code})")

    def _start(self, store: Store, packs: Sequence[list[Run]]) -> None:
        """Add a worker, on the device that has the fewest."""
        ours, theirs = self._context.Pipe(duplex=False)
        taken = Counter(worker.device for worker in self._alive)
        device = min(dict.fromkeys(self._devices), key=lambda name: taken[name])
        settings = replace(self.settings, device=device)
        slot = min(set(range(self.workers)) - {worker.slot for worker in self._alive})
        environment = self.settings.slots[slot] if self.settings.slots else {}
        work = (store.path, store.session, list(packs), settings, environment)
        process = self._context.Process(
            target=_main, args=(theirs, self._stop, os.getpid(), *work), daemon=True
        )
        skip_script = contextlib.nullcontext() if self.settings.trainer is None else _without_main()
        with skip_script:
            process.start()
        theirs.close()
        self._alive.append(_Process(process, ours, device, slot))


class InlineEngine:
    """Runs without worker processes, where a debugger can follow.

    Ctrl-C stops at once; the run in training starts again next time.
    """

    workers = 1

    def __init__(self, settings: Settings | None = None) -> None:
        settings = settings or Settings()
        # A time limit would end this very process.
        self.settings = replace(
            settings, device=devices(settings.device)[0], checkpoint_every=math.inf, timeout=None
        )

    def run(self, store: Store, packs: Sequence[list[Run]], listen: Listener) -> bool:
        """Train what has no record yet. False when interrupted: everything so far is kept."""
        from initmem.engines.worker import Worker

        try:
            Worker(store, self.settings, listen=listen).work(packs)
        except KeyboardInterrupt:
            return False
        return True


@contextlib.contextmanager
def _without_main() -> Iterator[None]:
    """Keep a new process from running the user's script again: a script that trains at its top level would
    train within its own workers. A trainer travels by value and does not need the script."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def _drain(worker: _Process, listen: Listener) -> None:
    with contextlib.suppress(EOFError, OSError):
        while worker.connection.poll():
            message: Event | InitmemError = worker.connection.recv()
            match message:
                case InitmemError():
                    worker.mistake = message
                    continue
                case Claimed():
                    worker.claimed = message.runs
                case Finished() | Released():
                    worker.claimed = ()
            listen(message)


def _main(
    connection: Connection,
    stop: Any,
    parent: int,
    path: Path,
    session: str,
    packs: list[list[Run]],
    settings: Settings,
    environment: Mapping[str, str],
) -> None:
    """The body of a worker process. Signals are for the parent, which asks the workers to stop."""
    for name in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(name, _do_nothing)
    os.environ.update(environment, OMP_NUM_THREADS="1")  # before torch is loaded

    from initmem.engines.worker import Worker

    # Training code may have workers of its own, a data loader's, and starts them as it would elsewhere.
    multiprocessing.current_process().daemon = False
    multiprocessing.set_start_method(None, force=True)
    threading.Thread(target=_exit_with, args=(parent,), daemon=True).start()
    make_ready()

    def send(message: Event | InitmemError) -> None:
        """Report to the parent. Without one, end here: in user code an exception would crash the run."""
        try:
            connection.send(message)
        except OSError:
            os._exit(1)

    try:
        store = Store(path, session=session)
        Worker(store, settings, should_stop=stop.is_set, listen=send).work(packs)
    except InitmemError as error:
        send(error)


def make_ready() -> None:
    """Set this process up to train next to others: one thread, few garbage collections, freed memory kept.

    Every step frees and takes the same large blocks. Given back to the system they come back page by page,
    each filled with zeros: 5 to 8% of a step. Only the GNU C library has the option.
    """
    import torch

    torch.set_num_threads(1)
    gc.freeze()  # the modules stay: looking through them again and again is 3% of a small step
    with contextlib.suppress(OSError, AttributeError):
        library = ctypes.CDLL(None)
        library.mallopt(-4, 0)  # M_MMAP_MAX: no block is the system's own
        library.mallopt(-1, 2**31 - 1)  # M_TRIM_THRESHOLD


def _exit_with(parent: int) -> None:
    """End this process as soon as the one that started it is gone, however that happened."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)


def _do_nothing(*_: object) -> None:
    """What is ignored (SIG_IGN) is handed down to programs that are started; what is handled is not."""
