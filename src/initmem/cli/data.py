"""initmem data."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Annotated

import typer

from initmem.cli.base import AsJson, DataDir, Plugins, app, console, print_help, print_json, say, show

data_app = typer.Typer(help="List and download datasets.", rich_markup_mode=None)
app.add_typer(data_app, name="data")

OWN = "FILE.npz with x and y, or x_train, y_train, x_test and y_test; text:LENGTH:FILE"


@data_app.callback(invoke_without_command=True)
def _without_command(context: typer.Context) -> None:
    print_help(context)


@data_app.command("list")
def list_data(data_dir: DataDir = None, plugins: Plugins = None, as_json: AsJson = False) -> None:
    """List the datasets, their sizes and where they are."""
    from initmem import register
    from initmem.data import packages
    from initmem.data.cifar10 import is_cached
    from initmem.data.sources import cache_dir, sizes
    from initmem.plots.columns import DATASETS
    from initmem.recipe import NAMED_DATASETS, Recipe
    from initmem.table import table_of

    register.load(plugins or ())
    cached = {name: packages.is_cached(name, data_dir) for name in packages.PACKAGES}
    cached["cifar10"] = is_cached(data_dir)
    place = {
        name: str(cache_dir(data_dir)) if there else f"missing: initmem data get {name}"
        for name, there in cached.items()
    }
    place["digits"] = "comes with scikit-learn"
    place |= dict.fromkeys(("synthetic", "modular-addition"), "generated when needed")
    place |= dict.fromkeys(register.datasets(), "registered by a plugin")
    rows = [
        {"dataset": name} | sizes(Recipe.parse({"dataset": name}))._asdict() | {"place": place[name]}
        for name in (*NAMED_DATASETS, *register.datasets())
    ]
    if as_json:
        print_json("data.list", rows)
        return
    show(table_of("Datasets", rows, DATASETS))
    say(f"also synthetic:NxCxHxW, modular-addition:MODULUS:FRACTION, text:LENGTH; your own: {OWN}")


@data_app.command("get")
def get_data(
    name: Annotated[str, typer.Argument(help="cifar10, mnist, fashion-mnist or text")],
    files: Annotated[
        Path | None,
        typer.Option("--from", metavar="PATH", help="An official archive or folder that you already have."),
    ] = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Download a dataset, verify it and keep it as a plain array file."""
    from initmem.data import cifar10, packages
    from initmem.engines.progress import transfer
    from initmem.errors import DataError, allowed
    from initmem.recipe import NAMED_DATASETS

    offered = ("cifar10", *packages.PACKAGES)
    if name in NAMED_DATASETS and name not in offered:
        raise DataError(f"dataset {name!r} needs no download ({allowed(offered)})")
    if name not in offered:
        raise DataError(f"no dataset named {name!r} to download ({allowed(offered, name)}; your own: {OWN})")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # a polite kill cleans up like Ctrl-C
    with transfer(console(stderr=True)) as report:
        if name == "cifar10":
            place = cifar10.fetch(data_dir, files, report=report)
        else:
            place = packages.fetch(name, data_dir, files, report=report)
    if as_json:
        print_json("data.get", [{"dataset": name, "place": place}])
    else:
        say(f"{name}: {place}")
