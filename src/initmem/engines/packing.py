"""Which runs train together. The same study packs the same way every time, so that a resumed run finds
itself in the same pack."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from initmem.data import Sizes
from initmem.recipe import ALONE, Recipe, network_of
from initmem.study import Run, Study

# Up to this many multiplications per layer and update, a replica alone leaves the processor waiting for
# the next call; measured on two EPYC cores, ResNet-9, 8x8 against 32x32 images.
WORTH_PACKING = 80_000
LARGEST_PACK = 16
# Operations of one update of a plain module up to which eight of them are trained faster together; measured
# on the same cores with vit and gpt: twice as fast at 1e7, a third at 1e8, slower at 2e9.
MODULE_WORTH_PACKING = 2e8
LANES = 8  # replicas side by side in a vector: a pack that fills them wastes none


def pack_size(recipe: Recipe, sizes: Sizes) -> int:
    """How many replicas of a recipe to train as one network, from their shapes alone.

    The same on every machine and at every load, so that a resumed study packs its runs as it did before.
    """
    if recipe.is_module:
        update = 3 * _forward_flops(recipe, sizes) * min(recipe.batch_size, sizes.n_train)
        return LANES if update <= MODULE_WORTH_PACKING else 1
    work = sizes.height * sizes.width * recipe.width * min(recipe.batch_size, sizes.n_train)
    pack = max(1, min(LARGEST_PACK, WORTH_PACKING // work))
    return pack // LANES * LANES or pack


def packs(
    study: Study,
    sizes: Sequence[Sizes],
    *,
    size: int | None,
    workers: int,
) -> list[list[Run]]:
    """Divide the runs into packs of even size, the most work first.

    A pack holds runs of one recipe. Recipes that do not fill a pack each share one with others that differ
    from them in rates and penalties alone, where the optimizer allows it.
    """
    groups = _groups(study, sizes, size)
    weighed: list[tuple[float, list[Run]]] = []
    for runs, limit, work in groups:
        count = math.ceil(len(runs) / limit)
        if size is None:  # no core should stand idle for want of a pack
            count = min(len(runs), max(count, math.ceil(workers / len(groups))))
        bounds = [round(i * len(runs) / count) for i in range(count + 1)]
        for start, stop in pairwise(bounds):
            weighed.append((work * (stop - start), runs[start:stop]))
    weighed.sort(key=lambda item: -item[0])
    return [runs for _, runs in weighed]


def _groups(study: Study, sizes: Sequence[Sizes], size: int | None) -> list[tuple[list[Run], int, float]]:
    """Runs that may share packs, the largest pack that they fit in, and the cost of one of them."""
    groups: list[tuple[list[Run], int, float]] = []
    open_group: dict[Recipe, list[Run]] = {}  # with room for another recipe
    for recipe, shape in zip(map(network_of, study.recipes), sizes, strict=True):
        runs = study.runs(recipe)
        limit = 1 if recipe.optimizer in ALONE else size or pack_size(recipe, shape)
        if limit > 1 and (recipe.is_module or recipe.has_own_optimizer):
            limit = limit if can_be_packed(recipe, shape) else 1
        earlier = open_group.get(recipe.pack_key)
        if earlier is not None and len(earlier) + len(runs) <= limit:
            earlier += runs
            continue
        runs = list(runs)
        groups.append((runs, limit, cost(recipe, shape)))
        open_group[recipe.pack_key] = runs
    return groups


def _forward_flops(recipe: Recipe, sizes: Sizes) -> int:
    from initmem.train.flops import flops_per_image

    return flops_per_image(recipe, sizes.shape, sizes.classes, sizes.vocabulary).forward


def can_be_packed(recipe: Recipe, sizes: Sizes) -> bool:
    """Whether the replicas of a recipe follow in a pack the trajectories they follow alone."""
    from initmem.train.packable import obstacle

    return not obstacle(recipe, sizes)


def pipeline_packs(study: Study, *, size: int) -> list[list[Run]]:
    """Packs of user code: of one run, unless its trainer takes several at once."""
    groups = [study.runs(recipe) for recipe in study.recipes]
    return [runs[i : i + size] for runs in groups for i in range(0, len(runs), size)]


def cost(recipe: Recipe, sizes: Sizes) -> float:
    """The relative cost of one run, for sharing out work and telling the time left."""
    if recipe.is_module:
        return float(recipe.epochs * sizes.n_train * _forward_flops(recipe, sizes))
    return float(recipe.epochs * sizes.n_train * sizes.height * sizes.width * recipe.width**2)
