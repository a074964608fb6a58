"""The command that times: bench."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from initmem.cli.base import AsJson, app, console, print_json


@app.command()
def bench(
    workloads: Annotated[
        list[str] | None,
        typer.Argument(help="Workloads by part of a name.", show_default="the core ones"),
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Every workload; an hour or two.")] = False,
    peers: Annotated[str, typer.Option(help="Comma-separated: keras, torch; or none.")] = "keras,torch",
    rounds: Annotated[int, typer.Option(min=1, help="How often to time each; the quickest counts.")] = 2,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Also write JSON to a file.")] = None,
    as_json: AsJson = False,
) -> None:
    """Time this machine: initmem beside Keras and plain PyTorch on the same work. Keep it otherwise idle."""
    from initmem.bench.compare import compare, gemm_limit, missing
    from initmem.bench.table import asked_peers, asked_workloads, machine, ratio_table

    chosen = asked_workloads(workloads or [], everything=everything)
    asked = asked_peers(peers)
    if output is not None:
        output.touch()  # a place that cannot be written is known before an hour is spent
    progress = console(stderr=True)
    usable = []
    for peer in asked:
        reason = missing(peer)
        if reason is None:
            usable.append(peer)
        else:
            progress.print(reason)

    def tell(line: str) -> None:
        progress.print(line, soft_wrap=True)

    limit = gemm_limit()
    tell(f"GEMM limit: {limit / 1e9:.0f} GFLOP/s")
    found: dict[str, Any] = {"machine": machine(), "gemm_limit": limit, "rows": []}
    comparisons = []
    for workload in chosen:
        comparisons.append(compare(workload, usable, limit, tell, rounds))
        found["rows"] = [one.row() for one in comparisons]
        if output is not None:
            output.write_text(json.dumps(found, indent=1) + "\n")
    if as_json:
        print_json(found)
    else:
        console().print(ratio_table(found))
