"""Packed against alone: how much faster plain modules train in a pack, and how far their trajectories differ.

    python benchmarks/module_packs.py [--replicas 8] [--trials 5]

One core, float32, processor time. A trial is one epoch alone and one in the pack, in turn; medians count. The
difference is the largest relative one between the kernel norms of a replica in the pack and alone after an
epoch, in float64.
"""

from __future__ import annotations

import argparse
import platform
import re
import statistics
import time
from pathlib import Path

import torch

from initmem.data.sources import load
from initmem.recipe import Recipe
from initmem.study import Run
from initmem.train.loop import train_epoch
from initmem.train.pack import Pack

PAGE = Path(__file__).parents[1] / "docs" / "plugins.md"
BASE = {"batch_size": 32, "epochs": 100, "optimizer": "adam", "learning_rate": 1e-3}
DIGITS = {"dataset": "digits", "train_size": 320}
SUMS = {"dataset": "modular-addition:31", "depth": 1}
WORKLOADS = {
    "mlp, digits, width 32": {"model": "mlp", "width": 32, **DIGITS},
    "vit, digits, width 16": {"model": "vit", "width": 16, "depth": 2, "heads": 2, **DIGITS},
    "vit, digits, width 64": {"model": "vit", "width": 64, **DIGITS},
    "gpt, sums modulo 31, width 32": {"model": "gpt", "width": 32, **SUMS},
    "gpt, sums modulo 31, width 128": {"model": "gpt", "width": 128, **SUMS},
    "convmixer of the page, digits, width 8": {"model": "convmixer", "width": 8, **DIGITS},
}  # fmt: skip


def seconds_per_run(recipe: Recipe, sizes: tuple[int, ...], trials: int) -> list[float]:
    """Processor time of an epoch per run, in packs of these sizes."""
    data = load(recipe)
    packs = [Pack([Run(recipe, 1.0, seed) for seed in range(n)], data) for n in sizes]
    times: list[list[float]] = [[] for _ in packs]
    for trial in range(trials + 1):
        for pack, mine in zip(packs, times, strict=True):
            started = time.process_time()
            train_epoch(pack)
            if trial:  # the first epoch warms up
                mine.append((time.process_time() - started) / pack.replicas)
    return [statistics.median(mine) for mine in times]


def difference(recipe: Recipe, replicas: int) -> float:
    data = load(recipe)
    runs = [Run(recipe, 0.5 + seed, seed) for seed in range(replicas)]
    packed = Pack(runs, data, dtype=torch.float64)
    train_epoch(packed)
    worst = 0.0
    for run, rows in zip(runs, packed.history, strict=True):
        alone = Pack([run], data, dtype=torch.float64)
        train_epoch(alone)
        (expected,) = alone.history[0]["norm"]
        worst = max(worst, abs(rows["norm"][0] - expected) / expected)
    return worst


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--replicas", type=int, default=8)
    asked.add_argument("--trials", type=int, default=5)
    options = asked.parse_args()
    torch.set_num_threads(1)
    exec(re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), flags=re.M | re.S)[0], {})  # the plugin
    print(f"{platform.processor() or platform.machine()}, torch {torch.__version__}, one core")
    print(f"{'network':<40}{'alone':>10}{'in a pack':>11}{'faster':>8}{'difference':>12}")
    for name, values in WORKLOADS.items():
        recipe = Recipe.parse(BASE | values)
        alone, packed = seconds_per_run(recipe, (1, options.replicas), options.trials)
        gap = difference(recipe, min(3, options.replicas))
        print(f"{name:<40}{1e3 * alone:>7.0f} ms{1e3 * packed:>8.0f} ms{alone / packed:>8.2f}{gap:>12.1e}")


if __name__ == "__main__":
    main()
