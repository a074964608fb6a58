"""initmem plan."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from initmem.cli.base import (
    AsJson,
    Effort,
    Plugins,
    Settings,
    StudyArgument,
    Wide,
    Workers,
    app,
    print_json,
    say,
    show,
)
from initmem.errors import count

if TYPE_CHECKING:
    from initmem.engines.plan import Pipeline, Plan, Schedule
    from initmem.study import Study


@app.command()
def plan(
    study: StudyArgument,
    effort: Effort = None,
    settings: Settings = None,
    plugins: Plugins = None,
    workers: Workers = None,
    accelerator: Annotated[
        str, typer.Option(metavar="NAME", help="h100, h200, a100, l40s, rtx4090 or v100.")
    ] = "h100",
    utilization: Annotated[
        float, typer.Option(min=0.001, max=1.0, metavar="SHARE", help="Share of its peak rate.")
    ] = 0.2,
    gpus: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Simulate a schedule on N accelerators.")
    ] = None,
    power: Annotated[
        bool, typer.Option("--power", help="In place of the cost: how many seeds a verdict takes.")
    ] = False,
    noise: Annotated[
        float | None,
        typer.Option(min=1e-9, metavar="PP", help="With --power: standard deviation over seeds."),
    ] = None,
    pilot: Annotated[
        Path | None,
        typer.Option(metavar="STORE", help="With --power: take the noise from these records."),
    ] = None,
    memory: Annotated[
        float, typer.Option(min=1e-9, metavar="PP", help="With --power: the memory to detect.")
    ] = 5.0,
    tolerance: Annotated[
        float, typer.Option(min=1e-9, metavar="PP", help="With --power: the range that counts as forgotten.")
    ] = 2.0,
    wide: Wide = False,
    as_json: AsJson = False,
) -> None:
    """Say what a study costs before it runs.

    Runs, operations, disk space, and the time here and on a GPU; with --power, the seeds it needs.
    """
    from initmem import study_file as studies
    from initmem.engines.engine import cores
    from initmem.engines.plan import plan as plan_of
    from initmem.engines.plan import simulate

    asked = studies.load_study(study, effort, settings or (), plugins=plugins or ())
    if power:
        _print_power(asked, noise, pilot, memory, tolerance, wide=wide, as_json=as_json)
        return
    made = plan_of(
        asked,
        workers=workers or cores(),
        accelerator=accelerator,
        utilization=utilization,
        pipeline=_pipeline(asked),
    )
    schedule = simulate(asked, gpus=gpus, accelerator=accelerator, utilization=utilization) if gpus else None
    if as_json:
        summary = asdict(made)
        rows = summary.pop("rows")
        print_json("plan", rows, **summary, schedule=asdict(schedule) if schedule else None)
    else:
        _print(made, schedule, wide=wide)


def _pipeline(study: Study) -> Pipeline | None:
    """What trains a study of a bundled pipeline."""
    from initmem.engines.plan import Pipeline
    from initmem.pipeline.bundled import bundled_pipeline, schedule_of
    from initmem.recipe import PipelineRecipe

    if not any(isinstance(recipe, PipelineRecipe) for recipe in study.recipes):
        return None
    return Pipeline(*bundled_pipeline(study), schedule_of)


def _print_power(
    study: Study,
    noise: float | None,
    pilot: Path | None,
    memory: float,
    tolerance: float,
    *,
    wide: bool,
    as_json: bool,
) -> None:
    from initmem.measures.power import COLUMNS, power_rows
    from initmem.store.results import open_results
    from initmem.table import table_of

    records = open_results(pilot).records() if pilot else []
    powers = power_rows(study, noise=noise, pilot=records, memory=memory, tolerance=tolerance)
    rows = [row._asdict() for row in powers]
    if as_json:
        print_json("plan.power", rows)
        return
    title = f"{study.name}, effort {study.effort}: seeds for a verdict in 80% of studies"
    show(table_of(title, rows, COLUMNS), wide=wide)
    say("simulated with normal noise, equal at all scales; empty: more than 100 seeds")


def _print(made: Plan, schedule: Schedule | None, *, wide: bool) -> None:
    from initmem.engines.progress import duration
    from initmem.plots.columns import PLAN
    from initmem.table import table_of

    rows = [asdict(row) | {"hours": duration(3600 * (row.hours or 0.0))} for row in made.rows]
    if not any(row["note"] for row in rows):
        rows = [{key: value for key, value in row.items() if key != "note"} for row in rows]
    show(table_of(f"{made.study}, effort {made.effort}", rows, PLAN), wide=wide)
    say(f"{count(made.runs, 'run')}: {count(made.recipes, 'recipe')}, {made.cells} recipes x scales")
    operations = "" if made.flops is None else f"{made.flops:.2e} operations, "
    size = f"{made.disk_bytes / 1e6:,.1f} MB of records"
    say(f"{count(made.updates, 'update')}, {operations}{size}")
    say(f"here, with {count(made.workers, 'worker')}: {_here(made)} (from timed training steps)")
    if made.accelerator_hours is not None:
        share = f"{100 * made.utilization:.0f}% of its peak rate"
        say(f"one {made.accelerator} at {share}: {duration(3600 * made.accelerator_hours)}")
    if schedule:
        span = f"{duration(3600 * schedule.makespan_hours)}, {100 * schedule.busy:.0f}% busy"
        say(f"{schedule.gpus} of them (simulated): {span}")


def _here(made: Plan) -> str:
    """The time here, and how long it would be under the present load."""
    from initmem.engines.progress import duration

    quiet, busy = duration(3600 * (made.hours_here or 0.0)), duration(3600 * (made.hours_busy or 0.0))
    return quiet if quiet == busy else f"{quiet} if nothing else runs, {busy} under the present load"
