"""Initialization memory: how far the mean of a metric moves when only the initialization scale does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from initmem.errors import ConfigError, allowed
from initmem.measures.design import by_recipe, plain
from initmem.measures.statistics import Spread, seeds_needed, spread
from initmem.recipe import AnyRecipe, PipelineRecipe, labels
from initmem.store.record import COLUMNS, SUMMARY_FIELDS, RunRecord

Verdict = Literal["remembers", "forgets", "undetermined"]

SIGNIFICANCE = 0.05
TOLERANCE_PP = 2.0  # a spread below this many points counts as forgotten
METRICS = tuple(dict.fromkeys([*SUMMARY_FIELDS, *COLUMNS]))


@dataclass(frozen=True, slots=True)
class Profile:
    """The values of one metric for one recipe, shape (seed, scale): only seeds that have every scale."""

    recipe: AnyRecipe
    metric: str
    scales: tuple[float, ...]
    seeds: tuple[int, ...]
    values: NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Memory:
    """The memory of one recipe: in percentage points for accuracies, else in the metric's own unit."""

    recipe: str
    metric: str
    n_scales: int
    n_seeds: int
    memory: float | None
    low: float | None
    high: float | None
    floor: float | None
    p: float | None
    corrected: float | None
    p_permutation: float | None
    verdict: Verdict
    seeds_needed: int | None  # in all, to settle an undetermined verdict; None: settled, or beyond reach
    unit: str
    recipe_id: str

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)

    @property
    def meaning(self) -> str:
        """The verdict in one sentence."""
        if self.memory is None:
            return f"No seed has a {self.metric} at every scale yet."
        shown, floor = self._shown(self.memory), f"{self.floor or 0:.2g}"
        match self.verdict:
            case "remembers":
                return (
                    f"Changing nothing but the initialization scale moves the mean {self.metric} by {shown}, "
                    f"where noise alone would show {floor}: training has not forgotten where it began."
                )
            case "forgets":
                return (
                    f"Whatever the initialization scale, the mean {self.metric} stays within "
                    f"{self._shown(self.high)}: training has forgotten where it began."
                )
            case _ if self.floor is None:
                return f"One seed tells nothing about noise: the {self.metric} spreads by {shown}."
            case _:
                return (
                    f"The mean {self.metric} spreads by {shown} over the initialization scales, where noise "
                    f"alone would show {floor}: that settles nothing yet."
                )

    def _shown(self, value: float | None) -> str:
        return f"{value or 0:.3g}{self.unit and ' ' + self.unit}"

    def __str__(self) -> str:
        if self.memory is None:
            return f"not measured yet, {self.verdict}"
        text = self._shown(self.memory)
        if self.low is not None:
            text += f" [{self.low:.3g}, {self.high:.3g}], floor {self.floor:.2g}"
        needed = f" ({self.seeds_needed} seeds would settle it)" if self.seeds_needed else ""
        return f"{text}, {self.verdict}{needed}"


def unit_of(metric: str) -> tuple[float, str]:
    """Factor and name of the unit in which a metric is shown."""
    return (100.0, "pp") if "accuracy" in metric or metric == "repair_gap" else (1.0, "")


def own_metrics(records: Sequence[RunRecord]) -> list[str]:
    """What a user's own training code recorded under names of its own."""
    found = dict.fromkeys(
        name
        for record in records
        if isinstance(record.run.recipe, PipelineRecipe)
        for name in (*record.history, *record.finals)
    )
    return [name for name in found if name not in METRICS]


def default_metric(records: Sequence[RunRecord]) -> str:
    """Test accuracy where it is known, else the next best that the records hold."""
    for name in ("test_accuracy", "val_accuracy_best", "test_loss", "val_loss", *own_metrics(records)):
        if any(record.metric(name) is not None for record in records):
            return name
    return "test_accuracy"


def profile(records: Sequence[RunRecord], metric: str) -> Profile:
    """Arrange the records of one recipe by seed and scale, in the metric's display unit."""
    known = dict.fromkeys([*METRICS, *own_metrics(records)])
    if metric not in known:
        raise ConfigError(f"metric = {metric!r} ({allowed(known)})")
    factor, _ = unit_of(metric)
    found = {(r.run.seed, r.run.scale): r.metric(metric) for r in plain(records)}
    scales = sorted({scale for _, scale in found})
    seeds = [
        seed
        for seed in sorted({seed for seed, _ in found})
        if all(found.get((seed, scale)) is not None for scale in scales)
    ]
    values = np.array([[found[seed, scale] for scale in scales] for seed in seeds], dtype=float)
    return Profile(
        recipe=records[0].run.recipe,
        metric=metric,
        scales=tuple(scales),
        seeds=tuple(seeds),
        values=factor * values.reshape(len(seeds), len(scales)),
    )


def memory(
    records: Sequence[RunRecord],
    metric: str = "test_accuracy",
    *,
    tolerance: float | None = None,
    label: str | None = None,
    seed: int = 0,
) -> Memory:
    """Measure the memory of one recipe from its records; `seed` drives the resampling."""
    arranged = profile(records, metric)
    _, unit = unit_of(metric)
    recipe = arranged.recipe
    name = label or recipe.label(recipe.informative(["optimizer", "learning_rate"]))
    n_seeds, n_scales = arranged.values.shape
    nothing = Spread(None, None, None, None, None, None, None)
    found = spread(arranged.values, rng=np.random.default_rng(seed)) if n_seeds else nothing
    limit = TOLERANCE_PP if tolerance is None and unit == "pp" else tolerance
    verdict = judge(found.p, found.high, limit)
    needed = seeds_needed(found, n_seeds, limit) if verdict == "undetermined" else None
    return Memory(name, metric, n_scales, n_seeds, *found, verdict, needed, unit, recipe.id)


def judge(p: float | None, high: float | None, tolerance: float | None) -> Verdict:
    """Equivalence first: a spread that is surely small is forgotten, however significant it may be."""
    if high is not None and tolerance is not None and high <= tolerance:
        return "forgets"
    if p is not None and p <= SIGNIFICANCE:
        return "remembers"
    return "undetermined"


def memory_table(
    records: Sequence[RunRecord],
    metric: str = "test_accuracy",
    *,
    order: Sequence[AnyRecipe] = (),
    tolerance: float | None = None,
) -> list[Memory]:
    """The memory of every recipe, in the given order, then as they come."""
    groups = by_recipe(records, order)
    return [
        memory(group, metric, tolerance=tolerance, label=label)
        for group, label in zip(groups.values(), labels(list(groups)), strict=True)
    ]
