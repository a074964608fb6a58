"""The table model: what a table says. The renderers say how it looks.

`plots.tables` prints it in a terminal and writes text, Markdown, LaTeX and CSV, and the
macro of `report/templates/macros.html.j2` makes the sortable table of a page.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, Literal, NamedTuple

Kind = Literal["text", "number", "picture"]

FORMULA = ("=", "+", "-", "@", "\t", "\r")  # what a spreadsheet computes begins like this
MISSING = "—"


class Mean(NamedTuple):
    """A mean over seeds with its sample standard deviation (None for a single seed)."""

    mean: float
    std: float | None
    n: int
    digits: int = 1

    def __str__(self) -> str:
        deviation = "" if self.std is None else f" ± {self.std:.{self.digits}f}"
        return f"{round(self.mean, self.digits) + 0.0:.{self.digits}f}{deviation}"  # never -0.0


Value = str | int | float | Mean | None


class Column(NamedTuple):
    """The head of a column. Numbers are flush right and never wrap; pictures appear on pages only."""

    title: str
    kind: Kind = "number"
    about: str = ""  # one line for the legend
    unit: str = ""
    priority: int = 0  # 0 always stays; of the others the largest leaves a narrow terminal first
    room: int = 18  # the width that text gets, if it wants it, before other columns leave
    form: str = ""  # how values are written; "": by type; a last ~: to three digits where all are below 1
    picture: str = ""  # HTML in the head: the axis of the pictures below

    def __str__(self) -> str:
        return f"{self.title} ({self.unit})" if self.unit else self.title


def number(title: str, about: str, form: str = "", *, priority: int = 0, unit: str = "") -> Column:
    """A column of numbers, and how they are written."""
    return Column(title, about=about, form=form, priority=priority, unit=unit)


RECIPE = Column("recipe", "text", "the settings in which the recipes differ")


class Cell(NamedTuple):
    """One place in a table: the value for programs, the text for people."""

    value: Value = None
    text: str = ""
    order: float | None = None  # what it is sorted by, where that is not the value
    href: str = ""
    style: str = ""  # a class of the style sheet; the terminal knows some of them too
    picture: str = ""  # HTML
    about: str = ""  # the text in full, where a page shows a short form

    @property
    def styles(self) -> list[str]:
        """The words of the style: a verdict, or a class of the style sheet."""
        return re.findall(r"[a-z]+", self.style)

    @property
    def sort_key(self) -> float | None:
        """What a page sorts by; None: the text, or last among numbers."""
        if self.order is not None or not isinstance(self.value, int | float):
            return self.order
        return self.value


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of cells under columns."""

    title: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]
    notes: Sequence[str] = ()  # sentences without a full stop
    missing: Sequence[str] = ()  # what was asked for and is not there
    name: str = ""  # before the title, as in "Table 1"; LaTeX numbers tables itself
    id: str = ""  # of the element on a page
    style: str = ""  # a class of the style sheet
    group: int = 0  # a rule is drawn where the first so many cells change

    @property
    def heading(self) -> str:
        """The title after the name."""
        return f"{self.name}. {self.title}" if self.name else self.title

    @property
    def heads(self) -> list[str]:
        """The titles of the columns with their units."""
        return [str(column) for column in self.columns]

    def keep(self, columns: Iterable[int]) -> Table:
        """The same table with some of its columns."""
        kept = list(columns)
        return replace(
            self,
            columns=[self.columns[i] for i in kept],
            rows=[[row[i] for i in kept] for row in self.rows],
        )

    def without_pictures(self) -> Table:
        """The same table for a place that shows text alone."""
        return self.keep(i for i, column in enumerate(self.columns) if column.kind != "picture")

    def records(self) -> list[dict[str, Any]]:
        """The values for programs, a row each by the heads of the columns."""
        return [dict(zip(self.heads, map(_plain_value, row), strict=True)) for row in self.rows]

    def footing(self) -> list[str]:
        """The sentences below the table: its notes, and what is missing."""
        missing = [f"{MISSING} missing: {'; '.join(self.missing)}."] if self.missing else []
        return [f"{note}." for note in self.notes] + missing

    def parts(self) -> list[list[Sequence[Cell]]]:
        """The rows, divided where the leading cells change."""
        return [list(part) for _, part in groupby(self.rows, key=lambda row: list(row[: self.group]))]


def _plain_value(cell: Cell) -> Any:
    value = cell.value
    return {"mean": value.mean, "std": value.std, "n": value.n} if isinstance(value, Mean) else value


def cell(value: Value, form: str = "", *, href: str = "", style: str = "") -> Cell:
    """A value with its text: nothing where there is no value."""
    match value:
        case None:
            text = ""
        case bool():
            text = "yes" if value else "no"
        case int():
            text = format(value, form or ",d")
        case float():
            text = format(value, form or ".4g")
        case _:
            text = str(value)
    return Cell(value, text, href=href, style=style)


def interval(low: float | None, high: float | None, form: str = ".1f") -> Cell:
    """Two limits, sorted by the width between them."""
    if low is None or high is None:
        return Cell()
    shown = f"{low:{form}}"
    if low > 0 and float(shown) == 0:  # an interval that excludes zero must not be shown as from zero
        shown = f"{low:.1g}"
    text = f"{shown} to {high:{form}}"
    return Cell(text, text, order=high - low)


Key = str | tuple[str, str]  # two keys: the limits of an interval
Columns = Mapping[Key, Column]  # by the keys of the rows


def cell_text(value: object) -> object:
    """A value of a CSV file. A text that a spreadsheet would compute gets an apostrophe."""
    return f"'{value}" if isinstance(value, str) and value.startswith(FORMULA) else value


def flat(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Rows without the keys under which any of them has several values."""
    nested = {key for row in rows for key, value in row.items() if isinstance(value, dict | list)}
    return [{key: value for key, value in row.items() if key not in nested} for row in rows]


def table_of(
    title: str, rows: Sequence[Mapping[str, Any]], columns: Columns, notes: Sequence[str] = ()
) -> Table:
    """A table of rows with equal keys; a key that has no column here gets a plain one, the first to leave.

    Keys such as `n_seeds` need none: they are numbers of something.
    """
    keys = [key for key, value in rows[0].items() if not isinstance(value, dict | list)] if rows else []
    heads = {key: column for key, column in columns.items() if set(_parts(key)) <= set(keys)}
    described = {part for key in columns for part in _parts(key)}
    heads |= {key: _plain_column(key, rows) for key in keys if key not in described}
    heads = {key: head._replace(form=_form(head.form, key, rows)) for key, head in heads.items()}
    cells = [[_cell_of(row, key, head) for key, head in heads.items()] for row in rows]
    return Table(title, list(heads.values()), cells, notes)


def _parts(key: Key) -> tuple[str, ...]:
    return (key,) if isinstance(key, str) else key


def _form(form: str, key: Key, rows: Sequence[Mapping[str, Any]]) -> str:
    """Tenths suit percentage points; of losses they would leave nothing."""
    if not form.endswith("~"):
        return form
    sizes = [abs(row[part]) for row in rows for part in _parts(key) if row[part] is not None]
    return ".3g" if max(sizes, default=0.0) < 1 else form[:-1]


def _cell_of(row: Mapping[str, Any], key: Key, column: Column) -> Cell:
    if isinstance(key, str):
        return cell(row[key], column.form, style=str(row[key]) if column.title == "verdict" else "")
    return interval(row[key[0]], row[key[1]], column.form)


def _plain_column(key: str, rows: Sequence[Mapping[str, Any]]) -> Column:
    title = key.removeprefix("n_").replace("_", " ")
    if key.startswith("n_"):
        return number(title, f"number of {title}", priority=99)
    text = any(isinstance(row[key], str | bool) for row in rows)
    return Column(title, "text" if text else "number", priority=99)
