"""What all drawers share: page sizes, type, hatched places without runs, legends, saving."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from initmem.errors import ConfigError, StoreError
from initmem.plots.plotdata import Entry, Style
from initmem.store.files import write_atomic

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

WIDTH = 7.2  # inches: two columns of a journal page
ENDINGS = (".pdf", ".png", ".svg")
FAINT = "#8A8A8A"
CAPTION = 6.0  # points
TYPE: dict[str, Any] = {
    "font.size": 7.5,
    "axes.titlesize": 8,
    "axes.titlelocation": "left",
    "axes.labelsize": 7.5,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "legend.fontsize": 7.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.7,
    "xtick.major.width": 0.7,
    "ytick.major.width": 0.7,
    "xtick.major.size": 2.5,
    "ytick.major.size": 2.5,
    "axes.grid": True,
    "grid.linewidth": 0.4,
    "grid.color": "#DDDDDD",
    "axes.axisbelow": True,
    "hatch.linewidth": 0.5,
    "pdf.fonttype": 42,  # letters stay letters
    "svg.hashsalt": "initmem",
}


@contextmanager
def page(height: float, path: Path, caption: str = "") -> Iterator[Figure]:
    """A figure of full page width with its caption, written to the path at the end."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure as Page

    check(path)
    with rc_context(TYPE):  # type: ignore[arg-type]  # the stubs want every key as a literal
        lines = wrapped(caption, 72 * (WIDTH - 0.2))
        figure = Page(figsize=(WIDTH, height + 0.115 * len(lines)), layout="constrained")
        if lines:
            figure.supxlabel("\n".join(lines), x=0.012, ha="left", fontsize=CAPTION, color="#404040")
        yield figure
        save(figure, path)


def wrapped(text: str, width: float) -> list[str]:
    """Lines of a caption that are at most so many points wide."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import TextToPath

    ruler, font = TextToPath(), FontProperties(size=CAPTION)
    lines: list[str] = []
    for word in text.split():
        longer = f"{lines[-1]} {word}" if lines else word
        if lines and ruler.get_text_width_height_descent(longer, font, ismath=False)[0] <= width:
            lines[-1] = longer
        else:
            lines.append(word)
    return lines


def check(path: Path) -> None:
    """The ending of a path says what kind of picture is wanted."""
    if path.suffix.lower() not in ENDINGS:
        raise ConfigError(f"figure file = {str(path)!r} (allowed endings: {', '.join(ENDINGS)})")


def save(figure: Figure, path: Path) -> None:
    """Write a picture, the same bytes for the same data."""
    kind = path.suffix.lower().removeprefix(".")
    undated = {"pdf": {"CreationDate": None}, "svg": {"Date": None}}.get(kind)
    stream = io.BytesIO()
    figure.savefig(stream, format=kind, dpi=250, metadata=undated)
    try:
        write_atomic(path, stream.getvalue())
    except OSError as error:
        raise StoreError(f"{path}: cannot be written ({error.strerror})") from None


def no_runs(axes: Axes, words: str = "no runs", *, upright: bool = False) -> None:
    """A hatched place for a panel that has no data."""
    axes.set(xticks=[], yticks=[], facecolor="white")
    axes.grid(visible=False)
    for spine in axes.spines.values():
        spine.set(visible=True, color=FAINT, linewidth=0.5)
    axes.patch.set(hatch="////", edgecolor="#D0D0D0", facecolor="white")
    box = {"facecolor": "white", "edgecolor": "none", "pad": 2.0}
    text = axes.text(0.5, 0.5, words, transform=axes.transAxes, ha="center", va="center", bbox=box)
    text.set(color="#404040", rotation=90 if upright else 0)


def look(style: Style, *, size: float = 3.5) -> dict[str, Any]:
    """Arguments of a matplotlib line."""
    return {
        "color": style.colour,
        "marker": style.marker,
        "linestyle": style.dash,
        "markersize": size,
        "linewidth": 1.2,
        "markeredgewidth": 0.7,
    }


def legend(figure: Figure, rows: Sequence[Sequence[Entry]]) -> None:
    """One legend above all panels, row by row; what has no runs is named there, in grey."""
    rows = fitting(rows)
    wide = max(len(row) for row in rows)
    blank = Entry("", Style("none", "", "none"), present=True)
    table = [[*row, *[blank] * (wide - len(row))] for row in rows]
    entries = [row[column] for column in range(wide) for row in table]  # matplotlib fills by column
    box = figure.legend(
        handles=handles(entries),
        loc="outside upper center",
        ncols=wide,
        frameon=False,
        handlelength=2.8,
        columnspacing=1.4,
        labelspacing=0.3,
    )
    for text, entry in zip(box.get_texts(), entries, strict=True):
        if not entry.present:
            text.set_color(FAINT)


def fitting(rows: Sequence[Sequence[Entry]]) -> list[Sequence[Entry]]:
    """Rows of a legend, broken where they are too wide for the page."""
    found: list[Sequence[Entry]] = list(rows)
    for most in range(max(len(row) for row in rows), 0, -1):
        found = [piece for row in rows for piece in _pieces(row, most)]
        widest = [
            max(len(row[i].label) for row in found if len(row) > i) for i in range(max(map(len, found)))
        ]
        if sum(0.62 + 0.058 * letters for letters in widest) <= WIDTH:  # inches, about
            break
    return found


def _pieces(row: Sequence[Entry], most: int) -> list[Sequence[Entry]]:
    """Pieces of about equal length, none longer than `most`."""
    count = -(-len(row) // most)
    size = -(-len(row) // count)
    return [row[i : i + size] for i in range(0, len(row), size)]


def handles(entries: Sequence[Entry]) -> list[Line2D | Patch]:
    """Samples of the lines; a hatched box for what has no runs."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    return [
        Line2D([], [], **look(entry.style), label=entry.label)
        if entry.present
        else Patch(facecolor="white", edgecolor="#B0B0B0", hatch="//////", linewidth=0.4, label=entry.label)
        for entry in entries
    ]


def letters() -> Iterator[str]:
    """(a), (b), ..., for the titles of panels."""
    return (f"({letter})" for letter in "abcdefghijklmnopqrstuvwxyz")
