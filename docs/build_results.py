"""Build the pages of results: run every command of their console blocks and put what it prints below it.

    python docs/build_results.py       # from the root of the project; seconds, trains nothing

Pictures are drawn by these commands as well. A table of `measure` or `clocks` keeps its most important
columns, as many as fit the page without breaking a line. Its legend is left out: the page explains it.
"""

from __future__ import annotations

import contextlib
import io
import re
import runpy
import shlex
from pathlib import Path
from unittest.mock import patch

from rich.console import Console

from initmem.cli import app
from initmem.plots.tables import GAP, print_table
from initmem.table import Table

ROOT = Path(__file__).resolve().parents[1]
NAMES = ("results.md", "transformers.md", "assumptions.md", "interventions-results.md", "function.md")
PAGES = [ROOT / "docs" / name for name in NAMES]
CONSOLE = re.compile(r"```console\n(?P<text>.*?)```", re.DOTALL)
WIDTH = 160  # characters of a table


def refreshed(page: str) -> str:
    """The page with what its commands print now, run from the current directory.

    A line of a legend or a note is shown once.
    """
    seen: set[str] = set()
    return CONSOLE.sub(lambda block: f"```console\n{_session(block['text'], seen)}```", page)


def _session(text: str, seen: set[str]) -> str:
    commands = [line.removeprefix("$ ") for line in text.splitlines() if line.startswith("$ ")]
    return "\n".join(f"$ {command}\n{_new(printed(command), seen)}" for command in commands)


def _new(text: str, seen: set[str]) -> str:
    lines = [line for line in text.splitlines() if ": " not in line or line not in seen]
    seen.update(lines)
    return "".join(f"{line}\n" for line in lines)


def printed(command: str) -> str:
    """What a command or a script of this project prints, without margins."""
    name, *words = (path for word in shlex.split(command) for path in _expanded(word))
    output, printer = io.StringIO(), _print_narrow if words[0] in ("measure", "clocks") else print_table
    with contextlib.redirect_stdout(output), patch("initmem.plots.tables.print_table", printer):
        if name == "initmem":
            app(words, standalone_mode=False)
        elif name == "python":
            with patch("sys.argv", words):
                runpy.run_path(str(ROOT / words[0]), run_name="__main__")
        else:
            raise SystemExit(f"{command}: only initmem and python are run here")
    lines = [line.rstrip() for line in output.getvalue().strip().splitlines()]
    return "".join(f"{line}\n" for line in lines if line)


def _expanded(word: str) -> list[str]:
    """The files that a pattern stands for, as in a shell."""
    return sorted(map(str, Path().glob(word))) if "*" in word else [word]


def _print_narrow(table: Table, console: Console, *, legend: bool = True) -> None:
    print_table(narrowed(table.without_pictures(), WIDTH), console, legend=False)


def narrowed(table: Table, width: int) -> Table:
    """The table without the columns that do not fit; the least important leave first."""
    widths = [
        max(len(str(column)), *(len(row[i].text) for row in table.rows))
        for i, column in enumerate(table.columns)
    ]
    kept = list(range(len(widths)))
    while sum(widths[i] + GAP for i in kept) - GAP > width:
        candidates = [i for i in kept if table.columns[i].priority]
        if not candidates:
            break
        kept.remove(max(candidates, key=lambda i: (table.columns[i].priority, i)))
    return table.keep(kept)


if __name__ == "__main__":
    with contextlib.chdir(ROOT):
        for page in PAGES:
            page.write_text(refreshed(page.read_text("utf-8")), "utf-8")
