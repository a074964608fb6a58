"""initmem archive and initmem restore."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from initmem.cli.base import AsJson, StoreArgument, app, print_json, say
from initmem.errors import count


@app.command()
def archive(
    store: StoreArgument,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="FILE", help="File to write.", show_default="STORE.initmem"),
    ] = None,
    study: Annotated[
        str | None,
        typer.Option("--study", metavar="NAME", help="Only the runs of this study.", show_default="all"),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write a store to one compact file.

    Commands read it like a store.
    """
    from initmem.store.archive import SUFFIX, of_study, write_archive
    from initmem.store.results import open_results

    results = open_results(store)
    path = output or store.resolve().with_name(store.resolve().name + SUFFIX)
    (records, damaged), studies = results.survey(), results.studies()
    if study is not None:
        studies, records = of_study(study, studies, records)
    size = write_archive(path, studies, records)
    if as_json:
        row = {"archive": path, "bytes": size, "records": len(records), "damaged": damaged}
        print_json("archive", [row])
    else:
        say(f"archive: {path} ({count(len(records), 'record')}, {count(size, 'byte')})")
        for line in damaged:
            say(f"damaged, left out: {line}")
    if damaged:
        raise typer.Exit(1)


@app.command()
def restore(
    archives: Annotated[list[Path], typer.Argument(help="Files that `initmem archive` wrote.")],
    store: Annotated[
        Path,
        typer.Option("--store", metavar="DIR", help="Directory of the store: a new one, or one to add to."),
    ],
    as_json: AsJson = False,
) -> None:
    """Turn archives back into a store.

    Their studies can then be resumed. Records that the store already has stay.
    """
    from initmem.store.archive import Archive
    from initmem.store.archive import restore as restore_into
    from initmem.store.store import Store

    files = [Archive(path) for path in archives]
    target = Store.create(store)
    rows: list[dict[str, Any]] = [
        {"archive": file.path, "records": len(file.records()), "new": restore_into(file, target)}
        for file in files
    ]
    if as_json:
        print_json("restore", rows, store=store)
        return
    for row in rows:
        say(f"{row['archive']}: {count(row['records'], 'record')}, {row['new']:,} of them new in {store}")
