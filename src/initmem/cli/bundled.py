"""What comes with the package: initmem models, data, figure, table, theory and bench."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer

import initmem
from initmem.cli import base
from initmem.cli.base import app, argument, flag, option, output_file, print_json, say, show
from initmem.errors import ConfigError, allowed, first_of

MISSING_SHOWN = 3  # of the runs that a figure or table lacks


@app.command()
def models(plugins: base.Plugins = None, as_json: base.AsJson = False) -> None:
    """List the networks, their sizes and their options."""
    from initmem import register
    from initmem.paper.reference import stated
    from initmem.plots.columns import MODELS
    from initmem.train.modules import catalogue

    register.load(plugins or ())
    rows = [row | {"paper": stated("parameters", model=row["name"]).get("millions")} for row in catalogue()]
    if as_json:
        print_json("models", rows)
    else:
        base.show_rows("Networks for 3x32x32 images and 10 classes (gpt: 64 of 96 tokens)", rows, MODELS)


data_app = typer.Typer(help="List and download datasets.", rich_markup_mode=None)
app.add_typer(data_app, name="data")

OWN = "FILE.npz with x and y, or x_train, y_train, x_test and y_test; text:LENGTH:FILE"


@data_app.callback(invoke_without_command=True)
def _without_command(context: typer.Context) -> None:
    base.print_help(context)


@data_app.command("list")
def list_data(plugins: base.Plugins = None, as_json: base.AsJson = False) -> None:
    """List the datasets, their sizes and where they are."""
    from initmem import catalog, register
    from initmem.data.sources import sizes
    from initmem.plots.columns import DATASETS
    from initmem.recipe import Recipe

    register.load(plugins or ())
    availability = {name: _availability(name, row.source) for name, row in catalog.DATASETS.items()}
    availability |= dict.fromkeys(register.datasets.names(), "registered by a plugin")
    rows = [
        {"dataset": name} | sizes(Recipe.parse({"dataset": name}))._asdict() | {"place": where}
        for name, where in availability.items()
    ]
    if as_json:
        print_json("data.list", rows)
        return
    base.show_rows("Datasets", rows, DATASETS)
    say(f"also synthetic:NxCxHxW, modular-addition:MODULUS:FRACTION, text:LENGTH; your own: {OWN}")


def _availability(name: str, source: str) -> str:
    from initmem.data.cache import cache_dir, is_cached

    if source == "download":
        return str(cache_dir()) if is_cached(name) else f"missing: initmem data get {name}"
    return "generated when needed" if source == "generated" else f"comes with {source}"


@data_app.command("get")
def get_data(
    name: Annotated[str, argument("cifar10, cifar100, svhn, mnist, fashion-mnist or text")],
    source: Annotated[
        Path | None, option("PATH", "The official file or a folder of them, or the same as .npz.", "--from")
    ] = None,
    as_json: base.AsJson = False,
) -> None:
    """Download a dataset, verify it and keep it as plain array files.

    They go to the folder that INITMEM_DATA names, or to $XDG_CACHE_HOME/initmem.
    """
    from initmem.catalog import DATASETS
    from initmem.data.cache import fetch
    from initmem.errors import DataError

    offered = [dataset for dataset, row in DATASETS.items() if row.source == "download"]
    if name not in offered:
        problem = f"dataset {name!r} needs no download" if name in DATASETS else f"no dataset {name!r}"
        raise DataError(f"{problem} ({allowed(offered, name)}; your own: {OWN})")
    folder = fetch(name, source=source)
    base.answer("data.get", [{"dataset": name, "place": folder}], f"{name}: {folder}", as_json=as_json)


def figure_names(incomplete: str) -> list[str]:
    """Names for shell completion."""
    from initmem.paper.figures import NAMES, OF_ANY_RECIPE

    return [name for name in (*NAMES, *OF_ANY_RECIPE, "all") if name.startswith(incomplete)]


@app.command()
def figure(
    name: Annotated[
        str,
        argument(
            "1 to 8, scale, memory, tradeoff, beta, clocks, layers, or all.", autocompletion=figure_names
        ),
    ],
    stores: base.StoresArgument,
    output: base.Output = None,
    recipes: Annotated[
        str | None, option("PATTERN", 'Only these, as in "sgd*" or "adam b16".', show_default="all")
    ] = None,
    reference: base.Reference = False,
    captioned: Annotated[bool, flag("--caption/--no-caption", "Write the caption under the figure.")] = True,
    as_json: base.AsJson = False,
) -> None:
    """Draw a figure of the paper from a store, or all that it can fill.

    As .pdf, .png or .svg by the name of the file, else as .png; runs that are missing are named.
    """
    from initmem.paper import figures
    from initmem.plots.matplotlib import check
    from initmem.store.results import collected

    if name != "all" and output is not None and output.suffix:
        check(output)
    records, studies, *_ = collected(stores)
    if recipes is not None:
        records = figures.matching(records, studies, recipes)
    if name == "all":
        plots = figures.available(records, studies, reference)
    else:
        plots = {name: figures.plot_of(name, records, studies, reference)}
    rows: list[dict[str, Any]] = []
    for one, plot in plots.items():
        default = f"figure{one if one.isdecimal() else '-' + one}.png"
        path = output_path(output, default, several=name == "all")
        figures.draw(plot, path, captioned=captioned)
        missing, notes = list(plot.missing), list(plot.notes)
        row = {"figure": one, "file": str(path), "missing": missing, "notes": notes}
        rows.append(row | {"series": plot.data()})
        if not as_json:
            say(f"figure {one}: {path}{missing_in_words(missing)}")
            for note in notes:
                say(f"  {note}")
    if as_json:
        print_json("figure", rows)


@app.command()
def table(
    name: Annotated[str, argument("1 to 7, or all.")],
    store: base.StoreArgument,
    output: base.Output = None,
    reference: base.Reference = False,
    as_json: base.AsJson = False,
) -> None:
    """Make a table of the paper from a store.

    As .txt, .md, .tex or .csv by the name of the file, with `all` as .md; runs that are missing are named.
    """
    from initmem.files import write_output
    from initmem.paper import tables
    from initmem.plots.tables import render
    from initmem.store.results import collected

    records, studies, *_ = collected(store)
    rows: list[dict[str, Any]] = []
    for one in tables.NAMES if name == "all" else (name,):
        made = tables.make(one, records, studies, reference=reference)
        row = dict[str, Any](table=one, title=made.heading, missing=made.missing, notes=made.notes)
        if output is not None:
            path = output_path(output, f"table{one}.md", several=name == "all")
            write_output(path, render(made, path.suffix.lstrip(".") or "txt").encode())
            row["file"] = str(path)
            if not as_json:
                say(f"table {one}: {path}{missing_in_words(made.missing)}")
        elif as_json:
            row["cells"] = made.records()
        else:
            show(made)
        rows.append(row)
    if as_json:
        print_json("table", rows)


@app.command()
def theory(
    name: Annotated[str, argument("propositions, exponents, fig9, diagonal or resetting.")],
    output: Annotated[Path | None, output_file("FILE", "Also draw the picture.")] = None,
    as_json: base.AsJson = False,
) -> None:
    """Show a part of the linear theory.

    Why initialization is remembered, and what erases it.
    """
    from initmem.paper.reference import stated
    from initmem.plots.columns import THEORY
    from initmem.theory.show import PARTS
    from initmem.theory.show import show as rows_of

    rows = rows_of(name, output=output)
    if name == "fig9":
        for row in rows:
            row["paper"] = stated("imbalance", panel=row["panel"], eta=row["eta"]).get("D")
    if as_json:
        print_json(f"theory.{name}", rows)
        return
    cells = [{key: "-" if row[key] is None else row[key] for key in row if key in THEORY} for row in rows]
    base.show_rows(PARTS[name].title, cells, THEORY)
    if output is not None:
        say(f"picture: {output}")


@app.command()
def bench(
    workloads: Annotated[
        list[str] | None, argument("Workloads by part of their names.", show_default="the core ones")
    ] = None,
    everything: Annotated[bool, flag("--all", "Every workload; an hour or two.")] = False,
    peers: Annotated[str, option("LIST", "Comma-separated: keras, torch, jax; or none.")] = "keras,torch,jax",
    rounds: Annotated[int, option("N", "How often each is timed; the fastest counts.", min=1)] = 2,
    output: Annotated[Path | None, output_file("FILE", "Also write the JSON.")] = None,
    as_json: base.AsJson = False,
) -> None:
    """Time initmem next to Keras, PyTorch and JAX.

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


def output_path(output: Path | None, default: str, *, several: bool) -> Path:
    """The file to write: in the given directory for `all`, else the given file."""
    from initmem.files import explained

    if not several:
        return output or Path(default)
    folder = output or Path()
    with explained(folder):
        folder.mkdir(parents=True, exist_ok=True)
    return folder / default


def missing_in_words(names: Sequence[str]) -> str:
    """The first of what is missing: half a grid would fill the screen."""
    hint = ", see --json" if len(names) > MISSING_SHOWN else ""
    return f" (missing: {first_of(names, MISSING_SHOWN)}{hint})" if names else ""
