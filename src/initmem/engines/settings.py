"""What every engine is told: what trains a pack, on what device, how often to save, how long to wait.

An engine takes a store, packs of runs and a listener, and says whether it came to the end:

    engine.run(store, packs, listen) -> bool

It promises: when it returns True, every run of every pack has a record. False: it was asked to stop, all so
far is kept. A mistake of the user, or a disk that is full, is an `InitmemError`: all so far is kept too.
`listen(kind, content)` hears `claimed` [id], `epoch` ([id], epoch), `done` [(id, status)], `released` [id],
`fault` (cause, [id]), `crash` (exit code, [id]), `stopping` and `tick`; it may hear less.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Protocol

from initmem.data import Dataset, load
from initmem.recipe import Recipe
from initmem.record import RunRecord
from initmem.store import Store
from initmem.study import Run

if TYPE_CHECKING:
    from initmem.train.pack import Checkpoint, Rows

Listener = Callable[[str, Any], None]


class Engine(Protocol):
    """Where runs are executed."""

    @property
    def workers(self) -> int:
        """How many packs are trained at the same time."""

    def run(self, store: Store, packs: Sequence[list[Run]], listen: Listener) -> bool:
        """Train what has no record yet."""


class Progress(Protocol):
    """What a trainer shows of a pack after each epoch."""

    @property
    def epoch(self) -> int:
        """The last finished epoch."""

    @property
    def finished(self) -> bool:
        """Whether no epoch is left."""

    @property
    def history(self) -> Sequence[Rows]:
        """The rows of every run so far."""

    def checkpoint(self) -> Sequence[Checkpoint]:
        """One checkpoint per run."""


class Trainer(Protocol):
    """What trains a pack. It is handed to the worker processes, so it must be a function of a module."""

    def __call__(
        self,
        runs: Sequence[Run],
        *,
        device: str,
        resume: Sequence[Checkpoint] | None,
        on_epoch: Callable[[Progress], None],
    ) -> Sequence[RunRecord]:
        """Train the runs and return their records; what `on_epoch` raises ends it."""


def train_recipe(
    runs: Sequence[Run],
    *,
    device: str,
    resume: Sequence[Checkpoint] | None,
    on_epoch: Callable[[Progress], None],
) -> Sequence[RunRecord]:
    """Train by what the recipe's network asks for."""
    from torch import device as named

    from initmem.train.loop import hardware, train_pack

    if runs[0].recipe.model == "linear":  # seconds of work at the most: no checkpoint is worth it
        from initmem.theory.records import train_linear

        processor = hardware(named("cpu"))
        return [record.noted(hardware=processor) for record in train_linear(runs)]
    return train_pack(runs, dataset(runs[0].recipe), device=device, resume=resume, on_epoch=on_epoch)


@lru_cache(maxsize=2)
def dataset(recipe: Recipe) -> Dataset:
    """Load a recipe's dataset; packs of one recipe tend to follow each other."""
    return load(recipe)


@dataclass(frozen=True, slots=True)
class Settings:
    """How packs are trained, wherever it is done."""

    device: str = "cpu"
    checkpoint_every: float = 60.0  # seconds
    timeout: float | None = None  # seconds in which a pack has to finish an epoch
    trainer: Trainer = train_recipe
