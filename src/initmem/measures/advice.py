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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from initmem.catalog import OPTIMIZERS, steps_of
from initmem.clocks import CLOCKS, clocks, effective_clocks, family_of, horizon_sums
from initmem.data.sources import sizes
from initmem.errors import ConfigError, allowed
from initmem.measures.design import Row, by_recipe, default_metric, plain, profile
from initmem.measures.memory import Memory, memory_table
from initmem.measures.statistics import ALPHA, POWER, TOLERANCE_PP, noise_of, spreads
from initmem.metric import metric_of
from initmem.recipe import AnyRecipe, Recipe
from initmem.record import RunRecord
from initmem.store.results import Source, collected
from initmem.study import Study
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

    def to_json(self) -> Row:
        """Plain values."""
        values = self._asdict() | {"recipe": self.label}
        del values["label"]
        return values


class Change(NamedTuple):
    """A change of one field that reaches the clock of a recipe that forgot."""

    field: str
    value: float
    clock: float  # of the family of the changed recipe
    seen: Observation


def family_clock(recipe: Recipe, n_train: int) -> tuple[str, float]:
    """The family of a recipe, and its clock at the last epoch."""
    family = family_of(recipe) or "sgd"
    ticks = horizon_sums(recipe, n_train).clocks(recipe.batch_size)
    return family, effective_clocks(recipe, ticks)[family]


def observations(source: Source, name: str) -> list[Observation]:
    """What records saw: every recipe with a memory and a recorded clock of its family."""
    seen = []
    for row, recipe, clock in _measured(source):
        family = family_of(recipe)
        if family is not None and clock is not None and row.memory is not None:
            forgot = {"forgets": True, "remembers": False}.get(row.verdict)
            text = f"{row.memory:.3g} {row.unit}".strip()
            about = (clock, row.memory, text, row.verdict, forgot)
            seen.append(Observation(name, row.recipe, recipe, family, *about))
    return seen


def _measured(source: Source) -> Iterator[tuple[Memory, AnyRecipe, float | None]]:
    """The memory of every recipe, and the clock of its family at the last epoch."""
    data = collected(source)
    groups = {recipe.id: group for recipe, group in by_recipe(data.records).items()}
    for row in memory_table(data) if data.records else ():
        group = groups[row.recipe_id]
        yield row, group[0].run.recipe, _last_clock(group)


def _last_clock(records: Sequence[RunRecord]) -> float | None:
    """The clock of a recipe's family at the last epoch, median over runs; None: not recorded."""
    recipe, values = records[0].run.recipe, []
    for record in plain(records):
        columns = {name: record.history.get(f"clock_{name}", np.empty(0)) for name in CLOCKS}
        ticks = {name: float(column[-1]) for name, column in columns.items() if len(column)}
        if value := effective_clocks(recipe, ticks).get(family_of(recipe) or ""):
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
    """The least changes of one field each that reach a clock at which recipes forgot, the smallest first."""
    if reached(recipe, n_train, seen):
        return []
    options: list[tuple[float, Change]] = []
    for field, values in LEVERS.items():
        changed = [recipe.replace(**{field: value}) for value in values(recipe)]
        # Clocks only grow along a lever.
        first = bisect_left(changed, True, key=lambda one: reached(one, n_train, seen) is not None)
        if first < len(changed) and (forgot := reached(changed[first], n_train, seen)):
            value, old = float(getattr(changed[first], field)), float(getattr(recipe, field))
            size = abs(math.log10(value / (old or 1e-4)))  # L2 where there was none counts from 1e-4
            options.append((size, Change(field, value, family_clock(changed[first], n_train)[1], forgot)))
    return [change for _, change in sorted(options, key=lambda option: option[0])]


def in_words(options: Sequence[Change]) -> str:
    """Changes as one would type them, with the observations that they reach."""
    values: dict[Observation, list[str]] = {}
    for one in options:
        values.setdefault(one.seen, []).append(f"{one.field}={one.value:g}")
    return "; ".join(f"{' or '.join(texts)} ({seen})" for seen, texts in values.items())


def of_study(study: Study, seen: Sequence[Observation]) -> list[Row]:
    """Advice about every recipe of a study before any run: its clocks, and what was seen near them."""
    rows: list[Row] = []
    for label, recipe in zip(study.labels(), [recipe.network for recipe in study.recipes], strict=True):
        n_train = sizes(recipe).n_train
        family, value = family_clock(recipe, n_train)
        near, options = nearest(recipe, n_train, seen), changes(recipe, n_train, seen)
        there = reached(recipe, n_train, seen)
        none = f"none ({there})" if there else "no single change within usual bounds"
        cells: Row = {"recipe": label, **clocks(recipe, n_train).at_end(), "family": family, "value": value}
        cells["paper"] = next((str(one) for one in near if one.source == "paper"), "")
        cells["records"] = next((str(one) for one in near if one.source != "paper"), "")
        cells |= {"advice": in_words(options) or none, "seen": [one.to_json() for one in near]}
        rows.append(cells | {"changes": [one._asdict() | {"seen": one.seen.to_json()} for one in options]})
    return rows


LONGEST = 20  # training that is proposed, in multiples of the present one

# For each field the values to try, from the least change on: 2 significant digits, within what people use.
LEVERS: dict[str, Callable[[Recipe], Sequence[float]]] = {
    "learning_rate": lambda r: _above(r.learning_rate, 1.0),
    "l2": lambda r: _above(r.l2, 0.1),
    "batch_size": lambda r: range(r.batch_size - 1, 0, -1),
    "epochs": lambda r: [int(e) for e in _above(r.epochs, LONGEST * r.epochs) if e % 1 == 0],
}


def _above(start: float, stop: float) -> list[float]:
    """Numbers of two significant digits above start, up to stop; from 1e-6 where it is less."""
    low, high = math.floor(math.log10(max(start, 1e-6))), math.ceil(math.log10(stop))
    values = [float(f"{d / 10}e{e}") for e in range(low, high + 1) for d in range(10, 100)]
    return [value for value in values if start < value <= stop]


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


def from_records(source: Source, name: str, seen: Sequence[Observation]) -> list[Row]:
    """Advice about every recipe of a store: what its records tell, and changes that reach a clock.

    Recipes of the same store that forgot count first: clocks compare best within one network and dataset.
    """
    data = collected(source)
    own, rows = observations(data, name), []
    for row, recipe, clock in _measured(data):
        optimizer = recipe.get("optimizer")
        family = None if optimizer is None or steps_of(str(optimizer)) is None else family_of(recipe)
        reaches, factors = None, dict[str, float]()
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
            factors = _factors(recipe, family, reaches.clock / clock)
            words = " or ".join(f"{field} x {factor:.2g}" for field, factor in factors.items())
            text = f"{words or 'no single change within usual bounds'} ({reaches})"
        cells: Row = {"recipe": row.recipe, "verdict": row.verdict, "memory": row.memory, "unit": row.unit}
        cells |= {"family": family, "clock": None if family is None else clock, "advice": text}
        cells["changes"] = [{"field": field, "factor": factor} for field, factor in factors.items()]
        rows.append(cells | {"reaches": reaches and reaches.to_json()})
    return rows


def _factors(recipe: AnyRecipe, family: str, ratio: float) -> dict[str, float]:
    """The factors of single settings that multiply the clock of a family by a ratio, within usual bounds."""
    factors = {}
    for name, power in GROWTH[family].items():
        factor, declared = ratio ** (1 / power), recipe.get(name)
        low, high = USUAL.get(name, (0.0, math.inf))
        is_usual = not isinstance(declared, int | float) or low <= factor * declared <= high
        if is_usual and max(factor, 1 / factor) <= MOST_TIMES.get(name, 100):
            factors[name] = factor
    return factors


# -- power ------------------------------------------------------------------------------------------------

MEMORY_PP = 5.0
SEEDS = (3, 4, 5, 6, 8, 10, 12, 15, 20, 25, 30, 40, 50, 75, 100)
STUDIES = 500


def power_rows(
    study: Study,
    *,
    noise: float | None,
    pilot: Sequence[RunRecord] = (),
    metric: str | None = None,
    memory: float | None = None,
    tolerance: float | None = None,
) -> list[Row]:
    """The power of a study, recipe by recipe, from the noise of pilot records or an assumed one.

    It finds a memory that is spread evenly over the scales, and forgets where there is none. Without a memory
    and a tolerance, they are 5 and 2 points, if the metric is one that has points.
    """
    metric = metric or default_metric(pilot)
    if metric_of(metric).unit == "pp":
        memory, tolerance = memory or MEMORY_PP, tolerance or TOLERANCE_PP
    if memory is None or tolerance is None:
        raise ConfigError(f"power: {metric} is not counted in points (needed: --memory and --tolerance)")
    measured = {r: sigma for r, group in by_recipe(pilot).items() if (sigma := pooled_noise(group, metric))}
    scales = len(study.levels)
    rows = []
    for recipe, label in zip(study.recipes, study.labels(), strict=True):
        sigma, source = (noise, "assumed") if noise is not None else _pilot_noise(recipe, measured)
        # Two digits: enough for a plan, and recipes of about the same noise share their simulation.
        size, limit = (float(f"{one / sigma:.2g}") for one in (memory, tolerance))
        planned = len(study.seeds_of(recipe))
        rows.append(
            {
                "recipe": label,
                "metric": metric,
                "noise": sigma,
                "noise_from": source,
                "scales": scales,
                "memory": memory,
                "seeds_to_find": seeds_to_find(scales, size),
                "tolerance": tolerance,
                "seeds_to_forget": seeds_to_forget(scales, limit),
                "planned": planned,
                "found_as_planned": rates(scales, planned, size)[0],
            }
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


@lru_cache(maxsize=4096)
def rates(scales: int, seeds: int, ratio: float) -> tuple[float, float]:
    """Shares of studies that find a memory of `ratio` sigma, and that exclude it where there is none."""
    if min(scales, seeds) < 2:
        return 0.0, 0.0
    noise = np.random.default_rng([scales, seeds]).standard_normal((STUDIES, seeds, scales))
    significant = spreads(noise + np.linspace(0, ratio, scales)).p <= ALPHA
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
