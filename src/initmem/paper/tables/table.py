"""A neutral table: what it says, without how it is written down."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from initmem.errors import ConfigError, allowed
from initmem.store.record import RunRecord

MISSING = "—"


class Measured(NamedTuple):
    """A mean over seeds with its sample deviation (None for a single seed)."""

    mean: float
    std: float | None
    n: int
    digits: int = 1


class Number(NamedTuple):
    """A number that is not a mean over seeds."""

    value: float
    digits: int = 1


Cell = str | int | float | Measured | Number | None  # None: missing; "": does not apply


class Column(NamedTuple):
    """The head of a column."""

    name: str
    unit: str = ""
    right: bool = False  # flush right, whatever it holds; numbers are anyway

    def __str__(self) -> str:
        return f"{self.name} ({self.unit})" if self.unit else self.name


@dataclass(frozen=True, slots=True)
class PaperTable:
    """Rows of cells under columns. `group` is the number of leading columns whose change starts a part."""

    title: str
    columns: list[Column]
    rows: list[list[Cell]]
    notes: list[str]
    missing: list[str]
    group: int = 1

    def render(self, format: str) -> str:
        """Write the table down: txt, md, tex or csv, as the ending of a file has it."""
        from initmem.paper.tables import render

        kind = format.lower().removeprefix(".")
        if kind not in render.FORMATS:
            raise ConfigError(f"table format = {format!r} ({allowed(render.FORMATS)})")
        return render.FORMATS[kind](self)

    def usual_n(self) -> int | None:
        """The number of seeds behind most of the means; a cell with another number says so."""
        counts = [cell.n for row in self.rows for cell in row if isinstance(cell, Measured)]
        return max(set(counts), key=lambda n: (counts.count(n), n)) if counts else None

    def parts(self) -> list[list[list[Cell]]]:
        """The rows, cut where the leading columns change."""
        found: list[list[list[Cell]]] = []
        for row in self.rows:
            if not found or found[-1][-1][: self.group] != row[: self.group]:
                found.append([])
            found[-1].append(row)
        return found


def measured(values: Iterable[float | None], digits: int = 1) -> Measured | None:
    """Mean and sample deviation of the values that are there; None without any."""
    found = np.array([value for value in values if value is not None], dtype=float)
    if not len(found):
        return None
    std = float(found.std(ddof=1)) if len(found) > 1 else None
    return Measured(float(found.mean()), std, len(found), digits)


def over_scales(
    records: Sequence[RunRecord], scales: Sequence[float], value: Callable[[RunRecord], float | None]
) -> list[Cell]:
    """One mean per scale, shape (scale,)."""
    return [measured(value(r) for r in records if r.run.scale == scale) for scale in scales]


def seeds_note(table: PaperTable) -> list[str]:
    """How many seeds stand behind the means."""
    usual = table.usual_n()
    if usual is None:
        return []
    counts = {cell.n for row in table.rows for cell in row if isinstance(cell, Measured)}
    text = f"Mean ± sample deviation over n = {usual} seeds" if usual > 1 else "One seed: no deviation"
    return [text + ("; where n differs it is given in parentheses" if len(counts) > 1 else "")]
