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
from unittest import mock

import numpy as np
import torch

import initmem.train.pack as packs
from initmem.data.sources import load
from initmem.recipe import Recipe
from initmem.study import Run
from initmem.train.layers import MOVING_AVERAGE

BASE = {"dataset": "digits", "width": 4, "batch_size": 16, "epochs": 30}
RECIPES: tuple[dict[str, Any], ...] = (
    {"optimizer": "sgd", "learning_rate": 1e-3},
    {"optimizer": "adam", "learning_rate": 1e-3},
    {"optimizer": "adam", "learning_rate": 1e-2},
    {"optimizer": "sgd", "learning_rate": 1e-1, "l2": 1e-2},
)


class Watched(packs.Pack):
    """A pack that validates in four ways after every epoch; training is the same."""

    def __init__(self, runs: list[Run], data: Any) -> None:
        super().__init__(runs, data)
        self.seen: list[dict[str, np.ndarray[Any, Any]]] = []
        self.estimating = 0.0

    def _end_epoch(self, epoch: int, rates: Any, sharpness: Any) -> None:
        both = [*self.statistics.means, *self.statistics.variances]
        moving = [value.clone() for value in both]
        starts = [
            *map(torch.zeros_like, self.statistics.means),
            *map(torch.ones_like, self.statistics.variances),
        ]
        row = {"moving": self._accuracy()}
        left = MOVING_AVERAGE ** (epoch * len(rates))
        for value, now, start in zip(both, moving, starts, strict=True):
            value.copy_((now - left * start) / (1 - left))
        row["without start"] = self._accuracy()
        for name, batches in (("re-estimated", packs.STATISTICS_BATCHES), ("reference", len(rates))):
            started = time.perf_counter()
            with mock.patch.object(packs, "STATISTICS_BATCHES", batches):
                self._estimate_statistics(epoch)
            self.estimating += time.perf_counter() - started if name == "re-estimated" else 0.0
            row[name] = self._accuracy()
        for value, now in zip(both, moving, strict=True):
            value.copy_(now)
        self.seen.append(row)
        super()._end_epoch(epoch, rates, sharpness)

    def _accuracy(self) -> np.ndarray[Any, Any]:
        return 100 * self.evaluate(self.val)[1].numpy()


def main() -> None:
    """A line per recipe and estimate."""
    torch.set_num_threads(1)
    for fields in RECIPES:
        recipe = Recipe.parse(BASE | fields)
        pack = Watched([Run(recipe, s, seed) for seed in range(3) for s in (0.1, 1.0, 2.5)], load(recipe))
        while not pack.finished:
            pack.train_epoch()
        whole = np.array([row["reference"] for row in pack.seen])
        for name in ("moving", "without start", "re-estimated"):
            squares = (np.array([row[name] for row in pack.seen]) - whole) ** 2
            early, late = (np.sqrt(part.mean()) for part in (squares[:10], squares[10:]))
            print(f"{recipe.label(recipe.informative(fields)):22} {name:14} {early:5.1f} {late:5.1f}")
        share = pack.estimating / (pack.spent - pack.estimating)
        print(f"{'':22} re-estimation: {share:.2f} of the training time")


if __name__ == "__main__":
    main()
