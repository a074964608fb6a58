"""initmem table."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from initmem.cli.base import (
    AsJson,
    Output,
    Reference,
    StoreArgument,
    app,
    missing_in_words,
    output_path,
    print_json,
    say,
    show,
)
from initmem.errors import ConfigError, allowed


@app.command()
def table(
    name: Annotated[str, typer.Argument(help="1 to 7, or all.")],
    store: StoreArgument,
    output: Output = None,
    ending: Annotated[
        str, typer.Option(metavar="FORMAT", help="Without a file name: txt, md, tex or csv.")
    ] = "md",
    reference: Reference = False,
    as_json: AsJson = False,
) -> None:
    """Make a table of the paper from a store.

    As .txt, .md, .tex or .csv; runs that are missing are named.
    """
    from initmem.files import write_atomic
    from initmem.paper import tables
    from initmem.plots.table_text import render
    from initmem.store.results import collected

    if name not in (*tables.NAMES, "all"):
        raise ConfigError(f"table {name!r} ({allowed([*tables.NAMES, 'all'])})")
    records, studies = collected(store)
    wanted = tables.NAMES if name == "all" else (name,)
    made = {one: tables.make(one, records, studies, reference=reference) for one in wanted}
    if output is None and not as_json:
        for item in made.values():
            show(item)
        return
    rows: list[dict[str, Any]] = []
    for one, item in made.items():
        row: dict[str, Any] = {
            "table": one,
            "title": item.title,
            "missing": item.missing,
            "notes": item.notes,
        }
        if output is None:
            row["cells"] = item.records()
        else:
            path = output_path(output, f"table{one}.{ending}", several=name == "all")
            write_atomic(path, render(item, path.suffix.lstrip(".") or "txt").encode())
            row["file"] = str(path)
        rows.append(row)
    if as_json:
        print_json("table", rows)
        return
    for row in rows:
        say(f"table {row['table']}: {row['file']}{missing_in_words(row['missing'])}")
