"""initmem data."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Annotated

import typer

from initmem.cli.base import AsJson, DataDir, Plugins, app, print_help, print_json, say, show

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
    from initmem.data.bundled import BUNDLED
    from initmem.data.cache import cache_dir, is_cached
    from initmem.data.sources import sizes
    from initmem.plots.columns import DATASETS
    from initmem.recipe import Recipe
    from initmem.table import table_of

    register.load(plugins or ())
    place = {"scikit-learn": "comes with scikit-learn", "generated": "generated when needed"}
    places = {name: place.get(row.source, str(cache_dir(data_dir))) for name, row in BUNDLED.items()}
    for name, row in BUNDLED.items():
        if row.source == "download" and not is_cached(name, data_dir):
            places[name] = f"missing: initmem data get {name}"
    places |= dict.fromkeys(register.datasets(), "registered by a plugin")
    rows = [
        {"dataset": name} | sizes(Recipe.parse({"dataset": name}))._asdict() | {"place": places[name]}
        for name in places
    ]
    if as_json:
        print_json("data.list", rows)
        return
    show(table_of("Datasets", rows, DATASETS))
    say(f"also synthetic:NxCxHxW, modular-addition:MODULUS:FRACTION, text:LENGTH; your own: {OWN}")


@data_app.command("get")
def get_data(
    name: Annotated[str, typer.Argument(help="cifar10, cifar100, svhn, mnist, fashion-mnist or text")],
    source: Annotated[
        Path | None,
        typer.Option(
            "--from",
            metavar="PATH",
            help="The official file or a folder of them, or the same as .npz.",
        ),
    ] = None,
    data_dir: DataDir = None,
    as_json: AsJson = False,
) -> None:
    """Download a dataset, verify it and keep it as plain array files."""
    from initmem.data.bundled import BUNDLED
    from initmem.data.cache import fetch
    from initmem.errors import DataError, allowed

    offered = [dataset for dataset, row in BUNDLED.items() if row.source == "download"]
    if name not in offered:
        problem = f"dataset {name!r} needs no download" if name in BUNDLED else f"no dataset {name!r}"
        raise DataError(f"{problem} ({allowed(offered, name)}; your own: {OWN})")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # a polite kill cleans up like Ctrl-C
    folder = fetch(name, data_dir, source)
    if as_json:
        print_json("data.get", [{"dataset": name, "place": folder}])
    else:
        say(f"{name}: {folder}")
