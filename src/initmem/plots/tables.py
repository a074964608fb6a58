"""Write a table: to a terminal, as text, Markdown, LaTeX or CSV, or as HTML for a notebook.

Nothing from a file reaches a terminal unescaped.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape

from rich import box
from rich.cells import cell_len
from rich.console import Console, Group, JustifyMethod
from rich.table import Table as Grid
from rich.text import Text

from initmem.errors import ConfigError, allowed
from initmem.table import Cell, Column, Mean, Table, cell_text

GAP = 2  # between two columns: the divider of the box and a space
LONGEST_WORD = 30  # longer words (paths, hashes) are broken
COLORS = {  # in a terminal; not applicable begins with "not"
    "remembers": "yellow", "forgets": "green", "inconclusive": "dim", "untrained": "dim", "not": "dim",
    "remark": "dim", "strong": "bold",
}  # fmt: skip
HTML_COLORS = {
    "remembers": "#c75b12", "forgets": "#0b8a63", "inconclusive": "#7a8490", "untrained": "#7a8490",
}  # fmt: skip
# Control characters, and the marks that reverse the direction of text.
UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")
LEFT, RIGHT = (f' style="text-align: {side}; padding: .2em .8em"' for side in ("left", "right"))
LATEX = str.maketrans({
    "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
    "<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}", "—": "---",
    "±": r"$\pm$", "≤": r"$\le$", "≥": r"$\ge$", "≈": r"$\approx$", "−": r"$-$", "×": r"$\times$",
    "σ": r"$\sigma$", "τ": r"$\tau$", "η": r"$\eta$", "λ": r"$\lambda$", "α": r"$\alpha$", "β": r"$\beta$",
    "ε": r"$\varepsilon$", "Δ": r"$\Delta$", "₁": r"$_1$", "₂": r"$_2$",
} | {sign: rf"\{sign}" for sign in "&%$#_{}"})  # fmt: skip
MARKDOWN = str.maketrans({sign: f"\\{sign}" for sign in "\\`*_|[]<>#"})


# -- in a terminal -----------------------------------------------------------------------------------------


def printable(text: str) -> str:
    """Text with control characters made visible: an escape sequence in a file must not reach the terminal."""
    return UNPRINTABLE.sub(lambda match: ascii(match[0])[1:-1], text)


def print_table(table: Table, console: Console, *, legend: bool = True) -> None:
    """Print a table as wide as the console allows; below it what was left out, a legend and the notes."""
    table = table.without_pictures()
    shown, left_out = fitted(table, console.width)
    widths = _widths(shown, console.width)
    if table.title:
        _line(console, table.heading, "bold")
    console.print()
    console.print(_grid(shown, widths) if widths else _stacked(shown))
    console.print()
    if left_out:
        names = ", ".join(column.title for column in left_out)
        _line(console, f"left out to fit {console.width} columns: {names} (| cat shows all)", "dim")
    for line in meanings(shown.columns) if legend else ():
        _line(console, line, "dim")
    for note in table.footing():
        _line(console, note)


def meanings(columns: Sequence[Column]) -> list[str]:
    """What the columns mean, a line each; those that mean the same share a line."""
    names: dict[str, list[str]] = {}
    for column in columns:
        if column.about:
            names.setdefault(column.about, []).append(str(column))
    return [f"{', '.join(alike)}: {about}" for about, alike in names.items()]


def fitted(table: Table, width: int) -> tuple[Table, list[Column]]:
    """As many columns as fit, and those that had to leave: the largest priority first, from the right."""
    least = {i: _least(table, i) for i in range(len(table.columns))}
    may_leave = sorted((column.priority, i) for i, column in enumerate(table.columns) if column.priority)
    gone: list[Column] = []
    while may_leave and _total(list(least.values())) > width:
        _, i = may_leave.pop()
        gone.append(table.columns[i])
        del least[i]
    return table.keep(least), gone


def _widths(table: Table, width: int) -> list[int]:
    """The width of every column; empty if even the narrowest table does not fit."""
    columns = range(len(table.columns))
    least = [_least(table, i) for i in columns]
    if _total(least) > width:
        least = [_least(table, i, squeezed=True) for i in columns]
    left = width - _total(least)
    if left < 0:
        return []
    for i in columns:  # what is left goes to the first that want it: labels
        natural = _longest([str(table.columns[i]), *_texts(table, i)])
        more = min(left, natural - least[i])
        least[i] += more
        left -= more
    return least


def _least(table: Table, i: int, *, squeezed: bool = False) -> int:
    """The width below which a column would lose something: numbers never wrap, text does between words."""
    column, texts = table.columns[i], _texts(table, i)
    head = min(_longest(str(column).split()), LONGEST_WORD)
    whole = _longest(texts)
    if column.kind == "number":
        return max(head, whole)
    word = min(_longest([word for text in texts for word in text.split()]), LONGEST_WORD)
    return max(head, min(whole, max(0 if squeezed else column.room, word)))


def _texts(table: Table, i: int) -> list[str]:
    return [printable(row[i].text) for row in table.rows]


def _longest(texts: Sequence[str]) -> int:
    return max(map(cell_len, texts), default=0)


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + GAP * (len(widths) - 1)


def _grid(table: Table, widths: Sequence[int]) -> Grid:
    grid = Grid(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, GAP - 1, 0, 0))
    for column, width in zip(table.columns, widths, strict=True):
        side: JustifyMethod = "right" if column.kind == "number" else "left"
        grid.add_column(_text(str(column)), justify=side, width=width, overflow="fold")
    for part in table.parts():
        for row in part:
            grid.add_row(*(_text(cell.text, _color(cell)) for cell in row))
        grid.add_section()
    return grid


def _stacked(table: Table) -> Group:
    """One cell per line, where the screen is too narrow for a table."""
    indent = max(map(len, table.heads), default=0) + GAP
    lines = []
    for row in table.rows:
        for head, cell in zip(table.heads, row, strict=True):
            lines.append(_text(f"{head:<{indent}}", "dim") + _text(cell.text, _color(cell)))
        lines.append(_text(""))
    return Group(*lines)


def _text(text: str, style: str = "") -> Text:
    """Never markup: a name such as [/red] is a name."""
    return Text(printable(text), style)


def _color(cell: Cell, colors: Mapping[str, str] = COLORS) -> str:
    return next((colors[word] for word in cell.styles if word in colors), "")


def _line(console: Console, text: str, style: str = "") -> None:
    console.print(_text(text, style))


# -- in files and notebooks --------------------------------------------------------------------------------


def latex_escape(text: str) -> str:
    """Text that LaTeX prints as it stands."""
    return text.translate(LATEX)


def render(table: Table, format: str) -> str:
    """Write a table as txt, md, tex or csv, as the ending of a file has it; or markdown, latex."""
    kind = format.lower().removeprefix(".")
    if kind not in FORMATS:
        raise ConfigError(f"table format = {format!r} ({allowed(FORMATS)})")
    return FORMATS[kind](table.without_pictures())


def _right(table: Table) -> list[bool]:
    """Which columns are set flush right."""
    return [column.kind == "number" for column in table.columns]


def text(table: Table) -> str:
    """What a terminal shows that is wide enough for all of it."""
    stream = io.StringIO()
    print_table(table, Console(file=stream, width=10_000, force_terminal=False))
    return "\n".join(line.rstrip() for line in stream.getvalue().splitlines()) + "\n"


def markdown(table: Table) -> str:
    """A pipe table under its title."""

    def line(cells: Iterable[str]) -> str:
        return "| " + " | ".join(cell.translate(MARKDOWN) for cell in cells) + " |"

    bars = "|" + "|".join("---:" if right else ":---" for right in _right(table)) + "|"
    rows = [line(cell.text for cell in row) for row in table.rows]
    head = [f"**{table.heading.translate(MARKDOWN)}**", "", line(table.heads), bars]
    foot = [note.translate(MARKDOWN) for note in table.footing()]
    return "\n".join([*head, *rows, "", " ".join(foot)]) + "\n"


def latex(table: Table) -> str:
    """A table environment; needs \\usepackage{booktabs}."""

    def line(cells: Iterable[str]) -> str:
        return "    " + " & ".join(latex_escape(cell) for cell in cells) + r" \\"

    columns = "".join("r" if right else "l" for right in _right(table))
    body: list[str] = []
    for part in table.parts():
        body += [r"    \midrule", *(line(cell.text for cell in row) for row in part)]
    return "\n".join(
        [
            r"% needs \usepackage{booktabs}",
            r"\begin{table}",
            r"  \centering\small\setlength{\tabcolsep}{4pt}",
            rf"  \caption{{{latex_escape(table.title)}}}",
            rf"  \begin{{tabular}}{{{columns}}}",
            r"    \toprule",
            line(table.heads),
            *body,
            r"    \bottomrule",
            r"  \end{tabular}",
            r"  \par\smallskip\footnotesize",
            *(f"  {latex_escape(note)}" for note in table.footing()),
            r"\end{table}",
            "",
        ]
    )


def html(table: Table) -> str:
    """For a notebook, light or dark: nothing but alignment, and the colors of the verdicts."""

    def line(tag: str, cells: Iterable[str]) -> str:
        sides = [RIGHT if right else LEFT for right in _right(table)]
        row = "".join(f"<{tag}{side}>{cell}</{tag}>" for cell, side in zip(cells, sides, strict=True))
        return f"<tr>{row}</tr>"

    head = line("th", map(escape, table.heads))
    body = "".join(line("td", map(_colored, row)) for row in table.rows)
    notes = "".join(f"<p>{escape(note)}</p>" for note in table.footing())
    title = f"<p><strong>{escape(table.heading)}</strong></p>"
    return f"<div>{title}<table><thead>{head}</thead><tbody>{body}</tbody></table>{notes}</div>"


def _colored(cell: Cell) -> str:
    color, text = _color(cell, HTML_COLORS), escape(cell.text)
    return f'<span style="color: {color}; font-weight: 600">{text}</span>' if color else text


def comma(table: Table) -> str:
    """For programs: values, not texts. A mean, its deviation and its n have columns of their own."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    columns: list[list[object]] = []
    for i, column in enumerate(table.columns):
        values = [row[i].value for row in table.rows]
        if any(isinstance(value, Mean) for value in values):
            heads = (str(column), f"{column.title} std", f"{column.title} n")
            split = [value[:3] if isinstance(value, Mean) else (value, None, None) for value in values]
            columns += [[head, *part] for head, part in zip(heads, zip(*split, strict=True), strict=True)]
        else:
            columns.append([str(column), *values])
    writer.writerows(map(cell_text, row) for row in zip(*columns, strict=True))
    return stream.getvalue()


def comma_rows(rows: Sequence[Mapping[str, object]]) -> str:
    """Rows with equal keys for programs, under the same names as in JSON."""
    stream = io.StringIO()
    lines: list[list[object]] = [[*rows[0]] if rows else [], *([*row.values()] for row in rows)]
    csv.writer(stream, lineterminator="\n").writerows(map(cell_text, line) for line in lines)
    return stream.getvalue()


FORMATS: dict[str, Callable[[Table], str]] = {
    "txt": text, "md": markdown, "tex": latex, "csv": comma, "markdown": markdown, "latex": latex,
}  # fmt: skip
