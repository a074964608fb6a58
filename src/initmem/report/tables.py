"""Tables of every recipe: clocks, half-lives, collapse; published values next to measured ones."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from functools import lru_cache

from initmem.clocks import CLOCK_NAMES, CLOCKS
from initmem.clocks import clocks as clocks_of
from initmem.data.sources import sizes
from initmem.errors import InitmemError
from initmem.measures.beta import HalfLife
from initmem.paper.reference import Reference, references
from initmem.plots.captions import common
from initmem.plots.series import folded
from initmem.recipe import AnyRecipe, Recipe, network_of
from initmem.report.content import Content, runs_of
from initmem.report.recipe_stats import RecipeStats
from initmem.table import Cell, Column, Table, cell, interval, three_digits


@lru_cache(maxsize=1024)
def _at_end(recipe: AnyRecipe) -> dict[str, float]:
    """The clocks at the last epoch, known from the recipe alone."""
    network = network_of(recipe)
    return clocks_of(network, sizes(network).n_train).at_end()


def clock_table(content: Content) -> Table:
    """All clocks at the last epoch, and the verdict; the angular one, and all of user code, are measured."""
    clocks = [Column(CLOCK_NAMES.get(name, name)) for name in CLOCKS]
    columns = [Column("recipe", "text"), Column("updates"), *clocks, Column("verdict", "text")]
    return Table("Clocks", columns, [_clocks(content, r) for r in content.names], id="clocks-all")


def _clocks(content: Content, recipe: AnyRecipe) -> list[Cell]:
    stats = content.stats.get(recipe)
    ends: dict[str, float] = dict(stats.last_clocks) if stats else {}
    with contextlib.suppress(InitmemError):  # the data may not be here, or be known to a user's code alone
        ends |= _at_end(recipe)
    updates = cell(ends.get("updates"), ",.0f")
    name = cell(content.names[recipe], href=runs_of(recipe.id), style="name")
    verdict = cell(stats.memory.verdict, style=stats.memory.verdict) if stats else cell("no run yet")
    return [name, updates, *(three_digits(ends.get(clock)) for clock in CLOCKS), verdict]


def half_life_table(content: Content) -> Table:
    """How long |beta| takes to halve for good, in epochs and on the clock of the recipe's family."""
    columns = [Column("recipe", "text"), Column("epochs"), Column("clock", "text"), Column("on the clock")]
    rows = []
    for recipe, stats in content.stats.items():
        lives = {life.unit: life for life in stats.half_lives}
        epochs = lives.pop("epochs", None)
        clock, life = next(iter(lives.items()), ("", None))
        name = cell(content.names[recipe], href=runs_of(recipe.id), style="name")
        rows.append([name, _half_life(epochs), cell(CLOCK_NAMES.get(clock, clock)), _half_life(life)])
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
