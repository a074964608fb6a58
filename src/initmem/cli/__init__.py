"""The command line: parse, call, print. Heavy imports happen inside the commands."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from io import TextIOWrapper
from typing import Any

# The commands in the order of `initmem --help`, with the module where each is.
COMMANDS = {
    "studies": "plan", "plan": "plan", "run": "run", "status": "results", "measure": "results",
    "report": "results", "board": "results", "figure": "bundled", "table": "bundled", "clocks": "plan",
    "advise": "plan", "models": "bundled", "data": "bundled", "archive": "results", "restore": "results",
    "export": "results", "theory": "bundled", "bench": "bundled",
}  # fmt: skip


def load(arguments: list[str]) -> None:
    """Register the command that the arguments name; all of them for help, completion and mistakes."""
    named = next((word for word in arguments if not word.startswith("-")), "")
    completing = "_INITMEM_COMPLETE" in os.environ
    one = named in COMMANDS and not completing
    for module in dict.fromkeys([COMMANDS[named]] if one else COMMANDS.values()):
        import_module(f"initmem.cli.{module}")
    order = list(COMMANDS)
    commands = import_module("initmem.cli.base").app.registered_commands
    commands.sort(key=lambda command: order.index(command.name or command.callback.__name__))


def main() -> None:
    """Run the command line."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # a pipe may be ASCII, and a name hold any letter
            stream.reconfigure(errors="backslashreplace")
    try:
        load(sys.argv[1:])
        from initmem.cli.base import main as run_application
    except KeyboardInterrupt:
        print("initmem: interrupted", file=sys.stderr)
        sys.exit(130)
    run_application()


def __getattr__(name: str) -> Any:
    """The application with all its commands."""
    if name != "app":
        raise AttributeError(f"module 'initmem.cli' has no attribute {name!r}")
    load([])
    return import_module("initmem.cli.base").app
