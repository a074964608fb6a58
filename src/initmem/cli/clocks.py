"""initmem clocks."""

from __future__ import annotations

from typing import Annotated

import typer

from initmem.cli.base import AsJson, Overrides, Plugins, Preset, app, bundled_studies, print_json, show


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
    from initmem.pipeline.bundled import schedule_of
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
