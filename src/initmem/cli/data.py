"""initmem data."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Annotated

import typer

from initmem.cli.base import AsJson, DataDir, Wide, app, console, print_help, print_json, say, show

data_app = typer.Typer(help="List and download datasets.", rich_markup_mode=None)
app.add_typer(data_app, name="data")

OWN = "your own: dataset = FILE.npz with x and y, or x_train, y_train, x_test and y_test"


@data_app.callback(invoke_without_command=True)
def _without_command(context: typer.Context) -> None:
    print_help(context)


@data_app.command("list")
def list_data(data_dir: DataDir = None, wide: Wide = False, as_json: AsJson = False) -> None:
    """List the datasets, their sizes and where they are."""
    from initmem.data import sizes
    from initmem.data.cifar10 import is_cached
    from initmem.data.sources import cache_dir
    from initmem.plots.columns import DATASETS
    from initmem.plots.table import table_of
    from initmem.recipe import NAMED_DATASETS, Recipe

    place = {
        "digits": "comes with scikit-learn",
        "synthetic": "generated when needed",
        "cifar10": str(cache_dir(data_dir)) if is_cached(data_dir) else "missing: initmem data get cifar10",
    }
    rows = [
        {"dataset": name} | sizes(Recipe.parse({"dataset": name}))._asdict() | {"place": place[name]}
        for name in NAMED_DATASETS
    ]
    if as_json:
        print_json("data.list", rows)
        return
    show(table_of("Datasets", rows, DATASETS), wide=wide)
    say(f"also synthetic:NxCxHxW, and {OWN}")


@data_app.command("get")
def get_data(
    name: Annotated[str, typer.Argument(help="cifar10")],
    files: Annotated[
        Path | None,
        typer.Option("--from", metavar="PATH", help="An official archive or folder that you already have."),
    ] = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Download a dataset, verify it and keep it as a plain array file."""
    from initmem.data.cifar10 import fetch
    from initmem.engines.progress import transfer
    from initmem.errors import DataError
    from initmem.recipe import NAMED_DATASETS

    if name in NAMED_DATASETS and name != "cifar10":
        raise DataError(f"dataset {name!r} needs no download (allowed: cifar10)")
    if name != "cifar10":
        there = "digits and synthetic need no download"
        raise DataError(f"no dataset named {name!r} to download (allowed: cifar10; {there}; {OWN})")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # a polite kill cleans up like Ctrl-C
    with transfer(console(stderr=True)) as report:
        place = fetch(data_dir, files, report=report)
    if as_json:
        print_json("data.get", [{"dataset": name, "place": place}])
    else:
        say(f"{name}: {place}")
