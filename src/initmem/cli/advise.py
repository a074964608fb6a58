"""initmem advise."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from initmem.cli.base import (
    AsJson,
    Overrides,
    Plugins,
    Preset,
    StudyArgument,
    app,
    print_json,
    say,
    show,
)

if TYPE_CHECKING:
    from initmem.measures.advice import Observation
    from initmem.recipe import Recipe

SHOWN = 5  # recipes of the records that are printed for a recipe; --json has all


@app.command()
def advise(
    study: StudyArgument,
    preset: Preset = None,
    overrides: Overrides = None,
    plugins: Plugins = None,
    records: Annotated[
        list[Path] | None,
        typer.Option(metavar="STORE", help="A store or archive to look up such clocks in; may be repeated."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Compare each recipe's clocks with what was seen.

    Also the least changes that reach a clock at which recipes forgot. It makes no prediction.
    """
    from initmem import study_file as studies
    from initmem.clocks import FAMILY_NAMES
    from initmem.measures.advice import observations
    from initmem.paper import reference
    from initmem.plots.columns import ADVICE, SEEN
    from initmem.store.results import open_results
    from initmem.table import table_of

    asked = studies.load_study(study, preset, overrides or (), plugins=plugins or ())
    recipes = [recipe.network for recipe in asked.recipes]
    seen = reference.observations()
    for path in records or ():
        seen += observations(open_results(path).records(), path.name)
    rows = [_row(label, recipe, seen) for label, recipe in zip(asked.labels(), recipes, strict=True)]
    if as_json:
        print_json("advise", rows, study=asked.name, preset=asked.preset)
        return
    title = f"{asked.name}, preset {asked.preset}: clocks at the last epoch"
    show(table_of(title, [row | {"family": FAMILY_NAMES[row["family"]]} for row in rows], ADVICE))
    if records:
        records_seen = [
            {"asked": row["recipe"]}
            | {name: one[name] for name in ("clock", "text", "verdict", "recipe", "source")}
            for row in rows
            for one in [one for one in row["seen"] if one["source"] != "paper"][:SHOWN]
        ]
        title = f"The records at such clocks, up to {SHOWN} of each recipe"
        if records_seen:
            show(table_of(title, records_seen, SEEN))
        else:
            say("no record of a recipe of the same family")
    say("Clocks and what was seen at them: this is not a prediction.")


def _row(label: str, recipe: Recipe, seen: list[Observation]) -> dict[str, Any]:
    from initmem.clocks import clocks
    from initmem.data.sources import sizes
    from initmem.measures.advice import changes, family_clock, in_words, nearest, reached

    n_train = sizes(recipe).n_train
    family, value = family_clock(recipe, n_train)
    near, options = nearest(recipe, n_train, seen), changes(recipe, n_train, seen)
    there = reached(recipe, n_train, seen)
    none = f"none ({there})" if there else "no single change within usual bounds"
    return {
        "recipe": label,
        **clocks(recipe, n_train).at_end(),
        "family": family,
        "value": value,
        "paper": next((str(one) for one in near if one.source == "paper"), ""),
        "advice": in_words(options) or none,
        "seen": [one.to_json() for one in near],
        "changes": [one.to_json() for one in options],
    }
