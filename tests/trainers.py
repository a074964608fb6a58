"""Trainers that misbehave, where every worker process can import them."""

from __future__ import annotations

import os

from initmem.engines.training import train_bundled
from initmem.errors import StoreError
from initmem.record import RunRecord
from initmem.study import Run


def bad(runs, on_epoch):
    """Of the first four runs of the study, the second raises, and the last two are a mistake."""
    if runs[0].scale == 2.0:
        raise StoreError("the store is gone")
    if any(run.scale == 1.0 for run in runs):
        raise ValueError("the odd one")
    return train_bundled(runs)


def leaves_quietly(runs: list[Run], on_epoch: object) -> list[RunRecord]:
    """User code that ends its process as if all were well."""
    os._exit(0)


class LeavesOnArrival:
    """User code that ends every process it is sent to as if all were well, before anything is claimed."""

    def __reduce__(self) -> tuple[object, ...]:
        return os._exit, (0,)

    def __call__(self, runs: list[Run], on_epoch: object) -> list[RunRecord]:
        raise AssertionError("nothing is trained here")
