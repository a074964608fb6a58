"""Does a change of one field change the memory? Two recipes, over the scales and seeds that they share."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from initmem.measures.memory import profile
from initmem.measures.statistics import spread
from initmem.recipe import AnyRecipe
from initmem.store.record import RunRecord

Array = NDArray[np.float64]


class Difference(NamedTuple):
    """The memory of one recipe less that of another, in the metric's display unit."""

    before: float  # memory of the one, less its bias
    after: float  # of the other
    difference: float
    low: float  # 95% interval of the difference
    high: float
    n_scales: int
    n_seeds: int

    @property
    def sure(self) -> bool:
        """Whether the interval leaves no doubt which of the two is larger."""
        return not self.low <= 0 <= self.high


def controlled_pairs(recipes: Sequence[AnyRecipe]) -> list[tuple[AnyRecipe, AnyRecipe, str]]:
    """Pairs that differ in one field alone, with that field."""
    found = []
    changes = [(recipe, recipe.changes()) for recipe in recipes]
    for (one, first), (other, second) in combinations(changes, 2):
        fields = [name for name in {**first, **second} if first.get(name) != second.get(name)]
        if len(fields) == 1:
            found.append((one, other, fields[0]))
    return found


def difference(
    one: Sequence[RunRecord], other: Sequence[RunRecord], metric: str = "test_accuracy", *, seed: int = 0
) -> Difference | None:
    """Compare the memories of two recipes; None where they share fewer than two scales or two seeds."""
    scales = {record.run.scale for record in one} & {record.run.scale for record in other}
    if len(scales) < 2:
        return None
    sides = [profile([r for r in side if r.run.scale in scales], metric) for side in (one, other)]
    seeds = sorted(set(sides[0].seeds) & set(sides[1].seeds))
    before, after = (side.values[[side.seeds.index(seed) for seed in seeds]] for side in sides)
    return compare(before, after, rng=np.random.default_rng(seed))


def compare(before: Array, after: Array, *, rng: np.random.Generator) -> Difference | None:
    """The difference of two spreads, each of values of shape (seed, scale); None from fewer than two seeds.

    The distances from estimates to limits add up as squares (Zou and Donner's method for intervals that are
    not symmetric), or plainly where a limit is cut off at zero and estimates err to one side. Resampling the
    seeds of both recipes at once would use that they share them, but with memories near the noise it is sure
    of a difference that is not there in a quarter of all studies.
    """
    if len(after) < 2:
        return None
    one, other = _interval(before, rng), _interval(after, rng)
    found = other.value - one.value
    add = math.hypot if min(one.low, other.low) > 0 else operator.add
    down = add(other.value - other.low, one.high - one.value)
    up = add(other.high - other.value, one.value - one.low)
    n_seeds, n_scales = after.shape
    return Difference(one.value, other.value, found, found - down, found + up, n_scales, n_seeds)


class _Interval(NamedTuple):
    low: float
    value: float
    high: float


def _interval(values: Array, rng: np.random.Generator) -> _Interval:
    found = spread(values, rng=rng)
    assert found.low is not None and found.corrected is not None and found.high is not None
    return _Interval(found.low, found.corrected, found.high)
