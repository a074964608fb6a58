"""initmem advise."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from initmem.cli.base import (
    AsJson,
    Effort,
    Plugins,
    Settings,
    StudyArgument,
    Wide,
    Workers,
    app,
    print_json,
    say,
    show,
)
from initmem.cli.run import StoreOption, display, introduce, plugin_code

if TYPE_CHECKING:
    from initmem.recipe import AnyRecipe
    from initmem.store.record import RunRecord
    from initmem.study import Study


@app.command()
def advise(
    study: StudyArgument,
    effort: Effort = None,
    settings: Settings = None,
    plugins: Plugins = None,
    check_it: Annotated[
        bool, typer.Option("--check", help="Train each recipe with its first change and see if it forgets.")
    ] = False,
    store: StoreOption = None,
    workers: Workers = None,
    wide: Wide = False,
    as_json: AsJson = False,
) -> None:
    """Predict from the clocks which recipes forget.

    For the others: the smallest changes that should make them forget.
    """
    from initmem import study_file as studies
    from initmem.measures.advice import advice_rows, advised_study, verdicts
    from initmem.plots.columns import ADVICE
    from initmem.plots.table import table_of

    asked = studies.load_study(study, effort, settings or (), plugins=plugins or ())
    rows = advice_rows(asked)
    published = [_published(recipe) for recipe in asked.recipes]
    if any(published):
        rows = [row | {"published": text} for row, text in zip(rows, published, strict=True)]
    if check_it:
        changed = advised_study(asked)
        rows = verdicts(rows, asked, _trained(changed, store, workers, plugins or ())) if changed else rows
    if as_json:
        print_json("advise", rows, study=asked.name, effort=asked.effort)
        return
    show(table_of(f"{asked.name}, effort {asked.effort}: predicted from the clocks", rows, ADVICE), wide=wide)
    if not check_it:
        say("A prediction, not a measurement: --check trains the first change of each recipe.")


def _published(recipe: AnyRecipe) -> str:
    """The memory that the paper found with this procedure, with its size in words."""
    from initmem.measures.memory import TOLERANCE_PP, size_of
    from initmem.paper.reference import memory_of

    item = memory_of(recipe)
    if item is None:
        return ""
    within = item.value <= TOLERANCE_PP
    return f"{item} pp ({f'within {TOLERANCE_PP:g} pp' if within else size_of(item.value, TOLERANCE_PP)})"


def _trained(
    study: Study, store: Path | None, workers: int | None, plugins: Sequence[str]
) -> list[RunRecord]:
    """Run a study and return its records."""
    from initmem.engines.engine import Settings as EngineSettings
    from initmem.engines.execute import execute
    from initmem.engines.local import LocalEngine
    from initmem.store.paths import default_store
    from initmem.store.store import Store
    from initmem.train.requirements import check

    check(study)
    place = store or default_store(f"{study.name}-{study.effort}")
    opened = Store.create(place)
    introduce(study, place)
    chosen = EngineSettings(plugins=tuple(plugins), code=plugin_code(study))
    with display() as watch:
        outcome = execute(study, opened, LocalEngine(workers=workers, settings=chosen), watch=watch)
    if outcome.interrupted:
        raise typer.Exit(130)
    return [opened.read(run.id) for run in study.all_runs() if opened.has(run)]
