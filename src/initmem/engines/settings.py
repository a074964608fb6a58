"""What every engine is told: what trains a pack, on what device, how often to save, how long to wait.

An engine takes a store, packs of runs and a listener, and says whether it came to the end:

    engine.run(store, packs, listen) -> bool

It promises: when it returns True, every run of every pack has a record. False: it was asked to stop, all so
far is kept. A user's mistake, or a full disk, is an `InitmemError`: all so far is kept, too.
`listen` hears events (`initmem.engines.events`); an engine far away may report fewer of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from initmem.engines.events import Listener
from initmem.store.record import RunRecord
from initmem.store.store import Store
from initmem.study import Run
from initmem.train.requirements import Precision

# What trains runs in place of the bundled loop: it takes runs of one recipe and a function to call after
# every epoch with (run, row of its history), which may raise to stop it. It is sent to other processes.
Trainer = Callable[[list[Run], Callable[[Run, dict[str, float]], None]], list[RunRecord]]


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
    checkpoint_every: float = 60.0  # seconds
    timeout: float | None = None  # seconds in which a pack has to finish an epoch
    trainer: Trainer | None = None  # None: the bundled networks
