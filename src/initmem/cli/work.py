"""Commands that train: run, and advise --check."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from initmem.cli.base import (
    AsJson,
    DataDir,
    Effort,
    Settings,
    StudyArgument,
    Workers,
    app,
    console,
    print_json,
)
from initmem.errors import ConfigError
from initmem.train.requirements import Precision

if TYPE_CHECKING:
    from initmem.engines.execute import Workload
    from initmem.engines.settings import Listener
    from initmem.study import Study

Place = Annotated[
    Path | None, typer.Option("--store", help="Directory for the runs.", show_default="runs/STUDY-EFFORT")
]


@app.command()
def run(
    study: Annotated[
        str | None, typer.Argument(help="A bundled study or a .toml file; not needed with --command.")
    ] = None,
    effort: Effort = None,
    store: Place = None,
    workers: Workers = None,
    engine: Annotated[str, typer.Option(help="Where runs are executed: local, ray or slurm.")] = "local",
    address: Annotated[
        str | None, typer.Option(help="With --engine ray: the cluster, as in auto or HOST:PORT.")
    ] = None,
    records_travel: Annotated[
        bool, typer.Option(help="With --engine ray: tasks use no store; the driver commits their records.")
    ] = False,
    slurm: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="With --engine slurm: partition=..., timeout_min=..., ..."),
    ] = None,
    pack: Annotated[
        int | None, typer.Option(min=1, help="Replicas per pack.", show_default="chosen by size")
    ] = None,
    settings: Settings = None,
    until: Annotated[
        float | None,
        typer.Option(
            min=0.01,
            help="Add seeds, at planned looks, until every interval is at most this many points wide.",
        ),
    ] = None,
    max_seeds: Annotated[int, typer.Option(min=1, help="Most seeds per recipe with --until.")] = 30,
    device: Annotated[str, typer.Option(help="cpu, cuda or cuda:N.")] = "cpu",
    slots: Annotated[int, typer.Option(min=1, help="Packs at the same time on each GPU.")] = 1,
    precision: Annotated[
        Precision, typer.Option(help="amp: layers in bfloat16. What it was is recorded.")
    ] = "float32",
    checkpoint_every: Annotated[float, typer.Option(min=0, help="Seconds between two checkpoints.")] = 60.0,
    timeout: Annotated[
        str | None,
        typer.Option(
            help="End a pack that finishes no epoch for so long: 90, 90s, 15m or 2h.", show_default="never"
        ),
    ] = None,
    data_dir: DataDir = None,
    retry_failed: Annotated[bool, typer.Option(help="Train failed runs again.")] = False,
    command: Annotated[
        str | None,
        typer.Option(
            metavar="PROGRAM",
            help="Train by a program of your own that writes JSON lines: "
            "'python train.py --scale {scale} --seed {seed} --out {history}'.",
        ),
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="What the program is called.", show_default="its script")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Train every run of a study that is not in the store yet. Ctrl-C stops; the same command goes on."""
    from initmem import study_file as studies
    from initmem.engines.execute import check, execute, execute_until
    from initmem.engines.named import engine_named
    from initmem.engines.progress import duration
    from initmem.engines.settings import Settings as EngineSettings
    from initmem.engines.settings import Trainer
    from initmem.measures.looks import looks_of
    from initmem.measures.memory import default_metric, memory_table
    from initmem.pipeline.bundled import bundled_pipeline
    from initmem.plots import terminal as tables
    from initmem.store.store import Store

    if data_dir is not None:
        os.environ["INITMEM_DATA"] = str(data_dir)  # the workers look there too
    limit = None if timeout is None else seconds(timeout)
    trainer: Trainer | None = None
    if command is not None:
        from initmem.pipeline.command import study_of

        asked, trainer = study_of(command, name, study, effort, settings or ())
    elif study is None:
        raise ConfigError("nothing to run (allowed: a study, or --command)")
    else:
        asked = studies.load_study(study, effort, settings or ())
        if (bundled := bundled_pipeline(asked)) is not None:
            trainer, pack = bundled.trainer, pack or bundled.pack
        else:
            check(asked)
    chosen = engine_named(
        engine,
        workers=workers,
        settings=EngineSettings(
            device=device,
            slots=slots,
            precision=precision,
            checkpoint_every=checkpoint_every,
            timeout=limit,
            trainer=trainer,
        ),
        address=address,
        records_travel=records_travel,
        slurm=slurm or (),
    )
    place = store or Path("runs") / f"{asked.name}-{asked.effort}"
    opened = Store.create(place)
    introduce(asked, place)
    with display() as watch:
        if until is None:
            outcome = execute(asked, opened, chosen, pack=pack, retry_failed=retry_failed, watch=watch)
        else:
            outcome = execute_until(
                asked, opened, chosen, width=until, max_seeds=max_seeds, pack=pack, watch=watch
            )
    if as_json:
        print_json({"study": asked.name, "effort": asked.effort} | asdict(outcome))
    else:
        print(f"{outcome.trained} runs trained in {duration(outcome.seconds)}; {outcome.summary()}")
        records = [r for r in opened.records() if r.run.recipe in asked.recipes]
        if records:
            looks = looks_of(opened.studies())
            rows = memory_table(records, default_metric(records), order=asked.recipes, looks=looks)
            console().print(tables.memory_table(rows, until=until))
        print(f"next: initmem report {place}")
    if outcome.interrupted:
        raise typer.Exit(130)
    if not outcome.complete:
        raise typer.Exit(1)


@app.command()
def advise(
    study: StudyArgument,
    effort: Effort = None,
    settings: Settings = None,
    check_it: Annotated[
        bool,
        typer.Option("--check", help="Run the first advice of each recipe and report whether it forgets."),
    ] = False,
    store: Place = None,
    workers: Workers = None,
    as_json: AsJson = False,
) -> None:
    """Forecast from the clocks alone which recipes forget, and say the least change that should make them."""
    from initmem import study_file as studies
    from initmem.measures.advice import advice_rows, advised_study, verdicts
    from initmem.plots.terminal import plain_table

    asked = studies.load_study(study, effort, settings or ())
    rows = advice_rows(asked)
    if check_it:
        changed = advised_study(asked)
        rows = verdicts(rows, asked, _trained(changed, store, workers)) if changed else rows
    if as_json:
        print_json(rows)
        return
    console().print(plain_table(rows, f"{asked.name}, effort {asked.effort}: a forecast from the clocks"))
    if not check_it:
        print("a forecast is a forecast: --check runs the first advice of each recipe")


def _trained(study: Study, store: Path | None, workers: int | None) -> list[Any]:
    """Run a study and return its records."""
    from initmem.engines.execute import check, execute
    from initmem.engines.local import LocalEngine
    from initmem.store.store import Store

    check(study)
    place = store or Path("runs") / f"{study.name}-{study.effort}"
    opened = Store.create(place)
    introduce(study, place)
    with display() as watch:
        outcome = execute(study, opened, LocalEngine(workers=workers), watch=watch)
    if outcome.interrupted:
        raise typer.Exit(130)
    return [opened.read(run.id) for run in study.all_runs() if opened.has(run)]


def seconds(text: str) -> float:
    """Read a span of time: a number of seconds, or one with the unit s, m or h."""
    number, unit = (text[:-1], text[-1]) if text[-1:] in ("s", "m", "h") else (text, "s")
    try:
        value = float(number) * {"s": 1, "m": 60, "h": 3600}[unit]
    except ValueError:
        value = 0.0
    if not 0 < value < 1e9:
        raise ConfigError(f"timeout = {text!r} (allowed: a span of time, as in 90, 90s, 15m, 2h)")
    return value


def introduce(study: Study, place: Path) -> None:
    """Say on stderr what is about to happen."""
    out = console(stderr=True)
    about = f" ({study.about})" if study.about else ""
    out.print(f"{study.name}, effort {study.effort}{about}", soft_wrap=True)
    sizes = f"{len(study.recipes)} recipes x {len(study.scales)} scales x {len(study.seeds)} seeds"
    out.print(f"{sizes} = {len(study.all_runs())} runs, store {place}", soft_wrap=True)


@contextmanager
def display() -> Iterator[Callable[[Workload], Listener]]:
    """A live display for as many sessions as come; a polite kill ends like Ctrl-C."""
    from initmem.engines.progress import watching

    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with watching(sys.stderr) as watch:
        yield watch
