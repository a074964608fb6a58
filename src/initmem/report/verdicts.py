"""The first screen: the answer in a sentence, then the verdict and the memory of every recipe."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from markupsafe import Markup

from initmem.errors import count
from initmem.measures.memory import TOLERANCE_PP, Memory, Verdict
from initmem.plots.builders import memory_interval
from initmem.plots.html import bar_axis, glyph, interval_bar, nice_limit, sparkline
from initmem.plots.memory_table import COLUMNS, memory_cells, memory_form
from initmem.plots.table import Cell, Column, Table, cell
from initmem.recipe import AnyRecipe
from initmem.report.content import Content, runs_of
from initmem.store.record import failure_lines

WORDS: dict[Verdict, str] = {
    "remembers": "the scale of the initialization is still visible in the trained predictor",
    "forgets": f"the 95% interval of the memory lies below {TOLERANCE_PP:g} points",
    "undetermined": "too few or too noisy runs to tell",
    "not applicable": "the training code never used the scale",
}

# The columns of the page, from left to right.
ORDER = (
    "recipe", "verdict", "curve", "bar", "memory", "interval", "floor", "corrected", "p", "q", "design",
    "metric", "remarks",
)  # fmt: skip


def verdicts(content: Content) -> dict[str, Any]:
    """What the template of the first screen needs."""
    rows = content.memories
    metrics = list(dict.fromkeys(row.metric for row in rows)) or ["test_accuracy"]
    return {
        "headline": " ".join(
            [
                headline(rows, waiting=len(content.names) - len(rows)),
                *(f"{line}." for line in failure_lines(content.survey.records)),
            ]
        ),
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
    if verdict in ("undetermined", "not applicable"):
        return f"{'is' if count == 1 else 'are'} {verdict}"
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
    return format(value or 0.0, memory_form(row))


def table(content: Content, rows: Sequence[Memory]) -> Table:
    """A row per recipe, with its pictures."""
    metrics = list(dict.fromkeys(row.metric for row in rows))
    bounds = {metric: _bounds(content, metric) for metric in metrics}
    limits = {metric: _limit([row for row in rows if row.metric == metric]) for metric in metrics}
    alike = len(metrics) == 1
    unit = f" ({rows[0].unit})" if alike and rows and rows[0].unit else ""
    name = metrics[0].replace("_", " ") if alike else "each recipe's metric"
    bar = f"memory against its floor{unit}"
    columns = {
        **COLUMNS,
        "curve": Column("by scale", "picture", f"mean of {name} against initialization scale"),
        "bar": Column(
            bar, "picture", "with its 95% interval", picture=bar_axis(limits[metrics[0]]) if alike else ""
        ),
        "metric": Column("metric", "text"),
    }
    body = []
    for recipe, row in zip(content.stats, rows, strict=True):
        cells = memory_cells(row)
        body.append(
            cells
            | {
                "recipe": cells["recipe"]._replace(href=runs_of(recipe.id)),
                "verdict": cells["verdict"]._replace(picture=glyph(row.verdict)),
                "curve": Cell(picture=sparkline(content.stats[recipe].main, *bounds[row.metric])),
                "bar": Cell(picture=_bar(row, limits[row.metric])),
                "metric": cell(row.metric.replace("_", " ") + (f" ({row.unit})" if row.unit else "")),
                "remarks": cell("; ".join(remarks(content, recipe, row)), style="remark"),
            }
        )
    shown = [key for key in ORDER if key != "metric" or not alike]
    if not any(cells["remarks"].text for cells in body):
        shown.remove("remarks")
    return Table(
        "Initialization memory",
        [columns[key] for key in shown],
        [[cells[key] for key in shown] for cells in body],
        id="memory",
        style="stack",
    )


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
    found += [f"{count(missing, 'run')} to come"] if missing else []
    found += ["mixed hardware"] if len({hardware(record.provenance) for record in records}) > 1 else []
    return [*found, *row.notes]


def hardware(provenance: Any) -> tuple[str, str]:
    """On what kind of machine a run was trained."""
    return str(provenance.get("hardware", "unknown")), str(provenance.get("device", "unknown")).split(":")[0]
