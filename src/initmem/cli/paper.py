"""The paper and its theory: initmem figure, table, clocks and theory."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from initmem.cli.base import (
    AsJson,
    Output,
    Overrides,
    Plugins,
    Preset,
    Reference,
    StoreArgument,
    StoresArgument,
    app,
    bundled_studies,
    missing_in_words,
    output_path,
    print_json,
    say,
    show,
)
from initmem.errors import ConfigError, allowed


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
    from initmem.plots.tables import render
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


@app.command()
def clocks(
    study: Annotated[
        str | None,
        typer.Argument(
            help="A study; without one, a single recipe made of --set.", autocompletion=bundled_studies
        ),
    ] = None,
    preset: Preset = None,
    overrides: Overrides = None,
    plugins: Plugins = None,
    as_json: AsJson = False,
) -> None:
    """Print the optimizer clocks of each recipe before any run."""
    from initmem import register
    from initmem import study_file as studies
    from initmem.clocks import clocks as clocks_of
    from initmem.labels import labels
    from initmem.paper.reference import clock_of
    from initmem.pipeline import schedule_of
    from initmem.plots.columns import CLOCK_COLUMNS
    from initmem.table import table_of

    register.load(plugins or ())
    if study is None:
        recipes = [studies.single(overrides or ())]
    else:
        recipes = list(studies.load_study(study, preset, overrides or ()).recipes)
    rows: list[dict[str, object]] = [
        {"recipe": label, **clocks_of(*schedule_of(recipe)).at_end()}
        for label, recipe in zip(labels(recipes), recipes, strict=True)
    ]
    for name in ("sgd", "l2"):
        published = [clock_of(recipe, name) for recipe in recipes]
        if any(published):
            rows = [row | {f"paper_{name}": value} for row, value in zip(rows, published, strict=True)]
    if as_json:
        print_json("clocks", rows)
    else:
        show(table_of("Clocks at the end of training", rows, CLOCK_COLUMNS))


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
    from initmem.theory.show import show as shown_of

    shown = shown_of(name, seed=seed, output=output)
    if name == "fig9":
        rows = [row | {"paper": imbalance_of(row["panel"], row["eta"])} for row in shown.rows]
        shown = shown._replace(rows=rows, columns=(*shown.columns, "paper"))
    if as_json:
        print_json(f"theory.{name}", shown.rows)
        return
    columns: dict[Key, Column] = {key: column for key, column in THEORY.items() if key in shown.columns}
    rows = [{key: "-" if row[key] is None else row[key] for key in shown.columns} for row in shown.rows]
    show(table_of(shown.title, rows, columns))
    if output is not None:
        say(f"picture: {output}")
