"""What every engine promises, is told and reports.

An engine takes a store, packs of runs and a listener, and returns whether it came to the end:

    engine.run(store, packs, listen) -> bool

It promises: when it returns True, every run of every pack has a record. False: it was asked to stop, and all
so far is kept. A user's mistake, or a full disk, is an `InitmemError`, and all so far is kept.
`listen` is called with the events below; an engine far away may report fewer of them.
"""

from __future__ import annotations

import importlib
import math
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, TypeAlias

from initmem.errors import ConfigError, allowed
from initmem.files import explained, is_there, opened
from initmem.recipe import AnyRecipe
from initmem.record import RunRecord, Status
from initmem.store.faults import Cause
from initmem.store.store import Store
from initmem.study import Run

# What trains runs in place of the bundled loop: it takes runs of one recipe and a function to call after
# every epoch with (run, row of its history), which may raise to stop it. It is sent to other processes.
Trainer = Callable[[list[Run], Callable[[Run, dict[str, float]], None]], list[RunRecord]]
ENGINES = ("local", "inline", "ray", "slurm")
LEAST_PAUSE = 0.5  # seconds between two looks at a store
WATCHED_SHARE = 0.1  # of the time is spent on looking at most


class Engine(Protocol):
    """Where runs are executed."""

    settings: Settings  # how it trains packs

    @property
    def workers(self) -> int:
        """How many packs it trains at the same time."""

    def run(self, store: Store, packs: Sequence[list[Run]], listen: Listener) -> bool:
        """Train what has no record yet. False when interrupted: everything so far is kept."""


@dataclass(frozen=True, slots=True)
class Settings:
    """How packs are trained, wherever it is done."""

    device: str = "cpu"
    checkpoint_every: float = 60.0  # seconds
    timeout: float | None = None  # seconds in which a pack has to finish an epoch
    trainer: Trainer | None = None  # None: the networks of recipes
    plugins: tuple[str, ...] = ()  # modules to import: networks and datasets of recipes may come from them
    # Fingerprints of user code by recipe id, of plugins by registered name.
    code: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    about: Mapping[str, Any] = field(default_factory=dict)  # goes into the provenance of every run
    # Environment variables for each of the workers of the local engine; empty: nothing is set.
    slots: tuple[Mapping[str, str], ...] = ()

    def fingerprint(self, recipe: AnyRecipe) -> dict[str, str]:
        """What the user code or the plugins of a recipe are made of; empty where there are none."""
        names = (recipe.id, *(recipe.get(key) for key in ("model", "optimizer", "dataset")))
        used = [self.code[name] for name in names if name in self.code]
        return dict(sorted(item for one in used for item in one.items()))


def engine_named(
    name: str,
    *,
    workers: int | None = None,
    settings: Settings | None = None,
    options: Mapping[str, Any] | None = None,
) -> Engine:
    """An engine by name. Of the options, ray takes `address`, slurm the parameters of its jobs."""
    settings, options = settings or Settings(), dict(options or {})
    if name not in ENGINES:
        raise ConfigError(f"engine = {name!r} ({allowed(ENGINES)})")
    check_device(settings.device)
    if settings.slots and name != "local":
        raise ConfigError(f"gpus = {len(settings.slots)} with engine = {name!r} (allowed: engine = 'local')")
    if name == "slurm":
        from initmem.engines.slurm import SlurmEngine

        return SlurmEngine(workers=workers, settings=settings, options=options)
    address = options.pop("address", None) if name == "ray" else None
    for key, value in options.items():
        usable = "address" if name == "ray" else "none; ray and slurm have some"
        raise ConfigError(f"engine option {key} = {value!r} with engine = {name!r} (allowed: {usable})")
    if name == "ray":
        from initmem.engines.ray import RayEngine

        return RayEngine(workers=workers, settings=settings, address=address)
    from initmem.engines.local import InlineEngine, LocalEngine

    if name == "local":
        return LocalEngine(workers=workers, settings=settings)
    if settings.timeout is not None:
        raise ConfigError(f"timeout = {settings.timeout:g} with engine = 'inline' (allowed: 'local')")
    return InlineEngine(settings)


def library(name: str, engine: str) -> Any:
    """What an engine needs besides this package."""
    try:
        return importlib.import_module(name)
    except ImportError:
        raise ConfigError(f"engine = {engine!r} (needs {name}: pip install 'initmem[{engine}]')") from None


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def check_device(device: str) -> None:
    """Refuse what is no device anywhere."""
    if not re.fullmatch(r"cpu|cuda(:[0-9]+)?", device):
        raise ConfigError(f"device = {device!r} (allowed: cpu, cuda, cuda:N)")


def devices(device: str) -> list[str]:
    """A device for each pack that this machine trains at the same time: a core, or a whole GPU.

    `cuda` stands for all GPUs.
    """
    check_device(device)
    if device == "cpu":
        return ["cpu"] * cores()
    import torch

    gpus = [f"cuda:{i}" for i in range(torch.cuda.device_count()) if device in ("cuda", f"cuda:{i}")]
    if not gpus:
        raise ConfigError(f"device = {device!r} (PyTorch finds no such GPU on this machine; allowed: cpu)")
    return gpus


GPU_SLOT = "INITMEM_GPU"  # the number of a worker's GPU, for programs that choose it themselves


def gpu_slots(gpus: int | None, *, chosen_by_program: bool = False) -> tuple[dict[str, str], ...]:
    """What tells each of several workers its own GPU; without `gpus` nothing does.

    A worker sees no other GPU than its own, unless its program chooses the GPU by its number.
    """
    if gpus is None:
        return ()
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = visible.split(",") if visible else [str(slot) for slot in range(gpus)]
    if not 1 <= gpus <= len(names):
        limit = f"1 to {len(names)}, as CUDA_VISIBLE_DEVICES = {visible}" if visible else "from 1"
        raise ConfigError(f"gpus = {gpus} (allowed: {limit})")
    if chosen_by_program:
        return tuple({GPU_SLOT: str(slot)} for slot in range(gpus))
    return tuple({"CUDA_VISIBLE_DEVICES": name.strip()} for name in names[:gpus])


class Claimed(NamedTuple):
    """A worker has claimed runs and begins to train them."""

    runs: tuple[str, ...]


class Released(NamedTuple):
    """A worker was asked to stop, or lost its claims: it gives the runs back."""

    runs: tuple[str, ...]


class EpochEnded(NamedTuple):
    """Runs of one pack have finished an epoch."""

    runs: tuple[str, ...]
    epoch: int


class Finished(NamedTuple):
    """Runs have a record, each with its status."""

    runs: tuple[tuple[str, Status], ...]


class Faulted(NamedTuple):
    """Training raised: the runs are tried again in smaller packs."""

    cause: Cause
    runs: tuple[str, ...]


class WorkerLost(NamedTuple):
    """A worker process ended with runs claimed; another worker takes them over."""

    exit_code: int | None
    runs: tuple[str, ...]


class Note(NamedTuple):
    """Something that the user should know."""

    text: str


STOPPING = Note("stopping: workers write their checkpoints; Ctrl-C again stops at once")


class Tick(NamedTuple):
    """Nothing in particular happened: the engine is alive."""


Event: TypeAlias = Claimed | Released | EpochEnded | Finished | Faulted | WorkerLost | Note | Tick
Listener: TypeAlias = Callable[[Event], None]


def ignore(event: Event) -> None:
    """Listen to nothing."""


class Budget:
    """Keeps repeated work within a share of the time, with at least `least` seconds between repetitions."""

    def __init__(self, share: float, least: float) -> None:
        self._share, self._least = share, least
        self._next = -math.inf

    def rest(self) -> float:
        """Seconds until the work may be repeated."""
        return self._next - time.monotonic()

    @contextmanager
    def spending(self) -> Iterator[None]:
        """Time the work inside; work done before it is due adds to the wait."""
        began = time.monotonic()
        try:
            yield
        finally:
            ended = time.monotonic()
            pause = (ended - began) * (1 / self._share - 1)
            self._next = max(self._next + pause, ended + max(self._least, pause))


class StoreWatch:
    """Reports what happens to runs that other machines train, from the files of their store."""

    def __init__(self, store: Store, packs: Iterable[list[Run]], listen: Listener) -> None:
        self.store, self.listen = store, listen
        self.left = {run.id: run for pack in packs for run in pack if not store.has(run)}
        self._epochs: dict[str, int] = {}
        self._budget = Budget(WATCHED_SHARE, LEAST_PAUSE)

    def look(self, *, at_once: bool = False) -> None:
        """Report finished runs and new epochs; unless told so, not more often than the store can bear."""
        if self._budget.rest() > 0 and not at_once:
            return
        with self._budget.spending():
            for run in list(self.left.values()):
                if self.store.has(run):
                    del self.left[run.id]
                    self.listen(Finished(((run.id, self.store.read(run.id).status),)))
                elif (epoch := self.store.live.epochs(run.id)) != self._epochs.get(run.id, 0):
                    self._epochs[run.id] = epoch
                    self.listen(EpochEnded((run.id,), epoch))


class StopSign:
    """A file that asks the workers of one session, on whatever machine, to stop. An engine removes it."""

    def __init__(self, store: Store) -> None:
        self.root, self.path = store.path, store.paths.stop_sign(store.session)

    def is_up(self) -> bool:
        """Whether the workers shall stop."""
        return is_there(self.path)

    def put_up(self) -> None:
        """Ask them to."""
        with explained(self.root):
            opened(self.path, 0).close()
