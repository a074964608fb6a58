"""What comes with the package: initmem studies, models, data and bench."""

from __future__ import annotations

import signal
import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import initmem
from initmem.cli.base import AsJson, DataDir, Plugins, app, bundled_studies, print_help, print_json, say, show
from initmem.errors import ConfigError, duration

if TYPE_CHECKING:
    from initmem.table import Columns


FIRST = "quickstart"


@app.command(name="studies")
def list_studies(
    name: Annotated[
        str | None,
        typer.Argument(
            help="A study: list its presets.", show_default="every study", autocompletion=bundled_studies
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the bundled studies and how long they take here.

    With a name: the presets of that study, its smaller and larger versions.
    """
    from initmem.plots.columns import PRESETS, STUDIES
    from initmem.table import table_of

    rows = _study_rows(name)
    if as_json:
        print_json("studies", rows)
        return
    shown = [row | {"time": duration(3600 * row["hours_here"])} for row in rows]
    if name is None:
        brief = [row for row in shown if row["default"]]
        show(table_of("Bundled studies", _only(brief, STUDIES), STUDIES))
        say("`initmem studies NAME` lists smaller and larger versions of one.")
    else:
        title = f"{name}: {rows[0]['title']}"
        columns = {key: column for key, column in PRESETS.items() if key != "study"}
        show(table_of(title, _only(shown, columns), columns))
        say("`initmem run STUDY --preset NAME` runs one; `initmem plan STUDY` times real training steps.")


def _study_rows(name: str | None) -> list[dict[str, Any]]:
    """A row per study and preset; quickstart first, and of every study its default preset."""
    from initmem import study_file as studies
    from initmem.engines.engine import cores
    from initmem.engines.plan import rough_hours, study_flops

    names = [name] if name else sorted(studies.bundled(), key=lambda one: (one != FIRST, one))
    presets = {one: studies.presets(one) for one in names}
    loaded = [
        (one, studies.load_study(one, preset), about)
        for one in names
        for preset, about in presets[one].items()
    ]
    hours = rough_hours([study for _, study, _ in loaded], cores())
    return [
        {
            "study": study.name,
            "title": study.title,
            "preset": study.preset,
            "default": study.preset == next(iter(presets[one])),
            "recipes": len(study.recipes),
            "scales": len(study.scales),
            "seeds": len(study.seeds),
            "runs": len(study.all_runs()),
            "flops": study_flops(study),
            "hours_here": here,
            "about": about,
        }
        for (one, study, about), here in zip(loaded, hours, strict=True)
    ]


def _only(rows: list[dict[str, Any]], columns: Columns) -> list[dict[str, Any]]:
    return [{str(key): row[str(key)] for key in columns} for row in rows]


@app.command()
def models(plugins: Plugins = None, as_json: AsJson = False) -> None:
    """List the networks, their sizes and their options."""
    from initmem import register
    from initmem.paper.reference import millions_of
    from initmem.plots.columns import MODELS
    from initmem.table import table_of
    from initmem.train.modules import catalogue

    register.load(plugins or ())
    rows = [row | {"paper": millions_of(str(row["name"]))} for row in catalogue()]
    if as_json:
        print_json("models", rows)
    else:
        show(
            table_of("Networks for 3x32x32 images and 10 classes (gpt: 64 of 96 tokens)", rows, MODELS),
        )


data_app = typer.Typer(help="List and download datasets.", rich_markup_mode=None)
app.add_typer(data_app, name="data")

OWN = "FILE.npz with x and y, or x_train, y_train, x_test and y_test; text:LENGTH:FILE"


@data_app.callback(invoke_without_command=True)
def _without_command(context: typer.Context) -> None:
    print_help(context)


@data_app.command("list")
def list_data(data_dir: DataDir = None, plugins: Plugins = None, as_json: AsJson = False) -> None:
    """List the datasets, their sizes and where they are."""
    from initmem import catalog, register
    from initmem.data.sources import sizes
    from initmem.plots.columns import DATASETS
    from initmem.recipe import Recipe
    from initmem.table import table_of

    register.load(plugins or ())
    availability = {name: _availability(name, row.source, data_dir) for name, row in catalog.DATASETS.items()}
    availability |= dict.fromkeys(register.datasets(), "registered by a plugin")
    rows = [
        {"dataset": name} | sizes(Recipe.parse({"dataset": name}))._asdict() | {"place": where}
        for name, where in availability.items()
    ]
    if as_json:
        print_json("data.list", rows)
        return
    show(table_of("Datasets", rows, DATASETS))
    say(f"also synthetic:NxCxHxW, modular-addition:MODULUS:FRACTION, text:LENGTH; your own: {OWN}")


def _availability(name: str, source: str, data_dir: Path | None) -> str:
    from initmem.data.cache import cache_dir, is_cached

    match source:
        case "scikit-learn":
            return "comes with scikit-learn"
        case "generated":
            return "generated when needed"
    return str(cache_dir(data_dir)) if is_cached(name, data_dir) else f"missing: initmem data get {name}"


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
    from initmem.catalog import DATASETS
    from initmem.data.cache import fetch
    from initmem.errors import DataError, allowed

    offered = [dataset for dataset, row in DATASETS.items() if row.source == "download"]
    if name not in offered:
        problem = f"dataset {name!r} needs no download" if name in DATASETS else f"no dataset {name!r}"
        raise DataError(f"{problem} ({allowed(offered, name)}; your own: {OWN})")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # SIGTERM cleans up like Ctrl-C
    folder = fetch(name, data_dir, source)
    if as_json:
        print_json("data.get", [{"dataset": name, "place": folder}])
    else:
        say(f"{name}: {folder}")


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
