"""Build docs/results.md and docs/assumptions.md: run every command of their console blocks and put what it
prints below it.

    python docs/build_results.py       # from the root of the project; seconds, trains nothing

Pictures are drawn by these commands, too.
"""

from __future__ import annotations

import contextlib
import io
import re
import shlex
from pathlib import Path

from initmem.cli import app

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "docs" / name for name in ("results.md", "assumptions.md")]
CONSOLE = re.compile(r"```console\n(?P<text>.*?)```", re.DOTALL)


def refreshed(page: str) -> str:
    """The page with what its commands print now, run from the current directory.

    A line of a legend is shown once: where its column first appears.
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
    """What a command of this package prints, without margins."""
    name, *words = shlex.split(command)
    if name != "initmem":
        raise SystemExit(f"{command}: only initmem is run here")
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        app(words, standalone_mode=False)
    lines = [line.rstrip() for line in output.getvalue().strip().splitlines()]
    return "".join(f"{line}\n" for line in lines if line)


if __name__ == "__main__":
    with contextlib.chdir(ROOT):
        for page in PAGES:
            page.write_text(refreshed(page.read_text("utf-8")), "utf-8")
