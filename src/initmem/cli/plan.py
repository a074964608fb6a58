"""Before a study: initmem studies, plan, clocks and advise."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from initmem.cli import base
from initmem.cli.base import app, argument, option, print_json, say, show
from initmem.errors import ConfigError, StoreError, count, duration

if TYPE_CHECKING:
    from initmem.store.results import Results
    from initmem.study import Study
    from initmem.table import Columns


WITH_POWER = "With --power: "


@app.command(name="studies")
def list_studies(
    name: Annotated[
        str | None,
        argument(
            "A study: list its presets.", show_default="every study", autocompletion=base.bundled_studies
        ),
    ] = None,
    as_json: base.AsJson = False,
) -> None:
    """List the bundled studies and how long they take here.

    With a name: the presets of that study, its smaller and larger versions.
    """
    from initmem.engines.plan import study_rows
    from initmem.plots.columns import STUDIES

    rows = study_rows([name] if name else None)
    shown = [row | {"time": duration(3600 * row["hours_here"])} for row in rows]
    if name is None:
        shown = [row for row in shown if row["default"]]
        title, keys = "Bundled studies", ["study", "title", "runs", "time"]
        line = "`initmem studies NAME` lists smaller and larger versions of one."
    else:
        title, keys = f"{name}: {rows[0]['title']}", ["preset", "runs", "time", "flops", "about"]
        line = "`initmem run STUDY --preset NAME` runs one; `initmem plan STUDY` times real training steps."
    columns: Columns = {key: STUDIES[key] for key in keys}
    base.answer("studies", rows, line, table=(title, shown, columns), as_json=as_json)


def stored(name: str, **options: object) -> Results | None:
    """The store or archive that a path leads to; None: the path or name is one of a study."""
    from initmem.store.results import open_results
    from initmem.study_file import bundled

    if name in bundled() or Path(name).suffix == ".toml" or not Path(name).exists():
        return None
    for word, value in options.items():
        if value:
            raise ConfigError(f"--{word} with the store {name} (allowed: with a study)")
    return open_results(name)


@app.command()
def plan(
    study: base.StudyOrStore,
    preset: base.Preset = None,
    overrides: base.Overrides = None,
    scales: base.Scales = None,
    seeds: base.Seeds = None,
    plugins: base.Plugins = None,
    workers: base.Workers = None,
    power: Annotated[
        str | None,
        option(
            "NOISE",
            "In place of the cost: how many seeds a verdict takes. NOISE is the standard deviation over "
            "seeds in points, or a store to take it from.",
        ),
    ] = None,
    memory: Annotated[
        float | None, option("X", f"{WITH_POWER}the memory to detect.", min=1e-9, show_default="5 points")
    ] = None,
    tolerance: Annotated[
        float | None,
        option("X", f"{WITH_POWER}the range that counts as forgotten.", min=1e-9, show_default="2 points"),
    ] = None,
    metric: Annotated[
        str | None,
        option("NAME", f"{WITH_POWER}the metric of the noise.", show_default="test or val accuracy"),
    ] = None,
    as_json: base.AsJson = False,
) -> None:
    """Say what a study costs before it runs.

    Runs, operations, disk space and time; with --power, the seeds it needs, also for the recipes of a store.
    """
    from initmem import study_file as studies
    from initmem.engines.engine import cores
    from initmem.engines.plan import plan as plan_of
    from initmem.plots.columns import PLAN

    settings = [*(overrides or ()), *filter(None, (scales, seeds))]
    if results := stored(study, preset=preset, set=settings, plugin=plugins):
        if power is None:
            raise ConfigError(f"plan {study}: what a store holds is trained already (allowed: --power NOISE)")
        from initmem.measures.design import default_metric  # it loads SciPy

        planned, metric = results.studies(), metric or default_metric(results.records())
    else:
        planned = [studies.load_study(study, preset, settings, plugins=plugins or ())]
    if power is not None:
        _print_power(planned, power, metric, memory=memory, tolerance=tolerance, as_json=as_json)
        return
    (asked,) = planned
    rows, made = plan_of(asked, workers=workers or cores())
    shown = [row | {"hours": duration(3600 * row["hours"])} for row in rows]
    table = (f"{made['study']}, preset {made['preset']}", shown, PLAN)
    size = f"{made['disk_bytes'] / 1e6:,.1f} MB of records"
    here = f"here, with {count(made['workers'], 'worker')}: {duration(3600 * made['hours_here'])}"
    lines = (
        f"{count(made['runs'], 'run')}: {count(made['recipes'], 'recipe')}, {made['cells']} recipes x scales",
        f"{count(made['updates'], 'update')}, {made['flops']:.2e} operations, {size}",
        f"{here} if nothing else runs (from timed training steps)",
    )
    base.answer("plan", rows, *lines, table=table, as_json=as_json, **made)


def _print_power(
    studies: Sequence[Study], noise: str, metric: str | None, *, as_json: bool, **sizes: float | None
) -> None:
    from initmem.measures.advice import COLUMNS, power_rows
    from initmem.metric import metric_name
    from initmem.store.results import open_results
    from initmem.table import table_of

    assumed, pilot = None, []
    try:
        assumed = float(noise)
    except ValueError:
        pilot = open_results(noise).records()
    if assumed is not None and not 0 < assumed < math.inf:
        raise ConfigError(f"power = {noise} (allowed: points above 0, or a store)")
    chosen = metric and metric_name(metric)
    rows_of = {
        f"{one.name}, preset {one.preset}: seeds for a verdict in 80% of studies": power_rows(
            one, noise=assumed, pilot=pilot, metric=chosen, **sizes
        )
        for one in studies
    }
    if as_json:
        print_json("plan.power", [row for rows in rows_of.values() for row in rows])
        return
    show(*(table_of(title, rows, COLUMNS) for title, rows in rows_of.items()))
    say("simulated with normal noise, equal at all scales; empty: more than 100 seeds")


@app.command()
def clocks(
    study: Annotated[
        str | None,
        argument("A study; without one, a single recipe made of --set.", autocompletion=base.bundled_studies),
    ] = None,
    preset: base.Preset = None,
    overrides: base.Overrides = None,
    plugins: base.Plugins = None,
    as_json: base.AsJson = False,
) -> None:
    """Print the optimizer clocks of each recipe before any run."""
    from initmem import register
    from initmem import study_file as studies
    from initmem.clocks import clocks as clocks_of
    from initmem.data.sources import sizes
    from initmem.labels import labels
    from initmem.paper.reference import clock_of
    from initmem.plots.columns import CLOCK_COLUMNS

    register.load(plugins or ())
    if study is None:
        recipes = [studies.single(overrides or ())]
    else:
        recipes = list(studies.load_study(study, preset, overrides or ()).recipes)
    rows: list[dict[str, object]] = [
        {"recipe": label, **clocks_of(recipe.network, sizes(recipe).n_train).at_end()}
        for label, recipe in zip(labels(recipes), recipes, strict=True)
    ]
    for name in ("sgd", "l2"):
        published = [clock_of(recipe, name) for recipe in recipes]
        if any(published):
            rows = [row | {f"paper_{name}": value} for row, value in zip(rows, published, strict=True)]
    table = ("Clocks at the end of training", rows, CLOCK_COLUMNS)
    base.answer("clocks", rows, table=table, as_json=as_json)


@app.command()
def advise(
    study: base.StudyOrStore,
    preset: base.Preset = None,
    overrides: base.Overrides = None,
    plugins: base.Plugins = None,
    records: Annotated[
        list[Path] | None, option("STORE", "A store or archive to look up such clocks in; may be repeated.")
    ] = None,
    as_json: base.AsJson = False,
) -> None:
    """Compare each recipe's clocks with what was seen.

    Also the least changes that reach a clock at which recipes forgot. It makes no prediction. For a
    store, also one of your own code, it uses the clocks that were recorded.
    """
    from initmem.clocks import FAMILY_NAMES
    from initmem.measures.advice import from_records, observations, of_study
    from initmem.paper import reference
    from initmem.plots.columns import ADVICE
    from initmem.study_file import load_study

    seen = reference.observations()
    for path in records or ():
        seen += observations(path, path.name)
    about: dict[str, str] = {}
    if results := stored(study, preset=preset, set=overrides, plugin=plugins):
        title = f"{results.path.name}: clocks that were recorded up to the last epoch"
        rows = from_records(results, results.path.name, seen)
        lines = [
            "Each change alone reaches the clock of a recipe that forgot, if the schedule keeps its shape.",
            "What accuracy or memory it has there is not known: this is not a prediction.",
        ]
        if not rows:
            raise StoreError(f"{results.path}: no finished run yet (initmem run makes them)")
    else:
        asked = load_study(study, preset, overrides or (), plugins=plugins or ())
        about = {"study": asked.name, "preset": asked.preset}
        title = f"{asked.name}, preset {asked.preset}: clocks at the last epoch"
        rows = of_study(asked, seen)
        lines = ["Clocks and what was seen at them: this is not a prediction."]
        if records and not any(row["records"] for row in rows):
            lines.insert(0, "no record of a recipe of the same family")
    shown = [row | {"family": FAMILY_NAMES.get(str(row["family"]), "not known")} for row in rows]
    schema, table = "advise.store" if results else "advise", (title, shown, ADVICE)
    base.answer(schema, rows, *lines, table=table, as_json=as_json, **about)
