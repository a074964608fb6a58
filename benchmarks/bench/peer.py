"""What every peer's process does alike: read its task, make the data, wait for the start, tell the times.

A peer runs as `python -m benchmarks.bench.peer_NAME TASK`; TASK is the JSON of `Workload.spec` and settings.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

Part = tuple[
    Any, Any
]  # images (example, height, width, channel) as floats, or tokens (example, token); labels


def task() -> dict[str, Any]:
    """The task of this process. Threads are limited before any framework is loaded."""
    found: dict[str, Any] = json.loads(sys.argv[1])
    if found["threads"]:
        for name in ("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "MKL_NUM_THREADS"):
            os.environ[name] = str(found["threads"])
        os.environ["TF_NUM_INTEROP_THREADS"] = "1"
    return found


def examples(sizes: dict[str, int]) -> tuple[Part, Part, Part]:
    """Random images or tokens of the workload's size: training, validation and test."""
    rng = np.random.default_rng(0)
    shape = (sizes["height"], sizes["width"], sizes["channels"])

    def part(n: int) -> Part:
        if sizes["vocabulary"]:  # every token has a label
            tokens = rng.integers(0, sizes["vocabulary"], (n, sizes["width"]))
            return tokens, rng.integers(0, sizes["classes"], (n, sizes["labels"]))
        return rng.random((n, *shape), dtype=np.float32), rng.integers(0, sizes["classes"], n)

    return part(sizes["n_train"]), part(sizes["n_val"]), part(sizes["n_test"])


def start() -> None:
    """Say that everything is loaded, and wait for the others."""
    print("ready", flush=True)
    sys.stdin.readline()


class Laps:
    """Times of the epochs; the first includes building, tracing and compiling."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self._last = time.perf_counter()

    def lap(self) -> None:
        """An epoch has ended."""
        now = time.perf_counter()
        self.seconds.append(now - self._last)
        self._last = now

    def tell(self, after: Callable[[], object]) -> None:
        """Finish the run and print its times."""
        started = time.perf_counter()
        after()
        print(json.dumps({"epochs": self.seconds, "end": time.perf_counter() - started}), flush=True)
