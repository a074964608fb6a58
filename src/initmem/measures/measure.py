"""Every measure of a store as rows of plain values: what `initmem measure` prints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from initmem.clocks import CLOCK_NAMES, FAMILY_NAMES
from initmem.errors import ConfigError, allowed, count
from initmem.intervention import Level, level_order
from initmem.measures import (
    beta,
    chaos,
    collapse,
    difference,
    elasticity,
    function,
    relaxation,
    scales,
)
from initmem.measures.design import (
    Analyses,
    Groups,
    Measure,
    Row,
    analyses_of,
    by_recipe,
    default_metric,
    labelled,
    levels_of,
    of_scales,
    shared_notes,
)
from initmem.measures.fit import Fit, Matched, cold_remarks
from initmem.measures.memory import Memory, judged, measured, memory_table
from initmem.measures.statistics import Limits
from initmem.metric import metric_name, metric_of
from initmem.record import RunRecord
from initmem.store.encoding import plain_values
from initmem.store.results import Collection, Source, collected
from initmem.study import recipes_of
from initmem.table import RECIPE, Column, Columns, Table, number, table_of

# -- memory at equal fit ----------------------------------------------------------------------------------


def _fit_rows(
    groups: Groups,
    metric: str | None,
    *,
    analyses: Analyses,
    tolerance: float | None = None,
    adjust: str = "bh",
) -> list[Row]:
    """The change from the smallest to the largest scale, split, and the memory at equal fit."""
    memories = [
        measured(rows, metric or default_metric(rows), label, analyses[rows[0].run.recipe], tolerance)
        for label, rows in groups.items()
    ]
    return [_fit_row(row, row.fit) for row in judged(memories, adjust) if row.fit is not None]


def _fit_row(row: Memory, fit: Fit) -> Row:
    cells: Row = {"recipe": row.recipe, "verdict": row.short_verdict}
    cells |= {"metric": row.metric, "train_metric": fit.metric}
    for name, change in (("test", fit.test_change), ("train", fit.train_change), ("gap", fit.gap_change)):
        cells |= (change or Limits(None, None, None)).named(name)
    ends = (fit.train[0], fit.train[-1]) if fit.train_change else (None, None)
    cells |= {"train_smallest": ends[0], "train_largest": ends[1]}
    for name, match in (("matched", fit.matched), ("by_loss", fit.matched_by_loss)):
        values = match if isinstance(match, Matched) else None
        fields = ("memory", "low", "high", "p")
        cells |= {f"{name}_{field}": values and getattr(values, field) for field in fields}
        cells[f"{name}_level"] = values and metric_of(values.by).factor * values.level
        cells[f"{name}_scales"] = list(values.scales) if values else []
    cells |= {f"time_{name}": fit.time and getattr(fit.time, name) for name in ("ratio", "low", "high")}
    return cells | {"n_scales": row.n_scales, "n_seeds": row.n_seeds}


# By the names of `--what`; next to them, `memory`.
MEASURES: dict[str, Measure] = {
    "fit": Measure(
        "Change from the smallest to the largest scale, and memory at equal fit",
        _fit_rows,
        {
            "verdict": Column("verdict", "text", "of the memory, with its mode"),
            "test": number("test", "change of the metric: train - gap", "+.1f~"),
            ("test_low", "test_high"): number("test: 95% interval", "of this change", ".1f~", priority=10),
            "train": number("train", "change of the train metric", "+.1f~"),
            ("train_low", "train_high"): number("train: 95% interval", "of this change", ".1f~", priority=10),
            ("train_smallest", "train_largest"): Column("fit", "text", "train metric at both", form=".1f~"),
            "gap": number("gap", "change of train - test", "+.1f~", priority=2),
            ("gap_low", "gap_high"): number("gap: 95% interval", "of this change", ".1f~", priority=10),
            "matched_memory": number("at equal fit", "memory at a common train accuracy", ".1f~"),
            ("matched_low", "matched_high"): number("95% interval", "of it", ".1f~"),
            "matched_p": number("p", "of no memory at equal fit", ".2g", priority=6),
            "matched_level": number("level", "the highest train accuracy (%) that all runs reach", ".3g"),
            "by_loss_memory": number("at equal loss", "the same, by train loss", ".1f~", priority=7),
            ("by_loss_low", "by_loss_high"): number("loss: 95% interval", "of it", ".1f~", priority=9),
            "by_loss_p": number("loss: p", "of no memory at equal loss", ".2g", priority=9),
            "by_loss_level": number("loss", "the lowest train loss that all runs reach", ".2g", priority=8),
            "time_ratio": number("time", "to fit: slowest scale over fastest", ".2f", priority=3),
            ("time_low", "time_high"): number("time: 95% interval", "of this ratio", ".2f", priority=5),
            "metric": Column("metric", "text", "of the memory", priority=12),
            "train_metric": Column("train metric", "text", "that measures the fit", priority=12),
        },
        options=("tolerance", "adjust", "analyses"),
        of="effect",
        together=True,
    ),
    **scales.MEASURES,
    **difference.MEASURES,
    **beta.MEASURES,
    **collapse.MEASURES,
    **elasticity.MEASURES,
    **function.MEASURES,
    **relaxation.MEASURES,
    **chaos.MEASURES,
}
SCALE = number("scale", "initialization scale, or intervention", "g")
OF_NUMBERS = "it is asked of scales, which are numbers"
MEMORY_OPTIONS = ("adjust", "tolerance")


def measure(
    source: Source,
    what: str = "memory",
    *,
    metric: str | None = None,
    scales: Sequence[Level] | None = None,
    tolerance: float | None = None,
    adjust: str = "bh",
) -> list[Row]:
    """The rows that `initmem measure --json` prints, as plain values.

    Args:
        source: a store or an archive, the path of one, several of these, or records. Plain records contain
            neither the order of recipes nor planned interim analyses.
        what: a measure, as for `initmem measure --what`.
        metric: any recorded metric; unless given, test accuracy or the next best.
        scales: use only these scales or interventions.
        tolerance: the range that counts as forgotten, in the unit of the metric.
        adjust: `bh` adjusts p-values for the number of recipes (Benjamini-Hochberg), `none` does not.
    """
    if what not in ("memory", *MEASURES):
        raise ConfigError(f"what = {what!r} ({allowed(['memory', *MEASURES], what)})")
    given = {"adjust": None if adjust == "bh" else adjust, "tolerance": tolerance}
    options: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    taken = {"memory": MEMORY_OPTIONS} | {name: one.options for name, one in MEASURES.items()}
    for name in options:
        if name not in taken[what]:
            measures = [one for one, names in taken.items() if name in names]
            raise ConfigError(f"{name} does nothing with what = {what!r} ({allowed(measures)})")
    data = at_scales(source, scales)
    if what == "memory":
        return memory_rows(memory_table(data, metric, **options), data.records)
    chosen = metric and metric_name(metric)
    if "analyses" in MEASURES[what].options:
        options["analyses"] = analyses_of(data.studies, (r.run.recipe for r in data.records))
    left_out = not_applicable(what, data)
    groups = {label: group for label, group in _groups(data).items() if label not in left_out}
    if MEASURES[what].numeric:
        groups = {label: of_scales(group) for label, group in groups.items()}
    return [plain_values(row) for row in MEASURES[what].rows_of(groups, chosen, **options)]


def at_scales(source: Source, scales: Sequence[Level] | None) -> Collection:
    """The records at some of the scales, or with some of the interventions."""
    data = collected(source)
    if scales is None:
        return data
    there = levels_of(data.records)
    if missing := sorted(set(scales) - set(there), key=level_order):
        raise ConfigError(f"scales = {missing} ({allowed(there)})")
    return Collection([r for r in data.records if r.run.level in scales], data.studies)


def _groups(data: Collection) -> dict[str, list[RunRecord]]:
    return labelled(data.records, recipes_of(data.studies))


def not_applicable(what: str, data: Collection) -> dict[str, str]:
    """The recipes in which the scale had no effect, and why, where a measure asks for its effect."""
    if what == "memory" or MEASURES[what].of == "runs":
        return {}
    numeric = MEASURES[what].numeric
    reasons = {
        label: scales.why_inapplicable(group) if of_scales(group) or not numeric else OF_NUMBERS
        for label, group in _groups(data).items()
    }
    return {label: reason for label, reason in reasons.items() if reason}


def remarks(what: str, data: Collection) -> list[str]:
    """What a measure leaves out: cold epochs, and interventions where it asks for numbers."""
    if what == "memory":
        return []
    one, groups = MEASURES[what], _groups(data)
    remarks_of = cold_remarks if one.of == "curve" else one.remarks
    notes = shared_notes([(label, remarks_of(group)) for label, group in groups.items()])
    runs = sum(bool(record.run.intervention) for record in data.records)
    if one.numeric and 0 < runs < len(data.records):
        notes.append(f"{count(runs, 'run')} with interventions left out: {OF_NUMBERS}")
    return notes


def memory_rows(memories: Sequence[Memory], records: Sequence[RunRecord]) -> list[Row]:
    """Memories as plain values, each with what every scale reached."""
    groups = {recipe.id: group for recipe, group in by_recipe(records).items()}
    return [
        plain_values(row.to_json())
        | {"scales": [at._asdict() for at in scales.scale_means(groups[row.recipe_id], row.metric)]}
        for row in memories
    ]


def measure_table(what: str, rows: Sequence[Mapping[str, Any]]) -> Table:
    """The table of one measure other than memory, with families and clocks as people call them."""
    columns: Columns = {"recipe": RECIPE, "scale": SCALE, **MEASURES[what].columns}
    names = {"clock": CLOCK_NAMES, "unit": CLOCK_NAMES, "family": FAMILY_NAMES if what == "clocks" else {}}
    named = [{k: names[k].get(v, v) if k in names else v for k, v in row.items()} for row in rows]
    if what == "fit" and all(metric_of(row["train_metric"]).unit == "pp" for row in rows):
        columns = {key: head._replace(form=head.form.removesuffix("~")) for key, head in columns.items()}
    return table_of(MEASURES[what].title, named, columns)
