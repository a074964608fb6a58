"""initmem plan."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from initmem.cli.base import (
    AsJson,
    Overrides,
    Plugins,
    Preset,
    StudyArgument,
    Workers,
    app,
    print_json,
    say,
    show,
)
from initmem.errors import ConfigError, count, duration

if TYPE_CHECKING:
    from initmem.engines.plan import Plan
    from initmem.study import Study


@app.command()
def plan(
    study: StudyArgument,
    preset: Preset = None,
    overrides: Overrides = None,
    plugins: Plugins = None,
    workers: Workers = None,
    power: Annotated[
        str | None,
        typer.Option(
            metavar="NOISE",
            help="In place of the cost: how many seeds a verdict takes. NOISE is the standard deviation over "
            "seeds in points, or a store to take it from.",
        ),
    ] = None,
    memory: Annotated[
        float, typer.Option(min=1e-9, metavar="PP", help="With --power: the memory to detect.")
    ] = 5.0,
    tolerance: Annotated[
        float, typer.Option(min=1e-9, metavar="PP", help="With --power: the range that counts as forgotten.")
    ] = 2.0,
    as_json: AsJson = False,
) -> None:
    """Say what a study costs before it runs.

    Runs, operations, disk space and time; with --power, the seeds it needs.
    """
    from initmem import study_file as studies
    from initmem.engines.engine import cores
    from initmem.engines.plan import plan as plan_of
    from initmem.pipeline.bundled import bundled_pipeline

    asked = studies.load_study(study, preset, overrides or (), plugins=plugins or ())
    if power is not None:
        _print_power(asked, power, memory, tolerance, as_json=as_json)
        return
    made = plan_of(asked, workers=workers or cores(), pipeline=bundled_pipeline(asked))
    if as_json:
        summary = asdict(made)
        rows = summary.pop("rows")
        print_json("plan", rows, **summary)
    else:
        _print(made)


def _print_power(study: Study, noise: str, memory: float, tolerance: float, *, as_json: bool) -> None:
    from initmem.measures.power import COLUMNS, power_rows
    from initmem.store.results import open_results
    from initmem.table import table_of

    assumed, pilot = None, []
    try:
        assumed = float(noise)
    except ValueError:
        pilot = open_results(noise).records()
    if assumed is not None and not 0 < assumed < math.inf:
        raise ConfigError(f"power = {noise} (allowed: points above 0, or a store)")
    powers = power_rows(study, noise=assumed, pilot=pilot, memory=memory, tolerance=tolerance)
    rows = [row._asdict() for row in powers]
    if as_json:
        print_json("plan.power", rows)
        return
    title = f"{study.name}, preset {study.preset}: seeds for a verdict in 80% of studies"
    show(table_of(title, rows, COLUMNS))
    say("simulated with normal noise, equal at all scales; empty: more than 100 seeds")


def _print(made: Plan) -> None:
    from initmem.plots.columns import PLAN
    from initmem.table import table_of

    rows = [asdict(row) | {"hours": duration(3600 * (row.hours or 0.0))} for row in made.rows]
    if not any(row["note"] for row in rows):
        rows = [{key: value for key, value in row.items() if key != "note"} for row in rows]
    show(table_of(f"{made.study}, preset {made.preset}", rows, PLAN))
    say(f"{count(made.runs, 'run')}: {count(made.recipes, 'recipe')}, {made.cells} recipes x scales")
    operations = "" if made.flops is None else f"{made.flops:.2e} operations, "
    size = f"{made.disk_bytes / 1e6:,.1f} MB of records"
    say(f"{count(made.updates, 'update')}, {operations}{size}")
    say(f"here, with {count(made.workers, 'worker')}: {_here(made)} (from timed training steps)")


def _here(made: Plan) -> str:
    """The time here, and how long it would be under the present load."""
    quiet, busy = duration(3600 * (made.hours_here or 0.0)), duration(3600 * (made.hours_busy or 0.0))
    return quiet if quiet == busy else f"{quiet} if nothing else runs, {busy} under the present load"
