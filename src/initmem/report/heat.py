"""Heat maps as tables: every cell says its number, the colour only helps the eye."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from initmem.plots.curves import Curve, in_words
from initmem.recipe import AnyRecipe
from initmem.report.content import Content
from initmem.report.facets import Facet
from initmem.report.table import runs_of
from initmem.store.record import INTERPOLATION

STEPS = 9  # colours of the style sheet, h0 to h8


class HeatCell(NamedTuple):
    """One cell; `step` picks its colour, -1 where there are no runs."""

    text: str
    step: int
    about: str
    href: str
    crossed: bool = False


class HeatMap(NamedTuple):
    """One map with its axes."""

    title: str
    columns_are: str
    columns: list[str]
    rows: list[tuple[str, list[HeatCell]]]
    low: float
    high: float


def memory_maps(content: Content) -> list[HeatMap]:
    """Memory over batch size, a row per family of recipes that differ in nothing else."""
    members = content.families
    sizes = sorted({recipe.get("batch_size") for recipes in members.values() for recipe in recipes})
    rows = [content.facts[recipe].memory for recipes in members.values() for recipe in recipes]
    shown = [row.memory for row in rows if row.memory is not None and row.metric == content.metric]
    if not shown:
        return []
    low, high = min(shown), max(shown)
    maps = []
    for name, recipes in members.items():
        at = {recipe.get("batch_size"): recipe for recipe in recipes}
        maps.append((name, [_memory_cell(content, at.get(size), low, high) for size in sizes]))
    unit = f" ({rows[0].unit})" if rows[0].unit else ""
    return [HeatMap(f"Memory{unit}", "batch size", [str(size) for size in sizes], maps, low, high)]


def metric_maps(content: Content, facets: Sequence[Facet]) -> list[HeatMap]:
    """The metric over initialization scale, a row per recipe, a map per chart of the curves."""
    curves = {recipe: item.curve(content.metric) for recipe, item in content.facts.items()}
    shown = [mean for curve in curves.values() for mean in curve.mean]
    if not shown:
        return []
    low, high = min(shown), max(shown)
    maps = []
    for facet in facets:
        scales = sorted({scale for line in facet.lines for scale in curves[line.recipe].scales})
        rows = [
            (line.label, [_cell(content, line.recipe, curves[line.recipe], s, low, high) for s in scales])
            for line in facet.lines
            if curves[line.recipe].scales
        ]
        title = facet.title or in_words(content.metric).capitalize()
        if rows:
            maps.append(HeatMap(title, "initialization scale σ", [f"{s:g}" for s in scales], rows, low, high))
    return maps


def _memory_cell(content: Content, recipe: AnyRecipe | None, low: float, high: float) -> HeatCell:
    row = content.facts[recipe].memory if recipe is not None else None
    if recipe is None or row is None or row.memory is None or row.metric != content.metric:
        return HeatCell("", -1, "no value", "")
    limits = (
        f", 95% interval {row.low:.3g} to {row.high:.3g}, floor {row.floor:.2g}"
        if row.low is not None
        else ""
    )
    counts = f"n = {row.n_scales} × {row.n_seeds}"
    about = f"{content.names[recipe]}: {row.memory:.3g} {row.unit}{limits}, {row.verdict_text}, {counts}"
    text = f"{row.memory:.1f}" if row.unit == "pp" else f"{row.memory:.2g}"
    return HeatCell(text, step(row.memory, low, high), about, runs_of(recipe.id))


def _cell(
    content: Content, recipe: AnyRecipe, curve: Curve, scale: float, low: float, high: float
) -> HeatCell:
    if scale not in curve.scales:
        return HeatCell("", -1, "no runs", "")
    facts = content.facts[recipe]
    i = curve.scales.index(scale)
    mean, limits, train = curve.mean[i], curve.limits[i], facts.train.get(scale)
    about = f"{content.names[recipe]}, σ = {scale:g}: {mean:.4g}{'%' if 'accuracy' in content.metric else ''}"
    about += f", 95% interval {limits[0]:.4g} to {limits[1]:.4g}" if limits else ""
    about += f", n = {curve.n[i]}" + (f", train accuracy {train:.1f}%" if train is not None else "")
    about += f", runs {listed(facts.runs[scale])}"
    crossed = train is not None and train < 100 * INTERPOLATION
    return HeatCell(_short(mean, curve), step(mean, low, high), about, runs_of(recipe.id, scale), crossed)


def _short(value: float, curve: Curve) -> str:
    """What there is room for: with many scales, percentages lose their tenths."""
    if max(curve.mean) < 1:
        return f"{value:.2g}"
    return f"{value:.1f}" if len(curve.scales) <= 12 else f"{value:.0f}"


def step(value: float, low: float, high: float) -> int:
    """Which of the colours a value has."""
    return min(STEPS - 1, int(STEPS * (value - low) / ((high - low) or 1.0)))


def listed(ids: Sequence[str], most: int = 4) -> str:
    """The first few run ids, and how many more there are."""
    more = f" and {len(ids) - most} more" if len(ids) > most else ""
    return ", ".join(ids[:most]) + more
