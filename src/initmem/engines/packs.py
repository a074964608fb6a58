"""How runs are packed: which of them are trained together as one network.

The same study packs the same way on every machine and at every load, so that a resumed run finds itself in
the same pack.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from initmem.catalog import OPTIMIZERS
from initmem.data.dataset import Sizes
from initmem.data.sources import sizes
from initmem.recipe import AnyRecipe, Recipe
from initmem.study import Run, Study
from initmem.train.requirements import flops_per_image

# Up to this many multiplications per layer and update, a replica alone leaves the processor waiting for
# the next call; measured on two EPYC cores, ResNet-9, 8x8 against 32x32 images.
WORTH_PACKING = 80_000
LARGEST_PACK = 16
# Operations of one update of a plain module up to which eight of them are trained faster together; measured
# on the same cores with vit and gpt: twice as fast at 1e7, a third at 1e8, slower at 2e9.
MODULE_WORTH_PACKING = 2e8
LANES = 8  # replicas side by side in a vector: a pack that fills them wastes none


@dataclass(slots=True)
class Group:
    """Runs that may share packs."""

    runs: list[Run]
    limit: int  # runs of the largest pack
    cost: float  # of one run


def packs(study: Study, *, size: int | None = None, workers: int) -> list[list[Run]]:
    """Divide the runs of a study into packs of even size, the most work first.

    Packs have at most `size` runs, if given. Otherwise the size follows from the shapes of the recipes, and
    no worker stands idle for want of a pack.
    """
    groups = _groups(study, size)
    weighed: list[tuple[float, list[Run]]] = []
    for group in groups:
        count = math.ceil(len(group.runs) / group.limit)
        if size is None:
            count = min(len(group.runs), max(count, math.ceil(workers / len(groups))))
        weighed += [(group.cost * len(runs), runs) for runs in _divided(group.runs, count)]
    weighed.sort(key=lambda item: -item[0])
    return [runs for _, runs in weighed]


def makespan(times: Iterable[float], free_at: list[float]) -> float:
    """When the last pack is done, if each goes to the worker that is free first."""
    heapq.heapify(free_at)
    for seconds in times:
        heapq.heapreplace(free_at, free_at[0] + seconds)
    return max(free_at)


def _divided(runs: Sequence[Run], count: int) -> list[list[Run]]:
    bounds = [round(i * len(runs) / count) for i in range(count + 1)]
    return [list(runs[start:stop]) for start, stop in pairwise(bounds)]


def _groups(study: Study, size: int | None) -> list[Group]:
    """A group per recipe. Recipes that do not fill a pack each share one with others that differ from them
    in learning rate, L2 and weight decay alone, where the optimizer allows it."""
    groups: list[Group] = []
    open_groups: dict[AnyRecipe, Group] = {}  # with room for another recipe
    for recipe in study.recipes:
        runs, limit = study.runs(recipe), _limit(recipe, size)
        key = recipe if recipe.is_pipeline else recipe.network.pack_key
        earlier = open_groups.get(key)
        if earlier is not None and len(earlier.runs) + len(runs) <= limit:
            earlier.runs += runs
        else:
            groups.append(Group(runs, limit, cost(recipe)))
            open_groups[key] = groups[-1]
    return groups


def _limit(recipe: AnyRecipe, size: int | None) -> int:
    """The largest pack of a recipe. User code trains one run at a time, unless it takes several at once."""
    if recipe.is_pipeline:
        return size or 1
    network = recipe.network
    optimizer = OPTIMIZERS.get(network.optimizer)
    if optimizer is not None and not optimizer.packed:
        return 1
    shape = sizes(network)
    limit = size or pack_size(network, shape)
    if limit > 1 and (network.is_module or network.has_own_optimizer):
        from initmem.train.modules import obstacle

        # In a pack its replicas have to follow the trajectories that they follow alone.
        return 1 if obstacle(network, shape) else limit
    return limit


def pack_size(recipe: Recipe, sizes: Sizes) -> int:
    """How many replicas of a recipe to train as one network, from their shapes alone."""
    batch = min(recipe.batch_size, sizes.n_train)
    if recipe.is_module:
        update = 3 * flops_per_image(recipe, sizes).forward * batch
        return LANES if update <= MODULE_WORTH_PACKING else 1
    work = sizes.height * sizes.width * recipe.width * batch
    pack = max(1, min(LARGEST_PACK, WORTH_PACKING // work))
    return pack // LANES * LANES or pack


def cost(recipe: AnyRecipe) -> float:
    """The relative cost of one run; only the code of a pipeline knows more than 1."""
    if recipe.is_pipeline:
        return 1.0
    network, shape = recipe.network, sizes(recipe)
    if network.is_module:
        return float(network.epochs * shape.n_train * flops_per_image(network, shape).forward)
    return float(network.epochs * shape.n_train * shape.height * shape.width * network.width**2)
