"""Tables of every recipe: forecast, clocks, half-lives, collapse; published values beside measured ones."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from functools import lru_cache

from initmem.clocks import CLOCKS
from initmem.clocks import clocks as clocks_of
from initmem.data.sources import sizes
from initmem.errors import InitmemError
from initmem.measures.advice import Row, advice_row
from initmem.measures.beta import HalfLife
from initmem.measures.forecast import checked
from initmem.paper.reference import Reference, references
from initmem.plots.captions import common
from initmem.plots.series import folded
from initmem.plots.table import Cell, Column, Table, cell, interval, three_digits
from initmem.recipe import AnyRecipe, PipelineRecipe, Recipe, network_of
from initmem.report.content import Content, runs_of
from initmem.report.recipe_stats import RecipeStats


def forecast_table(content: Content) -> Table:
    """What the clocks alone predict, and what was observed."""
    columns = [
        Column("recipe", "text"),
        Column("predicted", "text", "from the clocks alone, with the thresholds of the paper's networks"),
        Column("clock", "text", "the clock that is closest to forgetting"),
        Column("at the end", about="its value at the last epoch"),
        Column("needed", about="the value from which memory should be gone"),
        Column("when selected", about="its value when the returned predictor was selected, median over runs"),
        Column("observed", "text", "the verdict of the runs"),
        Column("outcome", "text", "whether the prediction was correct"),
        Column("smallest change that should make it forget", "text"),
    ]
    return Table("Forecast", columns, [_forecast(content, r) for r in content.names], id="forecast")


def _forecast(content: Content, recipe: AnyRecipe) -> list[Cell]:
    name = cell(content.names[recipe], href=runs_of(recipe.id), style="name")
    stats = content.stats.get(recipe)
    measured = content.memory_of[recipe].verdict if stats else None
    try:
        if isinstance(recipe, PipelineRecipe):
            raise InitmemError("its clocks are measured, below; the thresholds are those of bundled networks")
        row = _advice(recipe)
    except InitmemError as error:
        empty = [Cell()] * 5
        return [name, *empty, _verdict(measured), Cell(), cell(f"no forecast: {error}", style="remark")]
    lived = stats.lived.get(row["clock"]) if stats else None
    return [
        name,
        cell(row["forecast"], style=row["forecast"]),
        cell(row["clock"]),
        three_digits(row["value"]),
        three_digits(row["needed"]),
        three_digits(lived),
        _verdict(measured),
        cell(checked(row["forecast"], measured) if measured else ""),
        cell(row["advice"], style="remark"),
    ]


@lru_cache(maxsize=1024)
def _advice(recipe: Recipe) -> Row:
    """Known from the recipe alone, and slow to find."""
    return advice_row(recipe, "")


@lru_cache(maxsize=1024)
def _at_end(recipe: AnyRecipe) -> dict[str, float]:
    """The clocks at the horizon, known from the recipe alone as well."""
    network = network_of(recipe)
    return clocks_of(network, sizes(network).n_train).at_end()


def _verdict(verdict: str | None) -> Cell:
    return cell("no run yet") if verdict is None else cell(verdict, style=verdict)


def clock_table(content: Content) -> Table:
    """All clocks at the last epoch; the angular one, and all of user code, are measured."""
    columns = [Column("recipe", "text"), Column("updates"), *(Column(name) for name in CLOCKS)]
    return Table("All clocks", columns, [_clocks(content, r) for r in content.names], id="clocks-all")


def _clocks(content: Content, recipe: AnyRecipe) -> list[Cell]:
    stats = content.stats.get(recipe)
    ends: dict[str, float] = dict(stats.last_clocks) if stats else {}
    with contextlib.suppress(InitmemError):  # the data may not be here, or be known to a user's code alone
        ends |= _at_end(recipe)
    updates = cell(ends.get("updates"), ",.0f")
    name = cell(content.names[recipe], style="name")
    return [name, updates, *(three_digits(ends.get(clock)) for clock in CLOCKS)]


def half_life_table(content: Content) -> Table:
    """How long |beta| takes to halve for good, in epochs and on every clock."""
    units = ["epochs", *CLOCKS]
    columns = [Column("recipe", "text"), *(Column(unit) for unit in units)]
    rows = []
    for recipe, stats in content.stats.items():
        lives = {life.unit: life for life in stats.half_lives}
        name = cell(content.names[recipe], href=runs_of(recipe.id), style="name")
        rows.append([name, *(_half_life(lives.get(unit)) for unit in units)])
    return Table("Half-life of |β|", columns, rows, id="half-lives")


def _half_life(life: HalfLife | None) -> Cell:
    if life is None:
        return Cell()
    if life.value is None:
        return Cell("not reached", "not reached", order=float("inf"))
    low = "?" if life.low is None else f"{life.low:.3g}"
    high = "…" if life.high is None else f"{life.high:.3g}"
    return Cell(life.value, f"{life.value:.3g} [{low}, {high}]")


def collapse_table(content: Content) -> Table | None:
    """The exponent of the batch size with which the curves of different batch sizes agree."""
    columns = [
        Column("recipes", "text"),
        Column("alpha", about="0: epochs, 1: the sum of eta, 2: the SGD clock; empty: cannot tell"),
        Column("95% interval"),
        Column("reading", "text"),
        Column("levels", about="of |β| that at least two curves pass"),
        Column("disagreement", "text", "decades of |β| between the curves, against each axis"),
    ]
    rows = [
        [
            cell(name, style="name"),
            cell(collapse.alpha, ".2f"),
            interval(collapse.low, collapse.high, ".2f"),
            cell(collapse.reading),
            cell(collapse.n_levels),
            cell(
                ", ".join(
                    f"{s.axis} {s.disagreement:.2f}" for s in collapse.scores if s.disagreement is not None
                )
            ),
        ]
        for name, collapse in content.collapses.items()
    ]
    return Table("Collapse of batch sizes", columns, rows, id="collapse") if rows else None


# -- published values -------------------------------------------------------------------------------------


QUANTITIES = {
    "spread": "memory",
    "test": "test accuracy",
    "train": "least train accuracy over scales",
    "gap": "difference between scales",
    "beta": "|β|, last epoch",
    "tau_best": "epoch of the returned predictor, mean over scales",
    "tau_interp": "median interpolation epoch, mean over scales",
}


def paper_table(content: Content) -> Table | None:
    """A row per published value whose procedure was run here, at whatever size."""
    columns = [
        Column("recipe", "text"),
        Column("quantity", "text"),
        Column("paper"),
        Column("measured here"),
        Column("95% interval"),
        Column("scales × seeds", "text"),
        Column("effort", "text"),
        Column("measured on", "text"),
    ]
    rows = [
        _row(content, recipe, stats, item)
        for recipe, stats in content.stats.items()
        for item in references()
        if isinstance(recipe, Recipe) and item.fits(recipe)
    ]
    return Table("Published and measured", columns, rows, id="paper-values") if rows else None


def _row(content: Content, recipe: Recipe, stats: RecipeStats, item: Reference) -> list[Cell]:
    study = content.study_of(recipe)
    value, limits = _measured(stats, item)
    where = "" if item.scale is None else f" at σ = {item.scale:g}"
    unit = f" ({item.unit})" if item.unit in ("pp", "%") else ""
    digits = 2 if item.quantity == "beta" else 1
    shown = "" if limits is None else f"{limits[0]:.{digits}f} to {limits[1]:.{digits}f}"
    return [
        cell(content.names[recipe], href=runs_of(recipe.id, item.scale), style="name"),
        cell(f"{QUANTITIES[item.quantity]}{where}{unit}"),
        Cell(item.value, str(item)),
        Cell(value, _absent(stats, item) if value is None else f"{value:.{digits}f}"),
        Cell(shown, shown, order=limits and limits[1] - limits[0]),
        cell(f"{stats.memory.n_scales} × {stats.memory.n_seeds}"),
        cell(study.effort if study else "unknown"),
        cell(common([recipe], ("learning_rate", "l2", "batch_size", "momentum")), style="remark"),
    ]


def _absent(stats: RecipeStats, item: Reference) -> str:
    never = item.quantity == "tau_interp" and bool(stats.interpolation.y)
    return "not reached from every scale" if never else "not run"


def _measured(stats: RecipeStats, item: Reference) -> tuple[float | None, tuple[float, float] | None]:
    """The same quantity from our records, with its interval."""
    memory = stats.memory
    match item.quantity:
        case "spread" | "gap":
            whole = memory.low is not None and memory.high is not None
            return memory.memory, (memory.low, memory.high) if whole else None  # type: ignore[return-value]
        case "test":
            curve = stats.curve("test_accuracy")
            i = None if item.scale is None else curve.at(item.scale)
            return (None, None) if i is None else (curve.y[i], curve.limits[i])
        case "train":  # it is said of all scales
            return min(stats.train.values(), default=None), None
        case "tau_best":
            return _mean(stats.curve("tau_best").y), None
        case "tau_interp":
            return _mean(stats.interpolation.y), None
        case _:
            return _slope(stats)


def _mean(epochs: Sequence[float]) -> float | None:
    """The mean over scales; None where it was not reached from every one of them."""
    whole = epochs and not any(map(math.isnan, epochs))
    return sum(epochs) / len(epochs) if whole else None


def _slope(stats: RecipeStats) -> tuple[float | None, tuple[float, float] | None]:
    if not len(stats.beta.beta):
        return None, None
    size = abs(float(stats.beta.beta[-1]))
    low, high = (limit[-1] for limit in folded(stats.beta.low, stats.beta.high))
    if math.isnan(size):
        return None, None
    return size, None if math.isnan(low) else (low, high)
