"""Every measure of a store as rows of plain values: what `initmem measure` prints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from initmem.clocks import CLOCK_NAMES, FAMILY_NAMES
from initmem.errors import ConfigError, allowed
from initmem.measures import beta, chaos, collapse, difference, elasticity, failures, memory_columns, scales
from initmem.measures.design import Measure, Row, analyses_of, labelled
from initmem.measures.fit import cold_notes
from initmem.measures.memory import Memory, memory_table, scale_used
from initmem.metric import metric_name, metric_of
from initmem.record import RunRecord
from initmem.store.encoding import plain_values
from initmem.store.results import Collection, Source, collected
from initmem.study import recipes_of
from initmem.table import Table, table_of

# By the names of `--what`; next to them, `memory`.
MEASURES: dict[str, Measure] = {
    **memory_columns.MEASURES,
    **scales.MEASURES,
    **difference.MEASURES,
    **failures.MEASURES,
    **beta.MEASURES,
    **collapse.MEASURES,
    **elasticity.MEASURES,
    **chaos.MEASURES,
}
MEMORY_OPTIONS = ("adjust", "tolerance", "failure_tolerance")


def measure(
    source: Source,
    what: str = "memory",
    *,
    metric: str | None = None,
    scales: Sequence[float] | None = None,
    tolerance: float | None = None,
    failure_tolerance: float | None = None,
    adjust: str = "bh",
) -> list[Row]:
    """The rows that `initmem measure --json` prints, as plain values.

    `source` is a store or an archive, the path of one, several of these, or records. Plain records contain
    neither the order of recipes nor planned interim analyses. `what` is a measure; `scales` chooses some of
    the scales.
    """
    if what not in ("memory", *MEASURES):
        raise ConfigError(f"what = {what!r} ({allowed(['memory', *MEASURES], what)})")
    given = {"adjust": None if adjust == "bh" else adjust, "tolerance": tolerance}
    given |= {"failure_tolerance": failure_tolerance}
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
    return [plain_values(row) for row in MEASURES[what].rows(groups, chosen, **options)]


def at_scales(source: Source, scales: Sequence[float] | None) -> Collection:
    """The records at some of the scales."""
    data = collected(source)
    if scales is None:
        return data
    there = sorted({record.run.scale for record in data.records})
    if missing := sorted(set(scales) - set(there)):
        raise ConfigError(f"scales = {missing} ({allowed(there)})")
    return Collection([r for r in data.records if r.run.scale in scales], data.studies)


def _groups(data: Collection) -> dict[str, list[RunRecord]]:
    return labelled(data.records, recipes_of(data.studies))


def not_applicable(what: str, data: Collection) -> list[str]:
    """The recipes that never used the scale, where a measure asks for its effect."""
    if what == "memory" or not MEASURES[what].of_scale:
        return []
    return [label for label, group in _groups(data).items() if not scale_used(group)]


def remarks(what: str, data: Collection) -> list[str]:
    """What a measure over time leaves out."""
    return cold_notes(_groups(data)) if what != "memory" and MEASURES[what].over_time else []


def memory_rows(memories: Sequence[Memory], records: Sequence[RunRecord]) -> list[Row]:
    """Memories as plain values, each with what every scale reached."""
    groups: dict[str, list[RunRecord]] = {}
    for record in records:
        groups.setdefault(record.run.recipe.id, []).append(record)
    return [
        plain_values(row.to_json())
        | {"scales": [at._asdict() for at in scales.scale_means(groups[row.recipe_id], row.metric)]}
        for row in memories
    ]


def measure_table(what: str, rows: Sequence[Mapping[str, Any]]) -> Table:
    """The table of one measure other than memory, with families and clocks as people call them."""
    columns = MEASURES[what].columns
    names = {"clock": CLOCK_NAMES, "unit": CLOCK_NAMES}
    if what == "clocks":
        names["family"] = FAMILY_NAMES
    named = [
        dict(row) | {key: names[key].get(row[key], row[key]) for key in names if key in row} for row in rows
    ]
    if what == "fit" and all(metric_of(row["train_metric"]).unit == "pp" for row in rows):
        columns = {key: head._replace(form=head.form.removesuffix("~")) for key, head in columns.items()}
    return table_of(MEASURES[what].title, named, columns)
