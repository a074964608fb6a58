"""Commands about datasets."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Annotated

import typer

from initmem.cli.base import AsJson, DataDir, app, console, print_json

data_app = typer.Typer(help="List and fetch datasets.", no_args_is_help=True)
app.add_typer(data_app, name="data")


@data_app.command("list")
def list_data(data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """List the datasets and where they are."""
    from initmem.data import sizes
    from initmem.data.cache import cache_dir
    from initmem.data.cifar10 import is_cached
    from initmem.plots.terminal import plain_table
    from initmem.recipe import NAMED_DATASETS, Recipe

    place = {"digits": "comes with scikit-learn", "synthetic": "made on the spot"}
    missing = "missing: initmem data get cifar10"
    place["cifar10"] = str(cache_dir(data_dir)) if is_cached(data_dir) else missing
    rows = [
        {"dataset": name} | sizes(Recipe.parse({"dataset": name}))._asdict() | {"place": place[name]}
        for name in NAMED_DATASETS
    ]
    if as_json:
        print_json(rows)
    else:
        console().print(plain_table(rows))
        print("also: synthetic:NxCxHxW, and any .npz file with x and y, or x_train, y_train, x_test, y_test")


@data_app.command("get")
def get_data(
    name: Annotated[str, typer.Argument(help="cifar10")],
    files: Annotated[
        Path | None, typer.Option("--from", help="An official archive or folder that you already have.")
    ] = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Fetch a dataset, verify it and keep it as a plain array file."""
    from initmem.data.cifar10 import fetch
    from initmem.engines.progress import transfer
    from initmem.errors import DataError

    if name != "cifar10":
        raise DataError(f"dataset {name!r} needs no fetching (allowed: cifar10)")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # a polite kill cleans up like Ctrl-C
    with transfer(console(stderr=True)) as report:
        place = fetch(data_dir, files, report=report)
    if as_json:
        print_json({"dataset": name, "place": place})
    else:
        print(f"{name}: {place}")
