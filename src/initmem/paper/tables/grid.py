"""Tables 1 to 3: the settings of the optimizers, and validation accuracy at three moments."""

from __future__ import annotations

from collections.abc import Sequence

from initmem.clocks import is_adaptive
from initmem.paper.figures.select import OPTIMIZERS, also, name_of, select, shortfall
from initmem.paper.figures.view import View
from initmem.paper.tables.cells import BATCH, OPTIMIZER, Entry, mean_of, paper_table
from initmem.plots.series import value_of
from initmem.plots.table import Column, Table, Value
from initmem.recipe import TORCH_OPTIMIZERS, Recipe
from initmem.store.record import RunRecord
from initmem.study import Study, recipes_of

FIELDS = ("optimizer", "batch_size")
BATCHES = (16, 32, 64, 128, 256)
INERTIA = ("momentum", "muon", "muon-conv", "normuon", "sf-normuon")
NO_VALUES = "No published values for this table"


def settings(records: Sequence[RunRecord], studies: Sequence[Study], *, reference: bool = False) -> Table:
    """Table 1: every distinct setting of an optimizer, from the recipes that were run or asked for."""
    recipes = dict.fromkeys([*recipes_of(studies), *(record.run.recipe for record in records)])
    rows: dict[tuple[Value, ...], set[int]] = {}
    for recipe in (recipe for recipe in recipes if isinstance(recipe, Recipe)):
        rows.setdefault(_settings(recipe), set()).add(recipe.batch_size)
    names = also([row[0] for row in rows], OPTIMIZERS)
    ordered = sorted(rows, key=lambda row: (names.index(row[0]), row[1:4]))
    absent = [name for name in OPTIMIZERS if not any(row[0] == name for row in rows)]
    return paper_table(
        title="Table 1. Optimizer settings of the recipes in the store",
        columns=[
            OPTIMIZER,
            Column("η", about="learning rate"),
            Column("λ (l2)", about="kernel penalty"),
            Column("weight decay", about="decoupled weight decay"),
            Column("momentum", about="its coefficient"),
            Column("β₁", about="decay of the first moment"),
            Column("β₂", about="decay of the second moment"),
            Column("ε", about="added to the denominator"),
            Column("schedule", "text", "of the learning rate"),
            Column("epochs", about="length of training"),
            Column("batch sizes", "text", "that were run or asked for"),
        ],
        rows=[[*row, ", ".join(map(str, sorted(rows[row])))] for row in ordered]
        + [[name, *[None] * 10] for name in absent],
        notes=[
            "cosine: the learning rate falls from η to the given fraction of it over the run",
            "Blank: does not apply",
            *([NO_VALUES] if reference else []),
        ],
        missing=[f"{name}: no recipe" for name in absent],
    )


def _settings(recipe: Recipe) -> tuple[Value, ...]:
    own = TORCH_OPTIMIZERS.get(recipe.optimizer)
    adam = "beta1" in own if own is not None else is_adaptive(recipe.optimizer)
    inertia = "momentum" in own if own is not None else recipe.optimizer in INERTIA
    epsilon = "epsilon" in own if own is not None else adam and recipe.optimizer != "lion"
    cosine = recipe.schedule == "cosine"
    return (
        recipe.optimizer,
        recipe.learning_rate,
        recipe.l2,
        recipe.weight_decay,
        recipe.momentum if inertia else "",
        recipe.beta1 if adam or recipe.optimizer == "schedule-free-sgd" else "",
        recipe.beta2 if adam else "",
        recipe.epsilon if epsilon else "",
        f"cosine to {recipe.lr_floor:g}" if cosine else recipe.schedule,
        recipe.epochs,
    )


def small_scale(records: Sequence[RunRecord], studies: Sequence[Study], *, reference: bool = False) -> Table:
    """Table 2: validation accuracy at three moments, from a small initialization."""
    return _moments("Table 2", records, studies, 0.1, reference=reference)


def large_scale(records: Sequence[RunRecord], studies: Sequence[Study], *, reference: bool = False) -> Table:
    """Table 3: the same from a large initialization."""
    return _moments("Table 3", records, studies, 2.5, reference=reference)


def _moments(
    name: str, records: Sequence[RunRecord], studies: Sequence[Study], target: float, *, reference: bool
) -> Table:
    found = select(
        records, FIELDS, [(optimizer, b) for b in BATCHES for optimizer in OPTIMIZERS], own_rates=True
    )
    view = View.of(found, studies)
    scale = nearest(view.scales, target)
    names, batches = (
        also(found.axis("optimizer"), OPTIMIZERS),
        sorted(also(found.axis("batch_size"), BATCHES)),
    )
    keys = [(n, b) for b in batches for n in names if n in OPTIMIZERS or (n, b) in found.cells]
    rows, missing = [], []
    for key in keys:
        cell = [record for record in view.cell(key) if record.run.scale == scale]
        rows.append(_moments_row(key, cell))
        asked = {s: n for s, n in view.expected(key).items() if s == scale}
        missing += shortfall(name_of(FIELDS, key), cell, asked)
    other = [f"σ = {scale:g} stands in for {target:g}, which the store lacks"] if scale != target else []
    notes = [
        "At τ_interp: over the runs that interpolated (99.5% train accuracy)",
        *other,
        *([NO_VALUES] if reference else []),
        *[note for note in view.source(keys, reference=False) if note],
        *found.notes,
    ]
    title = f"{name}. Validation accuracy at three moments, initialization scale σ = {scale:g}"
    columns = [
        BATCH,
        OPTIMIZER,
        Column("at τ_interp", about="validation accuracy when interpolation is reached", unit="%"),
        Column("at τ_best", about="validation accuracy of the selected predictor", unit="%"),
        Column("last epoch", about="validation accuracy at the end", unit="%"),
        Column("interpolated", about="runs that reached interpolation", unit="runs"),
    ]
    return paper_table(title, columns, rows, notes, missing)


def _moments_row(key: tuple[str, int], cell: Sequence[RunRecord]) -> list[Entry]:
    optimizer, b = key
    reached = sum(record.summary.tau_interp is not None for record in cell)
    moments = ("val_accuracy_interp", "val_accuracy_best", "val_accuracy_last")
    values: list[Entry] = [mean_of(map(value_of(moment), cell)) for moment in moments]
    if cell and not reached:
        values[0] = "not reached"
    return [b, optimizer, *values, f"{reached} of {len(cell)}" if cell else None]


def nearest(scales: Sequence[float], target: float) -> float:
    """The scale itself where the store has it, else the one nearest to it."""
    return min(scales, key=lambda scale: (abs(scale - target), scale), default=target)
