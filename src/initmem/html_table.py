"""A plain HTML table, for objects that show themselves in a notebook."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

# Works on light and dark pages: nothing but alignment, and the colors of the verdicts.
_CELL = ' style="text-align: left; padding: .2em .8em"'
_COLORS = {"remembers": "#c75b12", "forgets": "#0b8a63", "undetermined": "#7a8490"}


def html_table(rows: Sequence[Mapping[str, Any]], *, title: str = "", notes: Sequence[str] = ()) -> str:
    """Rows with equal keys as a table: the title above it, the notes below."""
    head = "".join(f"<th{_CELL}>{escape(name)}</th>" for name in (rows[0] if rows else ()))
    body = "".join(f"<tr>{''.join(_cell(value) for value in row.values())}</tr>" for row in rows)
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>" if rows else ""
    said = "".join(f"<p>{escape(note)}</p>" for note in notes)
    return f"<div>{f'<p><strong>{escape(title)}</strong></p>' if title else ''}{table}{said}</div>"


def _cell(value: Any) -> str:
    text = "" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)
    color = _COLORS.get(text.partition(" ")[0].rstrip("*"))
    weight = f' style="color: {color}; font-weight: 600"' if color else ""
    return f"<td{_CELL}><span{weight}>{escape(text)}</span></td>"
