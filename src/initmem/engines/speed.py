"""How fast this machine trains: short measurements with real steps of real packs."""

from __future__ import annotations

import time

from initmem.data import Sizes
from initmem.recipe import Recipe
from initmem.study import Run
from initmem.train.flops import Flops, flops_per_image

LONGEST_STEP = 1e10  # operations per timed step: a fraction of a second on one core
# The best of several trials counts: a busy machine makes steps slower, never quicker.
FEWEST_TRIALS, SECONDS_OF_TRIALS = 3, 0.4


def run_flops(recipe: Recipe, shape: Sizes) -> float:
    """Operations of one run: training, validation after every epoch, one test."""
    count = flops_per_image(recipe, shape.shape, shape.classes, shape.vocabulary)
    seen = recipe.epochs * shape.n_train
    looked_at = recipe.epochs * shape.n_val + shape.n_test
    return float(seen * count.training + looked_at * count.forward)


class Speedometer:
    """Operations per second of one worker, from real steps of real packs; each kind is timed once."""

    def __init__(self, device: str = "cpu") -> None:
        self.device = device
        self._known: dict[tuple[object, ...], float] = {}

    def measure(self, recipe: Recipe, shape: Sizes, pack: int) -> float:
        """Time an epoch of two updates, after one to warm up."""
        count = flops_per_image(recipe, shape.shape, shape.classes, shape.vocabulary)
        limit = max(1, int(LONGEST_STEP / count.training / pack))
        batch = min(recipe.batch_size, shape.n_train, limit)
        # Elementwise optimizers cost next to nothing beside the network; Muon on conv kernels does not.
        heavy = recipe.optimizer == "muon-conv"
        key = (recipe.model, recipe.options, recipe.width, recipe.norm, heavy, shape.shape, batch, pack)
        if key not in self._known:
            self._known[key] = self._time(recipe, shape, pack, batch, count)
        return self._known[key]

    def _time(self, recipe: Recipe, shape: Sizes, pack: int, batch: int, count: Flops) -> float:
        import torch

        from initmem.train.pack import Pack
        from initmem.train.packable import noise

        torch.set_num_threads(1)
        changes = {"batch_size": batch, "epochs": 2, "patience": None, "train_size": None}
        small = recipe.model_copy(update=changes)
        runs = [Run(small, 1.0, seed) for seed in range(pack)]
        data = noise(shape, n_train=2 * batch, n_val=batch)
        trial = Pack(runs, data, device=self.device)
        trial.train_epoch()
        seconds: list[float] = []
        while len(seconds) < FEWEST_TRIALS or sum(seconds) < SECONDS_OF_TRIALS:
            # An epoch ends with numbers read from the device: the clock sees all of it.
            started = time.perf_counter()
            trial.train_epoch()
            seconds.append(time.perf_counter() - started)
        return pack * batch * (2 * count.training + count.forward) / min(seconds)
