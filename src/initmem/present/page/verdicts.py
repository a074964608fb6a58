"""The first screen: the answer in a sentence, then the verdict and the memory of every recipe."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from initmem.measures.memory import TOLERANCE_PP, Memory, Verdict
from initmem.present.page.content import Content
from initmem.present.page.pictures import bar_axis, glyph, interval_bar, nice_limit, spark
from initmem.present.page.table import Cell, Column, Table, interval, number, runs_of
from initmem.recipe import Recipe

WORDS: dict[Verdict, str] = {
    "remembers": "the scale of the initialization is still visible in the trained predictor",
    "forgets": f"whatever the scale, training surely ends within {TOLERANCE_PP:g} points",
    "undetermined": "too few or too noisy runs to tell",
}


def verdicts(content: Content) -> dict[str, Any]:
    """What the template of the first screen needs."""
    rows = content.memories
    means = [mean for item in content.facts.values() for mean in item.accuracy.mean]
    return {
        "headline": headline(rows, waiting=len(content.names) - len(rows)),
        "extremes": extremes(rows),
        "table": table(content, rows),
        "words": {verdict: (glyph(verdict), meaning) for verdict, meaning in WORDS.items()},
        "bounds": (min(means, default=0.0), max(means, default=100.0)),
        "tolerance": TOLERANCE_PP,
        "studies": content.survey.studies,
        "setting": content.setting,
        "grids": sorted({row.n_scales for row in rows}),
    }


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
    """The largest and the smallest memory, in words."""
    measured = sorted((row for row in rows if row.memory is not None), key=lambda row: -(row.memory or 0.0))
    if not measured:
        return ""
    if len(measured) == 1:
        return f"Its memory: {in_words(measured[0])}."
    return f"Largest memory: {measured[0].recipe}, {in_words(measured[0])}. " + (
        f"Smallest: {measured[-1].recipe}, {in_words(measured[-1])}."
    )


def in_words(row: Memory) -> str:
    """A memory with its interval against its floor."""
    text = f"{row.memory:.1f} points"
    if row.low is None or row.high is None:
        return f"{text} (one seed: no interval)"
    return f"{text} (95% interval {row.low:.1f} to {row.high:.1f}; noise alone would show {row.floor:.1f})"


def table(content: Content, rows: Sequence[Memory]) -> Table:
    """A row per recipe, with its pictures."""
    largest = max((row.high or row.memory or 0.0 for row in rows), default=1.0)
    limit = nice_limit(max(largest, TOLERANCE_PP))
    means = [mean for item in content.facts.values() for mean in item.accuracy.mean]
    low, high = min(means, default=0.0), max(means, default=100.0)
    columns = [
        Column("recipe", "text"),
        Column("verdict", "text"),
        Column("accuracy by scale", "picture", "mean test accuracy against initialization scale"),
        Column("memory against its floor (pp)", "picture", "with its 95% interval", bar_axis(limit)),
        Column("memory", about="largest less smallest mean test accuracy over scales, in percentage points"),
        Column("95% interval", about="seeds are resampled; sorted by width"),
        Column("floor", about="what noise alone would show if the scale did not matter"),
        Column("corrected", about="the memory less its upward bias"),
        Column("p", about="of the scale not mattering"),
        Column("scales × seeds", "text"),
        Column("remarks", "text"),
    ]
    body = []
    for recipe, row in zip(content.facts, rows, strict=True):
        body.append(
            [
                Cell(row.recipe, href=runs_of(recipe.id), style="name"),
                Cell(row.verdict, style=f"verdict {row.verdict}", picture=glyph(row.verdict)),
                Cell(picture=spark(content.facts[recipe].accuracy, low, high)),
                Cell(picture=interval_bar(row, limit, TOLERANCE_PP)),
                number(row.memory, style="strong"),
                interval(row.low, row.high),
                number(row.floor),
                number(row.corrected),
                Cell("< 1e-9", row.p) if row.p is not None and row.p < 1e-9 else number(row.p, ".2g"),
                Cell(f"{row.n_scales} × {row.n_seeds}", style="number"),
                Cell("; ".join(remarks(content, recipe, row)), style="remark"),
            ]
        )
    if not any(cells[-1].text for cells in body):  # nothing to remark on
        columns, body = columns[:-1], [cells[:-1] for cells in body]
    return Table("memory", "Initialization memory of test accuracy", columns, body, "stack")


def remarks(content: Content, recipe: Recipe, row: Memory) -> list[str]:
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
