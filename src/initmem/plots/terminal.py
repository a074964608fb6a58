"""Tables for the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from rich import box
from rich.table import Table

if TYPE_CHECKING:
    from initmem.measures.memory import Memory

COLOURS = {"remembers": "yellow", "forgets": "green", "undetermined": "dim", "not applicable": "dim"}


def memory_table(rows: Sequence[Memory], *, until: float | None = None) -> Table:
    """Memory per recipe, with interval, noise floor and verdict; `until` is a width that was asked for."""
    unit = rows[0].unit if rows else ""
    title = f"Initialization memory of {rows[0].metric if rows else 'nothing'}"
    table = Table(title=title + (f" ({unit})" if unit else ""), title_justify="left", box=box.SIMPLE_HEAD)
    for name in (
        "recipe",
        "memory",
        "95% interval",
        "noise floor",
        "corrected",
        "p",
        "q",
        "scales x seeds",
        "verdict",
    ):
        table.add_column(name, justify="left" if name in ("recipe", "verdict") else "right", no_wrap=True)
    for row in rows:
        form = ".1f" if row.unit == "pp" else ".3g"  # points to a tenth, anything else to three digits
        interval = "" if row.low is None else f"{_number(row.low, form)} to {_number(row.high, form)}"
        table.add_row(
            row.recipe,
            _number(row.memory, form),
            interval,
            _number(row.floor, form),
            _number(row.corrected, form),
            _number(row.p, ".2g"),
            _number(row.q, ".2g"),
            f"{row.n_scales} x {row.n_seeds}",
            f"[{COLOURS[row.verdict]}]{row.verdict_text}[/]{_remark(row, until)}",
        )
    if any(row.survives is False for row in rows):
        table.caption = "* does not survive the adjustment for the number of recipes shown (q)"
        table.caption_justify = "left"
    return table


def _remark(row: Memory, until: float | None) -> str:
    """What the reader should know beside the verdict: seeds still needed, or a width not met."""
    if until is not None and row.low is not None and row.high is not None:
        width = row.high - row.low
        return f", interval {width:.3g} wide" + ("" if width <= until else f" (asked: {until:g})")
    return f", {row.seeds_needed} seeds would settle it" if row.seeds_needed else ""


def plain_table(rows: Sequence[Mapping[str, object]], title: str = "") -> Table:
    """Rows of equal keys as a table."""
    table = Table(title=title or None, title_justify="left", box=box.SIMPLE_HEAD)
    for name in rows[0] if rows else []:
        table.add_column(name, no_wrap=name != "about")
    for row in rows:
        table.add_row(*(_cell(value) for value in row.values()))
    return table


def _cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _number(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)
