"""Cells of the paper's tables: means over seeds, and what is said about their number."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from initmem.measures.scales import median_interpolation
from initmem.paper.figures.select import Key
from initmem.paper.figures.view import View
from initmem.record import RunRecord
from initmem.table import MISSING, Cell, Column, Mean, Table, Value, cell

Entry = Value | Cell  # None: missing; "": does not apply

NO_VALUES = "No published values for what is shown"
BATCH = Column("b", about="batch size")
OPTIMIZER = Column("optimizer", "text", "its name")


def paper_table(
    title: str,
    columns: Sequence[Column],
    rows: Iterable[Sequence[Entry]],
    notes: Sequence[str],
    missing: Sequence[str],
    group: int = 1,
) -> Table:
    """A table that says how many seeds its means are over; a mean over any other number says so itself."""
    entries = [list(row) for row in rows]
    counts = [entry.n for row in entries for entry in row if isinstance(entry, Mean)]
    usual = max(set(counts), key=lambda n: (counts.count(n), n)) if counts else None
    cells = [[_cell(entry, usual) for entry in row] for row in entries]
    return Table(title, columns, cells, [*_seeds_note(usual, counts), *notes], missing, group=group)


def sources(
    view: View,
    keys: Sequence[Key],
    columns: Sequence[Column],
    rows: Iterable[Sequence[Entry]],
    *,
    reference: bool,
) -> list[str]:
    """Where the numbers come from; whether published ones are among them, where these were asked for."""
    places = [i for i, column in enumerate(columns) if column.about.startswith("published")]
    published = reference and any(row[i] for row in rows for i in places)
    none = [NO_VALUES] if reference and not published else []
    return [text for text in [*none, *view.source(keys, reference=published)] if text]


def _cell(entry: Entry, usual: int | None) -> Cell:
    match entry:
        case None:
            return Cell(None, MISSING)
        case Mean():
            return Cell(entry, str(entry) if entry.n == usual else f"{entry} ({entry.n})")
        case Cell():
            return entry
        case int() | float():
            return cell(entry, "d" if isinstance(entry, int) else "g")
        case _:
            return cell(entry)


def _seeds_note(usual: int | None, counts: Sequence[int]) -> list[str]:
    if usual is None:
        return []
    text = f"Mean ± sample deviation over n = {usual} seeds" if usual > 1 else "One seed: no deviation"
    return [text + ("; where n differs it is given in parentheses" if len(set(counts)) > 1 else "")]


def mean_of(values: Iterable[float | None], digits: int = 1) -> Mean | None:
    """Mean and sample deviation of the values that are there; None without any."""
    there = np.array([value for value in values if value is not None], dtype=float)
    if not len(there):
        return None
    std = float(there.std(ddof=1)) if len(there) > 1 else None
    return Mean(float(there.mean()), std, len(there), digits)


def number(value: float | None) -> Cell | None:
    """A number that is not a mean over seeds, to one digit."""
    return None if value is None else cell(value, ".1f")


def means_by_scale(
    records: Sequence[RunRecord], scales: Sequence[float], value: Callable[[RunRecord], float | None]
) -> list[Mean | None]:
    """One mean per scale, shape (scale,)."""
    return [mean_of(value(r) for r in records if r.run.scale == scale) for scale in scales]


def interpolated(records: Sequence[RunRecord]) -> str | None:
    """The median interpolation epoch; one that was not reached is larger than the last epoch."""
    if not records:
        return None
    times = median_interpolation(records)
    if times.median is None:
        return f"> {max(record.summary.epochs for record in records)}"
    return f"{times.median:.0f}" + (f" ({times.n_censored} never)" if times.n_censored else "")
