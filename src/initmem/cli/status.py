"""initmem status."""

from __future__ import annotations

from typing import Annotated

import typer

from initmem.cli.base import AsJson, StoreArgument, app, print_json, say, show
from initmem.errors import count


@app.command()
def status(
    store: StoreArgument,
    verify: Annotated[
        bool, typer.Option("--verify", help="Check every record against its checksum, changed or not.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Count the runs of each study by what became of them."""
    from initmem.plots.columns import STATUS
    from initmem.record import CrashCause
    from initmem.store.results import open_results, store_status
    from initmem.table import table_of

    opened = open_results(store)
    broken = opened.verify() if verify else []
    state = store_status(opened)
    if as_json:
        rows = [
            {"study": study["name"], "preset": study["preset"]} | row
            for study in state["studies"]
            for row in study["recipes"]
        ]
        studies = [
            {key: value for key, value in study.items() if key != "recipes"} for study in state["studies"]
        ]
        print_json("status", rows, store=state["store"], studies=studies, damaged=state["damaged"])
    else:
        for study in state["studies"]:
            done = f"{study['done']:,} of {count(study['runs'], 'run')} done"
            title = f"{study['name']}, preset {study['preset']}: {done}"
            show(table_of(title, study["recipes"], STATUS))
            for cause in study["crashes"]:
                say(f"crashed: {CrashCause(**cause)}")
        for line in state["damaged"]:
            say(f"unreadable: {line}")
    if broken:
        raise typer.Exit(1)
