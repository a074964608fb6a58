"""Published values beside what was measured, with the size of what was measured."""

from __future__ import annotations

import math
from collections.abc import Sequence

from initmem.paper.reference import Reference, references
from initmem.plots.captions import common
from initmem.plots.series import folded
from initmem.plots.table import Cell, Column, Table, cell
from initmem.recipe import Recipe
from initmem.report.content import Content, runs_of
from initmem.report.recipe_stats import RecipeStats

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
    size, low, high = (column[-1] for column in folded(stats.beta))
    if math.isnan(size):
        return None, None
    return size, None if math.isnan(low) else (low, high)
