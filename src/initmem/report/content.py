"""What the pages show: a store by recipe, and every measure of it, computed when it is first needed."""

from __future__ import annotations

import contextlib
from collections.abc import Hashable, Sequence
from dataclasses import replace
from functools import cached_property, lru_cache
from typing import Any
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray

from initmem.clocks import CLOCK_NAMES, CLOCKS
from initmem.clocks import clocks as clocks_of
from initmem.data.sources import sizes
from initmem.errors import InitmemError
from initmem.intervention import Level, level_text
from initmem.labels import common, labels, short_labels
from initmem.measures import design
from initmem.measures.beta import BetaCurve, HalfLife, beta_curve, half_lives
from initmem.measures.collapse import families
from initmem.measures.elasticity import by_epoch, kernels_of
from initmem.measures.fit import train_metric
from initmem.measures.memory import Memory, judged, measured
from initmem.measures.statistics import spread
from initmem.metric import DERIVED, metric_of
from initmem.plots.model import Series
from initmem.plots.series import UNSTYLED, interpolation_series, profile_series
from initmem.recipe import AnyRecipe, PipelineRecipe
from initmem.record import RunRecord
from initmem.store.results import Collection
from initmem.study import Run, recipes_of

Array = NDArray[np.float64]
SEEDS_SHOWN = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)  # where the estimate is shown as seeds come in


def runs_of(recipe_id: str, level: Level | None = None) -> str:
    """Where on the page the runs behind a number are listed."""
    return f"#runs:{recipe_id}" + ("" if level is None else f":{quote(level_text(level))}")


def at_level(level: Level) -> str:
    """A level in a sentence or a legend."""
    return level if isinstance(level, str) else f"σ = {level:g}"


class RecipeStats:
    """The measures of one recipe: the first ones need summaries of records only, the later ones histories."""

    def __init__(self, records: Sequence[RunRecord], analysis: design.Analysis | None = None) -> None:
        self._records, self._analysis = records, analysis
        self._trained = [record for record in design.plain(records) if record.status != "crashed"]
        self._curves: dict[str, Series] = {}
        self.recipe: AnyRecipe = records[0].run.recipe
        self.runs = {
            scale: [record.id for record in at] for scale, at in design.by_level(self._trained).items()
        }
        self.epochs = max(record.summary.epochs for record in records)  # of the longest run

    @cached_property
    def state(self) -> Hashable:
        """Equal for equal records. A record never changes, but a crashed run can be trained again."""
        return self._analysis, tuple((r.id, r.status, r.error, r.summary) for r in self._records)

    @cached_property
    def metric(self) -> str:
        """The metric of the memory: test accuracy, or the next best that user code records."""
        return design.default_metric(self._records)

    @cached_property
    def train_metric(self) -> str | None:
        """The train metric next to it; None: not recorded, or the metric is not one of held-out data."""
        return train_metric(self._records, self.metric) if metric_of(self.metric).held_out else None

    @cached_property
    def memory(self) -> Memory:
        """The memory without its verdict, which depends on the other recipes: see `Content.memories`."""
        return measured(self._records, self.metric, analysis=self._analysis)

    @cached_property
    def profile(self) -> design.Profile:
        """The metric of the memory by seed and scale."""
        return design.profile(self._trained, self.metric)

    @cached_property
    def settling(self) -> Series:
        """The memory with its 95% interval from the first 2, 3, 4, 6 ... seeds."""
        applies = self._trained and not self.memory.inapplicable
        values = self.profile.values if applies else np.empty((0, 0))
        counts = sorted({*(n for n in SEEDS_SHOWN if n < len(values)), len(values)} - {0, 1})
        ranges = [spread(values[:n], bound=metric_of(self.metric).widest) for n in counts]
        ends = np.array([(one.spread, one.low, one.high) for one in ranges], dtype=float)  # None becomes NaN
        y, low, high = ends.reshape(-1, 3).T.tolist()
        return Series("", UNSTYLED, counts, y, low, high, n=[n * values.shape[1] for n in counts])

    def curve(self, metric: str) -> Series:
        """A metric against scale."""
        if metric not in self._curves:
            self._curves[metric] = profile_series(self._trained, metric)
        return self._curves[metric]

    @cached_property
    def own_metrics(self) -> list[str]:
        """Metrics that user code recorded under its own names; those derived from training come last."""
        return sorted(design.own_metrics(self._trained), key=lambda name: name.startswith(DERIVED))

    @cached_property
    def interpolation(self) -> Series:
        """The interpolation epoch against scale, of runs whose train accuracy was recorded."""
        return interpolation_series(
            [record for record in self._trained if record.summary.train_accuracy_last is not None]
        )

    @cached_property
    def columns(self) -> list[str]:
        """The metrics that were recorded epoch by epoch, without clocks and the like."""
        return design.curve_metrics(self._trained)

    def learning(self, column: str) -> tuple[Array, list[Level], Array]:
        """A metric by epoch in its display unit: values (seed, scale, epoch), scales and seeds."""
        values, levels, seeds = design.curves(self._trained, column)
        return metric_of(column).factor * values, levels, seeds

    @cached_property
    def cosines(self) -> dict[str, dict[int, float]]:
        """The mean cosine of every kernel to its initial weights, by epoch; none where it is not recorded."""
        curves = {name: by_epoch(self._trained, f"cosine:{name}") for name in kernels_of(self._trained)}
        return {name: curve for name, curve in curves.items() if curve}

    @property
    def followed(self) -> str:
        """The metric whose slope on the scale is followed over epochs: validation accuracy, else a loss."""
        return design.followed_metric(self._trained)

    @cached_property
    def beta(self) -> BetaCurve:
        """The slope of that metric on the scale, epoch by epoch."""
        return beta_curve(design.of_scales(self._records), self.followed)

    @cached_property
    def half_life(self) -> tuple[HalfLife | None, str, HalfLife | None]:
        """How long |beta| takes to halve for good: in epochs, and on which clock of the family how long."""
        lives = half_lives(design.of_scales(self._records), self.followed) if len(self.beta.beta) else []
        by_unit = {life.unit: life for life in lives}
        epochs = by_unit.pop("epochs", None)
        clock, life = next(iter(by_unit.items()), ("", None))
        return epochs, CLOCK_NAMES.get(clock, clock), life


class Content:
    """Results by recipe, in the order of the studies; reuses what `previous` computed of equal records."""

    def __init__(self, survey: Collection, previous: Content | None = None) -> None:
        self.survey = survey
        self.groups = design.by_recipe(survey.records, order := recipes_of(survey.studies))
        recipes = list(dict.fromkeys([*order, *self.groups]))
        # Also of recipes without a record.
        self.names = dict(zip(recipes, short_labels(recipes), strict=True))
        self.full_names = dict(zip(recipes, labels(recipes), strict=True))  # as commands write them
        analyses = design.analyses_of(survey.studies, self.groups)
        self.stats = {
            recipe: RecipeStats(group, analyses.get(recipe)) for recipe, group in self.groups.items()
        }
        if previous is not None:
            before = previous.stats
            self.stats |= {
                key: before[key]
                for key, new in self.stats.items()
                if key in before and before[key].state == new.state
            }

    @property
    def state(self) -> tuple[Any, ...]:
        """Equal for equal content."""
        survey = self.survey
        return [s.state for s in self.stats.values()], survey.damaged, survey.studies, survey.training

    @cached_property
    def requested(self) -> dict[str, Run]:
        """Every run that the studies ask for, by id."""
        return {run.id: run for study in self.survey.studies for run in study.all_runs()}

    @cached_property
    def families(self) -> dict[str, list[AnyRecipe]]:
        """Recipes that differ in batch size alone, by what they share."""
        groups = families(self.groups.values())
        return {name: [records[0].run.recipe for records in members] for name, members in groups.items()}

    @cached_property
    def memories(self) -> dict[AnyRecipe, Memory]:
        """The memory of every recipe with its verdict, as `initmem measure` prints it."""
        rows = judged([replace(stats.memory, recipe=self.names[key]) for key, stats in self.stats.items()])
        return dict(zip(self.stats, rows, strict=True))

    @property
    def setting(self) -> str:
        """What all recipes share: data, network, length. Nothing is known about user code."""
        own = any(isinstance(recipe, PipelineRecipe) for recipe in self.names)
        return "" if own else common(list(self.names))

    def epochs(self, recipe: AnyRecipe) -> int | None:
        """How long a recipe trains; user code as long as its longest run so far."""
        trained = self.stats[recipe].epochs if recipe in self.stats else 0
        return recipe.get("epochs") or trained or None


# -- clocks and forgetting --------------------------------------------------------------------------------


def clocks(content: Content) -> dict[str, Any]:
    """All clocks at the last epoch. The angular clock, and all clocks of user code, are measured."""
    at_end: dict[AnyRecipe, dict[str, float | None]] = {}
    for recipe in content.names:
        at_end[recipe] = dict.fromkeys(("updates", *CLOCKS))
        recorded = content.stats[recipe].beta.clocks if recipe in content.stats else {}
        at_end[recipe] |= {
            name: float(values[-1]) for name, values in recorded.items() if np.isfinite(values[-1:]).any()
        }
        with contextlib.suppress(InitmemError):  # the data may not be here, or known to user code alone
            at_end[recipe] |= _clocks_at_end(recipe)
    return {"at_end": at_end, "clocks": {name: CLOCK_NAMES.get(name, name) for name in CLOCKS}}


@lru_cache(maxsize=1024)
def _clocks_at_end(recipe: AnyRecipe) -> dict[str, float]:
    """The clocks at the last epoch that follow from the recipe alone."""
    network = recipe.network
    return clocks_of(network, sizes(network).n_train).at_end()
