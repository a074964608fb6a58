"""The command line: parse, call, print. No logic lives here; heavy modules load when they are needed."""

from __future__ import annotations

import json
import os
import signal
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from initmem import __version__
from initmem.errors import InitmemError

app = typer.Typer(
    name="initmem",
    help="Measure how much of a network's random initialization is still visible after training.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

data_app = typer.Typer(help="List and fetch datasets.", no_args_is_help=True)
app.add_typer(data_app, name="data")

StudyArgument = Annotated[
    str, typer.Argument(help="A bundled study (see `initmem studies`) or a .toml file.")
]
StoreArgument = Annotated[Path, typer.Argument(help="The directory that `initmem run` wrote.")]
Effort = Annotated[str | None, typer.Option(help="Scale of the study, as listed by `initmem studies`.")]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override a recipe field, or scales, or seeds."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")]
DataDir = Annotated[
    Path | None, typer.Option(help="Where datasets are kept.", show_default="$XDG_CACHE_HOME/initmem")
]


def main() -> None:
    """Run the command line. A user's mistake is one line on stderr and exit code 2."""
    try:
        code = app(standalone_mode=False)
    except InitmemError as error:
        _fail(str(error))
    except typer.TyperException as error:
        _fail(error.format_message())
    except typer.Abort:
        _fail("stopped")
    except BrokenPipeError:
        sys.stderr.close()  # the reader has seen enough; keep the interpreter from complaining
        sys.exit(1)
    sys.exit(code if isinstance(code, int) else 0)


def _fail(message: str) -> None:
    print("initmem: " + " ".join(message.split()), file=sys.stderr)
    sys.exit(2)


def _print_json(content: Any) -> None:
    print(json.dumps(content, indent=1, default=str))


def _console(stderr: bool = False) -> Any:
    from rich.console import Console

    # Where nobody looks, nothing is cut to the width of a screen.
    terminal = (sys.stderr if stderr else sys.stdout).isatty()
    return Console(stderr=stderr, highlight=False, width=None if terminal else 160)


@app.callback(invoke_without_command=True)
def _version(
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    if version:
        print(f"initmem {__version__}")
        raise typer.Exit


@app.command()
def run(
    study: StudyArgument,
    effort: Effort = None,
    store: Annotated[
        Path | None, typer.Option(help="Directory for the runs.", show_default="runs/STUDY-EFFORT")
    ] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Worker processes.", show_default="one per core")
    ] = None,
    pack: Annotated[
        int | None, typer.Option(min=1, help="Replicas per pack.", show_default="chosen by size")
    ] = None,
    settings: Settings = None,
    device: Annotated[str, typer.Option(help="cpu, cuda or cuda:N.")] = "cpu",
    checkpoint_every: Annotated[float, typer.Option(min=0, help="Seconds between two checkpoints.")] = 60.0,
    data_dir: DataDir = None,
    retry_failed: Annotated[bool, typer.Option(help="Train failed runs again.")] = False,
    as_json: AsJson = False,
) -> None:
    """Train every run of a study that is not in the store yet. Ctrl-C stops; the same command goes on."""
    from initmem import study as studies
    from initmem.engines.execute import check, execute
    from initmem.engines.local import LocalEngine
    from initmem.measures.memory import memory_table
    from initmem.present import tables
    from initmem.present.progress import Display, duration
    from initmem.store import Store

    if data_dir is not None:
        os.environ["INITMEM_DATA"] = str(data_dir)  # the workers look there too
    asked = studies.load_study(study, effort, settings or ())
    check(asked)
    place = store or Path("runs") / f"{asked.name}-{asked.effort}"
    opened = Store.create(place)
    console = _console(stderr=True)
    about = f" ({asked.about})" if asked.about else ""
    console.print(f"{asked.name}, effort {asked.effort}{about}", soft_wrap=True)
    console.print(
        f"{len(asked.recipes)} recipes x {len(asked.scales)} scales x {len(asked.seeds)} seeds "
        f"= {len(asked.all_runs())} runs, store {place}",
        soft_wrap=True,
    )
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # a polite kill ends like Ctrl-C
    engine = LocalEngine(workers=workers, device=device, checkpoint_every=checkpoint_every)
    display: list[Display] = []

    def watch(work: Any) -> Display:
        display.append(Display(work, console))
        return display[0].__enter__()

    try:
        outcome = execute(asked, opened, engine, pack=pack, retry_failed=retry_failed, watch=watch)
    finally:
        for shown in display:
            shown.__exit__()
    records = [opened.read(item.id) for item in asked.all_runs() if opened.has(item)]
    if as_json:
        _print_json({"study": asked.name, "effort": asked.effort} | asdict(outcome))
    else:
        said = f"{outcome.trained} runs trained in {duration(outcome.seconds)}"
        counts = ", ".join(
            f"{getattr(outcome, name)} {name}"
            for name in ("completed", "diverged", "failed", "missing")
            if getattr(outcome, name) or name == "completed"
        )
        print(f"{said}; of {outcome.runs} runs: {counts}")
        if records:
            _console().print(tables.memory_table(memory_table(records, order=asked.recipes)))
        print(f"next: initmem report {place}")
    if outcome.interrupted:
        raise typer.Exit(130)
    if not outcome.complete:
        raise typer.Exit(1)


@app.command()
def status(store: StoreArgument, as_json: AsJson = False) -> None:
    """Say how far the studies in a store are."""
    from initmem.present.status import store_status
    from initmem.present.tables import plain_table
    from initmem.store import Store

    found = store_status(Store(store))
    if as_json:
        _print_json(found)
        return
    for study in found["studies"]:
        title = f"{study['name']}, effort {study['effort']}: {study['done']} of {study['runs']} runs done"
        _console().print(plain_table(study["recipes"], title))
    for line in found["damaged"]:
        print(f"damaged, will be trained again: {line}")


@app.command()
def measure(
    store: StoreArgument,
    metric: Annotated[str, typer.Option(help="Any recorded metric.")] = "test_accuracy",
    tolerance: Annotated[
        float | None,
        typer.Option(min=0, help="Spread that counts as forgotten.", show_default="2 pp for accuracies"),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Measure the memory of every recipe in a store."""
    from initmem.measures.memory import memory_table
    from initmem.present import tables
    from initmem.store import Store

    opened = Store(store)
    order = [recipe for study in opened.studies() for recipe in study.recipes]
    rows = memory_table(opened.records(), metric, order=order, tolerance=tolerance)
    if as_json:
        _print_json([row.to_json() for row in rows])
    else:
        _console().print(tables.memory_table(rows))


@app.command()
def report(
    store: StoreArgument,
    output: Annotated[Path | None, typer.Option("-o", "--output", show_default="STORE/report.html")] = None,
    as_json: AsJson = False,
) -> None:
    """Write one self-contained HTML page about a store; it opens offline."""
    from initmem.present.report import write_report
    from initmem.store import Store

    place = write_report(Store(store), output or store / "report.html")
    if as_json:
        _print_json({"report": place, "bytes": place.stat().st_size})
    else:
        print(f"report: {place}")


@app.command(name="studies")
def list_studies(as_json: AsJson = False) -> None:
    """List the bundled studies and their efforts, with their cost."""
    from initmem import study as studies
    from initmem.data import sizes
    from initmem.engines.local import cores
    from initmem.engines.plan import rough_hours, run_flops
    from initmem.present.progress import duration
    from initmem.present.tables import plain_table

    found = [
        (studies.load_study(name, effort), about)
        for name in studies.bundled()
        for effort, about in studies.efforts(name).items()
    ]
    hours = rough_hours([study for study, _ in found], cores())
    rows: list[dict[str, Any]] = [
        {
            "study": study.name,
            "effort": study.effort,
            "recipes": len(study.recipes),
            "scales": len(study.scales),
            "seeds": len(study.seeds),
            "runs": len(study.all_runs()),
            "flops": sum(run_flops(r, sizes(r)) * len(study.runs(r)) for r in study.recipes),
            "hours_here": estimate,
            "about": about,
        }
        for (study, about), estimate in zip(found, hours, strict=True)
    ]
    if as_json:
        _print_json(rows)
        return
    for row in rows:
        row["flops"] = f"{row['flops']:.1e}"
        row["hours_here"] = duration(3600 * row["hours_here"])
    _console().print(plain_table(rows))
    print("time here: counted operations at half the speed of a matrix product; `initmem plan` measures it")


@app.command()
def plan(
    study: StudyArgument,
    effort: Effort = None,
    settings: Settings = None,
    workers: Annotated[int | None, typer.Option(min=1, show_default="one per core")] = None,
    accelerator: Annotated[str, typer.Option(help="h100, h200, a100, l40s, rtx4090 or v100.")] = "h100",
    utilisation: Annotated[float, typer.Option(min=0.001, max=1.0, help="Share of its peak rate.")] = 0.2,
    gpus: Annotated[int | None, typer.Option(min=1, help="Simulate a schedule on N accelerators.")] = None,
    failures: Annotated[float, typer.Option(min=0, help="Failures per accelerator and day.")] = 0.0,
    as_json: AsJson = False,
) -> None:
    """Say what a study costs before it is run: runs, operations, disk, hours here and elsewhere."""
    from initmem import study as studies
    from initmem.engines.local import cores
    from initmem.engines.plan import plan as plan_of
    from initmem.engines.plan import simulate
    from initmem.present.progress import duration
    from initmem.present.tables import plain_table

    asked = studies.load_study(study, effort, settings or ())
    found = plan_of(asked, workers=workers or cores(), accelerator=accelerator, utilisation=utilisation)
    schedule = gpus and simulate(
        asked, gpus=gpus, accelerator=accelerator, utilisation=utilisation, failures_per_day=failures
    )
    if as_json:
        _print_json(asdict(found) | {"schedule": asdict(schedule) if schedule else None})
        return
    _console().print(
        plain_table([asdict(row) for row in found.rows], f"{found.study}, effort {found.effort}")
    )
    print(f"{found.runs:,} runs: {found.recipes} recipes, {found.cells} recipes x scales")
    print(f"{found.updates:,} updates, {found.flops:.2e} operations")
    print(f"{found.disk_bytes / 1e6:,.1f} MB of records")
    hours = found.hours_here or 0.0
    print(f"here, {found.workers} workers: {duration(3600 * hours)} (measured by real steps)")
    share = f"{100 * found.utilisation:.0f}% of its peak"
    print(f"one {found.accelerator} at {share}: {duration(3600 * found.accelerator_hours)}")
    if schedule:
        said = f"{duration(3600 * schedule.makespan_hours)}, {100 * schedule.busy:.0f}% busy"
        print(f"{schedule.gpus} of them (simulated): {said}, {schedule.failures} failures")


@app.command()
def models(as_json: AsJson = False) -> None:
    """List the networks with their numbers of variables, for CIFAR-10 input."""
    from initmem.present.tables import plain_table
    from initmem.train.models import catalogue

    rows = catalogue()
    if as_json:
        _print_json(rows)
    else:
        _console().print(plain_table(rows, "3x32x32 input, 10 classes"))


@app.command()
def clocks(
    study: Annotated[
        str | None, typer.Argument(help="A study; without it, one recipe made of --set.")
    ] = None,
    effort: Effort = None,
    settings: Settings = None,
    as_json: AsJson = False,
) -> None:
    """Print the clocks of a study's recipes, or of one recipe, before any run."""
    from initmem import study as studies
    from initmem.data import sizes
    from initmem.measures.clocks import clocks as clocks_of
    from initmem.present.tables import plain_table
    from initmem.recipe import labels

    recipes = (
        [studies.single(settings or ())]
        if study is None
        else list(studies.load_study(study, effort, settings or ()).recipes)
    )
    rows = [
        {"recipe": label} | clocks_of(recipe, sizes(recipe).n_train).at_end()
        for label, recipe in zip(labels(recipes), recipes, strict=True)
    ]
    if as_json:
        _print_json(rows[0] if study is None else rows)
    else:
        _console().print(plain_table(rows, "clocks at the horizon"))


@data_app.command("list")
def list_data(data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """List the datasets and where they are."""
    from initmem.data import sizes
    from initmem.data.cifar10 import cache_dir, is_cached
    from initmem.present.tables import plain_table
    from initmem.recipe import NAMED_DATASETS, Recipe

    place = {"digits": "comes with scikit-learn", "synthetic": "made on the spot"}
    missing = "missing: initmem data get cifar10"
    place["cifar10"] = str(cache_dir(data_dir)) if is_cached(data_dir) else missing
    rows = [
        {"dataset": name} | sizes(Recipe.parse({"dataset": name}))._asdict() | {"place": place[name]}
        for name in NAMED_DATASETS
    ]
    if as_json:
        _print_json(rows)
    else:
        _console().print(plain_table(rows))
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
    from initmem.errors import DataError
    from initmem.present.progress import transfer

    if name != "cifar10":
        raise DataError(f"dataset {name!r} needs no fetching (allowed: cifar10)")
    with transfer(_console(stderr=True)) as report:
        place = fetch(data_dir, files, report=report)
    if as_json:
        _print_json({"dataset": name, "place": place})
    else:
        print(f"{name}: {place}")
