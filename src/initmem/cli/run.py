"""initmem run."""

from __future__ import annotations

import math
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from initmem.cli.base import (
    AsJson,
    DataDir,
    Effort,
    Plugins,
    Settings,
    Wide,
    Workers,
    app,
    bundled_studies,
    print_json,
    say,
    show,
)
from initmem.errors import ConfigError, count
from initmem.train.requirements import Compile, Precision

if TYPE_CHECKING:
    from initmem.engines.engine import Listener
    from initmem.engines.execute import Workload
    from initmem.pipeline.fingerprint import Fingerprint
    from initmem.study import Study

StoreOption = Annotated[
    Path | None,
    typer.Option("--store", metavar="DIR", help="Where the records go.", show_default="runs/STUDY-EFFORT"),
]


@app.command()
def run(
    study: Annotated[
        str | None,
        typer.Argument(
            help="A bundled study or a .toml file; not needed with --command.", autocompletion=bundled_studies
        ),
    ] = None,
    effort: Effort = None,
    store: StoreOption = None,
    workers: Workers = None,
    engine: Annotated[
        str, typer.Option(metavar="NAME", help="Where runs execute: local, ray or slurm.")
    ] = "local",
    address: Annotated[
        str | None, typer.Option(metavar="TEXT", help="With --engine ray: the cluster, auto or HOST:PORT.")
    ] = None,
    records_travel: Annotated[
        bool,
        typer.Option(
            "--records-travel", help="With --engine ray: tasks need no shared disk; the driver saves records."
        ),
    ] = False,
    slurm: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="With --engine slurm: partition=..., timeout_min=..., ..."),
    ] = None,
    pack: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Replicas trained together.", show_default="by shape"),
    ] = None,
    settings: Settings = None,
    plugins: Plugins = None,
    until: Annotated[
        float | None,
        typer.Option(
            min=0.01,
            metavar="PP",
            help="Add seeds, at planned interim analyses, until every interval is at most this wide.",
        ),
    ] = None,
    max_seeds: Annotated[
        int, typer.Option(min=1, metavar="N", help="With --until: the most seeds per recipe.")
    ] = 30,
    device: Annotated[
        str, typer.Option(metavar="NAME", help="cpu, cuda, cuda:N or mps (a Mac's GPU).")
    ] = "cpu",
    slots: Annotated[
        int, typer.Option(min=1, metavar="N", help="Packs that train at the same time on each GPU.")
    ] = 1,
    precision: Annotated[
        Precision,
        typer.Option(metavar="NAME", help="float32, tf32 or amp (bfloat16 layers); recorded with each run."),
    ] = "float32",
    compile: Annotated[
        Compile,
        typer.Option(metavar="NAME", help="none or graphs (CUDA graphs of updates); recorded with each run."),
    ] = "none",
    checkpoint_every: Annotated[
        float, typer.Option(min=0, metavar="SECONDS", help="Time between two checkpoints.")
    ] = 60.0,
    timeout: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="End a pack that finishes no epoch for this long: 90, 90s, 15m or 2h.",
            show_default="never",
        ),
    ] = None,
    data_dir: DataDir = None,
    retry_failed: Annotated[bool, typer.Option("--retry-failed", help="Train failed runs again.")] = False,
    command: Annotated[
        str | None,
        typer.Option(
            metavar="PROGRAM",
            help="Train with your own program, which writes JSON lines: "
            "'python train.py --scale {scale} --seed {seed} --out {history}'.",
        ),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="With --command: its name.", show_default="that of the script"),
    ] = None,
    watch_files: Annotated[
        list[Path] | None,
        typer.Option(
            "--watch", metavar="FILE", help="With --command: another file that training depends on."
        ),
    ] = None,
    keep_old: Annotated[
        bool, typer.Option("--keep-old", help="Keep runs trained before your program or plugin changed.")
    ] = False,
    keep_going: Annotated[
        bool, typer.Option("--keep-going", help="Do not stop when the first runs all fail alike.")
    ] = False,
    wide: Wide = False,
    as_json: AsJson = False,
) -> None:
    """Train every run of a study that is not in the store yet.

    Ctrl-C stops; the same command resumes.
    """
    from initmem import study_file as studies
    from initmem.engines.engine import Settings as EngineSettings
    from initmem.engines.engine import Trainer, engine_named
    from initmem.engines.execute import execute, execute_until
    from initmem.engines.progress import duration
    from initmem.measures.design import default_metric, metric_reason
    from initmem.measures.memory import Memories, memory_table
    from initmem.measures.memory_columns import verdict_table
    from initmem.recipe import PipelineRecipe
    from initmem.record import failure_causes, failure_lines
    from initmem.store.paths import default_store
    from initmem.store.results import Collection
    from initmem.store.store import Store
    from initmem.train.requirements import check

    if data_dir is not None:
        os.environ["INITMEM_DATA"] = str(data_dir)  # the workers look there too
    limit = None if timeout is None else seconds(timeout)
    trainer: Trainer | None = None
    code: dict[str, Fingerprint] = {}
    if command is not None:
        from initmem.pipeline.command import study_of

        asked, program = study_of(command, name, study, effort, settings or (), watch_files or ())
        trainer, code = program, dict(program.fingerprints)
    elif study is None:
        raise ConfigError("nothing to run (allowed: a study, or --command)")
    else:
        asked = studies.load_study(study, effort, settings or (), plugins=plugins or ())
        if any(isinstance(recipe, PipelineRecipe) for recipe in asked.recipes):
            from initmem.pipeline.bundled import bundled_pipeline

            bundled = bundled_pipeline(asked)
            trainer, pack = bundled.trainer, pack or bundled.pack
        else:
            check(asked, compile)
            code = plugin_code(asked)
    chosen = engine_named(
        engine,
        workers=workers,
        settings=EngineSettings(
            device=device,
            slots=slots,
            precision=precision,
            compile=compile,
            checkpoint_every=checkpoint_every,
            timeout=limit,
            trainer=trainer,
            plugins=tuple(plugins or ()),
            code=code,
        ),
        address=address,
        records_travel=records_travel,
        slurm=slurm or (),
    )
    place = store or default_store(f"{asked.name}-{asked.effort}")
    opened = Store.create(place)
    if code:
        from initmem.pipeline.stale import HOW, HOW_PLUGINS, refuse_stale

        how = HOW_PLUGINS if command is None else HOW
        refuse_stale(opened, asked, chosen.settings.fingerprint, keep_old=keep_old, how=how)
    introduce(asked, place)
    if trainer is None and engine == "local" and device == "cpu":
        from initmem.train.compiled import library

        say(f"layers: {library()}", err=True)  # compiled here, once, if need be: not by every worker
    for note in module_notes(asked):
        say(note, err=True)
    with display() as watch:
        if until is None:
            outcome = execute(
                asked,
                opened,
                chosen,
                pack=pack,
                retry_failed=retry_failed,
                keep_going=keep_going,
                watch=watch,
            )
        else:
            outcome = execute_until(
                asked,
                opened,
                chosen,
                width=until,
                max_seeds=max_seeds,
                pack=pack,
                keep_going=keep_going,
                watch=watch,
            )
    records = [r for r in opened.records() if r.run.recipe in asked.recipes]
    if code:
        from initmem.pipeline.stale import stale_note

        if note := stale_note(records, chosen.settings.fingerprint):
            say(f"initmem: {note}", err=True)
    memories, metric = Memories(), ""
    if any(record.status != "failed" for record in records):
        metric = default_metric(records)
        data = Collection(records, opened.studies())
        memories = memory_table(data, metric, recipes=asked.recipes)
    if as_json:
        from initmem.measures.measure import memory_rows

        rows = memory_rows(memories, records)
        causes = [cause.to_json() for cause in failure_causes(records)]
        about = {"study": asked.name, "effort": asked.effort} | asdict(outcome)
        print_json("run", rows, **about, failures=causes)
    else:
        say(f"{count(outcome.trained, 'run')} trained in {duration(outcome.seconds)}; {outcome.summary()}")
        for line in failure_lines(records):
            say(line)
        if memories:
            show(verdict_table(memories, until=until), wide=wide)
            say(metric_reason(metric, records))
        say(f"next: initmem report {place}")
    if outcome.interrupted:
        raise typer.Exit(130)
    if not outcome.complete:
        raise typer.Exit(1)


def module_notes(study: Study) -> list[str]:
    """What to know of the plain modules of a study, each thing once."""
    from initmem.data.sources import sizes
    from initmem.recipe import Recipe
    from initmem.train.requirements import notes_of

    recipes = [recipe for recipe in study.recipes if isinstance(recipe, Recipe)]
    notes = (f"{r.model}: {note}" for r in recipes for note in notes_of(r, sizes(r)))
    return list(dict.fromkeys(notes))


def plugin_code(study: Study) -> dict[str, Fingerprint]:
    """The fingerprints of the plugins that a study uses, by registered name; nothing for bundled networks."""
    from initmem import register
    from initmem.recipe import Recipe

    recipes = [recipe for recipe in study.recipes if isinstance(recipe, Recipe)]
    if not any(
        r.model not in register.RESERVED or r.has_own_optimizer or register.find_dataset(r.dataset)
        for r in recipes
    ):
        return {}
    from initmem.pipeline.plugins import fingerprints

    return fingerprints(recipes)


def seconds(text: str) -> float:
    """A duration: a number of seconds, or one with the unit s, m or h."""
    number, unit = (text[:-1], text[-1]) if text[-1:] in ("s", "m", "h") else (text, "s")
    try:
        value = float(number) * {"s": 1, "m": 60, "h": 3600}[unit]
    except ValueError:
        value = 0.0
    if not 0 < value < 1e9:
        raise ConfigError(f"timeout = {text!r} (allowed: a duration, as in 90, 90s, 15m, 2h)")
    return value


def introduce(study: Study, place: Path) -> None:
    """Say on stderr what is about to happen."""
    about = f" ({study.about})" if study.about else ""
    say(f"{study.name}, effort {study.effort}{about}", err=True)
    grid = [(study.recipes, "recipe"), (study.scales, "scale"), (study.seeds, "seed")]
    sizes = " x ".join(count(len(values), noun) for values, noun in grid)
    runs = len(study.all_runs())
    if further := runs - math.prod(len(values) for values, _ in grid):
        sizes += f" + {further} further runs ({', '.join(_further(study))})"
    say(f"{sizes} = {count(runs, 'run')}, store {place}", err=True)


def _further(study: Study) -> list[str]:
    """What a study trains beyond recipes x scales x seeds."""
    kinds = {
        "more seeds": study.more_seeds,
        "perturbed replicates": study.perturbation != 1.0,
        "seeds by role": study.split,
    }
    return [name for name, used in kinds.items() if used]


@contextmanager
def display() -> Iterator[Callable[[Workload], Listener]]:
    """A live display for any number of sessions; a polite kill ends like Ctrl-C."""
    from initmem.engines.progress import watching

    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with watching(sys.stderr) as watch:
        yield watch
