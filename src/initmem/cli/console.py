"""How commands print: text and tables for people, JSON for programs, one line for a mistake.

Everything goes through here, because text from files and users may hold markup and escape sequences.
"""

from __future__ import annotations

import json
import math
import shutil
import sys
import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from initmem.plots.terminal import print_table, printable

if TYPE_CHECKING:
    from rich.console import Console

    from initmem.plots.table import Table

UNLIMITED = 10_000  # columns: wider than any table


def say(text: str, *, err: bool = False) -> None:
    """Print one line, which a terminal shows on as many as it takes, broken between words."""
    stream, line = sys.stderr if err else sys.stdout, printable(text)
    if stream.isatty():
        width = shutil.get_terminal_size().columns
        line = textwrap.fill(line, width, break_long_words=False, break_on_hyphens=False)
    print(line, file=stream)


def show(table: Table, *, wide: bool = False) -> None:
    """Print a table, fitted to the terminal; in a pipe all of it."""
    print_table(table, console(wide=wide))


def print_json(schema: str, rows: Sequence[Mapping[str, Any]], **summary: Any) -> None:
    """Print rows for programs; `summary` is what is true of all of them together."""
    content: dict[str, Any] = {"schema": f"initmem.{schema}/1", "rows": rows}
    if summary:
        content["summary"] = summary
    print(json.dumps(_finite(content), indent=1, default=str, allow_nan=False))


def _finite(value: Any) -> Any:
    """The same with null for infinities and NaN, which JSON does not have."""
    if isinstance(value, Mapping):
        return {key: _finite(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def fail(message: str, *, code: int = 2) -> NoReturn:
    """End with one line on stderr."""
    say("initmem: " + " ".join(message.split()), err=True)
    sys.exit(code)


def console(*, stderr: bool = False, wide: bool = False) -> Console:
    """Where tables and progress go. It reads no markup, and cuts nothing where there is no terminal."""
    from rich.console import Console

    fits = (sys.stderr if stderr else sys.stdout).isatty() and not wide
    width = None if fits else UNLIMITED
    return Console(stderr=stderr, highlight=False, markup=False, emoji=False, width=width)
