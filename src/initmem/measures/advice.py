"""What was seen at such clocks, the least change that forgets, and how many seeds a verdict takes.

The clocks are a table of observations, not a prediction: they are compared within a family of recipes
(`clocks.family_of`), at the last epoch and at the effective learning rate. Before any run nothing else is
known, although the selected checkpoint may be much earlier: at batch size 16 the paper's Adam selects epoch 5
to 7 of 300. The power of a study is simulated with the method that will judge it, for normal noise, the same
at all scales.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from initmem.catalog import OPTIMIZERS, steps_of
from initmem.clocks import CLOCKS, effective_clocks, family_of, horizon_sums
from initmem.errors import ConfigError, allowed
from initmem.measures.design import by_recipe, default_metric, labelled, plain, profile
from initmem.measures.memory import memory_table
from initmem.measures.statistics import noise_of, spreads
from initmem.measures.verdict import TOLERANCE_PP
from initmem.metric import metric_of
from initmem.recipe import AnyRecipe, Recipe
from initmem.record import RunRecord
from initmem.store.results import Source, collected
from initmem.study import Study, recipes_of
from initmem.table import RECIPE, Column, Columns, number


class Observation(NamedTuple):
    """The memory of one recipe, and the clock of its family at its last epoch."""

    source: str  # "paper", or the name of a store or archive
    label: str
    recipe: AnyRecipe
    family: str
    clock: float
    memory: float
    text: str  # the memory with its unit
    verdict: str  # of its runs; the paper has none
    forgot: bool | None  # None: undetermined

    def __str__(self) -> str:
        where = "" if self.source == "paper" else f", {self.source}"
        return f"{self.text} at {self.clock:.3g}: {self.label}{where}"

    def to_json(self) -> dict[str, object]:
        """Plain values."""
        values = self._asdict()
        label = values.pop("label")
        return values | {"recipe": label}


class Change(NamedTuple):
    """A change of one field that reaches the clock of a recipe that forgot."""

    field: str
    value: float
    clock: float  # of the family of the changed recipe
    seen: Observation

    def to_json(self) -> dict[str, object]:
        """Plain values."""
        return self._asdict() | {"seen": self.seen.to_json()}


def family_clock(recipe: Recipe, n_train: int) -> tuple[str, float]:
    """The family of a recipe, and its clock at the last epoch."""
    family = family_of(recipe) or "sgd"
    ticks = horizon_sums(recipe, n_train).clocks(recipe.batch_size)
    return family, effective_clocks(recipe, ticks)[family]


def observations(source: Source, name: str) -> list[Observation]:
    """What records saw: every recipe with a memory and a recorded clock of its family."""
    data = collected(source)
    groups = labelled(data.records, recipes_of(data.studies))
    seen = []
    for row in memory_table(data) if data.records else ():
        group = groups[row.recipe]
        recipe = group[0].run.recipe
        family = family_of(recipe)
        clock = None if family is None else _last_clock(family, group)
        if family is not None and clock is not None and row.memory is not None:
            forgot = row.verdict == "forgets" or (False if row.verdict.startswith("remembers") else None)
            text = f"{row.memory:.3g} {row.unit}".strip()
            about = (clock, row.memory, text, row.verdict, forgot)
            seen.append(Observation(name, row.recipe, recipe, family, *about))
    return seen


def _last_clock(family: str, records: Sequence[RunRecord]) -> float | None:
    """A clock at the last epoch, median over runs; None: not recorded."""
    values = []
    for record in plain(records):
        recorded = [name for name in CLOCKS if len(record.history.get(f"clock_{name}", ()))]
        ticks = {name: float(record.history[f"clock_{name}"][-1]) for name in recorded}
        if value := effective_clocks(record.run.recipe, ticks).get(family):
            values.append(value)
    return float(np.median(values)) if values else None


def nearest(recipe: Recipe, n_train: int, seen: Sequence[Observation]) -> list[Observation]:
    """What was seen of the same family, the nearest clock first; at equal clocks, the most similar recipe."""
    family, clock = family_clock(recipe, n_train)

    def distance(one: Observation) -> tuple[float, int]:
        different = sum(one.recipe.get(name) != value for name, value in recipe.settings().items())
        return round(abs(math.log(one.clock / clock)), 2), different

    return sorted((one for one in seen if one.family == family), key=distance)


def reached(recipe: Recipe, n_train: int, seen: Sequence[Observation]) -> Observation | None:
    """The recipe of the same family that forgot at the least clock, if this recipe reaches it.

    Only clocks count above which no recipe of the family was seen to remember.
    """
    family, clock = family_clock(recipe, n_train)
    return next((one for one in forgotten(family, seen) if one.clock <= clock), None)


def forgotten(family: str, seen: Iterable[Observation]) -> list[Observation]:
    """What forgot at a clock above which no recipe of the family was seen to remember, the least first."""
    own = [one for one in seen if one.family == family]
    remembered = max((one.clock for one in own if one.forgot is False), default=0.0)
    return sorted((one for one in own if one.forgot and remembered < one.clock), key=lambda one: one.clock)


def changes(recipe: Recipe, n_train: int, seen: Sequence[Observation]) -> list[Change]:
    """Changes of one field each that reach a clock at which recipes forgot, the least first."""
    if reached(recipe, n_train, seen):
        return []
    least = [_least(recipe, n_train, field, values(recipe), seen) for field, values in LEVERS.items()]
    return sorted((one for one in least if one is not None), key=lambda one: _size(recipe, one))


def in_words(options: Sequence[Change]) -> str:
    """Changes as one would type them, with the observations that they reach."""
    values: dict[Observation, list[str]] = {}
    for one in options:
        values.setdefault(one.seen, []).append(f"{one.field}={one.value:g}")
    return "; ".join(f"{' or '.join(texts)} ({seen})" for seen, texts in values.items())


def _size(recipe: Recipe, change: Change) -> float:
    """How large a change is, in orders of magnitude; L2 where there was none counts from 1e-4."""
    old = float(getattr(recipe, change.field)) or 1e-4
    return abs(math.log10(change.value / old))


LONGEST = 20  # training that is proposed, in multiples of the present one

# For each field the values to try, from the least change on: 2 significant digits, within what people use.
LEVERS: dict[str, Callable[[Recipe], list[float]]] = {
    "learning_rate": lambda r: [v for v in _decades(r.learning_rate, 1.0) if v > r.learning_rate],
    "l2": lambda r: [v for v in _decades(max(r.l2, 1e-6), 0.1) if v > r.l2],
    "batch_size": lambda r: [float(b) for b in range(r.batch_size - 1, 0, -1)],
    "epochs": lambda r: [e for e in _decades(r.epochs, LONGEST * r.epochs) if e > r.epochs and e % 1 == 0],
}


def _decades(start: float, stop: float) -> list[float]:
    """Numbers of two significant digits from start to stop."""
    low, high = math.floor(math.log10(start)), math.ceil(math.log10(stop))
    values = [float(f"{d / 10}e{e}") for e in range(low, high + 1) for d in range(10, 100)]
    return [value for value in values if start <= value <= stop]


def _least(
    recipe: Recipe, n_train: int, field: str, values: Sequence[float], seen: Sequence[Observation]
) -> Change | None:
    """The first value that reaches an observation; clocks only grow along a lever, so bisect."""

    def changed(value: float) -> Recipe:
        return recipe.replace(**{field: int(value) if field in ("batch_size", "epochs") else value})

    first = bisect_left(values, True, key=lambda value: bool(reached(changed(value), n_train, seen)))
    if first == len(values):
        return None
    forgets = changed(values[first])
    forgot = reached(forgets, n_train, seen)
    return forgot and Change(field, values[first], family_clock(forgets, n_train)[1], forgot)


# -- from records -----------------------------------------------------------------------------------------

# The power of a setting with which the clock of a family grows, if a schedule keeps its shape. With a smaller
# batch there are more updates.
GROWTH = {
    "sgd": {"learning_rate": 2, "batch_size": -2, "epochs": 1},
    "l2": {"l2 and weight_decay": 1, "learning_rate": 1, "batch_size": -1, "epochs": 1},
    "adaptive": {"learning_rate": 1, "batch_size": -1, "epochs": 1},
}


MOST_TIMES = {"epochs": LONGEST}  # how far a setting may change; any other by a factor of 100
USUAL = {"learning_rate": (0.0, 1.0), "batch_size": (1.0, math.inf)}  # where its value is declared


class Multiple(NamedTuple):
    """A change of one setting to a multiple of it."""

    field: str
    factor: float


class Advice(NamedTuple):
    """What its records tell about a recipe, and the changes that reach the clock of one that forgot."""

    recipe: str
    verdict: str
    memory: float | None
    unit: str
    family: str | None  # None: not known
    clock: float | None  # of the family, at the last epoch; None: not recorded
    advice: str
    changes: list[Multiple]
    reaches: Observation | None

    def to_json(self) -> dict[str, object]:
        """Plain values."""
        reaches = self.reaches and self.reaches.to_json()
        return self._asdict() | {"changes": [one._asdict() for one in self.changes], "reaches": reaches}


def from_records(source: Source, name: str, seen: Sequence[Observation]) -> list[Advice]:
    """Advice about every recipe of a store.

    Recipes of the same store that forgot count first: clocks compare best within one network and dataset.
    """
    data = collected(source)
    groups, own = labelled(data.records, recipes_of(data.studies)), observations(data, name)
    rows = []
    for row in memory_table(data) if data.records else ():
        recipe = groups[row.recipe][0].run.recipe
        optimizer = recipe.get("optimizer")
        family = None if optimizer is None or steps_of(str(optimizer)) is None else family_of(recipe)
        clock = None if family is None else _last_clock(family, groups[row.recipe])
        reaches, options = None, list[Multiple]()
        if row.verdict in ("forgets", "untrained", "not applicable"):
            text = f"none: {'it forgets' if row.verdict == 'forgets' else row.verdict}"
        elif optimizer is None:
            text = "not possible: no optimizer is declared (recipe={'optimizer': ...}, --set optimizer=...)"
        elif family is None:
            text = f"not possible: the steps of optimizer = {optimizer!r} are unknown ({allowed(OPTIMIZERS)})"
        elif clock is None:
            text = "not possible: its clock was not recorded (tracker.attach(model, optimizer, batch_size))"
        elif not (targets := forgotten(family, own) or forgotten(family, seen)):
            text = "none: no recipe of its family was seen to forget"
        elif (reaches := targets[0]).clock <= clock:
            text = f"none: others forgot at such a clock ({reaches})"
        else:
            options = _multiples(recipe, family, reaches.clock / clock)
            words = " or ".join(f"{name} x {factor:.2g}" for name, factor in options)
            text = f"{words or 'no single change within usual bounds'} ({reaches})"
        about = (row.verdict, row.memory, row.unit, family, clock)
        rows.append(Advice(row.recipe, *about, text, options, reaches))
    return rows


def _multiples(recipe: AnyRecipe, family: str, ratio: float) -> list[Multiple]:
    """The changes of one setting that multiply the clock of a family by a ratio, within usual bounds."""
    multiples = []
    for name, power in GROWTH[family].items():
        factor, declared = ratio ** (1 / power), recipe.get(name)
        low, high = USUAL.get(name, (0.0, math.inf))
        is_usual = not isinstance(declared, int | float) or low <= factor * declared <= high
        if is_usual and max(factor, 1 / factor) <= MOST_TIMES.get(name, 100):
            multiples.append(Multiple(name, factor))
    return multiples


# -- power ------------------------------------------------------------------------------------------------

POWER = 0.8
MEMORY_PP = 5.0
SEEDS = (3, 4, 5, 6, 8, 10, 12, 15, 20, 25, 30, 40, 50, 75, 100)
STUDIES = 500


class Power(NamedTuple):
    """Seeds that give a verdict in 80% of all studies. None: more than a hundred."""

    recipe: str
    metric: str  # of the pilot
    noise: float  # standard deviation over seeds of one run, in the unit of the metric
    noise_from: str
    scales: int
    memory: float
    seeds_to_find: int | None  # `remembers`, if this is the memory, spread evenly over the scales
    tolerance: float
    seeds_to_forget: int | None  # `forgets`, if there is no memory
    planned: int
    found_as_planned: float  # share of studies with the planned seeds that find the memory


def power_rows(
    study: Study,
    *,
    noise: float | None,
    pilot: Sequence[RunRecord] = (),
    metric: str | None = None,
    memory: float | None = None,
    tolerance: float | None = None,
) -> list[Power]:
    """The power of a study, recipe by recipe, from the noise of pilot records or an assumed one.

    Without a memory and a tolerance, they are 5 and 2 points, if the metric is one that has points.
    """
    metric = metric or default_metric(pilot)
    if metric_of(metric).unit == "pp":
        memory, tolerance = memory or MEMORY_PP, tolerance or TOLERANCE_PP
    if memory is None or tolerance is None:
        raise ConfigError(f"power: {metric} is not counted in points (needed: --memory and --tolerance)")
    pooled = {recipe: pooled_noise(records, metric) for recipe, records in by_recipe(pilot).items()}
    measured = {recipe: sigma for recipe, sigma in pooled.items() if sigma}
    scales = len(study.levels)
    rows = []
    for recipe, label in zip(study.recipes, study.labels(), strict=True):
        sigma, source = (noise, "assumed") if noise is not None else _pilot_noise(recipe, measured)
        size, limit = _rounded(memory / sigma), _rounded(tolerance / sigma)
        planned = len(study.seeds_of(recipe))
        rows.append(
            Power(
                recipe=label,
                metric=metric,
                noise=sigma,
                noise_from=source,
                scales=scales,
                memory=memory,
                seeds_to_find=seeds_to_find(scales, size),
                tolerance=tolerance,
                seeds_to_forget=seeds_to_forget(scales, limit),
                planned=planned,
                found_as_planned=rates(scales, planned, size)[0],
            )
        )
    return rows


def _pilot_noise(recipe: AnyRecipe, measured: Mapping[AnyRecipe, float]) -> tuple[float, str]:
    """The noise of a recipe and where it is from: its own pilot runs, or the median of the others."""
    if recipe in measured:
        return measured[recipe], "pilot"
    if not measured:
        raise ConfigError("power needs the noise over seeds (allowed: points, or a store with more seeds)")
    return float(np.median(list(measured.values()))), "pilot, other recipes"


def pooled_noise(records: Sequence[RunRecord], metric: str | None = None) -> float | None:
    """The standard deviation of a run around its seed's level, pooled over scales; None from one seed."""
    values = profile(records, metric or default_metric(records)).values
    n, k = values.shape
    if n < 2 or k < 2:
        return None
    return math.sqrt(float(noise_of(values).total) / (k - 1)) or None


def _rounded(ratio: float) -> float:
    """Two digits: enough for a plan, and recipes of about the same noise share their simulation."""
    return float(f"{ratio:.2g}")


@lru_cache(maxsize=4096)
def rates(scales: int, seeds: int, ratio: float) -> tuple[float, float]:
    """Shares of studies that find a memory of `ratio` sigma, and that exclude it where there is none."""
    if min(scales, seeds) < 2:
        return 0.0, 0.0
    noise = np.random.default_rng([scales, seeds]).standard_normal((STUDIES, seeds, scales))
    significant = spreads(noise + np.linspace(0, ratio, scales)).p <= 0.05
    return float(significant.mean()), float((spreads(noise).high <= ratio).mean())


def seeds_to_find(scales: int, ratio: float) -> int | None:
    """The fewest seeds that find a memory of so many sigma in 80% of the studies."""
    return next((n for n in SEEDS if rates(scales, n, ratio)[0] >= POWER), None)


def seeds_to_forget(scales: int, ratio: float) -> int | None:
    """The fewest seeds that show a range within so many sigma in 80% of the studies without memory."""
    return next((n for n in SEEDS if rates(scales, n, ratio)[1] >= POWER), None)


COLUMNS: Columns = {
    "recipe": RECIPE,
    "metric": Column("metric", "text", "whose noise it is", priority=5),
    "noise": number("noise", "standard deviation over seeds of one run", ".2g"),
    "noise_from": Column("from", "text", "where the noise was taken from", priority=4),
    "scales": number("scales", "number of scales", priority=3),
    "memory": number("memory", "to be detected", ".3g"),
    "seeds_to_find": number("seeds", "that detect it; empty: more than a hundred"),
    "tolerance": number("tolerance", "range that counts as forgotten", ".3g"),
    "seeds_to_forget": number("seeds to forget", "that show it is forgotten, if there is none"),
    "planned": number("planned", "seeds of the study", priority=1),
    "found_as_planned": number("power", "share of studies that detect it as planned", ".0%"),
}
