"""The design behind an answer: which records, by seed and by scale, which of their metrics, at which level.

Interim analyses. A test at 5% after five seeds, again after ten, and so on, reports a memory that is not
there in far more than 5% of all studies. With a schedule that is fixed beforehand, alpha is spent by the
function of Lan and DeMets that resembles Pocock's design: alpha log(1 + (e - 1) t) at the share t of the
largest number of seeds. The nominal levels of the analyses are such that a study without memory is rejected
by then with exactly that probability. Seeds that are added without a plan have no level of their own: a note
says that they were.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from typing import Any, Literal, NamedTuple

import numpy as np
from scipy.special import ndtr

from initmem.clocks import family_of
from initmem.errors import ConfigError, allowed, first_of
from initmem.intervention import Level, level_order
from initmem.labels import labels
from initmem.measures.statistics import ALPHA, Array
from initmem.metric import DERIVED, METRICS, metric_of
from initmem.recipe import AnyRecipe, PipelineRecipe, Recipe
from initmem.record import RunRecord
from initmem.study import Study
from initmem.table import Columns

Row = dict[str, Any]
Groups = Mapping[str, Sequence[RunRecord]]  # by the label of the recipe
Remarks = Callable[[Sequence[RunRecord]], list[str]]  # on the records of one recipe

# In order of preference; the epochs of a curve need a metric that is recorded in each.
CURVES = tuple(
    f"{split}_{name}"
    for split in ("val", "test", "train")
    for name in ("accuracy", "loss", "objective", "cross_entropy")
)


@dataclass(frozen=True, slots=True)
class Measure:
    """A table of `initmem measure`: rows of plain values, and their columns, but for `recipe` and `scale`.

    `rows` takes the records of one recipe, or by label those of all, a metric or None, and as keywords the
    options it names.
    """

    title: str
    rows: Callable[..., list[Row]]
    columns: Columns
    options: tuple[str, ...] = ()  # of adjust, tolerance and analyses (the interim analysis of each recipe)
    # runs; the effect of the scale, which recipes that never used it do not have; a slope on it, which
    # interventions do not have either; a curve of slopes over time, without cold epochs
    of: Literal["runs", "effect", "slope", "curve"] = "runs"
    remarks: Remarks = lambda records: []  # what else is left out of a recipe
    together: bool = False  # `rows` takes the records of all recipes

    @property
    def numeric(self) -> bool:
        """Whether it is asked of scales only, as slopes are."""
        return self.of in ("slope", "curve")

    def rows_of(self, groups: Groups, metric: str | None, **options: Any) -> list[Row]:
        """The rows of all recipes."""
        if self.together:
            return self.rows(groups, metric, **options)
        rows = ((label, self.rows(records, metric, **options)) for label, records in groups.items())
        return [{"recipe": label} | row for label, of_recipe in rows for row in of_recipe]


# -- records ----------------------------------------------------------------------------------------------


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


def shared_notes(notes: Sequence[tuple[str, Sequence[str]]]) -> list[str]:
    """The notes on recipes, each once, after the labels of those it is about if these are not all."""
    about: dict[str, list[str]] = {}
    for label, of_recipe in notes:
        for note in of_recipe:
            about.setdefault(note, []).append(label)
    return [
        note if len(labels) == len(notes) else f"{first_of(labels, 2, ', ')}: {note}"
        for note, labels in about.items()
    ]


def unrecorded(records: Sequence[RunRecord], array: str, what: str) -> list[str]:
    """In how many runs of a recipe an array was not recorded, if in any."""
    missing = [array not in record.arrays for record in plain(records)]
    return [f"{what} not recorded in {sum(missing)} of {len(missing)} runs"] if any(missing) else []


def bundled(records: Sequence[RunRecord]) -> list[RunRecord]:
    """The runs of bundled networks: of user code only what was declared is known."""
    return [record for record in records if isinstance(record.run.recipe, Recipe)]


def of_scales(records: Sequence[RunRecord]) -> list[RunRecord]:
    """The runs at a scale: slopes and elasticities are asked of numbers, not of interventions."""
    return [record for record in records if not record.run.intervention]


def own_clock(records: Sequence[RunRecord]) -> str | None:
    """The clock of a recipe's family, recorded or not; for SGD with momentum it is `momentum`."""
    clock = family_of(records[0].run.recipe)
    ticks = ((r.history.get("clock_momentum", 0), r.history.get("clock_sgd", 0)) for r in records)
    return "momentum" if clock == "sgd" and not all(np.array_equal(*pair) for pair in ticks) else clock


def curves(records: Sequence[RunRecord], column: str) -> tuple[Array, list[Level], Array]:
    """A history column as (values of shape (seed, level, epoch), levels, seeds); gaps are NaN.

    Runs that stopped early, diverged or are missing leave gaps; nothing is carried forward.
    """
    chosen = [record for record in plain(records) if column in record.history]
    levels = levels_of(chosen)
    seeds = sorted({record.run.seed for record in chosen})
    epochs = max((len(record.history[column]) for record in chosen), default=0)
    values = np.full((len(seeds), len(levels), epochs), np.nan)
    for record in chosen:
        row = record.history[column]
        values[seeds.index(record.run.seed), levels.index(record.run.level), : len(row)] = row
    return values, levels, np.array(seeds, dtype=float)


def levels_of(records: Iterable[RunRecord]) -> list[Level]:
    """The scales or interventions of runs, in order."""
    return sorted({record.run.level for record in records}, key=level_order)


def complete(records: Sequence[RunRecord], levels: Sequence[Level] | None = None) -> list[list[RunRecord]]:
    """The runs of the seeds that have one at every level: a row per seed, in the order of the levels."""
    runs = {(record.run.seed, record.run.level): record for record in records}
    levels = levels_of(records) if levels is None else levels
    seeds = sorted({seed for seed, _ in runs})
    return [[runs[s, x] for x in levels] for s in seeds if all((s, x) in runs for x in levels)]


def by_level(records: Sequence[RunRecord]) -> dict[Level, list[RunRecord]]:
    """Records by initialization scale, in ascending order, or by intervention."""
    ordered = sorted(records, key=lambda record: level_order(record.run.level))
    return {level: list(at) for level, at in groupby(ordered, key=lambda record: record.run.level)}


@dataclass(frozen=True, slots=True)
class Profile:
    """The values of one metric for one recipe, (seed, level): seeds with a finite value at every level."""

    scales: tuple[Level, ...]  # or interventions
    seeds: tuple[int, ...]
    values: Array
    dropped: tuple[int, ...] = ()  # seeds without a finite value at some scale


def profile(records: Sequence[RunRecord], metric: str) -> Profile:
    """Arrange the records of one recipe by seed and scale, in the metric's display unit."""
    check_metric(metric, records)
    main = plain(records)
    scales, every = levels_of(main), sorted({record.run.seed for record in main})
    finite = [r for r in main if (value := r.metric(metric)) is not None and math.isfinite(value)]
    rows = complete(finite, scales)
    seeds = tuple(row[0].run.seed for row in rows)
    values = np.array([[record.metric(metric) for record in row] for row in rows], dtype=float)
    return Profile(
        scales=tuple(scales),
        seeds=seeds,
        values=metric_of(metric).factor * values.reshape(len(seeds), len(scales)),
        dropped=tuple(seed for seed in every if seed not in seeds),
    )


# -- which metric -----------------------------------------------------------------------------------------


def check_metric(metric: str, records: Sequence[RunRecord]) -> None:
    """Refuse a metric that is neither one of ours nor recorded by user code."""
    names = dict.fromkeys([*METRICS, *own_metrics(records)])
    if metric not in names:
        raise ConfigError(f"metric = {metric!r} ({allowed(names, metric)})")


def own_metrics(records: Sequence[RunRecord]) -> list[str]:
    """What user code recorded under names of its own."""
    recorded = dict.fromkeys(
        name
        for record in records
        if isinstance(record.run.recipe, PipelineRecipe)
        for name in (*record.history, *record.finals)
    )
    return [name for name in recorded if name not in METRICS]


def default_metric(records: Sequence[RunRecord]) -> str:
    """Test accuracy where it is known, else the next best that the records hold."""
    held_out = ("test_accuracy", "val_accuracy_best", "test_loss", "val_loss")
    for name in (*held_out, *own_metrics(records), "train_accuracy", "train_loss"):
        if any(record.metric(name) is not None for record in records):
            return name
    return "test_accuracy"


def metric_reason(metric: str, records: Sequence[RunRecord]) -> str:
    """Why a metric was chosen, in one line, with what else could be asked for."""
    losses = ("test_loss", "test_cross_entropy", "test_objective", "val_loss", "val_cross_entropy")
    names = ["test_accuracy", "val_accuracy", *losses, "val_objective", *own_metrics(records)]
    others = [name for name in names if name != metric and not name.startswith(DERIVED)]
    recorded = [name for name in others if any(record.metric(name) is not None for record in records)]
    no_accuracy = "no accuracy was recorded"
    whys = {"test_accuracy": "the default", "val_accuracy_best": "no test accuracy was recorded"}
    whys |= {"test_loss": no_accuracy, "val_loss": no_accuracy}
    why = whys.get(metric, "neither an accuracy nor a loss of test or validation was recorded")
    also = f"; also recorded: {', '.join(recorded)}" if recorded else ""
    return f"metric: {metric} ({why}{also})"


def curve_metrics(records: Sequence[RunRecord]) -> list[str]:
    """The metrics that were recorded epoch by epoch, in order of preference."""
    return preferred(name for record in records for name in record.history)


def preferred(columns: Iterable[str]) -> list[str]:
    """The metrics among the columns of histories, those that are asked for most first."""
    names = dict.fromkeys(columns)
    own = [name for name in names if not name.startswith(DERIVED)]
    return list(dict.fromkeys(name for name in (*CURVES, *own) if name in names))


def followed_metric(records: Sequence[RunRecord], metric: str | None = None) -> str:
    """The metric whose dependence on the scale is followed over epochs; without any, there is no slope."""
    return metric or next(iter(curve_metrics(records)), "val_accuracy")


# -- interim analyses -------------------------------------------------------------------------------------

FIRST_ANALYSIS = 5  # seeds


class Analysis(NamedTuple):
    """Which analysis of a recipe this is: its number in the plan, its nominal level, alpha spent so far."""

    number: int = 1
    alpha: float = ALPHA
    spent: float = ALPHA
    unplanned: tuple[int, ...] = ()  # numbers of seeds analyzed before others were added without a plan


Analyses = Mapping[AnyRecipe, Analysis]


def schedule(seeds: int, most: int) -> tuple[int, ...]:
    """Numbers of seeds at which to analyze: from five, or what is there, doubling up to `most`."""
    planned = [max(seeds, min(FIRST_ANALYSIS, most))]
    while planned[-1] < most:
        # No last step of a few seeds.
        planned.append(2 * planned[-1] if 8 * planned[-1] <= 3 * most else most)
    return tuple(planned)


def alpha_spent(share: float) -> float:
    """Lan and DeMets' spending function of Pocock's type, at a share of the largest number of seeds."""
    return ALPHA * math.log1p((math.e - 1) * share)


@lru_cache(maxsize=64)
def levels(planned: tuple[int, ...]) -> tuple[float, ...]:
    """The nominal two-sided level of each planned analysis.

    The sum of n normal values is followed from analysis to analysis: its density where none has rejected so
    far, on Gauss-Legendre nodes between the limits (Armitage, McPherson and Rowe 1969).
    """
    from scipy.optimize import brentq

    nodes, weights = np.polynomial.legendre.leggauss(100)
    sums, mass, before = np.zeros(1), np.ones(1), 0  # where the sum may be, with which probability
    nominal = []
    for n in planned:
        step, due = math.sqrt(n - before), alpha_spent(n / planned[-1]) - alpha_spent(before / planned[-1])
        limit = brentq(_excess, 0.0, 10 * math.sqrt(n), args=(sums, mass, step, due), xtol=1e-10)
        nominal.append(round(float(2 * ndtr(-limit / math.sqrt(n))), 9))
        inside = limit * nodes
        density = np.exp(-(((inside[:, None] - sums) / step) ** 2) / 2) / (step * math.sqrt(2 * math.pi))
        sums, mass, before = inside, limit * weights * (density @ mass), n
    return tuple(nominal)


def _excess(limit: float, sums: Array, mass: Array, step: float, due: float) -> float:
    """The probability of a sum beyond a limit after one more step, minus what is due."""
    return float(mass @ (ndtr((sums - limit) / step) + ndtr((-sums - limit) / step))) - due


def analysis_of(study: Study, recipe: AnyRecipe) -> Analysis:
    """The analysis that the seeds of a recipe in a study make."""
    planned, seeds = study.schedule, len(study.seeds_of(recipe))
    if not planned:
        return Analysis(unplanned=study.analyzed)
    unplanned = study.analyzed + planned[-1:] * (seeds > planned[-1])
    made = next((i for i, n in enumerate(planned) if n >= seeds), len(planned) - 1)
    return Analysis(made + 1, levels(planned)[made], alpha_spent(planned[made] / planned[-1]), unplanned)


def analyses_of(studies: Iterable[Study], recipes: Iterable[AnyRecipe] = ()) -> dict[AnyRecipe, Analysis]:
    """The analysis of every recipe; where studies share one, the analysis with the most before it counts.

    Of `recipes`, those in no study were in one that was since run with others under the same name. They get
    the analysis with the most before it of all.
    """

    def before(analysis: Analysis) -> tuple[int, int]:
        return len(analysis.unplanned), analysis.number

    analyses: dict[AnyRecipe, Analysis] = {}
    for study in studies:
        for recipe in study.recipes:
            analyses[recipe] = max(analysis_of(study, recipe), analyses.get(recipe, Analysis()), key=before)
    return dict.fromkeys(recipes, max(analyses.values(), key=before, default=Analysis())) | analyses
