"""How the cost of a study grows: with its runs, replicas per pack, cores, and the width of the network.

    python benchmarks/growth.py

Every line is one study of the local engine with a store, timed from the first claim to the last record, so
without the start of processes; for the width, the epochs after the first. Prints Markdown.
"""

from __future__ import annotations

import os
import platform
import statistics
import tempfile
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import torch
from bench.compare import gemm_limit

from initmem.data.sources import sizes
from initmem.engines.engine import Claimed, EpochEnded, Event, cores
from initmem.engines.local import LocalEngine
from initmem.engines.packs import packs
from initmem.recipe import Recipe
from initmem.store.store import Store
from initmem.study import Study
from initmem.study_file import load_study
from initmem.train.requirements import flops_per_image

SMALL = load_study("quickstart").recipes[0].model_copy(update={"epochs": 3})


def seconds(recipe: Recipe, *, runs: int, pack: int, workers: int, warm_up: bool = False) -> float:
    """From the first claim to the last record; or of an epoch, when the first has warmed up all workers."""
    study = Study("growth", "", "growth", "", (recipe,), (1.0,), tuple(range(runs)))
    cut = packs(study, size=pack, workers=workers)
    claimed: list[float] = []
    epochs: dict[str, list[float]] = {}

    def listen(event: Event) -> None:
        if isinstance(event, Claimed):
            claimed.append(time.perf_counter())
        elif isinstance(event, EpochEnded):
            epochs.setdefault(event.runs[0], []).append(time.perf_counter())

    with tempfile.TemporaryDirectory() as folder:
        LocalEngine(workers=workers).run(Store.create(Path(folder) / "store"), cut, listen)
    if warm_up:
        return statistics.mean(b - a for ends in epochs.values() for a, b in pairwise(ends))
    return time.perf_counter() - claimed[0]


def show(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    print(f"\n{title}\n\n| {' | '.join(columns)} |\n|{'---|' * len(columns)}")
    for row in rows:
        print(f"| {' | '.join(str(cell) for cell in row)} |", flush=True)


def main() -> None:
    all_cores = cores()
    machine = f"{all_cores} cores, {platform.machine()}, torch {torch.__version__}"
    print(f"{machine}, Python {platform.python_version()}, load {os.getloadavg()[0]:.1f} at the start")
    small = f"{SMALL.model} w{SMALL.width}, digits, batch {SMALL.batch_size}, {SMALL.epochs} epochs"

    rows = []
    for runs in (10, 20, 40, 80):
        spent = seconds(SMALL, runs=runs, pack=min(10, runs // all_cores), workers=all_cores)
        rows.append((runs, f"{spent:.1f}", f"{spent / runs:.2f}"))
    show(f"Runs ({small}; packs of up to 10, all cores)", ("runs", "seconds", "per run"), rows)

    rows = []
    for pack in (1, 2, 5, 10, 20):
        spent = seconds(SMALL, runs=40, pack=pack, workers=all_cores)
        rows.append((pack, f"{spent:.1f}", f"{spent / 40:.2f}"))
    show(f"Replicas per pack ({small}; 40 runs, all cores)", ("pack", "seconds", "per run"), rows)

    rows = []
    for workers in dict.fromkeys([1, *range(2, all_cores, 2), all_cores]):
        spent = seconds(SMALL, runs=40, pack=10, workers=workers)
        rows.append((workers, f"{spent:.1f}", f"{spent / 40:.2f}"))
    show(f"Cores ({small}; 40 runs, packs of 10)", ("cores", "seconds", "per run"), rows)

    limit, rows = gemm_limit(), []
    for width in (4, 8, 16, 32):
        wide = Recipe(
            dataset="synthetic:1280x3x32x32", model="resnet9", width=width, batch_size=128, epochs=3
        )
        shape, count = sizes(wide), flops_per_image(wide, sizes(wide))
        spent = seconds(wide, runs=all_cores, pack=1, workers=all_cores, warm_up=True)
        work = all_cores * (shape.n_train * count.training + shape.n_val * count.forward)
        images = f"{1e6 * spent / shape.n_train:.0f}"
        rows.append((width, f"{spent:.1f}", images, f"{work / spent / limit:.2f}"))
    title = f"Width (resnet9, 1280 32x32 images, batch 128, a run per core; limit {limit / 1e9:.0f} GFLOP/s)"
    show(
        title,
        ("width", "seconds per epoch", "µs per training image", "share of the GEMM limit"),
        rows,
    )


if __name__ == "__main__":
    main()
