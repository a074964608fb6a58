"""initmem measure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from initmem.cli.base import AsJson, StoresArgument, Wide, app, opened, print_json, say, show
from initmem.errors import ConfigError, allowed

if TYPE_CHECKING:
    from initmem.store.record import RunRecord


def measures(incomplete: str) -> list[str]:
    """Names for shell completion."""
    from initmem.plots.columns import MEASURES

    return [name for name in ("memory", *MEASURES) if name.startswith(incomplete)]


@app.command()
def measure(
    stores: StoresArgument,
    what: Annotated[
        str,
        typer.Option(
            metavar="MEASURE",
            help="memory, scale, difference, failures, beta, half-life, collapse, clocks, radial, "
            "interpolation, repair, sharpness, chaos or seeds.",
            autocompletion=measures,
        ),
    ] = "memory",
    metric: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Any recorded metric.", show_default="test or val accuracy"),
    ] = None,
    tolerance: Annotated[
        float | None,
        typer.Option(
            min=0,
            metavar="X",
            help="Largest memory that counts as forgotten.",
            show_default="2 pp for accuracies",
        ),
    ] = None,
    scales: Annotated[
        str | None,
        typer.Option(
            metavar="LIST", help="Only these scales, as in 0.1,1,2.5: memories compare over equal scales."
        ),
    ] = None,
    failure_tolerance: Annotated[
        float | None,
        typer.Option(
            min=0,
            max=1,
            metavar="X",
            help="Largest difference of failure rates between scales with which `forgets` is said.",
            show_default="any, if no run failed to train",
        ),
    ] = None,
    adjust: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="q over the recipes or pairs shown: bh (Benjamini-Hochberg), holm or none.",
            show_default="bh",
        ),
    ] = None,
    wide: Wide = False,
    as_json: AsJson = False,
) -> None:
    """Measure the memory of every recipe in a store.

    `--what` chooses another measure. Several stores are measured as one.
    """
    from initmem.measures.design import default_metric, looks_of, metric_reason, present_name
    from initmem.measures.memory import NEVER_USED, memory_table
    from initmem.measures.rows import REMARKS, memory_rows, not_applicable, rows_of
    from initmem.pipeline.metric_names import metric_name
    from initmem.plots import memory_table as memory_tables
    from initmem.plots.columns import measure_table
    from initmem.study import recipes_of

    records, studies = opened(*stores)
    if scales is not None:
        records = _at_scales(records, scales)
    order, metric = recipes_of(studies), metric and present_name(metric_name(metric), records)
    if what == "memory":
        chosen = metric or default_metric(records)
        memories = memory_table(
            records,
            chosen,
            order=order,
            tolerance=tolerance,
            failure_tolerance=failure_tolerance,
            adjust=adjust or "bh",
            looks=looks_of(studies, (record.run.recipe for record in records)),
        )
        if as_json:
            print_json("measure.memory", memory_rows(memories, records))
        else:
            show(memory_tables.memory_table(memories), wide=wide)
            if metric is None:
                say(metric_reason(chosen, records))
        return
    options = {"adjust": adjust, "tolerance": tolerance, "failure_tolerance": failure_tolerance}
    given = {name: value for name, value in options.items() if value is not None}
    rows = rows_of(what, records, metric=metric, order=order, **given)
    unused = not_applicable(what, records, order)
    if as_json:
        print_json(f"measure.{what}", rows, **({"not_applicable": unused} if unused else {}))
        return
    for label in unused:
        say(f"{label}: not applicable: {NEVER_USED}")
    if not rows:
        say("nothing to measure: the store has no runs of the kind that this measure needs")
    else:
        show(measure_table(what, rows), wide=wide)
        if what in REMARKS:
            for line in REMARKS[what](rows).splitlines():
                say(line)


def _at_scales(records: list[RunRecord], text: str) -> list[RunRecord]:
    there = sorted({record.run.scale for record in records})
    try:
        wanted = {float(part) for part in text.split(",")}
    except ValueError:
        raise ConfigError(f"scales = {text!r} ({allowed(there)}, with commas)") from None
    if missing := sorted(wanted - set(there)):
        raise ConfigError(f"scales = {missing} ({allowed(there)})")
    return [record for record in records if record.run.scale in wanted]
