"""What every engine is told, on which devices it trains, and what it reports.

An engine takes a store, packs of runs and a listener, and says whether it came to the end:

    engine.run(store, packs, listen) -> bool

It promises: when it returns True, every run of every pack has a record. False: it was asked to stop, all so
far is kept. A user's mistake, or a full disk, is an `InitmemError`: all so far is kept, too.
`listen` hears the events below; an engine far away may report fewer of them.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias, get_args

from initmem.errors import ConfigError, allowed
from initmem.recipe import AnyRecipe
from initmem.record import RunRecord, Status
from initmem.store.faults import Cause
from initmem.store.store import Store
from initmem.study import Run
from initmem.train.requirements import Compile, Precision

# What trains runs in place of the bundled loop: it takes runs of one recipe and a function to call after
# every epoch with (run, row of its history), which may raise to stop it. It is sent to other processes.
Trainer = Callable[[list[Run], Callable[[Run, dict[str, float]], None]], list[RunRecord]]
ENGINES = ("local", "ray", "slurm")
DEVICES = "allowed: cpu, cuda, cuda:N, mps"


class Engine(Protocol):
    """Where runs are executed."""

    @property
    def workers(self) -> int:
        """How many packs it has in hand at a time."""

    @property
    def settings(self) -> Settings:
        """How it trains packs."""

    def run(self, store: Store, packs: Sequence[list[Run]], listen: Listener) -> bool:
        """Train what has no record yet. False when interrupted: everything so far is kept."""


@dataclass(frozen=True, slots=True)
class Settings:
    """How packs are trained, wherever it is done."""

    device: str = "cpu"
    slots: int = 1  # packs that share a GPU
    precision: Precision = "float32"
    compile: Compile = "none"
    checkpoint_every: float = 60.0  # seconds
    timeout: float | None = None  # seconds in which a pack has to finish an epoch
    trainer: Trainer | None = None  # None: the networks of recipes
    plugins: tuple[str, ...] = ()  # modules to import: networks and datasets of recipes may come from them
    # Fingerprints of user code by recipe id, of plugins by registered name.
    code: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.compile not in get_args(Compile):
            raise ConfigError(f"compile = {self.compile!r} ({allowed(get_args(Compile))})")
        if self.compile == "graphs" and self.trainer is not None:
            raise ConfigError("compile = 'graphs' with your own training code (allowed: none)")
        if self.compile == "graphs" and not self.device.startswith("cuda"):
            given = f"compile = 'graphs' with device = {self.device!r}"
            raise ConfigError(f"{given} (allowed: none; graphs with device cuda or cuda:N)")

    def code_of(self, recipe: AnyRecipe) -> dict[str, Any]:
        """For the provenance of a record: the fingerprint of the user code, or of the plugins, it uses."""
        found = self.fingerprint(recipe)
        return {"fingerprint": found} if found else {}

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
    address: str | None = None,
    records_travel: bool = False,
    slurm: Sequence[str] = (),
) -> Engine:
    """An engine and what it is told; an option that it does not know is a mistake."""
    if name not in ENGINES:
        raise ConfigError(f"engine = {name!r} ({allowed(ENGINES)})")
    if name != "ray" and (address is not None or records_travel):
        raise ConfigError(f"address and records-travel with engine = {name!r} (allowed: with engine ray)")
    if name != "slurm" and slurm:
        raise ConfigError(f"slurm = {slurm[0]!r} with engine = {name!r} (allowed: with engine slurm)")
    if name == "ray":
        from initmem.engines.ray import RayEngine

        return RayEngine(workers=workers, settings=settings, address=address, records_travel=records_travel)
    if name == "slurm":
        from initmem.engines.slurm import SlurmEngine

        return SlurmEngine(workers=workers, settings=settings, options=slurm)
    from initmem.engines.local import LocalEngine

    return LocalEngine(workers=workers, settings=settings)


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def check_device(device: str, slots: int = 1) -> None:
    """Refuse what is no device anywhere."""
    if not re.fullmatch(r"cpu|mps|cuda(:[0-9]+)?", device):
        raise ConfigError(f"device = {device!r} ({DEVICES})")
    if slots < 1 or (device == "cpu" and slots > 1):
        raise ConfigError(f"slots = {slots} with device = {device!r} (allowed: 1; more on a GPU)")


def check_cluster_device(device: str, slots: int = 1) -> None:
    """Refuse what no node of a cluster has: clusters count GPUs of NVIDIA's kind only."""
    check_device(device, slots)
    if device == "mps":
        raise ConfigError("device = 'mps' on a cluster (allowed: cpu, cuda, cuda:N; or engine = 'local')")


def places(device: str, slots: int = 1) -> list[str]:
    """A device for each pack that this machine trains at the same time.

    A core is a place, a GPU has `slots` of them. The GPUs come in turn, so that a few packs share none.
    """
    check_device(device, slots)
    if device == "cpu":
        return ["cpu"] * cores()
    if not (found := _gpus(device)):
        raise ConfigError(f"device = {device!r} (PyTorch finds no such GPU on this machine; allowed: cpu)")
    return found * slots


def _gpus(device: str) -> list[str]:
    """All GPUs that `cuda` stands for, or the one that is named; `mps` is the one GPU of a Mac."""
    import torch

    if device == "mps":
        return ["mps"] if torch.backends.mps.is_available() else []
    found = [f"cuda:{i}" for i in range(torch.cuda.device_count())]
    return found if device == "cuda" else [name for name in found if name == device]


@contextlib.contextmanager
def operations_of(device: str) -> Iterator[None]:
    """Say in one line what PyTorch cannot do on an Apple GPU, rather than train nothing run by run."""
    try:
        yield
    except (NotImplementedError, TypeError) as error:
        if device != "mps" or "MPS" not in str(error):
            raise
        missing = re.search(r"aten::[\w.]+|float64", str(error))
        raise ConfigError(
            f"device = 'mps': PyTorch has no {missing[0] if missing else 'such operation'} on Apple GPUs "
            "(allowed: --device cpu; or the variable PYTORCH_ENABLE_MPS_FALLBACK=1: the CPU then does it)"
        ) from error


@dataclass(frozen=True, slots=True)
class Claimed:
    """A worker has claimed runs and begins to train them."""

    runs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class EpochEnded:
    """Runs of one pack have finished an epoch."""

    runs: tuple[str, ...]
    epoch: int


@dataclass(frozen=True, slots=True)
class Finished:
    """Runs have a record, each with its status."""

    runs: tuple[tuple[str, Status], ...]


@dataclass(frozen=True, slots=True)
class Released:
    """A worker was asked to stop and gave its runs back."""

    runs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Faulted:
    """Training raised: the runs are tried again in smaller packs, or recorded as crashed."""

    cause: Cause
    runs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class WorkerLost:
    """A worker process ended with runs claimed; another worker takes them over."""

    exit_code: int | None
    runs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class MovedAside:
    """Damaged files of the store are out of the way: each with the reason, and where it is now."""

    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Stopping:
    """The user asked the engine to stop."""


@dataclass(frozen=True, slots=True)
class Tick:
    """Nothing in particular happened: the engine is alive."""


Event: TypeAlias = (
    Claimed | EpochEnded | Finished | Released | Faulted | WorkerLost | MovedAside | Stopping | Tick
)
Listener: TypeAlias = Callable[[Event], None]


def ignore(event: Event) -> None:
    """Listen to nothing."""
