"""Commands that show what a store holds: status, measure, report, board, figure, table."""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from initmem.cli.base import AsJson, StoreArgument, app, console, print_json
from initmem.errors import ConfigError, allowed

if TYPE_CHECKING:
    from initmem.store.record import RunRecord
    from initmem.study import Study

MISSING_SHOWN = 3

Output = Annotated[Path | None, typer.Option("-o", "--output", help="File, or with `all` a directory.")]
Reference = Annotated[bool, typer.Option(help="Show the paper's values beside what was measured.")]


@app.command()
def status(
    store: StoreArgument,
    verify: Annotated[
        bool, typer.Option(help="Check every record against its checksum, changed or not.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Say how far the studies in a store are."""
    from initmem.plots.terminal import plain_table
    from initmem.store.causes import FailureCause
    from initmem.store.results import open_results
    from initmem.store.status import store_status

    opened = open_results(store)
    broken = opened.verify() if verify else []
    found = store_status(opened)
    if as_json:
        print_json(found)
    else:
        for study in found["studies"]:
            title = f"{study['name']}, effort {study['effort']}: {study['done']} of {study['runs']} runs done"
            console().print(plain_table(study["recipes"], title))
            for cause in study["failures"]:
                print(f"failed: {FailureCause(**cause)}")
        for line in found["damaged"]:
            print(f"damaged, will be trained again: {line}")
    if broken:
        raise typer.Exit(1)


@app.command()
def measure(
    stores: Annotated[
        list[Path],
        typer.Argument(help="Directories that `initmem run` wrote, or archives; several count as one."),
    ],
    what: Annotated[
        str,
        typer.Option(
            help="memory, scale, difference, beta, half-life, collapse, forecast, radial, interpolation, "
            "repair, chaos or seeds."
        ),
    ] = "memory",
    metric: Annotated[
        str | None, typer.Option(help="Any recorded metric.", show_default="test or val accuracy")
    ] = None,
    tolerance: Annotated[
        float | None,
        typer.Option(min=0, help="Spread that counts as forgotten.", show_default="2 pp for accuracies"),
    ] = None,
    scales: Annotated[
        str | None,
        typer.Option(metavar="LIST", help="Only these, as in 0.1,1,2.5: spreads compare over equal scales."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Measure every recipe in a store, or in several: its memory, or one of the other measures."""
    from initmem.measures.memory import default_metric, memory_table
    from initmem.measures.rows import REMARKS, rows_of
    from initmem.pipeline.metric_choice import metric_reason
    from initmem.pipeline.metric_names import metric_name
    from initmem.plots import terminal as tables
    from initmem.study import recipes_of

    records, studies = _opened(*stores)
    if scales is not None:
        records = _at_scales(records, scales)
    order = recipes_of(studies)
    metric = metric and metric_name(metric)
    if what == "memory":
        chosen = metric or default_metric(records)
        memories = memory_table(records, chosen, order=order, tolerance=tolerance)
        if as_json:
            print_json([row.to_json() for row in memories])
        else:
            console().print(tables.memory_table(memories))
            if metric is None:
                print(metric_reason(chosen, records))
        return
    rows = rows_of(what, records, metric=metric, order=order)
    if as_json:
        print_json(rows)
        return
    short = [{key: value for key, value in row.items() if key != "curve"} for row in rows]
    console().print(tables.plain_table(short, what))
    if not rows:
        print("nothing to measure: the store has no runs of the kind that this needs")
    elif what in REMARKS:
        print(REMARKS[what](rows))


@app.command()
def report(store: StoreArgument, output: Output = None, as_json: AsJson = False) -> None:
    """Write one self-contained HTML page about a store; it opens offline."""
    from initmem.report.report import write_report
    from initmem.store.results import open_results

    beside = store / "report.html" if store.is_dir() else store.with_suffix(".html")
    place = write_report(open_results(store), output or beside)
    if as_json:
        print_json({"report": place, "bytes": place.stat().st_size})
    else:
        print(f"report: {place}")


@app.command()
def board(
    store: StoreArgument,
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 finds a free one.")] = 8765,
    host: Annotated[str, typer.Option(help="Another address than loopback demands a token.")] = "127.0.0.1",
    token: Annotated[
        str | None, typer.Option(help="Who looks must know it.", show_default="made where one is needed")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Serve the report live while a study runs: progress, curves, failures, memory as seeds come in."""
    from initmem.report.board.server import Board
    from initmem.store.results import open_results

    served = Board(open_results(store), host=host, port=port, token=token)
    if as_json:
        print_json({"board": served.url})
    else:
        print(f"board: {served.url} (Ctrl-C ends it)")
    sys.stdout.flush()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # a polite kill ends like Ctrl-C
    with contextlib.suppress(KeyboardInterrupt):
        served.serve()


@app.command()
def figure(
    name: Annotated[str, typer.Argument(help="1 to 8, scale, or all.")],
    store: StoreArgument,
    output: Output = None,
    ending: Annotated[str, typer.Option(help="Without a file name: pdf, png or svg.")] = "pdf",
    reference: Reference = False,
    as_json: AsJson = False,
) -> None:
    """Draw a figure of the paper from a store, as .pdf, .png or .svg; missing runs are named."""
    from initmem.paper import figures

    records, studies = _opened(store)
    wanted = figures.available(records) if name == "all" else (name,)
    drawn = []
    for one in wanted:
        path = _path(output, f"figure{one if one.isdecimal() else '-' + one}.{ending}", several=name == "all")
        done = figures.draw(one, records, studies, path, reference=reference)
        drawn.append({"figure": one, "file": str(done.path), "missing": done.missing, "notes": done.notes})
    if as_json:
        print_json(drawn)
        return
    for row in drawn:
        notes = "".join(f"\n  {note}" for note in row["notes"])
        print(f"figure {row['figure']}: {row['file']}{_missing(row['missing'])}{notes}")


@app.command()
def table(
    name: Annotated[str, typer.Argument(help="1 to 7, or all.")],
    store: StoreArgument,
    output: Output = None,
    ending: Annotated[str, typer.Option(help="Without a file name: txt, md, tex or csv.")] = "md",
    reference: Reference = False,
    as_json: AsJson = False,
) -> None:
    """Make a table of the paper from a store, as .txt, .md, .tex or .csv; missing runs are named."""
    from initmem.paper import tables as papertables
    from initmem.store.files import write_atomic

    records, studies = _opened(store)
    wanted = _chosen(name, papertables.NAMES)
    made = {one: papertables.make(one, records, studies, reference=reference) for one in wanted}
    if output is None and not as_json:
        print("\n\n".join(item.render("txt") for item in made.values()))
        return
    rows = []
    for one, item in made.items():
        row: dict[str, Any] = {"table": one, "missing": item.missing}
        if output is None:
            row["text"] = item.render("csv")
        else:
            path = _path(output, f"table{one}.{ending}", several=name == "all")
            write_atomic(path, item.render(path.suffix.lstrip(".") or "txt").encode())
            row["file"] = str(path)
        rows.append(row)
    if as_json:
        print_json(rows)
        return
    for row in rows:
        print(f"table {row['table']}: {row['file']}{_missing(row['missing'])}")


def _opened(*stores: Path) -> tuple[list[RunRecord], list[Study]]:
    """Records and studies of all of them; a run that several hold counts once."""
    from initmem.store.results import open_results

    opened = [open_results(store) for store in stores]
    records = {record.id: record for results in opened for record in results.records()}
    return list(records.values()), [study for results in opened for study in results.studies()]


def _at_scales(records: list[RunRecord], text: str) -> list[RunRecord]:
    there = sorted({record.run.scale for record in records})
    try:
        wanted = {float(part) for part in text.split(",")}
    except ValueError:
        raise ConfigError(f"scales = {text!r} ({allowed(there)}, with commas)") from None
    if missing := sorted(wanted - set(there)):
        raise ConfigError(f"scales = {missing} ({allowed(there)})")
    return [record for record in records if record.run.scale in wanted]


def _chosen(name: str, names: tuple[str, ...]) -> tuple[str, ...]:
    if name == "all":
        return names
    if name not in names:
        raise ConfigError(f"{name!r} ({allowed([*names, 'all'])})")
    return (name,)


def _path(output: Path | None, default: str, *, several: bool) -> Path:
    """The file to write: in the asked directory for `all`, else the asked file."""
    try:
        if several:
            folder = output or Path()
            folder.mkdir(parents=True, exist_ok=True)
            return folder / default
    except OSError as error:
        raise ConfigError(f"{output}: cannot be written ({error.strerror})") from None
    return output or Path(default)


def _missing(names: Sequence[str]) -> str:
    """The first of what is missing: half a grid would fill the screen."""
    from initmem.plots.captions import first_of

    hint = ", see --json" if len(names) > MISSING_SHOWN else ""
    return f" (missing: {first_of(names, MISSING_SHOWN)}{hint})" if names else ""
