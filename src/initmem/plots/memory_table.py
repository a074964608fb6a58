"""The memory of every recipe as a table: the columns that the terminal and the page share."""

from __future__ import annotations

from collections.abc import Sequence

from initmem.errors import count, first_of
from initmem.measures.design import unit_of
from initmem.measures.memory import NEVER_USED, Memory
from initmem.measures.statistics import ALPHA
from initmem.plots.table import Cell, Column, Table, cell, interval

_COLUMNS = {
    "recipe": Column("recipe", "text", "the settings in which the recipes differ"),
    "verdict": Column("verdict", "text", "whether the trained model still depends on the scale"),
    "memory": Column("memory", about="range over scales (max - min) of the mean over seeds"),
    "interval": Column("interval"),  # columns_of knows its level
    "train": Column("train accuracy", "text", "lowest and highest mean over scales, of the selected models"),
    "matched": Column(
        "at equal fit",
        "text",
        "memory of the validation metric when each run first reaches a common level of fit",
        priority=4,
    ),
    "noise_range": Column("noise range", about="the memory expected from noise alone", priority=7),
    "debiased": Column("debiased", about="the memory minus its upward bias", priority=8),
    "p": Column("p", about="p-value of the hypothesis that the scale does not matter", priority=9),
    "p_adjusted": Column(
        "p (adjusted)",
        about="for the number of recipes; for forgets, p of the equivalence test (limit: 0.025)",
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
    train = _COLUMNS["train"]._replace(title=" or ".join(trained))
    return _COLUMNS | {"interval": Column(title, about=about), "train": train}


def memory_table(rows: Sequence[Memory], *, until: float | None = None) -> Table:
    """A row per recipe; `until` is the interval width that was asked for."""
    metric, unit = (rows[0].metric, rows[0].unit) if rows else ("nothing", "")
    title = f"Initialization memory of {metric}" + (f" ({unit})" if unit else "")
    body = [memory_cells(row) for row in rows]
    shown = [key for key in _COLUMNS if key != "remarks"]
    shown = [key for key in shown if key not in OPTIONAL or any(cells[key].text for cells in body)]
    columns, cells = columns_of(rows), [[row[key] for key in shown] for row in body]
    return Table(title, [columns[key] for key in shown], cells, notes=shared_notes(rows, until))


def shared_notes(rows: Sequence[Memory], until: float | None = None) -> list[str]:
    """What to know beside the numbers, each thing once, with the recipes it is about."""
    about: dict[str, list[str]] = {}
    for row in rows:
        unseen = [f"forgets: {row.not_excluded}"] if row.not_excluded else []
        for note in filter(None, [memory_remark(row, until), *row.notes, *unseen]):
            about.setdefault(note, []).append(row.recipe)
    lines = []
    for note, names in about.items():
        lines.append(note if len(names) == len(rows) else f"{first_of(names, 2, ', ')}: {note}")
    left = len(lines) - MOST_NOTES
    return [*lines[:MOST_NOTES], *([f"{count(left, 'more note')} (--json has them all)"] if left > 0 else [])]


def memory_cells(row: Memory) -> dict[str, Cell]:
    """The cells of one recipe by the name of their column, without remarks."""
    form = memory_form(row)
    return {
        "recipe": cell(row.recipe, style="name"),
        "verdict": cell(row.short_verdict, style=f"verdict {row.verdict.split()[0]}"),
        "memory": cell(row.memory, form, style="strong"),
        "interval": interval(row.low, row.high, form),
        "train": cell(fit_range(row)),
        "matched": cell(matched_text(row)),
        "noise_range": cell(row.noise_range, form),
        "debiased": cell(row.debiased, form),
        "p": Cell(row.p, f"< {SMALLEST_P:g}") if _tiny(row.p) else cell(row.p, ".2g"),
        "p_adjusted": cell(row.p_equivalence_adjusted if row.p_adjusted is None else row.p_adjusted, ".2g"),
        "design": cell(f"{row.n_scales} × {row.n_seeds}", style="number"),
    }


def fit_range(row: Memory) -> str:
    """The lowest and the highest mean train metric over scales."""
    if row.fit is None:
        return ""
    form = ".1f" if row.fit.unit == "pp" else ".3g"
    low, high = (format(end, form) for end in (min(row.fit.train), max(row.fit.train)))
    return (low if low == high else f"{low} to {high}") + ("%" if row.fit.unit == "pp" else "")


def matched_text(row: Memory) -> str:
    """The memory at matched fit with its interval and the level that was matched."""
    if row.fit is None or isinstance(match := row.fit.matched, str):
        return ""
    accuracies = unit_of(match.metric)[1] == "pp"
    form = ".1f" if accuracies else ".3g"
    limits = "" if match.low is None else f" [{match.low:{form}}, {match.high:{form}}]"
    level = f"{100 * match.level:g}%" if match.by == "train_accuracy" else f"loss {match.level:g}"
    return f"{match.memory:{form}}{limits} at {level}"


def memory_form(row: Memory) -> str:
    """How the numbers of a memory are written: points to a tenth, anything else to three digits."""
    return ".1f" if row.unit == "pp" else ".3g"


def _tiny(p: float | None) -> bool:
    return p is not None and p < SMALLEST_P


def memory_remark(row: Memory, until: float | None = None) -> str:
    """Seeds still needed, or how wide the interval is against what was asked for."""
    if row.verdict == "not applicable":
        return NEVER_USED
    if until is not None and row.low is not None and row.high is not None:
        width = row.high - row.low
        return f"interval {width:.1f} wide" + ("" if width <= until else f" (asked: {until:g})")
    return f"about {row.seeds_needed} seeds would settle it" if row.seeds_needed else ""
