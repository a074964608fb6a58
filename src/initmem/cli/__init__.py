"""The command line: parse, call, print. One module per command; heavy imports happen inside the commands."""

# ruff: noqa: I001, the order is that of `initmem --help`
from initmem.cli.base import app, main
from initmem.cli import studies, plan, run, status, measure, report, board, figure, table
from initmem.cli import clocks, advise, models, data, archive, export, theory, bench

__all__ = [
    "advise", "app", "archive", "bench", "board", "clocks", "data", "export", "figure", "main", "measure",
    "models", "plan", "report", "run", "status", "studies", "table", "theory",
]  # fmt: skip
