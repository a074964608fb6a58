"""What the records of one recipe say: everything on the pages that needs more than counting."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from initmem.measures.beta import BetaCurve, HalfLife, beta_curve, half_lives
from initmem.measures.collapse import Collapse, collapse
from initmem.measures.design import (
    Analysis,
    by_scale,
    curve_metrics,
    curves,
    default_metric,
    own_metrics,
    plain,
    profile,
)
from initmem.measures.fit import train_metric
from initmem.measures.memory import Memory, measured
from initmem.metric import DERIVED, metric_of
from initmem.plots.model import Series
from initmem.plots.series import UNSTYLED, interpolation_series, profile_series, sharpness_series
from initmem.recipe import AnyRecipe
from initmem.record import RunRecord

Array = NDArray[np.float64]
SEEDS_SHOWN = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)  # where the estimate is shown as seeds come in


class RecipeStats:
    """One recipe. Each value is worked out when it is first asked for, and then kept.

    The first ones need the summaries of records only, the later ones their histories.
    """

    def __init__(self, records: Sequence[RunRecord], analysis: Analysis | None = None) -> None:
        self._records, self._analysis = records, analysis
        self._kept = [record for record in plain(records) if record.status != "failed"]
        self._curves: dict[str, Series] = {}
        self.recipe: AnyRecipe = records[0].run.recipe
        self.runs = {scale: [record.id for record in at] for scale, at in by_scale(self._kept).items()}

    @cached_property
    def metric(self) -> str:
        """What the memory is measured in: test accuracy, or the next best that user code records."""
        return default_metric(self._records)

    @cached_property
    def train_metric(self) -> str | None:
        """The train metric next to it; None: not recorded, or the metric is not one of new data."""
        return train_metric(self._records, self.metric) if metric_of(self.metric).held_out else None

    @cached_property
    def memory(self) -> Memory:
        """The memory. Its name and its verdict depend on what else a page shows: see `Content.memories`."""
        return measured(self._records, self.metric, analysis=self._analysis)

    @cached_property
    def settling(self) -> list[Memory]:
        """The memory from the first 2, 3, 4, 6 ... seeds."""
        seeds = profile(self._kept, self.metric).seeds if self._kept else ()
        counts = sorted({*(n for n in SEEDS_SHOWN if n < len(seeds)), len(seeds)} - {0, 1})
        return [
            measured([r for r in self._kept if r.run.seed in seeds[:n]], self.metric, with_fit=False)
            for n in counts
        ]

    @property
    def settling_series(self) -> Series:
        """The memory with its 95% interval against the number of seeds."""
        rows = self.settling
        return Series(
            label="",
            style=UNSTYLED,
            x=[row.n_seeds for row in rows],
            y=[_or_nan(row.memory) for row in rows],
            low=[_or_nan(row.low) for row in rows],
            high=[_or_nan(row.high) for row in rows],
            n=[row.n_seeds * row.n_scales for row in rows],
        )

    def curve(self, metric: str) -> Series:
        """A metric against scale."""
        if metric not in self._curves:
            self._curves[metric] = profile_series(self._kept, metric)
        return self._curves[metric]

    @property
    def main(self) -> Series:
        """The metric of the memory against scale."""
        return self.curve(self.metric)

    @cached_property
    def own_metrics(self) -> list[str]:
        """What user code recorded under names of its own; what is derived from training comes last."""
        return sorted(own_metrics(self._kept), key=lambda name: name.startswith(DERIVED))

    @cached_property
    def interpolation(self) -> Series:
        """The interpolation epoch against scale, of runs whose train accuracy was recorded."""
        known = [record for record in self._kept if record.summary.train_accuracy_last is not None]
        return interpolation_series(known)

    @cached_property
    def sharpness(self) -> tuple[Series, Series]:
        """The sharpness against epoch, as it is and as a fraction of the stability limit."""
        return sharpness_series(self._kept), sharpness_series(self._kept, relative=True)

    @property
    def train(self) -> dict[float, float]:
        """Mean train accuracy of the selected predictors, in percent, by scale."""
        curve = self.curve("train_accuracy")
        return dict(zip(curve.x, curve.y, strict=True))

    @cached_property
    def columns(self) -> list[str]:
        """The metrics that were recorded epoch by epoch, without clocks and the like."""
        return curve_metrics(self._kept)

    def learning(self, column: str) -> tuple[Array, Array, Array]:
        """A metric by epoch and scale in its display unit: means over seeds and n, (scale, epoch); scales."""
        values, scales, _ = curves(self._kept, column)
        n = np.isfinite(values).sum(axis=0)
        means = np.nansum(values, axis=0) / np.where(n > 0, n, 1)
        return metric_of(column).factor * np.where(n > 0, means, np.nan), n, scales

    @property
    def followed(self) -> str:
        """The metric whose slope on the scale is followed over epochs: validation accuracy, else a loss."""
        return self.columns[0] if self.columns else "val_accuracy"

    @cached_property
    def beta(self) -> BetaCurve:
        """The slope of a metric on the scale, epoch by epoch."""
        return beta_curve(self._records, self.followed)

    @cached_property
    def half_lives(self) -> list[HalfLife]:
        """How long beta takes to halve."""
        return half_lives(self._records, self.followed) if len(self.beta.beta) else []

    @property
    def last_clocks(self) -> dict[str, float]:
        """The clocks as measured at the last epoch, means over runs."""
        ticks: dict[str, NDArray[np.float64]] = self.beta.clocks
        return {name: float(x[-1]) for name, x in ticks.items() if len(x) and np.isfinite(x[-1])}

    @property
    def epochs(self) -> int:
        """Of the longest run."""
        return max((record.summary.epochs for record in self._records), default=0)


def _or_nan(value: float | None) -> float:
    return math.nan if value is None else value


class Kept:
    """What was worked out before, as long as the records behind it stay the same."""

    def __init__(self) -> None:
        self._stats: dict[Hashable, RecipeStats] = {}
        self._collapses: dict[Hashable, Collapse] = {}

    def stats(
        self, groups: Mapping[AnyRecipe, Sequence[RunRecord]], analyses: Mapping[AnyRecipe, Analysis]
    ) -> dict[AnyRecipe, RecipeStats]:
        """Of every recipe; what belongs to records that are gone is dropped."""
        old, self._stats = self._stats, {}
        stats = {}
        for recipe, records in groups.items():
            analysis = analyses.get(recipe)
            key = fingerprint(records), analysis
            stats[recipe] = self._stats[key] = old[key] if key in old else RecipeStats(records, analysis)
        return stats

    def collapses(self, families: Mapping[str, Sequence[Sequence[RunRecord]]]) -> dict[str, Collapse]:
        """The collapse of every family of recipes."""
        old, self._collapses = self._collapses, {}
        collapses = {}
        for name, groups in families.items():
            key = tuple(fingerprint(records) for records in groups)
            made = old[key] if key in old else collapse(groups, RecipeStats(groups[0]).followed)
            collapses[name] = self._collapses[key] = made
        return collapses


def fingerprint(records: Sequence[RunRecord]) -> Hashable:
    """Equal for equal records, without their histories: a record never changes, but a failed run can be
    trained again under its old id."""
    return tuple((r.id, r.status, r.error, r.summary) for r in records)
