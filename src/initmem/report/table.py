"""Tables as data: one template shows them all, and the script sorts and copies them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from markupsafe import Markup

Kind = Literal["text", "number", "picture"]


class Column(NamedTuple):
    """One column; pictures are neither sorted nor copied."""

    title: str
    kind: Kind = "number"
    about: str = ""
    picture: Markup | None = None  # shown in the head: the axis of the pictures below


class Cell(NamedTuple):
    """What stands in one place."""

    text: str = ""
    sort: float | str | None = None  # by what it is ordered; None: by the text, or last among numbers
    href: str = ""
    style: str = ""  # a class of the style sheet
    picture: Markup | None = None


class Table(NamedTuple):
    """Rows of cells under columns."""

    id: str
    caption: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]
    style: str = ""


def number(value: float | None, form: str = ".1f", *, href: str = "", style: str = "") -> Cell:
    """A number, or an empty place where there is none."""
    return Cell("", None, "", style) if value is None else Cell(format(value, form), value, href, style)


def significant(value: float | None) -> Cell:
    """A number of any size, to three digits."""
    return number(value, ",.0f" if value is not None and value >= 1000 else ".3g")


def interval(low: float | None, high: float | None, form: str = ".1f") -> Cell:
    """Two limits, ordered by the width between them."""
    if low is None or high is None:
        return Cell()
    return Cell(f"{low:{form}} to {high:{form}}", high - low)


def runs_of(recipe_id: str, scale: float | None = None) -> str:
    """Where on the page the runs behind a number are listed."""
    return f"#runs:{recipe_id}" + ("" if scale is None else f":{scale:g}")
