"""Commands that tell before anything is trained: studies, models, clocks, plan, theory."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from initmem.cli.base import AsJson, Effort, Settings, StudyArgument, Workers, app, console, print_json

if TYPE_CHECKING:
    from initmem.study import Study


@app.command(name="studies")
def list_studies(as_json: AsJson = False) -> None:
    """List the bundled studies and their efforts, with their cost."""
    from initmem import study_file as studies
    from initmem.engines.devices import cores
    from initmem.engines.plan import rough_hours, study_flops
    from initmem.engines.progress import duration
    from initmem.plots.terminal import plain_table

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
            "flops": study_flops(study),
            "hours_here": estimate,
            "about": about,
        }
        for (study, about), estimate in zip(found, hours, strict=True)
    ]
    if as_json:
        print_json(rows)
        return
    for row in rows:
        row["flops"] = f"{row['flops']:.1e}"
        row["hours_here"] = duration(3600 * row["hours_here"])
    console().print(plain_table(rows))
    print("time here: counted operations at half the speed of a matrix product; `initmem plan` measures it")


@app.command()
def models(as_json: AsJson = False) -> None:
    """List the networks with their numbers of variables, for CIFAR-10 input."""
    from initmem.plots.terminal import plain_table
    from initmem.train.models import catalogue

    rows = catalogue()
    if as_json:
        print_json(rows)
    else:
        console().print(plain_table(rows, "3x32x32 input, 10 classes"))


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
    from initmem import study_file as studies
    from initmem.clocks import clocks as clocks_of
    from initmem.data import sizes
    from initmem.plots.terminal import plain_table
    from initmem.recipe import labels, network_of

    if study is None:
        recipes = [studies.single(settings or ())]
    else:
        recipes = list(studies.load_study(study, effort, settings or ()).recipes)
    rows = [
        {"recipe": label} | clocks_of(network_of(recipe), sizes(recipe).n_train).at_end()
        for label, recipe in zip(labels(recipes), recipes, strict=True)
    ]
    if as_json:
        print_json(rows[0] if study is None else rows)
    else:
        console().print(plain_table(rows, "clocks at the horizon"))


@app.command()
def plan(
    study: StudyArgument,
    effort: Effort = None,
    settings: Settings = None,
    workers: Workers = None,
    accelerator: Annotated[str, typer.Option(help="h100, h200, a100, l40s, rtx4090 or v100.")] = "h100",
    utilisation: Annotated[float, typer.Option(min=0.001, max=1.0, help="Share of its peak rate.")] = 0.2,
    gpus: Annotated[int | None, typer.Option(min=1, help="Simulate a schedule on N accelerators.")] = None,
    failures: Annotated[float, typer.Option(min=0, help="Failures per accelerator and day.")] = 0.0,
    power: Annotated[
        bool, typer.Option("--power", help="In place of the cost: the seeds that a verdict takes.")
    ] = False,
    noise: Annotated[
        float | None,
        typer.Option(min=1e-9, help="With --power: standard deviation over seeds of one run, in points."),
    ] = None,
    pilot: Annotated[
        Path | None, typer.Option(help="With --power: a store or archive to take the noise from.")
    ] = None,
    memory: Annotated[float, typer.Option(min=1e-9, help="With --power: the memory to find.")] = 5.0,
    tolerance: Annotated[
        float, typer.Option(min=1e-9, help="With --power: the range that counts as forgotten.")
    ] = 2.0,
    as_json: AsJson = False,
) -> None:
    """Say what a study costs before it is run: runs, operations, disk, hours here and elsewhere."""
    from initmem import study_file as studies
    from initmem.engines.devices import cores
    from initmem.engines.plan import plan as plan_of
    from initmem.engines.plan import simulate
    from initmem.engines.progress import duration
    from initmem.plots.terminal import plain_table

    asked = studies.load_study(study, effort, settings or ())
    if power:
        _print_power(asked, noise, pilot, memory, tolerance, as_json=as_json)
        return
    found = plan_of(asked, workers=workers or cores(), accelerator=accelerator, utilisation=utilisation)
    schedule = gpus and simulate(
        asked,
        gpus=gpus,
        accelerator=accelerator,
        utilisation=utilisation,
        failures_per_day=failures,
    )
    if as_json:
        print_json(asdict(found) | {"schedule": asdict(schedule) if schedule else None})
        return
    title = f"{found.study}, effort {found.effort}"
    console().print(plain_table([asdict(row) for row in found.rows], title))
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


def _print_power(
    study: Study, noise: float | None, pilot: Path | None, memory: float, tolerance: float, *, as_json: bool
) -> None:
    from initmem.measures.power import power_rows
    from initmem.plots.terminal import plain_table
    from initmem.store.results import open_results

    records = open_results(pilot).records() if pilot else []
    found = power_rows(study, noise=noise, pilot=records, memory=memory, tolerance=tolerance)
    rows = [row._asdict() for row in found]
    if as_json:
        print_json(rows)
        return
    console().print(
        plain_table(rows, f"{study.name}, effort {study.effort}: seeds for a verdict in 80% of studies")
    )
    print("simulated with normal noise, equal at all scales; empty: more than 100 seeds")


@app.command()
def theory(
    name: Annotated[
        str, typer.Argument(help="propositions, exponents, fig9, diagonal, resetting or linear.")
    ],
    seed: Annotated[int, typer.Option(min=0, help="Draws networks, data and targets.")] = 0,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Draw a picture to a file.")] = None,
    as_json: AsJson = False,
) -> None:
    """Show a part of the linear theory: why initialization is remembered, and what erases it."""
    from initmem.plots.terminal import plain_table
    from initmem.theory.pictures import show

    shown = show(name, seed=seed, output=output)
    if as_json:
        print_json(shown.rows)
        return
    console().print(plain_table(shown.table, shown.title))
    if output is not None:
        print(f"picture: {output}")
