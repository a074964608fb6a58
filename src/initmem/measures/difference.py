"""Does a change of one field change the memory? Two recipes, over the scales and seeds that they share."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtr

from initmem.measures.design import Analyses, Groups, Measure, Row, default_metric, profile
from initmem.measures.statistics import ALPHA, Array, Spread, adjusted, spreads, student
from initmem.recipe import AnyRecipe
from initmem.record import RunRecord
from initmem.table import Column, number


class Compared(NamedTuple):
    """Differences of memories, second minus first, of many pairs at once; each of shape (...,)."""

    before: Array
    after: Array
    difference: Array
    low: Array  # interval of the difference, of level 1 - alpha
    high: Array
    paired: NDArray[np.bool_]  # contrasts within seeds, where both memories are significant; else intervals


def controlled_pairs(recipes: Sequence[AnyRecipe]) -> list[tuple[AnyRecipe, AnyRecipe, str]]:
    """Pairs that differ in one field alone, with that field."""
    pairs = []
    changes = [(recipe, recipe.changes()) for recipe in recipes]
    for (one, first), (other, second) in combinations(changes, 2):
        fields = [name for name in {**first, **second} if first.get(name) != second.get(name)]
        if len(fields) == 1:
            pairs.append((one, other, fields[0]))
    return pairs


def difference(
    one: Sequence[RunRecord],
    other: Sequence[RunRecord],
    metric: str = "test_accuracy",
    *,
    alpha: float = ALPHA,
) -> Row | None:
    """Compare the memories of two recipes; None where they share fewer than two scales or two seeds."""
    scales = {record.run.level for record in one} & {record.run.level for record in other}
    if len(scales) < 2:
        return None
    sides = [profile([r for r in side if r.run.level in scales], metric) for side in (one, other)]
    seeds = sorted(set(sides[0].seeds) & set(sides[1].seeds))
    before, after = (side.values[[side.seeds.index(seed) for seed in seeds]] for side in sides)
    if len(seeds) < 2:
        return None
    compared = compared_ranges(before, after, alpha=alpha)
    row: Row = {name: float(value) for name, value in compared._asdict().items() if name != "paired"}
    paired = bool(compared.paired)
    row |= {"p": _paired_p(before, after) if paired else _interval_p(before, after)}
    row |= {"method": "paired" if paired else "intervals", "n_scales": after.shape[1], "n_seeds": len(seeds)}
    return row | {"significant": not row["low"] <= 0 <= row["high"]}


def compared_ranges(before: Array, after: Array, *, alpha: float = ALPHA) -> Compared:
    """Differences of ranges, values of shape (..., seed, scale) each, with intervals of level 1 - alpha.

    Where both memories are significant their extreme scales are known, and the difference of the two recipes'
    own contrasts between these scales is compared within seeds: Student's paired interval. Elsewhere the
    extremes may be noise, and the interval follows from those of the two memories (Zou and Donner: distances
    from estimate to limit add up as squares; plainly where a lower limit is zero, as the estimates then err
    to one side).
    """
    one, other = spreads(before, alpha=alpha), spreads(after, alpha=alpha)
    tested = [item if alpha == ALPHA else spreads(values) for item, values in ((one, before), (other, after))]
    both = np.asarray((tested[0].p <= ALPHA) & (tested[1].p <= ALPHA))
    gap, error = _contrast_gap(before, after)
    half = student(before.shape[-2] - 1, alpha / 2) * error
    centre, down, up = _from_intervals(one, other, tested[0].debiased, tested[1].debiased)
    return Compared(
        before=np.where(both, one.spread, tested[0].debiased),
        after=np.where(both, other.spread, tested[1].debiased),
        difference=np.where(both, gap, centre),
        low=np.where(both, gap - half, centre - down),
        high=np.where(both, gap + half, centre + up),
        paired=both,
    )


def _from_intervals(
    one: Spread[Array], other: Spread[Array], first: Array, second: Array
) -> tuple[Array, Array, Array]:
    """Difference of the debiased ranges, and its distances to the lower and the upper limit."""
    parts = [
        (np.maximum(second - other.low, 0.0), np.maximum(one.high - first, 0.0)),
        (np.maximum(other.high - second, 0.0), np.maximum(first - one.low, 0.0)),
    ]
    positive = np.minimum(one.low, other.low) > 0
    down, up = (np.where(positive, np.hypot(a, b), a + b) for a, b in parts)
    return second - first, down, up


def _contrast_gap(before: Array, after: Array) -> tuple[Array, Array]:
    """Mean and standard error over seeds of the difference between two recipes' extreme contrasts."""
    n = before.shape[-2]
    gaps = _extreme_contrast(after) - _extreme_contrast(before)  # (..., seed)
    return gaps.mean(axis=-1), gaps.std(axis=-1, ddof=1) / math.sqrt(n)


def _extreme_contrast(values: Array) -> Array:
    means = values.mean(axis=-2)
    top, bottom = means.argmax(axis=-1)[..., None, None], means.argmin(axis=-1)[..., None, None]
    return np.asarray(np.take_along_axis(values, top, -1) - np.take_along_axis(values, bottom, -1))[..., 0]


def _paired_p(before: Array, after: Array) -> float:
    gap, error = (float(item) for item in _contrast_gap(before, after))
    if error == 0:
        return 0.0 if gap else 1.0
    return float(2 * stdtr(len(before) - 1, -abs(gap) / error))


def _interval_p(before: Array, after: Array, steps: int = 16) -> float:
    """The smallest alpha at which the interval excludes zero, by bisection of its logarithm."""

    def excluded(alpha: float) -> bool:
        compared = compared_ranges(before, after, alpha=alpha)
        return not float(compared.low) <= 0 <= float(compared.high)

    low, high = math.log(1e-12), 0.0
    if excluded(1e-12):
        return 1e-12
    for _ in range(steps):
        middle = (low + high) / 2
        low, high = (low, middle) if excluded(math.exp(middle)) else (middle, high)
    return math.exp(high)


# -- table ------------------------------------------------------------------------------------------------


def _rows(groups: Groups, metric: str | None, *, analyses: Analyses, adjust: str = "bh") -> list[Row]:
    """Pairs of recipes that differ in one field alone, each at the stricter level of the two."""
    named = {records[0].run.recipe: (label, records) for label, records in groups.items()}
    rows: list[Row] = []
    for one, other, field in controlled_pairs(list(named)):
        (before, first), (after, second) = named[one], named[other]
        alpha = min(analyses[recipe].alpha for recipe in (one, other))
        result = difference(first, second, metric or default_metric(first), alpha=alpha)
        if result is not None:
            rows.append({"field": field, "from": before, "to": after} | result)
    ps = adjusted([row["p"] for row in rows], adjust)
    return [row | {"p_adjusted": p} for row, p in zip(rows, ps, strict=True)]


MEASURES = {
    "difference": Measure(
        "Differences between recipes that differ in one field",
        _rows,
        {
            "field": Column("field", "text", "the field in which two recipes differ", priority=2),
            "from": Column("from", "text", "the first recipe"),
            "to": Column("to", "text", "the second recipe"),
            "before": number("before", "memory of the first; debiased unless paired", ".1f~", priority=4),
            "after": number("after", "memory of the second; debiased unless paired", ".1f~", priority=3),
            "difference": number("difference", "second minus first", ".1f~"),
            ("low", "high"): number("interval", "of the difference (95% unless interim)", ".1f~"),
            "significant": Column("significant", "text", "yes: the interval excludes 0"),
            "p": number("p", "of no difference", ".2g", priority=2),
            "p_adjusted": number("p (adjusted)", "for the number of pairs", ".2g", priority=7),
            "method": Column("method", "text", "how the interval was found", priority=8),
            "n_scales": number("scales", "number of scales that both recipes have", priority=6),
            "n_seeds": number("seeds", "number of seeds that both recipes have", priority=5),
        },
        options=("adjust", "analyses"),
        of="effect",
        together=True,
    )
}
