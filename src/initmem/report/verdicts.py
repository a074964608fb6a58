"""The first screen: the answer in a sentence, then the verdict and the memory of every recipe."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from markupsafe import Markup

from initmem.measures.memory import TOLERANCE_PP, Memory, Verdict
from initmem.plots.builders import memory_interval
from initmem.plots.html import bar_axis, glyph, interval_bar, nice_limit, sparkline
from initmem.recipe import AnyRecipe
from initmem.report.content import Content
from initmem.report.table import Cell, Column, Table, interval, number, runs_of

WORDS: dict[Verdict, str] = {
    "remembers": "the scale of the initialization is still visible in the trained predictor",
    "forgets": f"whatever the scale, training surely ends within {TOLERANCE_PP:g} points",
    "undetermined": "too few or too noisy runs to tell",
}


def verdicts(content: Content) -> dict[str, Any]:
    """What the template of the first screen needs."""
    rows = content.memories
    metrics = list(dict.fromkeys(row.metric for row in rows)) or ["test_accuracy"]
    return {
        "headline": headline(rows, waiting=len(content.names) - len(rows)),
        "extremes": extremes(rows),
        "table": table(content, rows),
        "words": {verdict: (glyph(verdict), meaning) for verdict, meaning in WORDS.items()},
        "metrics": [name.replace("_", " ") for name in metrics],
        "bounds": _bounds(content, metrics[0]) if len(metrics) == 1 else None,
        "unit": "%" if "accuracy" in metrics[0] else "",
        "tolerance": TOLERANCE_PP,
        "studies": content.survey.studies,
        "setting": content.setting,
        "grids": sorted({row.n_scales for row in rows}),
    }


def _bounds(content: Content, metric: str) -> tuple[float, float]:
    """The axis that the small curves of one metric share."""
    means = [m for item in content.stats.values() if item.metric == metric for m in item.main.y]
    return min(means, default=0.0), max(means, default=1.0)


def headline(rows: Sequence[Memory], *, waiting: int = 0) -> str:
    """The answer in one sentence; `waiting` more recipes have no finished run yet."""
    counts, n = Counter(row.verdict for row in rows), len(rows)
    said = [(verdict, counts[verdict]) for verdict in WORDS if counts[verdict]]
    if not said:
        return "No run has finished yet."
    (verdict, count), *others = said
    if n == 1:
        subject = "The recipe"
    elif count == n:
        subject = "Both recipes" if n == 2 else f"All {n} recipes"
    else:
        subject = f"{count} of {n} recipes"
    first = f"{subject} {_said(verdict, count, 'its initialization', 'their initialization')}"
    rest = [f"{m} {_said(other, m, 'it', 'it')}" for other, m in others]
    rest += [f"{waiting} more {'has' if waiting == 1 else 'have'} no finished run yet"] if waiting else []
    return "; ".join([first, *rest]) + "."


def _said(verdict: str, count: int, one: str, many: str) -> str:
    if verdict == "undetermined":
        return "is undetermined" if count == 1 else "are undetermined"
    return f"{verdict} {one}" if count == 1 else f"{verdict.removesuffix('s')} {many}"


def extremes(rows: Sequence[Memory]) -> str:
    """The largest and the smallest memory, in words, where they can be compared."""
    known = sorted((row for row in rows if row.memory is not None), key=lambda row: -(row.memory or 0.0))
    if not known or len({row.metric for row in known}) > 1:
        return ""
    if len(known) == 1:
        return f"Its memory: {in_words(known[0])}."
    largest, smallest = known[0], known[-1]
    return (
        f"Largest memory: {largest.recipe}, {in_words(largest)}. "
        f"Smallest: {smallest.recipe}, {in_words(smallest)}."
    )


def in_words(row: Memory) -> str:
    """A memory with its interval against its floor."""
    text = f"{_said_number(row.memory, row)}{' points' if row.unit == 'pp' else ''}"
    if row.low is None or row.high is None:
        return f"{text} (one seed: no interval)"
    low, high, floor = (_said_number(value, row) for value in (row.low, row.high, row.floor))
    return f"{text} (95% interval {low} to {high}; noise alone would show {floor})"


def _said_number(value: float | None, row: Memory) -> str:
    return format(value or 0.0, _form(row))


def _form(row: Memory) -> str:
    """How the numbers of a memory are written: points to a tenth, anything else to three digits."""
    return ".1f" if row.unit == "pp" else ".3g"


def table(content: Content, rows: Sequence[Memory]) -> Table:
    """A row per recipe, with its pictures."""
    metrics = list(dict.fromkeys(row.metric for row in rows))
    bounds = {metric: _bounds(content, metric) for metric in metrics}
    limits = {metric: _limit([row for row in rows if row.metric == metric]) for metric in metrics}
    alike = len(metrics) == 1
    unit = f" ({rows[0].unit})" if alike and rows and rows[0].unit else ""
    name = metrics[0].replace("_", " ") if alike else "each recipe's metric"
    columns = [
        Column("recipe", "text"),
        Column("verdict", "text"),
        Column("by scale", "picture", f"mean of {name} against initialization scale"),
        Column(
            f"memory against its floor{unit}",
            "picture",
            "with its 95% interval",
            bar_axis(limits[metrics[0]]) if alike else None,
        ),
        Column("memory", about=f"largest less smallest mean of {name} over scales"),
        Column("95% interval", about="seeds are resampled; sorted by width"),
        Column("floor", about="what noise alone would show if the scale did not matter"),
        Column("corrected", about="the memory less its upward bias"),
        Column("p", about="of the scale not mattering"),
        Column("scales × seeds", "text"),
        Column("metric", "text"),
        Column("remarks", "text"),
    ]
    body = [
        [
            Cell(row.recipe, href=runs_of(recipe.id), style="name"),
            Cell(row.verdict, style=f"verdict {row.verdict}", picture=glyph(row.verdict)),
            Cell(picture=sparkline(content.stats[recipe].main, *bounds[row.metric])),
            Cell(picture=_bar(row, limits[row.metric])),
            number(row.memory, _form(row), style="strong"),
            interval(row.low, row.high, _form(row)),
            number(row.floor, _form(row)),
            number(row.corrected, _form(row)),
            Cell("< 1e-9", row.p) if row.p is not None and row.p < 1e-9 else number(row.p, ".2g"),
            Cell(f"{row.n_scales} × {row.n_seeds}", style="number"),
            Cell(row.metric.replace("_", " ") + (f" ({row.unit})" if row.unit else "")),
            Cell("; ".join(remarks(content, recipe, row)), style="remark"),
        ]
        for recipe, row in zip(content.stats, rows, strict=True)
    ]
    dull = {"metric"} if alike else set()
    if not any(cells[-1].text for cells in body):
        dull.add("remarks")
    kept = [i for i, column in enumerate(columns) if column.title not in dull]
    shown = [[cells[i] for i in kept] for cells in body]
    return Table("memory", "Initialization memory", [columns[i] for i in kept], shown, "stack")


def _bar(row: Memory, limit: float) -> Markup:
    return interval_bar(memory_interval(row), limit, TOLERANCE_PP if row.unit == "pp" else None)


def _limit(rows: Sequence[Memory]) -> float:
    """Where the axis of interval bars ends."""
    largest = max((row.high or row.memory or 0.0 for row in rows), default=1.0)
    return nice_limit(max(largest, TOLERANCE_PP) if rows and rows[0].unit == "pp" else largest)


def remarks(content: Content, recipe: AnyRecipe, row: Memory) -> list[str]:
    """What a reader should know beside the numbers of one recipe."""
    records = content.groups[recipe]
    counts = Counter(record.status for record in records)
    asked = {
        run.id for study in content.survey.studies if recipe in study.recipes for run in study.runs(recipe)
    }
    missing = len(asked - {record.id for record in records})
    found = [f"about {row.seeds_needed} seeds would settle it"] if row.seeds_needed else []
    found += [f"{counts[name]} {name}" for name in ("failed", "diverged") if counts[name]]
    found += [f"{missing} runs to come"] if missing else []
    found += ["mixed hardware"] if len({hardware(record.provenance) for record in records}) > 1 else []
    return found


def hardware(provenance: Any) -> tuple[str, str]:
    """On what kind of machine a run was trained."""
    return str(provenance.get("hardware", "unknown")), str(provenance.get("device", "unknown")).split(":")[0]
