"""The audit: every number leads to its runs; what failed, diverged or is missing is listed, not hidden."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from initmem.errors import count
from initmem.metric import metric_of, metric_title
from initmem.plots.html import numbers
from initmem.record import RunRecord
from initmem.report.content import Content, runs_of
from initmem.report.verdicts import hardware
from initmem.store.results import study_status
from initmem.study import Run
from initmem.table import Cell, Column, Table, cell

ENVIRONMENT = ("hardware", "device", "threads", "torch", "python", "initmem")
RUN_COLUMNS = (
    "run", "scale", "seed", "kind", "status", "test (%)", "val (%)", "selected at", "fitted at",
    "repair (pp)", "‖W‖ at start", "‖W‖", "attempts", "faults", "environment", "pack", "pack seconds",
)  # fmt: skip
SHOWN = 50  # runs listed one by one; the table of runs has them all


class Environment(NamedTuple):
    """Machine and versions that some runs share."""

    letter: str
    values: tuple[str, ...]
    runs: int


class Failure(NamedTuple):
    """Runs that ended with the same error."""

    error: str  # its last line
    traceback: str  # of the first of them
    runs: list[tuple[str, str]]  # id and where it stands in the study
    total: int


def environments(records: Sequence[RunRecord]) -> list[Environment]:
    """The distinct environments, the most used first."""
    counts = Counter(_environment(record.provenance) for record in records)
    return [Environment(_letter(i), values, n) for i, (values, n) in enumerate(counts.most_common())]


def _environment(provenance: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(str(provenance.get(key, "unknown")) for key in ENVIRONMENT)


def _letter(i: int) -> str:
    return chr(ord("A") + i) if i < 26 else f"{_letter(i // 26 - 1)}{_letter(i % 26)}"


def environment_table(content: Content) -> Table:
    """Where the runs were trained."""
    columns = [
        Column("environment", "text"),
        *(Column(key, "text") for key in ENVIRONMENT),
        Column("runs"),
    ]
    rows = [
        [cell(item.letter), *(cell(value) for value in item.values), cell(item.runs, ",d")]
        for item in environments(content.survey.records)
    ]
    return Table("Hardware and versions", columns, rows, id="environments")


def mixtures(content: Content) -> list[str]:
    """Recipes whose runs were trained on different hardware, in words."""
    lines = []
    for recipe, records in content.groups.items():
        counts = Counter(hardware(record.provenance) for record in records)
        if len(counts) > 1:
            parts = ", ".join(f"{n} on {name} ({device})" for (name, device), n in counts.most_common())
            lines.append(f"{content.names[recipe]}: {parts}")
    return lines


def packs(content: Content) -> list[str]:
    """Recipes whose runs were trained in different packs, in words; a run alone is always the same pack."""
    lines = []
    for recipe, records in content.groups.items():
        together = Counter((r.provenance.get("pack_id"), r.provenance.get("pack")) for r in records)
        sizes = sorted(size for _, size in together if isinstance(size, int))
        if len(sizes) > 1 and sizes[-1] > 1:
            span = f"{sizes[0]} to {sizes[-1]}" if sizes[0] < sizes[-1] else f"{sizes[0]}"
            runs = f"{count(len(records), 'run')} from {len(sizes)} packs of {span} runs"
            lines.append(f"{content.names[recipe]}: {runs}")
    return lines


def progress_table(content: Content) -> Table:
    """Runs per recipe by what became of them."""
    columns = [
        Column("study", "text"),
        Column("recipe", "text"),
        Column("runs"),
        *(Column(name) for name in ("completed", "diverged", "failed", "training", "missing")),
    ]
    rows = []
    recipes = [recipe for study in content.survey.studies for recipe in study.recipes]
    status = [(study["name"], row) for study in study_status(content.survey) for row in study["recipes"]]
    for recipe, (name, row) in zip(recipes, status, strict=True):
        counts = [cell(row[key], ",d", style="none" if not row[key] else "") for key in list(row)[2:]]
        label = cell(content.names[recipe], href=runs_of(recipe.id), style="name")
        rows.append([cell(name), label, cell(row["runs"], ",d"), *counts])
    return Table("Runs per recipe", columns, rows, id="progress")


def failures(content: Content) -> list[Failure]:
    """Failed runs, those with the same error together."""
    groups: dict[str, list[RunRecord]] = {}
    for record in content.survey.records:
        if record.status == "failed":
            lines = (record.error or "unknown error").strip().splitlines()
            groups.setdefault(lines[-1] if lines else "unknown error", []).append(record)
    return [
        Failure(
            error,
            records[0].error or "",
            [(record.id, place(content, record.run)) for record in records[:SHOWN]],
            len(records),
        )
        for error, records in groups.items()
    ]


def place(content: Content, run: Run) -> str:
    """Where a run stands in its study."""
    name = content.names.get(run.recipe, "unknown")
    return ", ".join(filter(None, [name, f"σ = {run.scale:g}", f"seed {run.seed}", kind_of(run)]))


def kind_of(run: Run) -> str:
    """What sets a run apart from the main design."""
    pins = ", ".join(f"{role} seed {seed}" for role, seed in run.pins)
    perturbed = f"one weight times {run.perturbation:g}" if run.perturbation != 1.0 else ""
    return ", ".join(filter(None, [perturbed, pins]))


def diverged_table(content: Content) -> Table | None:
    """Diverged runs are results: when they diverged, and how good the predictor selected before is."""
    diverged = [record for record in content.survey.records if record.status == "diverged"]
    columns = [
        Column("run", "text"),
        Column("recipe", "text"),
        Column("σ"),
        Column("seed"),
        Column("epochs before it diverged"),
        Column("selected at"),
        Column("metric", "text"),
        Column("result"),
    ]
    rows = [
        [
            cell(record.id, style="id"),
            cell(content.names[record.run.recipe], href=runs_of(record.run.recipe.id, record.run.scale)),
            cell(record.run.scale, "g"),
            cell(record.run.seed, "d"),
            cell(record.summary.epochs, "d"),
            cell(record.summary.tau_best, "d"),
            *_result(record, content.stats[record.run.recipe].metric),
        ]
        for record in diverged[:SHOWN]
    ]
    more = f" (the first {SHOWN} of {len(diverged)})" if len(diverged) > SHOWN else ""
    return Table(f"Diverged runs{more}", columns, rows, id="diverged") if rows else None


def _result(record: RunRecord, metric: str) -> list[Cell]:
    value, shown_as = record.metric(metric), metric_of(metric)
    shown = cell(None if value is None else shown_as.factor * value, ".1f" if shown_as.unit else ".4g")
    return [cell(metric_title(metric)), shown]


def missing(content: Content) -> list[tuple[str, int, str]]:
    """What was asked for and is neither done nor being trained: recipe, how many, which."""
    done = {record.id for record in content.survey.records} | content.survey.training
    open_runs: dict[str, dict[str, Run]] = {}
    for study in content.survey.studies:
        for recipe in study.recipes:
            gone = {run.id: run for run in study.runs(recipe) if run.id not in done}
            if gone:
                open_runs.setdefault(content.names[recipe], {}).update(gone)
    return [(name, len(runs), which(list(runs.values()))) for name, runs in open_runs.items()]


def which(runs: Sequence[Run]) -> str:
    """Runs in words: scales that lack the same seeds together."""
    seeds: dict[float, list[int]] = {}
    for run in runs:
        if not kind_of(run):
            seeds.setdefault(run.scale, []).append(run.seed)
    alike: dict[tuple[int, ...], list[float]] = {}
    for scale, some in sorted(seeds.items()):
        alike.setdefault(tuple(some), []).append(scale)
    said = [
        f"σ {', '.join(f'{s:g}' for s in scales)}: seeds {', '.join(map(str, some))}"
        for some, scales in alike.items()
    ]
    others = sum(bool(kind_of(run)) for run in runs)
    return "; ".join(said + ([f"{others} perturbed or with a seed role of their own"] if others else []))


def run_rows(content: Content, records: Sequence[RunRecord]) -> dict[str, Any]:
    """The runs of one recipe for the table of runs: columns, and a list of values each."""
    letters = {item.values: item.letter for item in environments(content.survey.records)}
    ordered = sorted(records, key=lambda r: (r.run.scale, r.run.seed, r.run.pins, r.run.perturbation))
    rows = [_run_row(record, letters) for record in ordered]
    recipe = records[0].run.recipe
    metric = content.stats[recipe].metric
    if metric == "test_accuracy":
        return {"columns": RUN_COLUMNS, "rows": rows}
    values = numbers(record.metric(metric) for record in ordered)
    return {
        "columns": (*RUN_COLUMNS, metric.replace("_", " ")),
        "rows": [[*row, value] for row, value in zip(rows, values, strict=True)],
    }


def _run_row(record: RunRecord, letters: Mapping[tuple[str, ...], str]) -> list[Any]:
    run, summary, origin = record.run, record.summary, record.provenance
    return [
        record.id,
        run.scale,
        run.seed,
        kind_of(run),
        record.status,
        *numbers([_percent(summary.test_accuracy), _percent(summary.val_accuracy_best)]),
        summary.tau_best,
        summary.tau_interp,
        *numbers([_percent(summary.repair_gap), summary.norm_init, summary.norm_best]),
        origin.get("attempts"),
        _faults(origin.get("faults")),
        letters[_environment(origin)],
        origin.get("pack"),
        origin.get("seconds"),
    ]


def _faults(counts: Any) -> str:
    """What went wrong on the way to a record: causes with their numbers."""
    return ", ".join(f"{n} {cause}" for cause, n in counts.items()) if isinstance(counts, Mapping) else ""


def _percent(value: float | None) -> float | None:
    return None if value is None else 100 * value
