"""initmem export."""

from __future__ import annotations

from typing import Annotated

import typer

from initmem.cli.base import AsJson, StoreArgument, app, print_json, say
from initmem.errors import count


def formats(incomplete: str) -> list[str]:
    """Names for shell completion."""
    from initmem.export import FORMATS

    return [name for name in FORMATS if name.startswith(incomplete)]


@app.command()
def export(
    store: StoreArgument,
    to: Annotated[
        str,
        typer.Option(
            metavar="FORMAT", help="csv, parquet, tensorboard, mlflow or wandb.", autocompletion=formats
        ),
    ],
    output: Annotated[
        str | None,
        typer.Option(
            "-o",
            "--output",
            metavar="PATH",
            help="A directory; for mlflow an SQLite file or the address of a tracking server.",
            show_default="STORE-csv and so on",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write all runs for another tool.

    As tables, for TensorBoard, to MLflow, or as offline runs for Weights & Biases.
    """
    from initmem.export import export as exported
    from initmem.store.results import open_results

    done = exported(open_results(store), to, output)
    if as_json:
        print_json("export", [done._asdict()])
    else:
        say(f"{done.format}: {done.output} ({count(done.runs, 'run')}, {done.written:,} written)")
        for line in done.damaged:
            say(f"damaged, left out: {line}")
    if done.damaged:
        raise typer.Exit(1)
