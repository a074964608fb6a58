"""The local engine: one process per core, one thread each."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from initmem.errors import InitmemError
from initmem.record import failed
from initmem.store import Store
from initmem.study import Run

if TYPE_CHECKING:
    from initmem.engines.worker import Trainer

MOST_CRASHES = 3  # of one pack, in one session; then it is recorded as failed

Listener = Callable[[str, Any], None]


@dataclass(slots=True)
class _Process:
    process: SpawnProcess
    connection: Connection
    claimed: list[str] = field(default_factory=list)


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class LocalEngine:
    """Runs workers as processes of this machine, and replaces the ones that crash."""

    def __init__(
        self,
        *,
        workers: int | None = None,
        device: str = "cpu",
        checkpoint_every: float = 60.0,
        trainer: Trainer | None = None,
    ) -> None:
        self.workers, self.trainer = workers or cores(), trainer
        self.device, self.checkpoint_every = device, checkpoint_every
        self._context = multiprocessing.get_context("spawn")
        self._stop = self._context.Event()
        self._crashes: Counter[str] = Counter()

    def run(self, store: Store, packs: Sequence[list[Run]], listen: Listener) -> bool:
        """Train what has no record yet. False when interrupted: everything so far is kept."""
        packs = [pack for pack in packs if not all(store.has(run) for run in pack)]
        count = min(self.workers, len(packs))
        alive = [self._start(store, packs) for _ in range(count)]
        try:
            while alive:
                alive = self._tend(store, packs, alive, listen)
        except KeyboardInterrupt:
            listen("stopping", None)
            self._wind_down(alive)
            return False
        return True

    def _tend(
        self, store: Store, packs: Sequence[list[Run]], alive: list[_Process], listen: Listener
    ) -> list[_Process]:
        """Pass on what the workers say; replace those that crashed."""
        wait([p.connection for p in alive] + [p.process.sentinel for p in alive], timeout=0.5)
        kept: list[_Process] = []
        for worker in alive:
            _drain(worker, listen)
            if worker.process.is_alive():
                kept.append(worker)
                continue
            _drain(worker, listen)  # what it said between the last look and its end
            if worker.process.exitcode != 0:
                self._after_crash(store, packs, worker, listen)
                kept.append(self._start(store, packs))
        listen("tick", None)
        return kept

    def _after_crash(
        self, store: Store, packs: Sequence[list[Run]], worker: _Process, listen: Listener
    ) -> None:
        """A crash costs the worker's own pack a retry; a pack that keeps crashing is given up."""
        code = worker.process.exitcode
        key = worker.claimed[0] if worker.claimed else "start-up"
        self._crashes[key] += 1
        listen("crash", (code, worker.claimed))
        if self._crashes[key] < MOST_CRASHES:
            return
        if not worker.claimed:
            raise InitmemError(f"worker processes die at start-up (exit code {code})")
        runs = [run for pack in packs for run in pack if run.id in set(worker.claimed)]
        error = f"the worker process was lost {MOST_CRASHES} times (exit code {code})"
        lost = store.claim(runs)
        store.commit([failed(run, error, {"attempts": store.attempt(run)}) for run in lost])
        listen("done", [(run.id, "failed") for run in lost])

    def _start(self, store: Store, packs: Sequence[list[Run]]) -> _Process:
        ours, theirs = self._context.Pipe(duplex=False)
        settings = (store.path, list(packs), self.device, self.checkpoint_every, self.trainer)
        process = self._context.Process(
            target=_main, args=(theirs, self._stop, os.getpid(), *settings), daemon=True
        )
        skip_script = _without_main() if self.trainer is not None else contextlib.nullcontext()
        with skip_script:
            process.start()
        theirs.close()
        return _Process(process, ours)

    def _wind_down(self, alive: list[_Process]) -> None:
        """Let every worker finish its epoch and write its checkpoint; a second Ctrl-C ends them."""
        self._stop.set()
        try:
            for worker in alive:
                worker.process.join()
        except KeyboardInterrupt:
            for worker in alive:
                worker.process.terminate()


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
            kind, content = worker.connection.recv()
            if kind == "claimed":
                worker.claimed = content
            elif kind in ("done", "released"):
                worker.claimed = []
            listen(kind, content)


def _main(
    connection: Connection,
    stop: Any,
    parent: int,
    path: Path,
    packs: list[list[Run]],
    device: str,
    every: float,
    trainer: Trainer | None,
) -> None:
    """The body of a worker process. Ctrl-C goes to the parent, which asks the workers to stop."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ["OMP_NUM_THREADS"] = "1"  # before torch is loaded

    import torch

    from initmem.engines.worker import Worker, die_with_parent

    # Training code may have workers of its own, a data loader's, and starts them as it would elsewhere.
    multiprocessing.current_process().daemon = False
    multiprocessing.set_start_method(None, force=True)
    die_with_parent(parent)
    torch.set_num_threads(1)
    worker = Worker(
        Store(path),
        device=device,
        should_stop=stop.is_set,
        report=lambda kind, content: connection.send((kind, content)),
        checkpoint_every=every,
        trainer=trainer,
    )
    worker.work(packs)
