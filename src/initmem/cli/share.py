"""Commands that carry results elsewhere: archive, restore, export."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from initmem.cli.base import AsJson, StoreArgument, app, print_json


@app.command()
def archive(
    store: StoreArgument,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="File to write.", show_default="STORE.initmem"),
    ] = None,
    study: Annotated[
        str | None, typer.Option("--study", help="Only the runs of this study.", show_default="all")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write the studies and records of a store to one compact file, which can be shown like a store."""
    from initmem.store.archive import SUFFIX, of_study, write_archive
    from initmem.store.results import open_results

    opened = open_results(store)
    place = output or store.resolve().with_name(store.resolve().name + SUFFIX)
    records, damaged = opened.survey()
    studies = opened.studies()
    if study is not None:
        studies, records = of_study(study, studies, records)
    size = write_archive(place, studies, records)
    if as_json:
        print_json({"archive": place, "bytes": size, "records": len(records), "damaged": damaged})
    else:
        print(f"archive: {place} ({len(records):,} records, {size:,} bytes)")
        for line in damaged:
            print(f"damaged, left out: {line}")
    if damaged:
        raise typer.Exit(1)


@app.command()
def restore(
    archives: Annotated[list[Path], typer.Argument(help="Files that `initmem archive` wrote.")],
    store: Annotated[
        Path, typer.Option("--store", help="Directory of the store: a new one, or one to add to.")
    ],
    as_json: AsJson = False,
) -> None:
    """Make a store of archives, so that their studies can be continued; what it has already stays."""
    from initmem.store.archive import Archive
    from initmem.store.archive import restore as restored
    from initmem.store.store import Store

    opened = [Archive(path) for path in archives]
    place = Store.create(store)
    rows = [
        {"archive": one.path, "records": len(one.records()), "new": restored(one, place)} for one in opened
    ]
    if as_json:
        print_json(rows)
    else:
        for row in rows:
            print(f"{row['archive']}: {row['records']:,} records, {row['new']:,} of them new in {store}")


@app.command()
def export(
    store: StoreArgument,
    to: Annotated[str, typer.Option(help="csv, parquet, tensorboard or mlflow.")],
    output: Annotated[
        str | None,
        typer.Option(
            "-o",
            "--output",
            help="Directory; for mlflow an SQLite file, or the address of a tracking server.",
            show_default="STORE-csv and so on",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write all runs for another tool: as tables, for TensorBoard, or to MLflow."""
    from initmem.export import export as exported
    from initmem.store.results import open_results

    done = exported(open_results(store), to, output)
    if as_json:
        print_json(done._asdict())
    else:
        print(f"{done.format}: {done.place} ({done.runs:,} runs, {done.written:,} written)")
        for line in done.damaged:
            print(f"damaged, left out: {line}")
    if done.damaged:
        raise typer.Exit(1)
