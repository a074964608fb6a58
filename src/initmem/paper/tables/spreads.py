"""Tables 4 to 6: test accuracy scale by scale and its spread, over rates, networks and norms."""

from __future__ import annotations

from collections.abc import Sequence

from initmem.measures.interpolation import median_interpolation
from initmem.paper.figures.pairs import DEPTHS, NORMS, Pairs, label_of, pairs
from initmem.paper.figures.select import Key
from initmem.paper.figures.sweep import Sweep, sweep
from initmem.paper.figures.view import Member, View
from initmem.paper.reference import find
from initmem.paper.tables.table import (
    Cell,
    Column,
    Measured,
    Number,
    PaperTable,
    measured,
    over_scales,
)
from initmem.plots.series import spread_over, value_of
from initmem.store.record import RunRecord
from initmem.study import Study

SCALES = (0.1, 0.5, 1.0, 1.8, 2.5)  # where nothing has been run at all
SPREAD = "Spread: largest less smallest mean over the scales shown, over seeds that have them all"
TEST = value_of("test_accuracy")


def rates(records: Sequence[RunRecord], studies: Sequence[Study], *, reference: bool = False) -> PaperTable:
    """Table 4: learning rate x penalty, then Adam and long training."""
    found = sweep(records, studies)
    everyone = [(b, view, member) for b in found.batches for view, member in found.everyone(b)]
    grid = found.grid(*found.batches) or list(SCALES)
    rows = [_rate_row(view, member, b, grid, reference=reference) for b, view, member in everyone]
    columns = [Column("b"), Column("recipe"), Column("schedule"), *_scale_columns(grid)]
    columns += [Column("spread", "pp"), *_paper(reference), Column("train", "%")]
    notes = [SPREAD, "Train: mean train accuracy of the selected predictors over all scales shown"]
    notes += [*_sources(found, reference=reference), *found.notes()]
    title = "Table 4. Test accuracy of SGD by learning rate η and kernel penalty λ"
    return PaperTable(title, columns, rows, notes, found.missing())


def _rate_row(view: View, member: Member, b: int, grid: Sequence[float], *, reference: bool) -> list[Cell]:
    recipe, cell = view.recipe(member.key), view.cell(member.key)
    here = [record for record in cell if record.run.scale in grid]
    name = member.label if recipe.optimizer == "adam" else f"sgd {member.label}"
    schedule = f"{recipe.schedule}, {recipe.epochs:,} epochs" if cell else None
    train = measured(map(value_of("train_accuracy"), here))
    cells = [
        *over_scales(cell, grid, TEST),
        _spread(cell, grid),
        *_published("table 4", view, member.key, reference),
    ]
    return [b, name, schedule, *cells, None if train is None else Number(train.mean)]


def _sources(found: Sweep, *, reference: bool) -> list[str]:
    return [text for text in found.source(reference=reference) if text]


def _scale_columns(grid: Sequence[float]) -> list[Column]:
    return [Column(f"σ = {scale:g}", "%") for scale in grid]


def _paper(reference: bool) -> list[Column]:
    return [Column("spread, paper", "pp", right=True)] if reference else []


def _spread(cell: Sequence[RunRecord], grid: Sequence[float]) -> Number | None:
    found = spread_over(cell, grid)
    return None if found is None else Number(found)


def _published(where: str, view: View, key: Key, reference: bool) -> list[Cell]:
    item = find(where, view.recipe(key), "spread")
    return [str(item) if item else ""] if reference else []


def depth(records: Sequence[RunRecord], studies: Sequence[Study], *, reference: bool = False) -> PaperTable:
    """Table 5: accuracies by network, and below them when it fitted and when it was selected."""
    found = pairs(records, studies, DEPTHS)
    grid = found.view.grid_of([member.key for member in found.everyone()]) or list(SCALES)
    rows: list[list[Cell]] = []
    for quantity in ("test accuracy, %", "train accuracy, last, %", "τ_interp, epochs", "τ_best, epochs"):
        for b, optimizer, member in _everyone(found):
            cell = found.view.cell(member.key)
            row: list[Cell] = [quantity, b, optimizer, member.label, *_quantity(quantity, cell, grid)]
            first = quantity.startswith("test")
            row.append(_spread(cell, grid) if first else "")
            paper = _published("table 5", found.view, member.key, reference)
            rows.append(row + (paper if first else [""] * len(paper)))
    columns = [Column(name) for name in ("quantity", "b", "optimizer", "network")]
    columns += [Column(f"σ = {scale:g}") for scale in grid] + [Column("spread", "pp"), *_paper(reference)]
    notes = [SPREAD, "τ_interp: median, runs that never got there counted as later than their last epoch"]
    return _pairs_table("Table 5. Networks of different depth", found, columns, rows, notes, reference)


def _everyone(found: Pairs) -> list[tuple[int, str, Member]]:
    return [(b, name, m) for b in found.batches for name in found.optimizers for m in found.members(name, b)]


def _quantity(quantity: str, cell: Sequence[RunRecord], grid: Sequence[float]) -> list[Cell]:
    match quantity.partition(",")[0]:
        case "test accuracy":
            return over_scales(cell, grid, TEST)
        case "train accuracy":
            return over_scales(cell, grid, value_of("train_accuracy_last"))
        case "τ_interp":
            return [interpolated([r for r in cell if r.run.scale == scale]) for scale in grid]
        case _:
            means = over_scales(cell, grid, lambda record: record.summary.tau_best)
            return [mean._replace(digits=0) if isinstance(mean, Measured) else mean for mean in means]


def interpolated(records: Sequence[RunRecord]) -> str | None:
    """The median interpolation epoch; one that was not reached is larger than the last epoch."""
    if not records:
        return None
    found = median_interpolation(records)
    if found.median is None:
        return f"> {max(record.summary.epochs for record in records)}"
    return f"{found.median:.0f}" + (f" ({found.n_censored} never)" if found.n_censored else "")


def norms(records: Sequence[RunRecord], studies: Sequence[Study], *, reference: bool = False) -> PaperTable:
    """Table 6: normalization and augmentation."""
    found = pairs(records, studies, NORMS)
    grid = found.view.grid_of([member.key for member in found.everyone()]) or list(SCALES)
    rows: list[list[Cell]] = []
    for b, optimizer, member in _everyone(found):
        cell = found.view.cell(member.key)
        row: list[Cell] = [b, optimizer, label_of(NORMS, member.key[:-2]), *over_scales(cell, grid, TEST)]
        rows.append([*row, _spread(cell, grid), *_published("table 6", found.view, member.key, reference)])
    columns = [Column("b"), Column("optimizer"), Column("normalization"), *_scale_columns(grid)]
    columns += [Column("spread", "pp"), *_paper(reference)]
    title = "Table 6. Test accuracy by normalization and augmentation"
    return _pairs_table(title, found, columns, rows, [SPREAD], reference)


def _pairs_table(
    title: str,
    found: Pairs,
    columns: list[Column],
    rows: list[list[Cell]],
    notes: list[str],
    reference: bool,
) -> PaperTable:
    keys = [member.key for member in found.everyone()]
    sources = [text for text in found.view.source(keys, reference=reference) if text]
    everything = [*notes, *sources, *found.view.selection.notes]
    return PaperTable(title, columns, rows, everything, found.view.missing(keys), group=2)
