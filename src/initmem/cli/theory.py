"""initmem theory."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from initmem.cli.base import AsJson, app, print_json, say, show


@app.command()
def theory(
    name: Annotated[
        str, typer.Argument(help="propositions, exponents, fig9, diagonal, resetting or linear.")
    ],
    seed: Annotated[
        int, typer.Option(min=0, metavar="N", help="Seed of the networks, the data and the targets.")
    ] = 0,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="FILE", help="Also draw the picture to a file.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show a part of the linear theory.

    Why initialization is remembered, and what erases it.
    """
    from initmem.paper.reference import imbalance_of
    from initmem.plots.columns import THEORY
    from initmem.table import Column, Key, table_of
    from initmem.theory.pictures import show as shown_of

    shown = shown_of(name, seed=seed, output=output)
    if name == "fig9":
        rows = [row | {"paper": imbalance_of(row["panel"], row["eta"])} for row in shown.rows]
        shown = shown._replace(rows=rows, columns=(*shown.columns, "paper"))
    if as_json:
        print_json(f"theory.{name}", shown.rows)
        return
    columns: dict[Key, Column] = {key: column for key, column in THEORY.items() if key in shown.columns}
    show(table_of(shown.title, shown.table, columns))
    if output is not None:
        say(f"picture: {output}")
