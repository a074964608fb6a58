"""Write a table down as text, Markdown, LaTeX or CSV."""

from __future__ import annotations

import csv
import io
import textwrap
from collections.abc import Callable

from initmem.paper.tables.table import MISSING, Cell, Measured, Number, PaperTable, seeds_note

WIDE = 100  # columns of text for the notes

LATEX = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "±": r"$\pm$",
    "≤": r"$\le$",
    "≥": r"$\ge$",
    "≈": r"$\approx$",
    "−": r"$-$",
    "×": r"$\times$",
    "—": "---",
    "σ": r"$\sigma$",
    "τ": r"$\tau$",
    "η": r"$\eta$",
    "λ": r"$\lambda$",
    "α": r"$\alpha$",
    "β": r"$\beta$",
    "ε": r"$\varepsilon$",
    "Δ": r"$\Delta$",
    "₁": r"$_1$",
    "₂": r"$_2$",
}
MARKDOWN = {sign: f"\\{sign}" for sign in "\\`*_|[]<>#"}


def latex_escape(text: str) -> str:
    """Text that LaTeX prints as it stands."""
    return "".join(LATEX.get(sign, sign) for sign in text)


def markdown_escape(text: str) -> str:
    """Text that Markdown prints as it stands."""
    return "".join(MARKDOWN.get(sign, sign) for sign in text)


def cell_text(cell: Cell, usual: int | None) -> str:
    """A cell as plain text; a mean over an unusual number of seeds says so."""
    match cell:
        case None:
            return MISSING
        case Measured(mean, std, n, digits):
            text = f"{mean:.{digits}f}" + ("" if std is None else f" ± {std:.{digits}f}")
            return text if n == usual else f"{text} ({n})"
        case Number(value, digits):
            return f"{value:.{digits}f}"
        case float():
            return f"{cell:g}"
        case _:
            return str(cell)


def _texts(table: PaperTable) -> list[list[list[str]]]:
    usual = table.usual_n()
    return [[[cell_text(cell, usual) for cell in row] for row in part] for part in table.parts()]


def _numeric(table: PaperTable) -> list[bool]:
    """Which columns are set flush right."""
    kinds = (int, float, Measured, Number)
    return [
        column.right or any(isinstance(row[i], kinds) for row in table.rows)
        for i, column in enumerate(table.columns)
    ]


def _footing(table: PaperTable) -> list[str]:
    missing = [f"{MISSING} missing: {'; '.join(table.missing)}."] if table.missing else []
    return [f"{note}." for note in [*seeds_note(table), *table.notes]] + missing


def text(table: PaperTable) -> str:
    """Columns of equal width, for a terminal."""
    heads, parts, right = [str(column) for column in table.columns], _texts(table), _numeric(table)
    widths = [
        max(len(x) for x in column)
        for column in zip(heads, *(r for part in parts for r in part), strict=True)
    ]

    def line(cells: list[str]) -> str:
        padded = (c.rjust(w) if r else c.ljust(w) for c, w, r in zip(cells, widths, right, strict=True))
        return "  ".join(padded).rstrip()

    rule = "-" * (sum(widths) + 2 * (len(widths) - 1))
    body = [line_ for part in parts for line_ in [rule, *map(line, part)]]
    foot = [piece for note in _footing(table) for piece in textwrap.wrap(note, max(WIDE, len(rule)))]
    return "\n".join([table.title, "", line(heads), *body, rule, *foot]) + "\n"


def markdown(table: PaperTable) -> str:
    """A pipe table under its title."""

    def line(cells: list[str]) -> str:
        return "| " + " | ".join(markdown_escape(cell) for cell in cells) + " |"

    bars = "|" + "|".join("---:" if right else ":---" for right in _numeric(table)) + "|"
    rows = [line(row) for part in _texts(table) for row in part]
    head = [f"**{markdown_escape(table.title)}**", "", line([str(column) for column in table.columns]), bars]
    foot = [markdown_escape(note) for note in _footing(table)]
    return "\n".join([*head, *rows, "", " ".join(foot)]) + "\n"


def latex(table: PaperTable) -> str:
    """A table environment; needs \\usepackage{booktabs}."""

    def line(cells: list[str]) -> str:
        return "    " + " & ".join(latex_escape(cell) for cell in cells) + r" \\"

    columns = "".join("r" if right else "l" for right in _numeric(table))
    parts = [[line(row) for row in part] for part in _texts(table)]
    body = [line_ for i, part in enumerate(parts) for line_ in ([r"    \midrule"] if i else []) + part]
    return "\n".join(
        [
            r"% needs \usepackage{booktabs}",
            r"\begin{table}",
            r"  \centering\small\setlength{\tabcolsep}{4pt}",
            rf"  \caption{{{latex_escape(table.title)}}}",
            rf"  \begin{{tabular}}{{{columns}}}",
            r"    \toprule",
            line([str(column) for column in table.columns]),
            r"    \midrule",
            *body,
            r"    \bottomrule",
            r"  \end{tabular}",
            r"  \par\smallskip\footnotesize",
            *(f"  {latex_escape(note)}" for note in _footing(table)),
            r"\end{table}",
            "",
        ]
    )


def comma(table: PaperTable) -> str:
    """For programs: a mean, its deviation and its n are columns of their own; a missing cell is empty."""
    split = [any(isinstance(row[i], Measured) for row in table.rows) for i in range(len(table.columns))]
    head: list[str] = []
    for column, several in zip(table.columns, split, strict=True):
        head += [str(column), f"{column.name} std", f"{column.name} n"] if several else [str(column)]
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(head)
    for row in table.rows:
        values: list[object] = []
        for cell, several in zip(row, split, strict=True):
            if isinstance(cell, Measured):
                values += [cell.mean, "" if cell.std is None else cell.std, cell.n]
            elif isinstance(cell, Number):
                values += [cell.value, *[""] * (2 * several)]
            else:
                values += ["" if cell is None else cell, *[""] * (2 * several)]
        writer.writerow(values)
    return stream.getvalue()


FORMATS: dict[str, Callable[[PaperTable], str]] = {"txt": text, "md": markdown, "tex": latex, "csv": comma}
