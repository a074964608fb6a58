"""Trainers that misbehave, where every worker process can import them."""

from __future__ import annotations

import atexit
import json
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from initmem.data.sources import load
from initmem.errors import StoreError
from initmem.record import RunRecord
from initmem.study import Run


def train_bundled(runs: list[Run], **how: Any) -> list[RunRecord]:
    """Train runs as they are trained without a trainer."""
    from initmem.train.loop import train_pack  # it loads torch, which drivers do without

    return train_pack(runs, load(runs[0].recipe), **how)


def bad(runs, on_epoch):
    """Of the first four runs of the study, the second raises, and the last two are a mistake."""
    if runs[0].scale == 2.0:
        raise StoreError("the store is gone")
    if any(run.scale == 1.0 for run in runs):
        raise ValueError("the odd one")
    return train_bundled(runs)


@dataclass
class Deadly:
    """User code that ends its process at scale 2: it is killed, or leaves with code 0 as if all were well."""

    folder: Path

    def __call__(self, runs: list[Run], on_epoch: object) -> list[RunRecord]:
        if runs[0].scale == 2.0:
            deaths = len(list(self.folder.glob("death-*")))
            (self.folder / f"death-{deaths}").touch()
            if deaths % 2:
                os._exit(0)
            os.kill(os.getpid(), signal.SIGKILL)
        return train_bundled(runs)


class LeavesOnArrival:
    """User code that ends every process it is sent to as if all were well, before anything is claimed."""

    def __reduce__(self) -> tuple[object, ...]:
        return os._exit, (0,)

    def __call__(self, runs: list[Run], on_epoch: object) -> list[RunRecord]:
        raise AssertionError("nothing is trained here")


@dataclass
class Surroundings:
    """User code that notes where it is. Each of two runs waits for the other: both have a worker."""

    folder: Path

    def __call__(self, runs: list[Run], on_epoch: object) -> list[RunRecord]:
        import numpy as np

        atexit.register((self.folder / f"left-{os.getpid()}").touch)
        print("printed by a worker", flush=True)
        tasks = list(Path(f"/proc/{os.getppid()}/task").iterdir())
        found = {
            "variable": os.environ["A_VARIABLE"],
            "folder": str(Path.cwd()),
            "threads of the server": len(tasks),
            "draw": np.random.rand(),  # noqa: NPY002 - as much user code does
        }
        (self.folder / f"found-{os.getpid()}.json").write_text(json.dumps(found))
        while len(list(self.folder.glob("found-*.json"))) < 2:
            time.sleep(0.02)
        return train_bundled(runs)
