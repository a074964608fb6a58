"""What `measure` returns: the records of one pipeline, and every measure of them."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from initmem.clocks import CLOCKS
from initmem.errors import StoreError
from initmem.measures.beta import BetaCurve, HalfLife, beta_curve, half_lives
from initmem.measures.memory import Memory, Verdict, default_metric, memory, own_metrics
from initmem.recipe import AnyRecipe
from initmem.store.record import COLUMNS, SUMMARY_FIELDS, RunRecord
from initmem.store.store import Store
from initmem.study import Study

if TYPE_CHECKING:
    import polars


class Result:
    """The runs of one pipeline in a store, and what they say. Print it, or ask:

    `memory(metric)`, `explain(metric)`, `verdict`, `beta()`, `half_lives()`, `clocks()`, `frame`, `history`,
    `figure(...)`, `report()`, `failures`, `notes`, `records`.
    """

    def __init__(self, store: Store, study: Study, *, code: str = "") -> None:
        self.store, self.study, self._code = store, study, code

    @property
    def recipe(self) -> AnyRecipe:
        """The recipe that stands for the pipeline."""
        return self.study.recipes[0]

    @cached_property
    def records(self) -> list[RunRecord]:
        """The records of the runs that were asked for."""
        return [self.store.read(run.id) for run in self.study.all_runs() if self.store.has(run)]

    @cached_property
    def metrics(self) -> list[str]:
        """What was recorded, by the names that `memory` takes."""
        names = dict.fromkeys([*SUMMARY_FIELDS, *COLUMNS, *own_metrics(self.records)])
        return [name for name in names if any(r.metric(name) is not None for r in self.records)]

    def memory(self, metric: str | None = None, *, tolerance: float | None = None) -> Memory:
        """How far the mean of a metric moves with the initialization scale, with interval and verdict.

        Without a metric: test accuracy where it was recorded, else the next best. Accuracies are in
        percentage points; `tolerance`, in the same unit, is the spread that counts as forgotten.
        """
        if self.records and len(self.failures) == len(self.records):
            raise StoreError(self.notes[0])
        chosen = metric or default_metric(self.records)
        return memory(self.records, chosen, tolerance=tolerance, label=self.study.labels()[0])

    @property
    def verdict(self) -> Verdict:
        """`remembers`, `forgets` or `undetermined`, for the usual metric."""
        return self.memory().verdict

    def beta(self, metric: str = "val_accuracy") -> BetaCurve:
        """The slope of a metric on the scale at every epoch."""
        return beta_curve(self.records, metric)

    def half_lives(self, metric: str = "val_accuracy") -> list[HalfLife]:
        """How long |beta| stays above half of its largest value, in epochs and in every clock."""
        return half_lives(self.records, metric)

    def clocks(self) -> dict[str, float]:
        """The clocks at the end of training, means over runs; empty if no optimizer was watched."""
        found = {name: [r.history[f"clock_{name}"][-1] for r in self.records if f"clock_{name}" in r.history]
                 for name in CLOCKS}  # fmt: skip
        return {name: float(np.mean(values)) for name, values in found.items() if values}

    @cached_property
    def frame(self) -> polars.DataFrame:
        """One row per run: scale, seed, status and every metric of the selected predictor."""
        rows = [_address(r) | {name: r.metric(name) for name in self.metrics} for r in self.records]
        return _frame(rows)

    @cached_property
    def history(self) -> polars.DataFrame:
        """One row per run and epoch, with every recorded column."""
        rows = []
        for record in self.records:
            for i in range(record.summary.epochs):
                row = {name: float(column[i]) for name, column in record.history.items()}
                rows.append(_address(record) | {"epoch": i + 1} | row)
        return _frame(rows)

    def figure(self, path: str | Path, metric: str | None = None) -> Path:
        """Draw a metric against the scale, to a .png, .pdf or .svg file."""
        from initmem.plots.builders import scale_plot
        from initmem.plots.matplotlib import check, draw, save

        check(Path(path))
        figure, _ = draw(scale_plot(self.records, metric))
        save(figure, Path(path))
        return Path(path)

    def report(self, path: str | Path | None = None) -> Path:
        """Write the report of the whole store, one HTML page that opens offline."""
        from initmem.report.report import write_report

        return write_report(self.store, Path(path) if path else self.store.path / "report.html")

    @property
    def failures(self) -> dict[tuple[float, int], str]:
        """Tracebacks of the runs that raised, by (scale, seed)."""
        return {(r.run.scale, r.run.seed): r.error or "" for r in self.records if r.status == "failed"}

    @property
    def notes(self) -> list[str]:
        """What the reader should know beside the verdict."""
        return _notes(self.records, self._code, str(self.store.path))

    def explain(self, metric: str | None = None, *, tolerance: float | None = None) -> str:
        """The memory of a metric with its verdict, what that means in one sentence, and the notes."""
        if len(self.failures) == len(self.records):
            said = [f"{self.study.name}: nothing measured"]
        else:
            found = self.memory(metric, tolerance=tolerance)
            counts = f"{found.n_scales} scales x {found.n_seeds} seeds"
            said = [f"{found.recipe}: {found.metric} {found} ({counts})", f"  {found.meaning}"]
        return "\n".join([*said, *(f"  {note}" for note in self.notes)])

    def __str__(self) -> str:
        return self.explain()

    def __repr__(self) -> str:
        return f"Result({self.study.name!r}, {len(self.records)} runs in {str(self.store.path)!r})"

    def _repr_html_(self) -> str:
        from initmem.report.notebook import verdict_html

        if len(self.failures) == len(self.records):
            return f"<pre>{html.escape(str(self))}</pre>"
        notes = "".join(f"<li>{html.escape(note)}</li>" for note in self.notes)
        return verdict_html([self.memory()], self.records) + (f"<ul>{notes}</ul>" if notes else "")


def _address(record: RunRecord) -> dict[str, Any]:
    run = record.run
    design = {"scale": run.scale, "seed": run.seed, "perturbation": run.perturbation}
    return {"run": run.id} | design | {"status": record.status}


def _frame(rows: Sequence[Mapping[str, Any]]) -> polars.DataFrame:
    import polars

    return polars.DataFrame(rows, infer_schema_length=None)


def _notes(records: Sequence[RunRecord], code: str, store: str) -> list[str]:
    notes = []
    failed = [record for record in records if record.status == "failed"]
    if failed:
        last = (failed[0].error or "").strip().splitlines()[-1:] or ["unknown"]
        run = failed[0].run
        notes.append(
            f"{len(failed)} of {len(records)} runs failed, the first (scale {run.scale:g}, seed {run.seed}) "
            f"with {last[0]} (tracebacks: result.failures; retry_failed=True trains them again)"
        )
    diverged = sum(record.status == "diverged" for record in records)
    if diverged:
        notes.append(f"{diverged} of {len(records)} runs diverged; their predictors from before count")
    about = [record.provenance for record in records if record.status != "failed"]
    untouched = dict.fromkeys(name for one in about for name in one.get("untouched", ()))
    if untouched:
        notes.append(f"init.apply left as they are: {', '.join(untouched)} (`kernels` says what to redraw)")
    if about and not any(one.get("scale_used", True) for one in about):
        notes.append("the training code never asked for the scale (init.apply, init.kernel or init.scale do)")
    other = sum(bool(code and one.get("code")) and one["code"] != code for one in about)
    if other:
        notes.append(
            f"{other} of {len(records)} runs in {store} were trained before the code was changed "
            "(a new `name` or store trains them anew)"
        )
    return notes
