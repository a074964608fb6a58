"""Time initmem next to Keras, PyTorch and JAX, in a checkout of the repository and on an idle machine.

python -m benchmarks.bench --help
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from initmem.cli.base import AsJson, argument, fail, flag, option, print_json, say, show
from initmem.errors import InitmemError

from .command import ratio_table, timed


def bench(
    workloads: Annotated[
        list[str] | None, argument("Workloads by part of their names.", show_default="the core ones")
    ] = None,
    everything: Annotated[bool, flag("--all", "Every workload; an hour or two.")] = False,
    peers: Annotated[str, option("LIST", "Comma-separated: keras, torch, jax; or none.")] = "keras,torch,jax",
    rounds: Annotated[int, option("N", "How often each is timed; the fastest counts.", min=1)] = 2,
    output: Annotated[Path | None, option("FILE", "Also write the JSON to a file.", "-o", "--output")] = None,
    as_json: AsJson = False,
) -> None:
    """Time initmem next to Keras, PyTorch and JAX."""
    try:
        rows, summary = timed(
            workloads or [],
            everything=everything,
            peers=peers,
            rounds=rounds,
            output=output,
            tell=lambda line: say(line, err=True),
        )
    except InitmemError as error:
        fail(str(error))
    if as_json:
        print_json("bench", rows, **summary)
    else:
        show(ratio_table(rows, summary["machine"]))


if __name__ == "__main__":
    typer.run(bench)
