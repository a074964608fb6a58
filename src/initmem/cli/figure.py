"""initmem figure."""

from __future__ import annotations

from typing import Annotated

import typer

from initmem.cli.base import (
    AsJson,
    Output,
    Reference,
    StoresArgument,
    app,
    missing_in_words,
    output_path,
    print_json,
    say,
)


@app.command()
def figure(
    name: Annotated[str, typer.Argument(help="1 to 8, scale, beta, clocks, sharpness, or all.")],
    stores: StoresArgument,
    output: Output = None,
    ending: Annotated[
        str, typer.Option(metavar="FORMAT", help="Without a file name: pdf, png or svg.")
    ] = "pdf",
    reference: Reference = False,
    as_json: AsJson = False,
) -> None:
    """Draw a figure of the paper from a store.

    As .pdf, .png or .svg; runs that are missing are named.
    """
    from initmem.paper import figures
    from initmem.store.results import collected

    records, studies = collected(stores)
    wanted = figures.available(records) if name == "all" else (name,)
    rows = []
    for one in wanted:
        default = f"figure{one if one.isdecimal() else '-' + one}.{ending}"
        path = output_path(output, default, several=name == "all")
        plot = figures.draw(one, records, studies, path, reference=reference)
        row = {"figure": one, "file": str(path), "missing": list(plot.missing), "notes": list(plot.notes)}
        rows.append(row)
    if as_json:
        print_json("figure", rows)
        return
    for row in rows:
        say(f"figure {row['figure']}: {row['file']}{missing_in_words(row['missing'])}")
        for note in row["notes"]:
            say(f"  {note}")
