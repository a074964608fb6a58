"""The engines of this machine: one process per core, one thread each; or this very process."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import math
import multiprocessing
import os
import pickle
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import spawn
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, NoReturn

from initmem.engines import engine as base
from initmem.engines.engine import (
    Claimed,
    Event,
    Finished,
    Listener,
    Released,
    Settings,
    Tick,
    WorkerLost,
)  # fmt: skip
from initmem.errors import ConfigError, InitmemError
from initmem.store.store import Store
from initmem.study import Run

MOST_CRASHES = 3  # of workers that have not claimed anything yet
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)


class LocalEngine:
    """Runs workers as processes of this machine, and replaces the ones that crash.

    A process of its own starts them, the server. It loads PyTorch once and forks: a worker begins at once.
    """

    def __init__(self, *, workers: int | None = None, settings: Settings | None = None) -> None:
        self.settings = settings or Settings()
        self._devices = base.devices(self.settings.device)
        slots = len(self.settings.slots)
        self.workers = workers or slots or len(self._devices)
        if self.workers > slots > 0:
            raise ConfigError(f"workers = {workers} with gpus = {slots} (allowed: one worker per GPU)")
        self._context = multiprocessing.get_context("spawn")
        self._stop = self._context.Event()
        self._server: SpawnProcess | None = None
        self._events: Connection | None = None  # what the server reports

    def run(self, store: Store, packs: Sequence[list[Run]], listen: Listener) -> bool:
        """Train what has no record yet. False when interrupted: everything so far is kept."""
        packs = [pack for pack in packs if not all(store.has(run) for run in pack)]
        if not packs:
            return True
        try:
            self._start(store, packs)
            for message in self._messages():
                if isinstance(message, InitmemError):
                    raise message
                listen(message)
        except KeyboardInterrupt:
            listen(base.STOPPING)
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
            for _ in self._messages():
                pass
        except KeyboardInterrupt:
            if self._server is not None:
                self._server.kill()  # its workers end with it

    def _start(self, store: Store, packs: list[list[Run]]) -> None:
        """Start the server. It never runs the user's script and loads no user code: either may start threads,
        and no process with threads may fork."""
        # A script that trains at its top level would train within its own workers. A trainer travels by value
        # and does not need the script.
        with _without_main() if self.settings.trainer is not None else contextlib.nullcontext():
            preparation = spawn.get_preparation_data("worker")
        count = min(self.workers, len(packs))
        slots = self.settings.slots or ({},) * count
        places = [_Place(self._devices[i % len(self._devices)], slots[i]) for i in range(count)]
        settings = pickle.dumps(self.settings)
        work = _Work(store.path, store.session, packs, settings, preparation, self._stop)
        self._events, theirs = self._context.Pipe(duplex=False)
        arguments = (theirs, os.getpid(), places, work)
        server = self._server = self._context.Process(target=_serve, args=arguments, daemon=True)

        def start() -> None:
            signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)  # also for the server, until it handles them
            with _without_main():
                server.start()

        with ThreadPoolExecutor(1) as thread:  # Ctrl-C is raised in the main thread, and waits for this one
            thread.submit(int).result()  # while a thread begins, Ctrl-C would lose it with what it starts
            thread.submit(start).result()
        theirs.close()

    def _messages(self) -> Iterator[Event | InitmemError]:
        """What the server reports until it ends."""
        server, events = self._server, self._events
        while server is not None and events is not None:
            alive = server.is_alive()
            with contextlib.suppress(EOFError, OSError):
                while events.poll():
                    yield events.recv()
            if not alive:
                break
            yield Tick()
            wait([events, server.sentinel], timeout=0.5)
        if server is not None and server.exitcode != 0 and not self._stop.is_set():
            yield InitmemError(
                f"the process that starts the workers was lost (exit code {server.exitcode}); all so far is "
                "kept: the same command resumes"
            )


class InlineEngine:
    """Runs without worker processes, where a debugger can follow.

    Ctrl-C stops at once; the run in training starts again next time.
    """

    workers = 1

    def __init__(self, settings: Settings | None = None) -> None:
        settings = settings or Settings()
        # A time limit would end this very process.
        self.settings = replace(
            settings, device=base.devices(settings.device)[0], checkpoint_every=math.inf, timeout=None
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


class _Place(NamedTuple):
    """What one of the workers that are alive at the same time has for itself."""

    device: str
    environment: Mapping[str, str]


class _Work(NamedTuple):
    """What all workers have in common."""

    store: Path
    session: str
    packs: list[list[Run]]
    settings: bytes  # pickled: the server loads no user code
    preparation: dict[str, Any]  # how multiprocessing makes a worker know the user's script
    stop: Any  # the event that asks workers to stop


@dataclass(slots=True)
class _Worker:
    process: BaseProcess
    connection: Connection
    place: _Place
    claimed: frozenset[str] = frozenset()
    stopped: bool = False  # for a mistake of the user

    def messages(self) -> Iterator[Event | InitmemError]:
        """What it has reported since the last time."""
        with contextlib.suppress(EOFError, OSError):
            while self.connection.poll():
                message: Event | InitmemError = self.connection.recv()
                match message:
                    case InitmemError():
                        self.stopped = True
                    case Claimed(runs):
                        self.claimed |= set(runs)
                    case Released(runs):
                        self.claimed -= set(runs)
                    case Finished(runs):
                        self.claimed -= {run_id for run_id, _ in runs}
                yield message


def _serve(events: Connection, session: int, places: list[_Place], work: _Work) -> None:
    """The body of the server: start a worker for every place, pass on what they report, replace those that
    crash, and end with the session, however that ended. Signals are for the session, which asks to stop."""
    for name in SIGNALS:
        signal.signal(name, _do_nothing)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    os.environ["OMP_NUM_THREADS"] = "1"  # before torch is loaded
    multiprocessing.current_process().daemon = False  # those may not start any

    import initmem.engines.worker  # noqa: F401 - the workers have it then

    make_ready()
    # On other systems than Linux, libraries start threads as soon as they are loaded.
    context: Any = multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")
    store = Store(work.store)
    alive: list[_Worker] = []
    crashes = 0  # of workers that had claimed nothing

    def start(place: _Place) -> None:
        ours, theirs = context.Pipe(duplex=False)
        process = context.Process(target=_main, args=(theirs, os.getpid(), place, work), daemon=True)
        process.start()
        theirs.close()
        alive.append(_Worker(process, ours, place))

    def leave() -> NoReturn:
        """The session is gone. Workers ignore SIGTERM, and one whose pipe is full never ends by itself."""
        for worker in alive:
            worker.process.kill()
        os._exit(1)

    def tell(message: Event | InitmemError) -> None:
        try:
            events.send(message)
        except OSError:  # nobody reads it
            leave()

    for place in places:
        start(place)
    while alive:
        wait([w.connection for w in alive] + [w.process.sentinel for w in alive], timeout=0.5)
        if os.getppid() != session:
            leave()
        for worker in list(alive):
            ended = not worker.process.is_alive()
            for message in worker.messages():
                tell(message)
            if not ended:
                continue
            alive.remove(worker)
            # User code can end its process with exit code 0, also before the first claim.
            code = worker.process.exitcode
            left = worker.claimed or any(not store.has(run) for pack in work.packs for run in pack)
            if worker.stopped or work.stop.is_set() or (code == 0 and not left):
                continue
            tell(WorkerLost(code, tuple(sorted(worker.claimed))))
            crashes += not worker.claimed
            if crashes == MOST_CRASHES:  # there is no hope
                tell(InitmemError(f"worker processes die at start-up (exit code {code})"))
            elif crashes < MOST_CRASHES:
                start(worker.place)


def _main(connection: Connection, server: int, place: _Place, work: _Work) -> None:
    """The body of a worker process."""
    import numpy as np

    from initmem.engines.worker import Worker

    np.random.seed()  # noqa: NPY002 - user code without a seed shall not draw the same in every worker
    os.environ.update(place.environment)
    threading.Thread(target=_exit_with, args=(server,), daemon=True).start()
    process: Any = multiprocessing.current_process()
    process._inheriting = True  # a script that starts processes at its top level is told so
    spawn.prepare(work.preparation)
    del process._inheriting
    # Training code may have workers of its own, a data loader's, and starts them as it would elsewhere.
    process.daemon = False
    multiprocessing.set_start_method(None, force=True)

    def send(message: Event | InitmemError) -> None:
        """Report to the server. Without one, end here: in user code an exception would crash the run."""
        try:
            connection.send(message)
        except OSError:
            os._exit(1)

    try:
        store = Store(work.store, session=work.session)
        settings = replace(pickle.loads(work.settings), device=place.device)
        Worker(store, settings, should_stop=work.stop.is_set, listen=send).work(work.packs)
    except InitmemError as error:
        send(error)
    finally:
        atexit._run_exitfuncs()  # a process that was forked ends without


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
