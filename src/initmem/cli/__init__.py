"""The command line: parse, call, print. No logic lives here; heavy modules load when they are needed."""

from initmem.cli import ask, bench, data, share, show, work
from initmem.cli.base import app, main

__all__ = ["app", "ask", "bench", "data", "main", "share", "show", "work"]
