"""initmem bench."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer

import initmem
from initmem.cli.base import AsJson, app, print_json, say, show
from initmem.errors import ConfigError


@app.command()
def bench(
    workloads: Annotated[
        list[str] | None,
        typer.Argument(help="Workloads by part of their names.", show_default="the core ones"),
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Every workload; an hour or two.")] = False,
    peers: Annotated[
        str, typer.Option(metavar="LIST", help="Comma-separated: keras, torch; or none.")
    ] = "keras,torch",
    rounds: Annotated[
        int, typer.Option(min=1, metavar="N", help="How often each is timed; the fastest counts.")
    ] = 2,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FILE", help="Also write the JSON to a file.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Time initmem beside Keras and plain PyTorch.

    Needs a checkout of the repository and an idle machine.
    """
    command = _from_checkout()
    rows, summary = command.timed(
        workloads or [],
        everything=everything,
        peers=peers,
        rounds=rounds,
        output=output,
        tell=lambda line: say(line, err=True),
    )
    if as_json:
        print_json("bench", rows, **summary)
    else:
        show(command.ratio_table(rows, summary["machine"]))


def _from_checkout() -> Any:
    """The benchmarks are no part of the package: people who use it do not need them."""
    root = Path(initmem.__file__).parents[2]
    if not (root / "benchmarks" / "bench" / "command.py").is_file():
        raise ConfigError(
            "initmem bench needs a checkout of the repository, installed with `pip install -e .`"
        )
    if str(root) not in sys.path:
        sys.path.append(str(root))
    return import_module("benchmarks.bench.command")
