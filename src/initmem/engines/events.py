"""What workers and engines report while runs are trained. Runs are named by their ids."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from initmem.store.faults import Cause
from initmem.store.record import Status


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
    """Training raised: the runs are tried again in smaller packs, or recorded as failed."""

    cause: Cause
    runs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class WorkerLost:
    """A worker process ended with runs claimed; another worker takes them over."""

    exit_code: int | None
    runs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Stopping:
    """The user asked the engine to stop."""


@dataclass(frozen=True, slots=True)
class Tick:
    """Nothing in particular happened: the engine is alive."""


Event: TypeAlias = Claimed | EpochEnded | Finished | Released | Faulted | WorkerLost | Stopping | Tick
Listener: TypeAlias = Callable[[Event], None]


def ignore(event: Event) -> None:
    """Listen to nothing."""
