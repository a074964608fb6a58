"""What `run` returns: the records of a pipeline, and every measure of them."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from initmem.clocks import CLOCKS
from initmem.engines.provenance import run_notes, stale_note
from initmem.errors import ConfigError, StoreError, allowed, first_of
from initmem.measures.design import default_metric, labelled, metric_reason, own_metrics
from initmem.measures.memory import Memories, Memory, Verdict, memory_table
from initmem.measures.provenance import TITLE, applied, applied_tables
from initmem.measures.scales import MEASURES
from initmem.metric import METRICS, metric_name
from initmem.pipeline.code_version import unhashed_note
from initmem.pipeline.source import Fingerprint
from initmem.recipe import AnyRecipe
from initmem.record import RunRecord
from initmem.store.faults import crash_lines
from initmem.store.results import Collection
from initmem.store.store import Store
from initmem.study import Study

if TYPE_CHECKING:
    import polars


class Result:
    """The runs of one pipeline in a store, and their measures. `initmem.run` returns it; print it.

    Where a grid was trained, `memories(metric)` has one memory per recipe, and `select(lr=0.1)` takes some of
    the recipes. `frame` has a row per run, `history` a row per run and epoch. Other
    measures and plots take its records: `initmem.measure(result.records, "beta")`.

    Args:
        store: where the records are.
        study: the runs that were requested.
        fingerprint: of the code that trained them.
    """

    def __init__(self, store: Store, study: Study, *, fingerprint: Fingerprint | None = None) -> None:
        self.store, self.study, self._fingerprint = store, study, fingerprint or {}

    @property
    def recipe(self) -> AnyRecipe:
        """The recipe, where there is one alone."""
        if len(self.study.recipes) > 1:
            raise ConfigError(
                f"{len(self.study.recipes)} recipes ({allowed(self.study.labels())}): result.memories() has "
                "one memory for each, result.select(...) takes one of them by its settings"
            )
        return self.study.recipes[0]

    def select(self, **settings: Any) -> Result:
        """The part of a grid that has these settings: `result.select(lr=0.1)`."""
        recipes = self.study.recipes
        chosen = tuple(r for r in recipes if all(r.get(name) == value for name, value in settings.items()))
        if not chosen:
            raise ConfigError(f"select({settings}): no such recipe ({allowed(self.study.labels())})")
        return Result(self.store, replace(self.study, recipes=chosen), fingerprint=self._fingerprint)

    @cached_property
    def records(self) -> list[RunRecord]:
        """The records of the requested runs."""
        return [self.store.read(run.id) for run in self.study.all_runs() if self.store.has(run)]

    @cached_property
    def metrics(self) -> list[str]:
        """What was recorded, by the names that `memory` takes."""
        names = dict.fromkeys([*METRICS, *own_metrics(self.records)])
        return [name for name in names if any(r.metric(name) is not None for r in self.records)]

    def memory(self, metric: str | None = None, *, tolerance: float | None = None) -> Memory:
        """How far the mean of a metric moves with the initialization scale, with interval and verdict.

        Without a metric: test accuracy where it was recorded, else the next best. Accuracies are in
        percentage points; `tolerance`, in the same unit, is the range that counts as forgotten.
        """
        own = [record for record in self.records if record.run.recipe == self.recipe]
        if own and all(record.status == "crashed" for record in own):
            raise StoreError(self.notes[0])
        return self.memories(metric, tolerance=tolerance)[0]

    def memories(self, metric: str | None = None, *, tolerance: float | None = None) -> Memories:
        """The memory of every recipe that has a run which did not crash."""
        trained = {record.run.recipe for record in self.records if record.status != "crashed"}
        records = [record for record in self.records if record.run.recipe in trained]
        data = Collection(records, self.store.studies())
        return memory_table(data, self._metric(metric), recipes=self.study.recipes, tolerance=tolerance)

    def _metric(self, metric: str | None) -> str:
        """The name under which a metric was recorded, or the default."""
        if metric is None:
            return default_metric(self.records)
        return metric if metric in self.metrics else metric_name(metric)

    @property
    def verdict(self) -> Verdict:
        """The verdict of `memory()`: `remembers`, `forgets`, `inconclusive` and so on."""
        return self.memory().verdict

    def scales(self, metric: str | None = None) -> polars.DataFrame:
        """What every scale reached: mean, standard deviation over seeds, and n, per recipe."""
        groups = labelled(self.records, self.study.recipes)
        return _frame(MEASURES["scale"].rows_of(groups, self._metric(metric)))

    def clocks(self) -> dict[str, float]:
        """The clocks at the selected epoch, means over runs; one that was not measured is not there."""
        values = {name: [record.metric(f"clock_{name}") for record in self.records] for name in CLOCKS}
        measured = {name: [x for x in column if x is not None] for name, column in values.items()}
        return {name: float(np.mean(column)) for name, column in measured.items() if column}

    @cached_property
    def frame(self) -> polars.DataFrame:
        """One row per run: scale, seed, status and every metric of the selected model."""
        metrics = self.metrics
        return _frame([self._address(r) | {name: r.metric(name) for name in metrics} for r in self.records])

    @cached_property
    def history(self) -> polars.DataFrame:
        """One row per run and epoch, with every recorded column."""
        rows = []
        for record in self.records:
            for i in range(record.summary.epochs):
                row = {name: float(column[i]) for name, column in record.history.items()}
                rows.append(self._address(record) | {"epoch": i + 1} | row)
        return _frame(rows)

    def _address(self, record: RunRecord) -> dict[str, Any]:
        """Where a run stands: the settings that the recipes differ in, its scale and seed, its status."""
        run = record.run
        declared = [recipe.settings() for recipe in self.study.recipes]
        names = dict.fromkeys(name for settings in declared for name in settings)
        varying = [name for name in names if len({str(settings.get(name)) for settings in declared}) > 1]
        settings = {name: run.recipe.get(name) for name in varying if name not in ("scale", "seed")}
        design: dict[str, Any] = {"scale": run.scale, "seed": run.seed, "perturbation": run.perturbation}
        design |= {"intervention": run.level} if run.intervention else {}
        return {"run": run.id} | settings | design | {"status": record.status}

    def report(self, path: str | Path | None = None) -> Path:
        """Write the report of the whole store to `path`: one HTML page that opens offline."""
        from initmem.report.page import write_report

        return write_report(self.store, Path(path) if path else self.store.path / "report.html")

    @property
    def crashes(self) -> dict[tuple[Any, ...], str]:
        """Tracebacks of crashed runs, by (scale or intervention, seed); in a grid by label first."""
        labels = dict(zip(self.study.recipes, self.study.labels(), strict=True))
        several = len(labels) > 1
        return {
            (*([labels[r.run.recipe]] if several else []), r.run.level, r.run.seed): r.error or ""
            for r in self.records
            if r.status == "crashed"
        }

    @property
    def notes(self) -> list[str]:
        """What the reader should know next to the verdict."""
        notes = [f"{line} (tracebacks: result.crashes)" for line in crash_lines(self.records)]
        about = [record.provenance for record in self.records if record.status != "crashed"]
        treated = [row for record in self.records for model in applied(record) for row in model.rows]
        if strange := dict.fromkeys(row.name for row in treated if row.outcome == "not recognized"):
            names = first_of(list(strange), 5, ", ")
            notes.append(f"init.apply left as they are: {names} (`kernels` says what to scale)")
        if about and not any(one.get("scale_used", True) for one in about):
            used_by = "init.apply, init.kernel and init.scale do"
            notes.append(f"not applicable: the pipeline never used the scale ({used_by})")
        if errors := [str(one["on_epoch_error"]) for one in about if "on_epoch_error" in one]:
            raised = f"on_epoch raised in {len(errors)} of {len(about)} runs, the first: {errors[0]}"
            notes.append(f"{raised} (their training and their records are not affected)")
        code = [stale_note(self.records, lambda recipe: self._fingerprint), unhashed_note(self._fingerprint)]
        return [*notes, *run_notes(self.records), *filter(None, code)]

    def explain(self, metric: str | None = None, *, tolerance: float | None = None) -> str:
        """The memory of a metric with its verdict, what that means in one sentence, and the notes."""
        rows = self.memories(metric, tolerance=tolerance)
        lines = [] if rows else [f"{self.study.name}: nothing measured"]
        for row in rows:
            counts = f"{row.n_scales} scales x {row.n_seeds} seeds"
            lines += [f"{row.recipe}: {row.metric} {row} ({counts})", f"  {row.meaning}"]
            lines += [f"  {note}" for note in row.notes]
        if rows and metric is None and rows[0].metric != "test_accuracy":
            lines.append(f"  {metric_reason(rows[0].metric, self.records)}")
        return "\n".join([*lines, *(f"  {note}" for note in self.notes)])

    def __str__(self) -> str:
        return self.explain()

    def __repr__(self) -> str:
        return f"Result({self.study.name!r}, {len(self.records)} runs in {str(self.store.path)!r})"

    def _repr_html_(self) -> str:
        from initmem.plots import tables
        from initmem.report.page import verdict_html

        memories = self.memories()
        if not memories:
            return f"<pre>{html.escape(str(self))}</pre>"
        notes = "".join(f"<li>{html.escape(note)}</li>" for note in self.notes)
        treated = "".join(map(tables.html, applied_tables(self.records)))
        shown = f"<details><summary>{TITLE}</summary>{treated}</details>" if treated else ""
        return verdict_html(memories, self.records) + (f"<ul>{notes}</ul>" if notes else "") + shown


def _frame(rows: Sequence[Mapping[str, Any]]) -> polars.DataFrame:
    import polars

    return polars.DataFrame(rows, infer_schema_length=None)
