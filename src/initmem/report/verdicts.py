"""The first screen: the answer in a sentence, then the verdict and the memory of every recipe."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

from markupsafe import Markup

from initmem.errors import count
from initmem.measures.fit import Mode
from initmem.measures.memory import NEVER_USED, Memory, Verdict
from initmem.measures.memory_columns import columns_of, memory_cells, memory_form
from initmem.measures.scales import AtScale, scale_means
from initmem.metric import metric_of, metric_title
from initmem.plots.builders import memory_interval
from initmem.plots.html import bar_axis, glyph, interval_bar, nice_limit, sparkline
from initmem.plots.model import decimals_between
from initmem.recipe import AnyRecipe
from initmem.record import failure_lines
from initmem.report.content import Content, runs_of
from initmem.table import Cell, Column, Mean, Table, cell, interval

WORDS: dict[Verdict, str] = {
    "remembers": "the scale of the initialization is still visible in the trained model",
    "forgets": "the 95% interval of the memory lies below the tolerance",
    "inconclusive": "too few or too noisy runs to tell",
    "untrained": "all runs are at chance",
    "not applicable": NEVER_USED,
}
MODES: dict[Mode, str] = {
    "generalization": "the scales fit the training data equally well and generalize differently, or they "
    "differ when they first reach the same train accuracy",
    "trainability": "some scales do not fit the training data as well as others; at equal fit no difference "
    "is significant",
    "fit unknown": "whether the scales are fitted equally well was not recorded or cannot be told",
}
NO_TOLERANCE = "never said here: {} has no natural tolerance (initmem measure --tolerance sets one)"

# The columns of the page, from left to right.
ORDER = (
    "recipe", "verdict", "bar", "memory", "interval", "train", "matched", "noise_range", "debiased", "p",
    "p_adjusted", "design", "metric",
)  # fmt: skip


def verdicts(content: Content) -> dict[str, Any]:
    """What the template of the first screen needs."""
    rows = content.memories
    metrics = list(dict.fromkeys(row.metric for row in rows)) or ["test_accuracy"]
    names = [name.replace("_", " ") for name in metrics]
    tolerances = {f"{row.tolerance:g} {row.unit}".strip() for row in rows if row.tolerance is not None}
    forgets = {} if tolerances or not rows else {"forgets": NO_TOLERANCE.format(" or ".join(names))}
    meanings = WORDS | forgets
    return {
        "headline": headline(rows, waiting=len(content.names) - len(rows)),
        "failures": failures(content),
        "extremes": extremes(rows),
        "scales": scale_table(content),
        "table": table(content, rows),
        "remarks": shared_remarks(content, rows),
        "words": {verdict: (glyph(verdict), meaning) for verdict, meaning in meanings.items()},
        "modes": {mode: text for mode, text in MODES.items() if any(row.mode == mode for row in rows)},
        "metrics": names,
        "bounds": _bounds(content, metrics[0]) if len(metrics) == 1 else None,
        "unit": "%" if metric_of(metrics[0]).is_percentage else "",
        "tolerance": " or ".join(sorted(tolerances)),
        "studies": content.survey.studies,
        "setting": content.setting,
        "grids": sorted({row.n_scales for row in rows}),
    }


def failures(content: Content) -> list[str]:
    """What went wrong, a sentence each: this belongs above every number."""
    records = content.survey.records
    counts = Counter(record.status for record in records)
    said = [f"{line}." for line in failure_lines(records)]
    if counts["diverged"]:
        said.append(f"{counts['diverged']:,} of {count(len(records), 'run')} diverged.")
    if content.survey.damaged:
        said.append(f"{count(len(content.survey.damaged), 'record')} cannot be read.")
    return said


def scale_table(content: Content) -> Table:
    """What each scale reached, the train metric below the metric of the memory: mean and standard deviation
    over seeds, and n, as `--what scale` has them."""
    reached = {
        (recipe, metric): {at.scale: at for at in scale_means(content.groups[recipe], metric)}
        for recipe, stats in content.stats.items()
        for metric in filter(None, (stats.metric, stats.train_metric))
    }
    scales = sorted({scale for row in reached.values() for scale in row})
    metrics = list(dict.fromkeys(metric for _, metric in reached))
    bounds = {metric: _bounds(content, metric) for metric in metrics}
    digits = {}
    for metric in metrics:
        rows = [row for (_, name), row in reached.items() if name == metric]
        accurate = metric_of(metric).is_percentage
        digits[metric] = 1 if accurate else _digits([at for row in rows for at in row.values()])
    body = []
    for (recipe, metric), row in reached.items():
        stats = content.stats[recipe]
        counts = [at.n for at in row.values()]
        least, most = min(counts), max(counts)
        body.append(
            [
                cell(content.names[recipe], href=runs_of(recipe.id), style="name"),
                *([cell(metric_title(metric))] if len(metrics) > 1 else []),
                Cell(picture=sparkline(stats.curve(metric), *bounds[metric])),
                *(_reached(recipe, row.get(scale), most, digits[metric]) for scale in scales),
                Cell(most, f"{least} to {most}" if least < most else str(most)),
            ]
        )
    columns = [
        Column("recipe", "text"),
        *([Column("metric", "text")] if len(metrics) > 1 else []),
        Column("by scale", "picture", "mean against initialization scale"),
        *(Column(f"σ = {scale:g}", about="mean ± standard deviation over seeds") for scale in scales),
        Column("n", about="runs behind each mean"),
    ]
    what = metric_title(metrics[0]) if len(metrics) == 1 else "test and train metrics"
    return Table(f"What each scale reached: {what}, mean ± s.d. over seeds", columns, body, id="by-scale")


def _digits(reached: Sequence[AtScale]) -> int:
    """Decimals that tell the means apart, and show a typical deviation."""
    means = [at.mean for at in reached if at.mean is not None]
    deviations = sorted(at.deviation for at in reached if at.deviation)
    for_deviation = math.ceil(-math.log10(deviations[len(deviations) // 2])) if deviations else 0
    return min(6, max(decimals_between(min(means), max(means)) if means else 0, for_deviation))


def _reached(recipe: AnyRecipe, at: AtScale | None, most: int, digits: int) -> Cell:
    if at is None:
        return Cell()
    if at.mean is None:
        return Cell(None, "crashed" if at.n_crashed else "no value", style="none")
    value = Mean(at.mean, at.deviation, at.n, digits)
    few = f" (n = {at.n})" if at.n < most else ""
    return Cell(value, f"{value}{few}", order=at.mean, href=runs_of(recipe.id, at.scale))


def _bounds(content: Content, metric: str) -> tuple[float, float]:
    """The axis that the small curves of one metric share; all accuracies share one."""
    metrics = {name for item in content.stats.values() for name in (item.metric, item.train_metric) if name}
    unit = metric_of(metric).unit
    alike = [name for name in metrics if unit and metric_of(name).unit == unit] or [metric]
    means = [m for item in content.stats.values() for name in alike for m in item.curve(name).y]
    return min(means, default=0.0), max(means, default=1.0)


def headline(rows: Sequence[Memory], *, waiting: int = 0) -> str:
    """The answer in one sentence; `waiting` more recipes have no finished run yet."""
    counts, n = Counter(row.verdict for row in rows), len(rows)
    said = [(verdict, counts[verdict]) for verdict in WORDS if counts[verdict]]
    if not said:
        return "No run has finished yet."
    (verdict, first_count), *others = said
    if n == 1:
        subject = "The recipe"
    elif first_count == n:
        subject = "Both recipes" if n == 2 else f"All {n} recipes"
    else:
        subject = f"{first_count} of {n} recipes"
    first = f"{subject} {_said(verdict, first_count, 'its initialization', 'their initialization')}"
    first += _modes(rows) if verdict == "remembers" else ""
    rest = [f"{m} {_said(other, m, 'it', 'it')}" for other, m in others]
    rest += [f"{waiting} more {'has' if waiting == 1 else 'have'} no finished run yet"] if waiting else []
    return "; ".join([first, *rest]) + "."


def _modes(rows: Sequence[Memory]) -> str:
    """How many memories are of each mode."""
    counts = Counter(row.mode for row in rows if row.mode is not None)
    said = [f"{counts[mode]} {mode}" if len(rows) > 1 else mode for mode in MODES if counts[mode]]
    return f" ({', '.join(said)})" if said else ""


def _said(verdict: str, count: int, one: str, many: str) -> str:
    if verdict in ("inconclusive", "untrained", "not applicable"):
        why = f" ({NEVER_USED})" if verdict == "not applicable" else ""
        return f"{'is' if count == 1 else 'are'} {verdict}{why}"
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
    """A memory with its interval and its noise range."""
    text = f"{_said_number(row.memory, row)}{' points' if row.unit == 'pp' else ''}"
    if row.low is None or row.high is None:
        return f"{text} (one seed: no interval)"
    limits, noise = interval(row.low, row.high, memory_form(row)).text, _said_number(row.noise_range, row)
    level = f"{100 * (1 - row.alpha):.3g}%"
    return f"{text} ({level} interval {limits}; noise alone would show {noise})"


def _said_number(value: float | None, row: Memory) -> str:
    return format(value or 0.0, memory_form(row))


def table(content: Content, rows: Sequence[Memory]) -> Table:
    """A row per recipe, with its pictures."""
    metrics = list(dict.fromkeys(row.metric for row in rows))
    limits = {metric: _limit([row for row in rows if row.metric == metric]) for metric in metrics}
    alike = len(metrics) == 1
    unit = f" ({rows[0].unit})" if alike and rows and rows[0].unit else ""
    bar = f"memory against its noise range{unit}"
    columns = {
        **columns_of(rows),
        "bar": Column(
            bar, "picture", "with its interval", picture=bar_axis(limits[metrics[0]]) if alike else ""
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
                "bar": Cell(picture=_bar(row, limits[row.metric])),
                "metric": cell(row.metric.replace("_", " ") + (f" ({row.unit})" if row.unit else "")),
            }
        )
    hidden = {"metric"} if alike else set()
    hidden |= {key for key in ("train", "matched") if not any(cells[key].text for cells in body)}
    shown = [key for key in ORDER if key not in hidden]
    return Table(
        "Initialization memory",
        [columns[key] for key in shown],
        [[cells[key] for key in shown] for cells in body],
        id="memory",
        style="stack",
    )


def _bar(row: Memory, limit: float) -> Markup:
    return interval_bar(memory_interval(row), limit, row.tolerance)


def _limit(rows: Sequence[Memory]) -> float:
    """Where the axis of interval bars ends."""
    largest = max((row.high or row.memory or 0.0 for row in rows), default=1.0)
    return nice_limit(max([largest, *(row.tolerance for row in rows if row.tolerance is not None)]))


def shared_remarks(content: Content, rows: Sequence[Memory]) -> list[tuple[str, str]]:
    """What to know beside the numbers, and about which recipes; what holds for all is said once."""
    named: dict[str, list[str]] = {}
    for recipe, row in zip(content.stats, rows, strict=True):
        if said := remarks(content, recipe, row):
            named.setdefault("; ".join(said), []).append(row.recipe)
    all_share = len(rows) > 1 and len(named) == 1 and len(next(iter(named.values()))) == len(rows)
    return [("All recipes" if all_share else ", ".join(names), said) for said, names in named.items()]


def remarks(content: Content, recipe: AnyRecipe, row: Memory) -> list[str]:
    """What a reader should know beside the numbers of one recipe."""
    records = content.groups[recipe]
    counts = Counter(record.status for record in records)
    asked = {
        run.id for study in content.survey.studies if recipe in study.recipes for run in study.runs(recipe)
    }
    missing = len(asked - {record.id for record in records})
    found = [f"about {row.seeds_needed} seeds would settle it"] if row.seeds_needed else []
    found += [row.not_excluded] if row.not_excluded else []
    named = {"crashed": counts["failed"], "diverged": counts["diverged"]}
    found += [f"{n} {name}" for name, n in named.items() if n]
    found += [f"{count(missing, 'run')} to come"] if missing else []
    found += ["mixed hardware"] if len({hardware(record.provenance) for record in records}) > 1 else []
    return [*found, *row.notes]


def hardware(provenance: Any) -> tuple[str, str]:
    """On what kind of machine a run was trained."""
    return str(provenance.get("hardware", "unknown")), str(provenance.get("device", "unknown")).split(":")[0]
