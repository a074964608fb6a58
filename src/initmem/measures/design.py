"""Which records answer which question: the plain runs of a recipe, by seed and by scale."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from initmem.measures.metrics import unit_of
from initmem.recipe import AnyRecipe, Recipe, labels
from initmem.store.old_names import present_name
from initmem.store.record import RunRecord

Array = NDArray[np.float64]


def by_recipe(
    records: Iterable[RunRecord], order: Sequence[AnyRecipe] = ()
) -> dict[AnyRecipe, list[RunRecord]]:
    """Group records: recipes in the given order, each once, then as they first appear."""
    groups: dict[AnyRecipe, list[RunRecord]] = {recipe: [] for recipe in order}
    for record in records:
        groups.setdefault(record.run.recipe, []).append(record)
    return {recipe: group for recipe, group in groups.items() if group}


def labelled(records: Iterable[RunRecord], order: Sequence[AnyRecipe] = ()) -> dict[str, list[RunRecord]]:
    """The same groups by label. Recipes without a record count as well: labels stay as a store fills up."""
    groups = by_recipe(records, order)
    every = list(dict.fromkeys([*order, *groups]))
    names = dict(zip(every, labels(every), strict=True))
    return {names[recipe]: group for recipe, group in groups.items()}


def plain(records: Sequence[RunRecord]) -> list[RunRecord]:
    """The runs of the main design: not perturbed, and with the pins that most of them share.

    A study may hold perturbed replicates and runs that vary one seed role at a time; they serve other
    measures and would count some seeds twice here.
    """
    unperturbed = [record for record in records if record.run.perturbation == 1.0]
    if not unperturbed:
        return []
    counts = Counter(record.run.pins for record in unperturbed)
    usual = min(counts, key=lambda pins: (-counts[pins], len(pins)))
    return [record for record in unperturbed if record.run.pins == usual]


def bundled(records: Sequence[RunRecord]) -> list[RunRecord]:
    """The runs of bundled networks: of user code only what was declared is known."""
    return [record for record in records if isinstance(record.run.recipe, Recipe)]


def curves(records: Sequence[RunRecord], column: str) -> tuple[Array, Array, Array]:
    """A history column as (values of shape (seed, scale, epoch), scales, seeds); gaps are NaN.

    Runs that stopped early, diverged or are missing leave gaps; nothing is carried forward.
    """
    chosen = [record for record in plain(records) if column in record.history]
    scales = sorted({record.run.scale for record in chosen})
    seeds = sorted({record.run.seed for record in chosen})
    epochs = max((len(record.history[column]) for record in chosen), default=0)
    values = np.full((len(seeds), len(scales), epochs), np.nan)
    scale_at = {scale: i for i, scale in enumerate(scales)}
    seed_at = {seed: i for i, seed in enumerate(seeds)}
    for record in chosen:
        row = record.history[column]
        values[seed_at[record.run.seed], scale_at[record.run.scale], : len(row)] = row
    return values, np.array(scales), np.array(seeds, dtype=float)


class AtScale(NamedTuple):
    """A metric at one scale, over seeds: accuracies in percent, anything else in its own unit."""

    scale: float
    mean: float | None
    deviation: float | None  # None: fewer than two runs
    n: int
    n_failed: int


def by_scale(records: Sequence[RunRecord]) -> dict[float, list[RunRecord]]:
    """Records by initialization scale, in ascending order."""
    groups: dict[float, list[RunRecord]] = {}
    for record in sorted(records, key=lambda record: record.run.scale):
        groups.setdefault(record.run.scale, []).append(record)
    return groups


def scale_means(records: Sequence[RunRecord], metric: str) -> list[AtScale]:
    """Mean and standard deviation of a metric at every scale, smallest scale first."""
    metric = present_name(metric, records)
    factor, _ = unit_of(metric)
    rows = []
    for scale, at in by_scale(plain(records)).items():
        values = factor * np.array([v for record in at if (v := record.metric(metric)) is not None])
        rows.append(
            AtScale(
                scale,
                float(values.mean()) if len(values) else None,
                float(values.std(ddof=1)) if len(values) > 1 else None,
                len(values),
                sum(record.status == "failed" for record in at),
            )
        )
    return rows
