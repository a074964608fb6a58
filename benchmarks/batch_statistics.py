"""How batch norm should be evaluated after an epoch: three estimates of its statistics against the best one.

    python benchmarks/batch_statistics.py        # minutes

The same training (1,078 digits, width 4, batch size 16, 30 epochs, 3 scales x 3 seeds) is validated after
every epoch with moving averages (Keras), with moving averages without their starting value,
(v - 0.99^k v_0) / (1 - 0.99^k), and with means over the first 50 batches of the epoch. The reference is the
mean over all batches.
Printed: root mean square differences of validation accuracy to the reference, in points, over the first ten
epochs and the others, and the time of the re-estimation as a share of the training time.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import torch

from initmem.data.sources import load
from initmem.labels import informative, label
from initmem.recipe import Recipe
from initmem.study import Run
from initmem.train import loop
from initmem.train.layers import MOVING_AVERAGE
from initmem.train.pack import Pack

BASE = {"dataset": "digits", "width": 4, "batch_size": 16, "epochs": 30}
RECIPES: tuple[dict[str, Any], ...] = (
    {"optimizer": "sgd", "learning_rate": 1e-3},
    {"optimizer": "adam", "learning_rate": 1e-3},
    {"optimizer": "adam", "learning_rate": 1e-2},
    {"optimizer": "sgd", "learning_rate": 1e-1, "l2": 1e-2},
)


def accuracy(pack: Pack) -> np.ndarray[Any, Any]:
    return 100 * loop.evaluate(pack, pack.val)[1].numpy()


def validated(pack: Pack) -> tuple[dict[str, np.ndarray[Any, Any]], float]:
    """The accuracies of a trained epoch by estimate of the statistics, and the seconds of estimating them."""
    batches = pack.batches(pack.epoch)
    both = [*pack.statistics.means, *pack.statistics.variances]
    moving = [value.clone() for value in both]
    starts = [
        *map(torch.zeros_like, pack.statistics.means),
        *map(torch.ones_like, pack.statistics.variances),
    ]
    row, seconds = {"moving": accuracy(pack)}, 0.0
    left = MOVING_AVERAGE ** (pack.epoch * len(batches))
    for value, now, start in zip(both, moving, starts, strict=True):
        value.copy_((now - left * start) / (1 - left))
    row["without start"] = accuracy(pack)
    for name, most in (("re-estimated", loop.STATISTICS_BATCHES), ("reference", len(batches))):
        started = time.perf_counter()
        loop.estimate_statistics(pack, batches[:most])
        seconds += time.perf_counter() - started if name == "re-estimated" else 0.0
        row[name] = accuracy(pack)
    for value, now in zip(both, moving, strict=True):
        value.copy_(now)
    return row, seconds


def main() -> None:
    """A line per recipe and estimate."""
    torch.set_num_threads(1)
    for fields in RECIPES:
        recipe = Recipe.parse(BASE | fields)
        pack = Pack([Run(recipe, s, seed) for seed in range(3) for s in (0.1, 1.0, 2.5)], load(recipe))
        rows, estimating = [], 0.0
        while not pack.finished:
            loop.train_epoch(pack)
            row, seconds = validated(pack)
            rows.append(row)
            estimating += seconds
        whole = np.array([row["reference"] for row in rows])
        for name in ("moving", "without start", "re-estimated"):
            squares = (np.array([row[name] for row in rows]) - whole) ** 2
            early, late = (np.sqrt(part.mean()) for part in (squares[:10], squares[10:]))
            print(f"{label(recipe, informative(recipe, fields)):22} {name:14} {early:5.1f} {late:5.1f}")
        print(f"{'':22} re-estimation: {estimating / pack.spent:.2f} of the training time")


if __name__ == "__main__":
    main()
