"""initmem measure."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from initmem.cli.base import AsJson, StoresArgument, app, print_json, say, show
from initmem.errors import ConfigError


def measures(incomplete: str) -> list[str]:
    """Names for shell completion."""
    from initmem.measures.measure import MEASURES

    return [name for name in ("memory", *MEASURES) if name.startswith(incomplete)]


@app.command()
def measure(
    stores: StoresArgument,
    what: Annotated[
        str,
        typer.Option(
            metavar="MEASURE",
            help="memory, fit, scale, difference, failures, beta, half-life, collapse, clocks, radial, "
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
            help="Largest difference between scales in the rate of untrained runs that `forgets` allows.",
            show_default="any, if no run is untrained",
        ),
    ] = None,
    adjust: Annotated[
        str,
        typer.Option(
            metavar="NAME", help="For the number of recipes or pairs: bh (Benjamini-Hochberg) or none."
        ),
    ] = "bh",
    as_json: AsJson = False,
) -> None:
    """Measure the memory of every recipe in a store.

    `--what` chooses another measure. Several stores are measured as one.
    """
    from initmem.measures.design import metric_reason
    from initmem.measures.measure import MEASURES, at_scales, measure_table, not_applicable, remarks
    from initmem.measures.measure import measure as rows_of
    from initmem.measures.memory import memory_table
    from initmem.measures.memory_columns import NEVER_USED, verdict_table

    data = at_scales(stores, numbers(scales))
    options: dict[str, Any] = {"tolerance": tolerance, "adjust": adjust}
    options |= {"failure_tolerance": failure_tolerance}
    if what == "memory" and not as_json:
        memories = memory_table(data, metric, **options)
        show(verdict_table(memories))
        if metric is None and memories:
            say(metric_reason(memories[0].metric, data.records))
        return
    rows = rows_of(data, what, metric=metric, **options)
    unused, left_out = not_applicable(what, data), remarks(what, data)
    if as_json:
        about = {"not_applicable": unused, "remarks": left_out}
        print_json(f"measure.{what}", rows, **{name: lines for name, lines in about.items() if lines})
        return
    for label in unused:
        say(f"{label}: not applicable: {NEVER_USED}")
    if rows:
        show(measure_table(what, rows))
    else:
        say("nothing to measure: the store has no runs of the kind that this measure needs")
    conclusion = MEASURES[what].conclusion
    for line in [*(conclusion(rows) if conclusion else ()), *left_out]:
        say(line)


def numbers(text: str | None) -> list[float] | None:
    """A list of numbers with commas."""
    try:
        return None if text is None else [float(part) for part in text.split(",")]
    except ValueError:
        raise ConfigError(f"scales = {text!r} (allowed: numbers with commas, as in 0.1,1,2.5)") from None
