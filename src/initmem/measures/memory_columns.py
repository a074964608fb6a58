"""Memories as tables: the verdict on every recipe, and its memory at equal fit.

The terminal, the page and notebooks share these columns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from initmem.errors import count
from initmem.measures.design import Analysis, Groups, Measure, Row, default_metric
from initmem.measures.fit import Matched
from initmem.measures.memory import NEVER_USED, Memory, judged, measured
from initmem.measures.statistics import ALPHA
from initmem.metric import metric_of
from initmem.recipe import AnyRecipe
from initmem.table import RECIPE, Cell, Column, Table, cell, interval, number

COLUMNS = {
    "recipe": RECIPE,
    "verdict": Column("verdict", "text", "whether the trained model still depends on the scale"),
    "memory": number("memory", "range over scales (max - min) of the mean over seeds"),
    "interval": Column("interval"),  # columns_of knows its level
    "train": Column("train accuracy", "text", "lowest and highest mean over scales, of the selected models"),
    "matched": Column(
        "at equal fit",
        "text",
        "memory of the validation metric when each run first reaches a common level of fit",
        priority=4,
    ),
    "noise_range": number("noise range", "the memory expected from noise alone", priority=7),
    "debiased": number("debiased", "the memory minus its upward bias", priority=8),
    "p": number("p", "p-value of the hypothesis that the scale does not matter", priority=9),
    "p_adjusted": number(
        "p (adjusted)",
        "for the number of recipes; for forgets, p of the equivalence test (limit: 0.025)",
        priority=6,
    ),
    "design": Column(
        "scales × seeds", "text", "number of scales and of seeds that have them all", priority=5
    ),
    "remarks": Column("remarks", "text", "what else to know about the recipe", priority=1, room=9),
}
OPTIONAL = ("train", "matched")  # left out where no recipe has anything to show
SMALLEST_P = 1e-9
MOST_NOTES = 6


def columns_of(rows: Sequence[Memory]) -> dict[str, Column]:
    """The columns of these memories: intervals of interim analyses are wider than 95%."""
    levels = {row.alpha for row in rows if row.low is not None} or {ALPHA}
    if len(levels) > 1:
        title, about = "interval", "of the memory: of 95%, or as a note says for an interim analysis"
    else:
        (alpha,) = levels
        title = f"{100 * (1 - alpha):.3g}% interval"
        about = (
            f"of the memory, for new seeds and this test set: it holds 0 exactly when p is above {alpha:.3g}"
        )
    trained = dict.fromkeys(row.fit.metric.replace("_", " ") for row in rows if row.fit) or ["train accuracy"]
    train = COLUMNS["train"]._replace(title=" or ".join(trained))
    return COLUMNS | {"interval": number(title, about), "train": train}


def verdict_table(rows: Sequence[Memory], *, until: float | None = None) -> Table:
    """A row per recipe; `until` is the interval width that was asked for."""
    metric, unit = (rows[0].metric, rows[0].unit) if rows else ("nothing", "")
    title = f"Initialization memory of {metric}" + (f" ({unit})" if unit else "")
    body = [memory_cells(row) for row in rows]
    shown = [key for key in COLUMNS if key != "remarks"]
    shown = [key for key in shown if key not in OPTIONAL or any(cells[key].text for cells in body)]
    columns, cells = columns_of(rows), [[row[key] for key in shown] for row in body]
    return Table(title, [columns[key] for key in shown], cells, notes=shared_notes(rows, until))


def shared_notes(rows: Sequence[Memory], until: float | None = None) -> list[str]:
    """What to know next to the numbers, each thing once, with the recipes it is about."""
    about: dict[str, list[str]] = {}
    for row in rows:
        unseen = [f"forgets: {row.not_excluded}"] if row.not_excluded else []
        for note in filter(None, [memory_remark(row, until), *row.notes, *unseen]):
            about.setdefault(note, []).append(row.recipe)
    lines = []
    for note, names in about.items():
        more = f" and {len(names) - 2} more" if len(names) > 2 else ""
        lines.append(note if len(names) == len(rows) else f"{', '.join(names[:2])}{more}: {note}")
    left = len(lines) - MOST_NOTES
    return [*lines[:MOST_NOTES], *([f"{count(left, 'more note')} (--json has them all)"] if left > 0 else [])]


def memory_remark(row: Memory, until: float | None = None) -> str:
    """Seeds still needed, or how wide the interval is against what was asked for."""
    if row.verdict == "not applicable":
        return NEVER_USED
    if until is not None and row.low is not None and row.high is not None:
        width = row.high - row.low
        return f"interval {width:.1f} wide" + ("" if width <= until else f" (asked: {until:g})")
    return f"about {row.seeds_needed} seeds would settle it" if row.seeds_needed else ""


def memory_cells(row: Memory) -> dict[str, Cell]:
    """The cells of one recipe by the name of their column, without remarks."""
    form = memory_form(row)
    tiny = row.p is not None and row.p < SMALLEST_P
    return {
        "recipe": cell(row.recipe, style="name"),
        "verdict": cell(row.short_verdict, style=f"verdict {row.verdict.split()[0]}"),
        "memory": cell(row.memory, form, style="strong"),
        "interval": interval(row.low, row.high, form),
        "train": cell(_fit_range(row)),
        "matched": cell(_matched_text(row)),
        "noise_range": cell(row.noise_range, form),
        "debiased": cell(row.debiased, form),
        "p": Cell(row.p, f"< {SMALLEST_P:g}") if tiny else cell(row.p, ".2g"),
        "p_adjusted": cell(row.p_equivalence_adjusted if row.p_adjusted is None else row.p_adjusted, ".2g"),
        "design": cell(f"{row.n_scales} × {row.n_seeds}", style="number"),
    }


def memory_form(row: Memory) -> str:
    """How the numbers of a memory are written."""
    return metric_of(row.metric).form


def _fit_range(row: Memory) -> str:
    """The lowest and the highest mean train metric over scales."""
    if row.fit is None:
        return ""
    form = metric_of(row.fit.metric).form
    low, high = (format(end, form) for end in (min(row.fit.train), max(row.fit.train)))
    return (low if low == high else f"{low} to {high}") + ("%" if row.fit.unit == "pp" else "")


def _matched_text(row: Memory) -> str:
    """The memory at matched fit with its interval and the level that was matched."""
    if row.fit is None or isinstance(match := row.fit.matched, str):
        return ""
    form = metric_of(match.metric).form
    limits = "" if match.low is None else f" [{match.low:{form}}, {match.high:{form}}]"
    level = f"{100 * match.level:g}%" if match.by == "train_accuracy" else f"loss {match.level:g}"
    return f"{match.memory:{form}}{limits} at {level}"


# -- memory at equal fit ----------------------------------------------------------------------------------


def _fit_rows(
    groups: Groups,
    metric: str | None,
    *,
    analyses: Mapping[AnyRecipe, Analysis],
    tolerance: float | None = None,
    adjust: str = "bh",
) -> list[Row]:
    """The change from the smallest to the largest scale, split, and the memory at equal fit."""
    memories = [
        measured(
            records,
            metric or default_metric(records),
            tolerance=tolerance,
            label=label,
            analysis=analyses.get(records[0].run.recipe),
        )
        for label, records in groups.items()
    ]
    return [_fit_row(row) for row in judged(memories, adjust) if row.fit is not None]


def _fit_row(row: Memory) -> Row:
    fit = row.fit
    assert fit is not None
    cells: Row = {
        "recipe": row.recipe,
        "verdict": row.short_verdict,
        "metric": row.metric,
        "train_metric": fit.metric,
    }
    for name, change in (("test", fit.test_change), ("train", fit.train_change), ("gap", fit.gap_change)):
        value, low, high = change or (None, None, None)
        cells |= {name: value, f"{name}_low": low, f"{name}_high": high}
    cells |= {"train_smallest": fit.train[0], "train_largest": fit.train[-1]}
    for name, match in (("matched", fit.matched), ("by_loss", fit.matched_by_loss)):
        values = match if isinstance(match, Matched) else None
        fields = ("memory", "low", "high", "p", "level")
        cells |= {f"{name}_{field}": values and getattr(values, field) for field in fields}
        cells[f"{name}_scales"] = list(values.scales) if values else []
        if values:
            cells[f"{name}_level"] = metric_of(values.by).factor * values.level  # accuracies in percent
    cells |= {f"time_{name}": fit.time and getattr(fit.time, name) for name in ("ratio", "low", "high")}
    return cells | {"n_scales": row.n_scales, "n_seeds": row.n_seeds}


MEASURES = {
    "fit": Measure(
        "Change from the smallest to the largest scale, and memory at equal fit",
        _fit_rows,
        {
            "recipe": RECIPE,
            "verdict": Column("verdict", "text", "of the memory, with its mode"),
            "test": number("test", "change of the metric: train - gap", "+.1f~"),
            ("test_low", "test_high"): number("test: 95% interval", "of this change", ".1f~", priority=10),
            "train": number("train", "change of the train metric", "+.1f~"),
            ("train_low", "train_high"): number("train: 95% interval", "of this change", ".1f~", priority=10),
            ("train_smallest", "train_largest"): Column(
                "fit", "text", "train metric of the selected models at these two scales", form=".1f~"
            ),
            "gap": number("gap", "change of train - test", "+.1f~", priority=2),
            ("gap_low", "gap_high"): number("gap: 95% interval", "of this change", ".1f~", priority=10),
            "matched_memory": number(
                "at equal fit", "memory when each run first reaches a common train accuracy", ".1f~"
            ),
            ("matched_low", "matched_high"): number("95% interval", "of it", ".1f~"),
            "matched_p": number("p", "of no memory at equal fit", ".2g", priority=6),
            "matched_level": number("level", "the highest train accuracy (%) that all runs reach", ".3g"),
            "by_loss_memory": number("at equal loss", "the same, by train loss", ".1f~", priority=7),
            ("by_loss_low", "by_loss_high"): number(
                "loss: 95% interval", "of the memory at equal loss", ".1f~", priority=9
            ),
            "by_loss_p": number("loss: p", "of no memory at equal loss", ".2g", priority=9),
            "by_loss_level": number("loss", "the lowest train loss that all runs reach", ".2g", priority=8),
            "time_ratio": number(
                "time", "to fit: epochs of the slowest scale over the fastest", ".2f", priority=3
            ),
            ("time_low", "time_high"): number("time: 95% interval", "of this ratio", ".2f", priority=5),
            "metric": Column("metric", "text", "of the memory", priority=12),
            "train_metric": Column("train metric", "text", "that measures the fit", priority=12),
            "n_scales": number("scales", "number of scales", priority=11),
            "n_seeds": number("seeds", "number of seeds that have them all", priority=11),
        },
        options=("tolerance", "adjust", "analyses"),
        of_scale=True,
    )
}
