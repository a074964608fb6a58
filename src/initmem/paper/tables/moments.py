"""Tables 2 and 3: validation accuracy at three moments, and when these were."""

from __future__ import annotations

from collections.abc import Sequence

from initmem.paper.figures.select import OPTIMIZERS, also, name_of, select, shortfall
from initmem.paper.figures.view import View
from initmem.paper.reference import find
from initmem.paper.tables.cells import BATCH, OPTIMIZER, Entry, interpolated, mean_of, paper_table, sources
from initmem.plots.series import value_of
from initmem.recipe import Recipe
from initmem.record import RunRecord
from initmem.study import Study
from initmem.table import Column, Table

FIELDS = ("optimizer", "batch_size")
BATCHES = (16, 32, 64, 128, 256)
MOMENTS = ("val_accuracy_interp", "val_accuracy_best", "val_accuracy_last", "repair_gap")
COLUMNS = [
    BATCH,
    OPTIMIZER,
    Column("at τ_interp", about="validation accuracy when interpolation is reached", unit="%"),
    Column("at τ_best", about="validation accuracy of the selected predictor", unit="%"),
    Column("last epoch", about="validation accuracy at the end", unit="%"),
    Column("repair gap", about="at τ_best less at τ_interp", unit="pp"),
    Column("τ_interp", about="epoch of interpolation", unit="epochs"),
    Column("τ_best", about="epoch of the selected predictor", unit="epochs"),
    Column("interpolated", about="runs that reached interpolation", unit="runs"),
]
PAPER = [
    Column("test", about="test accuracy of the selected predictor", unit="%"),
    Column("test, paper", about="published", unit="%"),
    Column("τ_interp, paper", about="published", unit="epochs"),
    Column("τ_best, paper", about="published", unit="epochs"),
]
NOTES = [
    "At τ_interp and repair gap: over the runs that interpolated (99.5% train accuracy)",
    "A negative repair gap: the least validation loss came before interpolation; accuracy rose until then",
    "τ_interp: median, runs that never got there counted as later than their last epoch; τ_best: mean",
]


def small_scale(records: Sequence[RunRecord], studies: Sequence[Study], *, reference: bool = False) -> Table:
    """Table 2: from a small initialization."""
    return _moments("table 2", records, studies, 0.1, reference=reference)


def large_scale(records: Sequence[RunRecord], studies: Sequence[Study], *, reference: bool = False) -> Table:
    """Table 3: from a large initialization."""
    return _moments("table 3", records, studies, 2.5, reference=reference)


def _moments(
    name: str, records: Sequence[RunRecord], studies: Sequence[Study], target: float, *, reference: bool
) -> Table:
    wanted = [(optimizer, b) for b in BATCHES for optimizer in OPTIMIZERS]
    selection = select(records, FIELDS, wanted, own_rates=True)
    view = View.of(selection, studies)
    scale = nearest(view.scales, target)
    names = also(selection.axis("optimizer"), OPTIMIZERS)
    batches = sorted(also(selection.axis("batch_size"), BATCHES))
    keys = [(n, b) for b in batches for n in names if n in OPTIMIZERS or (n, b) in selection.cells]
    rows, missing = [], []
    for key in keys:
        cell = [record for record in view.cell(key) if record.run.scale == scale]
        paper = _published(name, view.recipe(key), cell, scale) if reference else []
        rows.append([*_row(key, cell), *paper])
        asked = {s: n for s, n in view.expected(key).items() if s == scale}
        missing += shortfall(name_of(FIELDS, key), cell, asked)
    other = [f"σ = {scale:g} stands in for {target:g}, which the store lacks"] if scale != target else []
    columns = [*COLUMNS, *(PAPER if reference else [])]
    notes = [*NOTES, *other, *sources(view, keys, columns, rows, reference=reference), *selection.notes]
    title = f"{name.capitalize()}. Validation accuracy at three moments, initialization scale σ = {scale:g}"
    return paper_table(title, columns, rows, notes, missing)


def _row(key: tuple[str, int], cell: Sequence[RunRecord]) -> list[Entry]:
    optimizer, b = key
    reached = sum(record.summary.tau_interp is not None for record in cell)
    values: list[Entry] = [mean_of(map(value_of(moment), cell)) for moment in MOMENTS]
    if cell and not reached:
        values[0], values[3] = "not reached", ""
    selected = mean_of((record.summary.tau_best for record in cell), digits=0)
    return [
        b,
        optimizer,
        *values,
        interpolated(cell),
        selected,
        f"{reached} of {len(cell)}" if cell else None,
    ]


def _published(name: str, recipe: Recipe, cell: Sequence[RunRecord], scale: float) -> list[Entry]:
    """Test accuracy, measured and published, and the published epochs."""
    items = [
        find(name, recipe, "test", scale),
        find(name, recipe, "tau_interp"),
        find(name, recipe, "tau_best"),
    ]
    return [mean_of(map(value_of("test_accuracy"), cell)), *[str(item) if item else "" for item in items]]


def nearest(scales: Sequence[float], target: float) -> float:
    """The scale itself where the store has it, else the one nearest to it."""
    return min(scales, key=lambda scale: (abs(scale - target), scale), default=target)
