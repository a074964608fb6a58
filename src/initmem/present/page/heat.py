"""Heat maps as tables: every cell says its number, the colour only helps the eye."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from initmem.present.page.content import Content
from initmem.present.page.facets import Facet
from initmem.present.page.table import runs_of
from initmem.recipe import Recipe
from initmem.record import INTERPOLATION

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
    unit: str


def memory_maps(content: Content) -> list[HeatMap]:
    """Memory over batch size, a row per family of recipes that differ in nothing else."""
    members = content.families
    sizes = sorted({recipe.batch_size for recipes in members.values() for recipe in recipes})
    values = {r: item.memory.memory for r, item in content.facts.items() if item.memory.memory is not None}
    shown = [values[recipe] for recipes in members.values() for recipe in recipes if recipe in values]
    if not shown:
        return []
    low, high = min(shown), max(shown)
    rows = []
    for name, recipes in members.items():
        at = {recipe.batch_size: recipe for recipe in recipes}
        rows.append((name, [_memory_cell(content, at.get(size), low, high) for size in sizes]))
    return [HeatMap("Memory (pp)", "batch size", [str(size) for size in sizes], rows, low, high, "pp")]


def accuracy_maps(content: Content, facets: Sequence[Facet]) -> list[HeatMap]:
    """Test accuracy over initialization scale, a row per recipe, a map per chart of the curves."""
    shown = [mean for item in content.facts.values() for mean in item.accuracy.mean]
    if not shown:
        return []
    low, high = min(shown), max(shown)
    maps = []
    for facet in facets:
        scales = sorted({s for line in facet.lines for s in content.facts[line.recipe].accuracy.scales})
        rows = [
            (line.label, [_accuracy_cell(content, line.recipe, scale, low, high) for scale in scales])
            for line in facet.lines
        ]
        title = facet.title or "Test accuracy (%)"
        maps.append(
            HeatMap(title, "initialization scale σ", [f"{s:g}" for s in scales], rows, low, high, "%")
        )
    return maps


def _memory_cell(content: Content, recipe: Recipe | None, low: float, high: float) -> HeatCell:
    row = content.facts[recipe].memory if recipe is not None else None
    if recipe is None or row is None or row.memory is None:
        return HeatCell("", -1, "no value", "")
    limits = (
        "" if row.low is None else f", 95% interval {row.low:.1f} to {row.high:.1f}, floor {row.floor:.1f}"
    )
    counts = f"n = {row.n_scales} × {row.n_seeds}"
    about = f"{content.names[recipe]}: {row.memory:.1f} pp{limits}, {row.verdict}, {counts}"
    return HeatCell(f"{row.memory:.1f}", step(row.memory, low, high), about, runs_of(recipe.id))


def _accuracy_cell(content: Content, recipe: Recipe, scale: float, low: float, high: float) -> HeatCell:
    facts = content.facts[recipe]
    curve = facts.accuracy
    if scale not in curve.scales:
        return HeatCell("", -1, "no runs", "")
    i = curve.scales.index(scale)
    train = facts.train.get(scale)
    limits = curve.limits[i]
    about = f"{content.names[recipe]}, σ = {scale:g}: {curve.mean[i]:.1f}%"
    about += f", 95% interval {limits[0]:.1f} to {limits[1]:.1f}" if limits else ""
    about += f", n = {curve.n[i]}" + (f", train accuracy {train:.1f}%" if train is not None else "")
    about += f", runs {listed(facts.runs[scale])}"
    crossed = train is not None and train < 100 * INTERPOLATION
    text = f"{curve.mean[i]:.1f}" if len(curve.scales) <= 12 else f"{curve.mean[i]:.0f}"
    return HeatCell(text, step(curve.mean[i], low, high), about, runs_of(recipe.id, scale), crossed)


def step(value: float, low: float, high: float) -> int:
    """Which of the colours a value has."""
    return min(STEPS - 1, int(STEPS * (value - low) / ((high - low) or 1.0)))


def listed(ids: Sequence[str], most: int = 4) -> str:
    """The first few run ids, and how many more there are."""
    more = f" and {len(ids) - most} more" if len(ids) > most else ""
    return ", ".join(ids[:most]) + more
