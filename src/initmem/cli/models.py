"""initmem models."""

from __future__ import annotations

from initmem.cli.base import AsJson, Plugins, app, print_json, show


@app.command()
def models(plugins: Plugins = None, as_json: AsJson = False) -> None:
    """List the networks, their sizes and their options."""
    from initmem import register
    from initmem.paper.reference import millions_of
    from initmem.plots.columns import MODELS
    from initmem.table import table_of
    from initmem.train.models import catalogue

    register.load(plugins or ())
    rows = [row | {"paper": millions_of(str(row["name"]))} for row in catalogue()]
    if as_json:
        print_json("models", rows)
    else:
        show(
            table_of("Networks for 3x32x32 images and 10 classes (gpt: 64 of 96 tokens)", rows, MODELS),
        )
