"""What the records of one recipe say: everything on the pages that needs more than counting."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from initmem.measures.beta import BetaCurve, HalfLife, beta_curve, half_lives
from initmem.measures.collapse import Collapse, collapse
from initmem.measures.design import plain
from initmem.measures.forecast import lived_clocks
from initmem.measures.interpolation import median_interpolation
from initmem.measures.looks import Look
from initmem.measures.memory import Memory, default_metric, memory, own_metrics, profile
from initmem.plots.curves import Curve, curve
from initmem.plots.plotdata import by_scale
from initmem.recipe import AnyRecipe, Recipe
from initmem.store.record import RunRecord

SEEDS_SHOWN = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)  # where the estimate is shown as seeds come in


class Fitted(NamedTuple):
    """When the labels are fitted at one scale: the median epoch; None: half of the runs never got there."""

    scale: float
    median: float | None
    low: float | None
    high: float | None
    n: int
    never: int


class Facts:
    """One recipe. Each fact is worked out when it is first asked for, and then kept.

    The first ones need the summaries of records only, the later ones their histories.
    """

    def __init__(self, records: Sequence[RunRecord], look: Look | None = None) -> None:
        self._records, self._look = records, look
        self._kept = [record for record in plain(records) if record.status != "failed"]
        self._groups = by_scale(self._kept)
        self._curves: dict[str, Curve] = {}
        self.recipe: AnyRecipe = records[0].run.recipe
        self.runs = {scale: [record.id for record in at] for scale, at in self._groups.items()}

    @cached_property
    def metric(self) -> str:
        """What the memory is measured in: test accuracy, or the next best that a user's own code records."""
        return default_metric(self._records)

    @cached_property
    def memory(self) -> Memory:
        """The memory. Its `recipe` is to be filled in: a name depends on what else a page shows."""
        return memory(self._records, self.metric, look=self._look)

    @cached_property
    def settling(self) -> list[Memory]:
        """The memory from the first 2, 3, 4, 6 ... seeds."""
        seeds = profile(self._kept, self.metric).seeds if self._kept else ()
        counts = sorted({*(n for n in SEEDS_SHOWN if n < len(seeds)), len(seeds)} - {0, 1})
        return [memory([r for r in self._kept if r.run.seed in seeds[:n]], self.metric) for n in counts]

    def curve(self, metric: str) -> Curve:
        """A metric against scale."""
        if metric not in self._curves:
            self._curves[metric] = curve(self._kept, metric)
        return self._curves[metric]

    @property
    def main(self) -> Curve:
        """The metric of the memory against scale."""
        return self.curve(self.metric)

    @cached_property
    def own_metrics(self) -> list[str]:
        """What a user's own code recorded under names of its own."""
        return own_metrics(self._kept)

    @cached_property
    def fitted(self) -> list[Fitted]:
        """The interpolation epoch against scale, of runs whose train accuracy was recorded."""
        found = []
        for scale, records in self._groups.items():
            known = [r for r in records if r.summary.train_accuracy_last is not None]
            if known:
                item = median_interpolation(known)
                found.append(Fitted(scale, item.median, item.low, item.high, item.n, item.n_censored))
        return found

    @cached_property
    def train(self) -> dict[float, float]:
        """Mean train accuracy of the selected predictors, in percent, by scale."""
        found = {scale: _values(at, "train_accuracy") for scale, at in self._groups.items()}
        return {scale: 100 * float(np.mean(values)) for scale, values in found.items() if values}

    @cached_property
    def lived(self) -> dict[str, float]:
        """The clocks of the forecast when the predictor was selected, medians over runs."""
        return lived_clocks(self.recipe, self._kept) if isinstance(self.recipe, Recipe) else {}

    @cached_property
    def beta(self) -> BetaCurve:
        """The slope of validation accuracy on scale, epoch by epoch."""
        return beta_curve(self._records)

    @cached_property
    def half_lives(self) -> list[HalfLife]:
        """How long beta takes to halve."""
        return half_lives(self._records) if len(self.beta.beta) else []

    @property
    def last_clocks(self) -> dict[str, float]:
        """The clocks as measured at the last epoch, means over runs."""
        ticks: dict[str, NDArray[np.float64]] = self.beta.clocks
        return {name: float(x[-1]) for name, x in ticks.items() if len(x) and np.isfinite(x[-1])}

    @property
    def epochs(self) -> int:
        """Of the longest run."""
        return max((record.summary.epochs for record in self._records), default=0)


def _values(records: Sequence[RunRecord], metric: str) -> list[float]:
    return [value for record in records if (value := record.metric(metric)) is not None]


class Kept:
    """Facts that were asked for before, as long as the records behind them stay the same."""

    def __init__(self) -> None:
        self._facts: dict[Hashable, Facts] = {}
        self._collapses: dict[Hashable, Collapse] = {}

    def facts(
        self, groups: Mapping[AnyRecipe, Sequence[RunRecord]], looks: Mapping[AnyRecipe, Look]
    ) -> dict[AnyRecipe, Facts]:
        """The facts of every recipe; those of records that are gone are dropped."""
        old, self._facts = self._facts, {}
        found = {}
        for recipe, records in groups.items():
            key = fingerprint(records), looks.get(recipe)
            found[recipe] = self._facts[key] = old[key] if key in old else Facts(records, looks.get(recipe))
        return found

    def collapses(self, families: Mapping[str, Sequence[Sequence[RunRecord]]]) -> dict[str, Collapse]:
        """The collapse of every family of recipes."""
        old, self._collapses = self._collapses, {}
        found = {}
        for name, groups in families.items():
            key = tuple(fingerprint(records) for records in groups)
            found[name] = self._collapses[key] = old[key] if key in old else collapse(groups)
        return found


def fingerprint(records: Sequence[RunRecord]) -> Hashable:
    """Equal for equal records, without their histories: a record never changes, but a failed run can be
    trained again under its old id."""
    return tuple((r.id, r.status, r.error, r.summary) for r in records)
