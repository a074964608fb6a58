"""The command line: parse, call, print. No logic lives here; heavy modules load when they are needed."""

from initmem.cli import ask, data, show, work
from initmem.cli.base import app, main

__all__ = ["app", "ask", "data", "main", "show", "work"]
