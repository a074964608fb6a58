"""The bundled networks: what trains a pack unless a user brings training code of his own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache

from initmem.data import Dataset, load
from initmem.recipe import Recipe
from initmem.store.record import RunRecord
from initmem.study import Run
from initmem.train.loop import train_pack
from initmem.train.pack import Checkpoint, Pack
from initmem.train.requirements import Precision


def train_bundled(
    runs: Sequence[Run],
    *,
    device: str = "cpu",
    precision: Precision = "float32",
    resume: Sequence[Checkpoint] | None = None,
    on_epoch: Callable[[Pack], None] | None = None,
) -> list[RunRecord]:
    """Train by what the recipe's network asks for."""
    data = dataset(runs[0].recipe)
    return train_pack(runs, data, device=device, precision=precision, resume=resume, on_epoch=on_epoch)


@lru_cache(maxsize=2)
def dataset(recipe: Recipe) -> Dataset:
    """Load a recipe's dataset; packs of one recipe tend to follow each other."""
    return load(recipe)
