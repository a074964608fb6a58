"""What a store holds: initmem status, measure, report, board, archive, restore and export."""

from __future__ import annotations

import contextlib
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from initmem.cli import base
from initmem.cli.base import app, argument, flag, option, output_file, print_json, say, show
from initmem.errors import ConfigError, count
from initmem.table import Table, flat, table_of


@app.command()
def status(
    store: base.StoreArgument,
    verify: Annotated[
        bool, flag("--verify", "Check every record against its checksum, changed or not.")
    ] = False,
    as_json: base.AsJson = False,
) -> None:
    """Count the runs of each study by what became of them."""
    from initmem.plots.columns import STATUS
    from initmem.store.faults import CrashCause
    from initmem.store.results import open_results, store_status

    opened = open_results(store)
    broken = opened.verify() if verify else []
    state = store_status(opened)
    if as_json:
        rows = [
            {"study": study["name"], "preset": study["preset"]} | row
            for study in state["studies"]
            for row in study.pop("recipes")  # the rest of it is part of the summary
        ]
        print_json("status", rows, **state)
    else:
        tables, lines = [], []
        for study in state["studies"]:
            done = f"{study['done']:,} of {count(study['runs'], 'run')} done"
            title = f"{study['name']}, preset {study['preset']}"
            tables.append(table_of(f"{title}: {done}", study["recipes"], STATUS))
            lines += [f"{title}: crashed: {CrashCause(**cause)}" for cause in study["crashes"]]
        show(*tables)
        for line in [*lines, *(f"unreadable: {line}" for line in state["damaged"])]:
            say(line)
    if broken:
        raise typer.Exit(1)


@app.command()
def measure(
    stores: base.StoresArgument,
    what: Annotated[
        str,
        option(
            "MEASURE",
            "memory, fit, scale, difference, failures, beta, half-life, collapse, clocks, radial, "
            "layers, function, relaxation, interpolation, repair, chaos or seeds.",
        ),
    ] = "memory",
    metric: Annotated[
        str | None, option("NAME", "Any recorded metric.", show_default="test or val accuracy")
    ] = None,
    tolerance: Annotated[
        float | None,
        option("X", "Largest memory that counts as forgotten.", min=0, show_default="2 pp for accuracies"),
    ] = None,
    scales: Annotated[
        str | None,
        option("LIST", "Only these scales or interventions, as in 0.1,1,2.5, to compare memories over."),
    ] = None,
    adjust: Annotated[
        str, option("NAME", "For the number of recipes or pairs: bh (Benjamini-Hochberg) or none.")
    ] = "bh",
    form: Annotated[
        str | None, option("NAME", "In place of a table here: latex, markdown or csv.", "--format")
    ] = None,
    explain: base.Explain = False,
    as_json: base.AsJson = False,
) -> None:
    """Measure the memory of every recipe in a store.

    `--what` chooses another measure. Several stores are measured as one.
    """
    from initmem.measures.design import metric_reason
    from initmem.measures.measure import at_scales, measure_table, not_applicable, remarks
    from initmem.measures.measure import measure as rows_of
    from initmem.measures.memory import memory_table
    from initmem.measures.verdict import verdict_table

    if form and as_json:
        raise ConfigError(f"--format {form} with --json (allowed: one of them)")
    data = at_scales(stores, levels(scales))
    options: dict[str, Any] = {"tolerance": tolerance, "adjust": adjust}
    if what == "memory" and not as_json:
        memories = memory_table(data, metric, **options)
        write(verdict_table(memories, explain=explain), memories.rows(), form)
        if metric is None and memories:
            say(metric_reason(memories[0].metric, data.records), err=bool(form))
        return
    rows = rows_of(data, what, metric=metric, **options)
    unused, left_out = not_applicable(what, data), remarks(what, data)
    if as_json:
        about = {"not_applicable": list(unused), "remarks": left_out}
        print_json(f"measure.{what}", rows, **{name: lines for name, lines in about.items() if lines})
        return
    for label, why in unused.items():
        say(f"{label}: not applicable: {why}", err=bool(form))
    if rows:
        write(measure_table(what, rows), rows, form)
    else:
        say("nothing to measure: the store has no runs of the kind that this measure needs", err=bool(form))
    for line in left_out:
        say(line, err=bool(form))


def write(table: Table, rows: Sequence[Mapping[str, Any]], form: str | None) -> None:
    """Print a table for people, or write it in a format; a program gets the plain values of the rows."""
    from initmem.plots.tables import comma_rows, render

    if form is None:
        show(table)
    else:
        sys.stdout.write(comma_rows(flat(rows)) if form == "csv" else render(table, form))


def levels(text: str | None) -> list[float | str] | None:
    """A list of scales, or of interventions, with commas."""

    def level(part: str) -> float | str:
        try:
            return float(part)
        except ValueError:
            return part.strip()

    return None if text is None else [level(part) for part in text.split(",")]


@app.command()
def report(
    store: base.StoreArgument,
    output: Annotated[Path | None, output_file("FILE", "The page.")] = None,
    as_json: base.AsJson = False,
) -> None:
    """Write one self-contained HTML page about a store.

    It opens offline.
    """
    from initmem.report.page import write_report
    from initmem.store.results import open_results

    beside = store / "report.html" if store.is_dir() else store.with_suffix(".html")
    typed = shlex.join(["initmem", "report", str(store), *(["-o", str(output)] if output else [])])
    place = write_report(open_results(store), output or beside, command=typed)
    row = {"report": place, "bytes": place.stat().st_size}
    base.answer("report", [row], f"report: {place}", as_json=as_json)


@app.command()
def board(
    store: base.StoreArgument,
    port: Annotated[int, option("N", "0 finds a free port.", min=0, max=65535)] = 8765,
    host: Annotated[str, option("ADDRESS", "Any address but loopback requires a token.")] = "127.0.0.1",
    token: Annotated[
        str | None, option("TEXT", "Visitors must present it.", show_default="made where needed")
    ] = None,
    as_json: base.AsJson = False,
) -> None:
    """Serve the report live while a study runs.

    Progress, curves, crashed runs and the memory so far.
    """
    from initmem.report.board import Board
    from initmem.store.results import open_results

    served = Board(open_results(store), host=host, port=port, token=token)
    base.answer("board", [{"board": served.url}], f"board: {served.url} (Ctrl-C stops it)", as_json=as_json)
    sys.stdout.flush()
    with contextlib.suppress(KeyboardInterrupt):
        served.serve()


@app.command()
def archive(
    store: base.StoreArgument,
    output: Annotated[Path | None, output_file("FILE", "The file.", show_default="STORE.initmem")] = None,
    study: Annotated[str | None, option("NAME", "Only its runs.", show_default="every study")] = None,
    as_json: base.AsJson = False,
) -> None:
    """Write a store to one compact file.

    Commands read it like a store.
    """
    from initmem.store.results import SUFFIX, of_study, open_results, write_archive

    results = open_results(store)
    path = output or store.resolve().with_name(store.resolve().name + SUFFIX)
    (records, damaged), studies = results.survey(), results.studies()
    if study is not None:
        studies, records = of_study(study, studies, records)
    size = write_archive(path, studies, records)
    row = {"archive": path, "bytes": size, "records": len(records), "damaged": damaged}
    line = f"archive: {path} ({count(len(records), 'record')}, {count(size, 'byte')})"
    base.answer("archive", [row], line, *(f"damaged, left out: {one}" for one in damaged), as_json=as_json)
    if damaged:
        raise typer.Exit(1)


@app.command()
def restore(
    archives: Annotated[list[Path], argument("Files that `initmem archive` wrote.")],
    store: Annotated[Path, option("DIR", "Directory of the store: a new one, or one to add to.", "--store")],
    as_json: base.AsJson = False,
) -> None:
    """Turn archives back into a store.

    Their studies can then be resumed. Records that the store already has stay.
    """
    from initmem.store.results import Archive
    from initmem.store.results import restore as restore_into
    from initmem.store.store import Store

    files = [Archive(path) for path in archives]
    target = Store.create(store)
    rows, lines = [], []
    for file in files:
        records, new = len(file.records()), restore_into(file, target)
        rows.append({"archive": file.path, "records": records, "new": new})
        lines.append(f"{file.path}: {count(records, 'record')}, {new:,} of them new in {store}")
    base.answer("restore", rows, *lines, as_json=as_json, store=store)


@app.command()
def export(
    store: base.StoreArgument,
    to: Annotated[str, option("FORMAT", "csv, parquet, tensorboard, mlflow, wandb or trackio.")],
    output: Annotated[
        str | None,
        output_file("PATH", "A directory; for mlflow an SQLite file or a server.", show_default="STORE-csv"),
    ] = None,
    as_json: base.AsJson = False,
) -> None:
    """Write all runs for another tool.

    As tables, for TensorBoard, to MLflow, or as offline runs for Weights & Biases.
    """
    from initmem.export import export as exported
    from initmem.store.results import open_results

    done = exported(open_results(store), to, output)
    line = f"{done.format}: {done.output} ({count(done.runs, 'run')}, {done.written:,} written)"
    damaged = [f"damaged, left out: {one}" for one in done.damaged]
    base.answer("export", [done._asdict()], line, *damaged, as_json=as_json)
    if done.damaged:
        raise typer.Exit(1)
