"""The command line: parse, call, print. No logic lives here; heavy modules load when they are needed."""

from initmem.cli import ask, data, share, show, work
from initmem.cli.base import app, main

__all__ = ["app", "ask", "data", "main", "share", "show", "work"]
