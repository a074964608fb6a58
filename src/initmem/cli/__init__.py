"""The command line: parse, call, print. One module per command; heavy imports happen inside the commands."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import Any

# The commands in the order of `initmem --help`, with the module where each is.
COMMANDS = {
    name: name
    for name in (
        "studies", "plan", "run", "status", "measure", "report", "board", "figure", "table", "clocks",
        "advise", "models", "data", "archive", "export", "theory", "bench",
    )
} | {"restore": "archive"}  # fmt: skip


def load(arguments: list[str]) -> None:
    """Register the command that the arguments name; all of them for help, completion and mistakes."""
    named = next((word for word in arguments if not word.startswith("-")), "")
    completing = "_INITMEM_COMPLETE" in os.environ
    one = named in COMMANDS and not completing
    for module in dict.fromkeys([COMMANDS[named]] if one else COMMANDS.values()):
        import_module(f"initmem.cli.{module}")


def main() -> None:
    """Run the command line."""
    from initmem.cli.base import main as run_application

    load(sys.argv[1:])
    run_application()


def __getattr__(name: str) -> Any:
    """The application with all its commands."""
    if name != "app":
        raise AttributeError(f"module 'initmem.cli' has no attribute {name!r}")
    load([])
    return import_module("initmem.cli.base").app
