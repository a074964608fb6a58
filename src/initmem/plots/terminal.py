"""Tables in a terminal: fitted to its width, with a legend; nothing from a file reaches it unescaped."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from initmem.table import Cell, Column, Table

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.text import Text

GAP = 2  # between two columns: the divider of the box and a space
LONGEST_WORD = 30  # longer words (paths, hashes) are broken
COLORS = {
    "remembers": "yellow",
    "forgets": "green",
    "inconclusive": "dim",
    "untrained": "dim",
    "not": "dim",  # not applicable
    "remark": "dim",
    "strong": "bold",
}
# Control characters, and the marks that reverse the direction of text.
UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")


def printable(text: str) -> str:
    """Text with control characters made visible: an escape sequence in a file must not reach the terminal."""
    return UNPRINTABLE.sub(lambda match: ascii(match[0])[1:-1], text)


def print_table(table: Table, console: Console) -> None:
    """Print a table as wide as the console allows; below it what was left out, a legend and the notes."""
    table = table.without_pictures()
    shown, left_out = fitted(table, console.width)
    widths = _widths(shown, console.width)
    if table.title:
        _line(console, table.title, "bold")
    console.print()
    console.print(_grid(shown, widths) if widths else _stacked(shown))
    console.print()
    if left_out:
        names = ", ".join(column.title for column in left_out)
        _line(console, f"left out to fit {console.width} columns: {names} (| cat shows all)", "dim")
    for line in legend(shown.columns):
        _line(console, line, "dim")
    for note in table.footing():
        _line(console, note)


def legend(columns: Sequence[Column]) -> list[str]:
    """What the columns mean, a line each; those that mean the same share a line."""
    meanings: dict[str, list[str]] = {}
    for column in columns:
        if column.about:
            meanings.setdefault(column.about, []).append(str(column))
    return [f"{', '.join(names)}: {about}" for about, names in meanings.items()]


def fitted(table: Table, width: int) -> tuple[Table, list[Column]]:
    """As many columns as fit, and those that had to leave: the largest priority first, from the right."""
    kept = list(range(len(table.columns)))
    gone: list[int] = []
    while _total([_least(table, i) for i in kept]) > width:
        candidates = [i for i in kept if table.columns[i].priority]
        if not candidates:
            break
        leaves = max(candidates, key=lambda i: (table.columns[i].priority, i))
        kept.remove(leaves)
        gone.append(leaves)
    return table.keep(kept), [table.columns[i] for i in gone]


def _widths(table: Table, width: int) -> list[int]:
    """The width of every column; empty if even the narrowest table does not fit."""
    columns = range(len(table.columns))
    natural = [_longest([str(table.columns[i]), *_texts(table, i)]) for i in columns]
    if _total(natural) <= width:
        return natural
    least = [_least(table, i) for i in columns]
    if _total(least) > width:
        least = [_least(table, i, squeezed=True) for i in columns]
    room = width - _total(least)
    if room < 0:
        return []
    for i in columns:  # what is left goes to the first that want it: labels
        more = min(room, max(natural[i] - least[i], 0))
        least[i] += more
        room -= more
    return least


def _least(table: Table, i: int, *, squeezed: bool = False) -> int:
    """The width below which a column would lose something: numbers never wrap, text does between words."""
    column, texts = table.columns[i], _texts(table, i)
    head = min(_longest([str(column)], words=True), LONGEST_WORD)
    whole = _longest(texts)
    if column.kind == "number":
        return max(head, whole)
    room = 0 if squeezed else column.room
    return max(head, min(whole, max(room, min(_longest(texts, words=True), LONGEST_WORD))))


def _texts(table: Table, i: int) -> list[str]:
    return [printable(row[i].text) for row in table.rows]


def _longest(texts: Sequence[str], *, words: bool = False) -> int:
    from rich.cells import cell_len

    pieces = [word for text in texts for word in text.split()] if words else texts
    return max(map(cell_len, pieces), default=0)


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + GAP * (len(widths) - 1)


def _grid(table: Table, widths: Sequence[int]) -> RenderableType:
    from rich import box
    from rich.table import Table as Grid

    grid = Grid(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, GAP - 1, 0, 0))
    for column, width in zip(table.columns, widths, strict=True):
        grid.add_column(
            _text(str(column)),
            justify="right" if column.kind == "number" else "left",
            width=width,
            overflow="fold",
        )
    for part in table.parts() if table.group else [table.rows]:
        for row in part:
            grid.add_row(*(_text(cell.text, _color(cell)) for cell in row))
        grid.add_section()
    return grid


def _stacked(table: Table) -> RenderableType:
    """One cell per line, where the screen is too narrow for a table."""
    from rich.console import Group

    heads = [str(column) for column in table.columns]
    indent = max(map(len, heads), default=0) + GAP
    lines = [
        [
            _text(f"{head:<{indent}}", "dim") + _text(cell.text, _color(cell))
            for head, cell in zip(heads, row, strict=True)
        ]
        for row in table.rows
    ]
    return Group(*(line for row in lines for line in [*row, _text("")]))


def _text(text: str, style: str = "") -> Text:
    """Never markup: a name such as [/red] is a name."""
    from rich.text import Text

    return Text(printable(text), style)


def _color(cell: Cell) -> str:
    return next((COLORS[word] for word in cell.styles if word in COLORS), "")


def _line(console: Console, text: str, style: str = "") -> None:
    console.print(_text(text, style))
