"""Write a table as plain text, Markdown, LaTeX or CSV, or as HTML for a notebook."""

from __future__ import annotations

import csv
import io
import textwrap
from collections.abc import Callable, Iterable
from html import escape

from initmem.errors import ConfigError, allowed
from initmem.table import Cell, Mean, Table

WIDE = 100  # columns of text for the notes
LEFT, RIGHT = (f' style="text-align: {side}; padding: .2em .8em"' for side in ("left", "right"))
COLORS = {"remembers": "#c75b12", "forgets": "#0b8a63", "inconclusive": "#7a8490", "untrained": "#7a8490"}

LATEX = {
    "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
    "<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}", "—": "---",
    "±": r"$\pm$", "≤": r"$\le$", "≥": r"$\ge$", "≈": r"$\approx$", "−": r"$-$", "×": r"$\times$",
    "σ": r"$\sigma$", "τ": r"$\tau$", "η": r"$\eta$", "λ": r"$\lambda$", "α": r"$\alpha$", "β": r"$\beta$",
    "ε": r"$\varepsilon$", "Δ": r"$\Delta$", "₁": r"$_1$", "₂": r"$_2$",
} | {sign: rf"\{sign}" for sign in "&%$#_{}"}  # fmt: skip
MARKDOWN = {sign: f"\\{sign}" for sign in "\\`*_|[]<>#"}


def latex_escape(text: str) -> str:
    """Text that LaTeX prints as it stands."""
    return "".join(LATEX.get(sign, sign) for sign in text)


def markdown_escape(text: str) -> str:
    """Text that Markdown prints as it stands."""
    return "".join(MARKDOWN.get(sign, sign) for sign in text)


def render(table: Table, format: str) -> str:
    """Write a table as txt, md, tex or csv, as the ending of a file has it."""
    kind = format.lower().removeprefix(".")
    if kind not in FORMATS:
        raise ConfigError(f"table format = {format!r} ({allowed(FORMATS)})")
    return FORMATS[kind](table.without_pictures())


def _heads(table: Table) -> list[str]:
    return [str(column) for column in table.columns]


def _parts(table: Table) -> list[list[list[str]]]:
    return [[[cell.text for cell in row] for row in part] for part in table.parts()]


def _right(table: Table) -> list[bool]:
    """Which columns are set flush right."""
    return [column.kind == "number" for column in table.columns]


def text(table: Table) -> str:
    """Columns of equal width, for a terminal."""
    heads, parts, right = _heads(table), _parts(table), _right(table)
    widths = [
        max(len(x) for x in column)
        for column in zip(heads, *(r for part in parts for r in part), strict=True)
    ]

    def line(cells: list[str]) -> str:
        padded = (c.rjust(w) if r else c.ljust(w) for c, w, r in zip(cells, widths, right, strict=True))
        return "  ".join(padded).rstrip()

    rule = "-" * (sum(widths) + 2 * (len(widths) - 1))
    body = [line_ for part in parts for line_ in [rule, *map(line, part)]]
    foot = [piece for note in table.footing() for piece in textwrap.wrap(note, max(WIDE, len(rule)))]
    return "\n".join([table.title, "", line(heads), *body, rule, *foot]) + "\n"


def markdown(table: Table) -> str:
    """A pipe table under its title."""

    def line(cells: list[str]) -> str:
        return "| " + " | ".join(markdown_escape(cell) for cell in cells) + " |"

    bars = "|" + "|".join("---:" if right else ":---" for right in _right(table)) + "|"
    rows = [line(row) for part in _parts(table) for row in part]
    head = [f"**{markdown_escape(table.title)}**", "", line(_heads(table)), bars]
    foot = [markdown_escape(note) for note in table.footing()]
    return "\n".join([*head, *rows, "", " ".join(foot)]) + "\n"


def latex(table: Table) -> str:
    """A table environment; needs \\usepackage{booktabs}."""

    def line(cells: list[str]) -> str:
        return "    " + " & ".join(latex_escape(cell) for cell in cells) + r" \\"

    columns = "".join("r" if right else "l" for right in _right(table))
    parts = [[line(row) for row in part] for part in _parts(table)]
    body = [line_ for i, part in enumerate(parts) for line_ in ([r"    \midrule"] if i else []) + part]
    return "\n".join(
        [
            r"% needs \usepackage{booktabs}",
            r"\begin{table}",
            r"  \centering\small\setlength{\tabcolsep}{4pt}",
            rf"  \caption{{{latex_escape(table.title)}}}",
            rf"  \begin{{tabular}}{{{columns}}}",
            r"    \toprule",
            line(_heads(table)),
            r"    \midrule",
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

    head = line("th", map(escape, _heads(table)))
    body = "".join(line("td", map(_colored, row)) for row in table.rows)
    notes = "".join(f"<p>{escape(note)}</p>" for note in table.footing())
    title = f"<p><strong>{escape(table.title)}</strong></p>"
    return f"<div>{title}<table><thead>{head}</thead><tbody>{body}</tbody></table>{notes}</div>"


def _colored(cell: Cell) -> str:
    color, text = next((COLORS[word] for word in cell.styles if word in COLORS), ""), escape(cell.text)
    return f'<span style="color: {color}; font-weight: 600">{text}</span>' if color else text


def comma(table: Table) -> str:
    """For programs: values, not texts. A mean, its deviation and its n have columns of their own."""
    means = [any(isinstance(row[i].value, Mean) for row in table.rows) for i in range(len(table.columns))]
    head: list[str] = []
    for column, split in zip(table.columns, means, strict=True):
        head += [str(column), f"{column.title} std", f"{column.title} n"] if split else [str(column)]
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(head)
    for row in table.rows:
        values: list[object] = []
        for one, split in zip(row, means, strict=True):
            value = one.value
            values += value[:3] if isinstance(value, Mean) else [value, *[None] * (2 * split)]
        writer.writerow("" if value is None else value for value in values)
    return stream.getvalue()


FORMATS: dict[str, Callable[[Table], str]] = {"txt": text, "md": markdown, "tex": latex, "csv": comma}
