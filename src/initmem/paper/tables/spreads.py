"""Tables 4 to 6: test accuracy scale by scale and its spread, over rates, networks and norms."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from initmem.paper.figures.pairs import DEPTHS, NORMS, Pairs, label_of, pairs
from initmem.paper.figures.select import Key
from initmem.paper.figures.sweep import sweep
from initmem.paper.figures.view import Member, View
from initmem.paper.reference import find, memory_of
from initmem.paper.tables.cells import (
    BATCH,
    NO_VALUES,
    OPTIMIZER,
    Entry,
    interpolated,
    mean_of,
    means_by_scale,
    number,
    paper_table,
    sources,
)
from initmem.plots.series import spread_over, value_of
from initmem.record import RunRecord
from initmem.study import Study
from initmem.table import Cell, Column, Table

SCALES = (0.1, 0.5, 1.0, 1.8, 2.5)  # where nothing has been run at all
SPREAD = "Spread: range (max - min) of the means over the scales shown, over seeds that have them all"
SPREAD_COLUMN = Column("spread", about="range over scales (max - min)", unit="pp")
TEST = value_of("test_accuracy")
TEST_ROWS = "test accuracy, %"
PUBLISHED = {  # what table 5 shows, and which published quantity stands beside it
    TEST_ROWS: "spread",
    "train accuracy, last, %": "train",
    "τ_interp, epochs": "tau_interp",
    "τ_best, epochs": "tau_best",
}


def rates(records: Sequence[RunRecord], studies: Sequence[Study], *, reference: bool = False) -> Table:
    """Table 4: learning rate x penalty, then Adam and long training."""
    found = sweep(records, studies)
    everyone = [(b, view, member) for b in found.batches for view, member in found.everyone(b)]
    grid = found.grid(*found.batches) or list(SCALES)
    rows = [_rate_row(view, member, b, grid, reference=reference) for b, view, member in everyone]
    columns = [
        BATCH,
        Column("recipe", "text", "optimizer, learning rate and kernel penalty"),
        Column("schedule", "text", "of the learning rate"),
        *_scale_columns(grid),
    ]
    columns += [
        SPREAD_COLUMN,
        *_paper(reference),
        Column("train", about="train accuracy of the selected predictors", unit="%"),
    ]
    notes = [SPREAD, "Train: mean train accuracy of the selected predictors over all scales shown"]
    if reference:
        notes += _over_scales("table 4", [(view, member.key) for _, view, member in everyone], grid)
    published = reference and any(row[-2] for row in rows)
    notes += [NO_VALUES] if reference and not published else []
    notes += [*(text for text in found.source(reference=published) if text), *found.notes()]
    title = "Table 4. Test accuracy of SGD by learning rate η and kernel penalty λ"
    return paper_table(title, columns, rows, notes, found.missing())


def _rate_row(view: View, member: Member, b: int, grid: Sequence[float], *, reference: bool) -> list[Entry]:
    recipe, cell = view.recipe(member.key), view.cell(member.key)
    here = [record for record in cell if record.run.scale in grid]
    name = member.label if recipe.optimizer == "adam" else f"sgd {member.label}"
    schedule = f"{recipe.schedule}, {recipe.epochs:,} epochs" if cell else None
    train = mean_of(map(value_of("train_accuracy"), here))
    cells = [
        *means_by_scale(cell, grid, TEST),
        _spread(cell, grid),
        *_published("table 4", view, member.key, reference),
    ]
    return [b, name, schedule, *cells, number(train and train.mean)]


def _scale_columns(grid: Sequence[float]) -> list[Column]:
    return [Column(f"σ = {scale:g}", about="test accuracy at that scale", unit="%") for scale in grid]


def _paper(reference: bool) -> list[Column]:
    return [Column("spread, paper", about="published", unit="pp")] if reference else []


def _spread(cell: Sequence[RunRecord], grid: Sequence[float]) -> Cell | None:
    return number(spread_over(cell, grid))


def _published(where: str, view: View, key: Key, reference: bool) -> list[Entry]:
    item = memory_of(view.recipe(key), where)
    return [str(item) if item else ""] if reference else []


def _over_scales(where: str, cells: Iterable[tuple[View, Key]], grid: Sequence[float]) -> list[str]:
    """Over how many scales the published spreads were taken: over more of them a spread is larger."""
    items = [memory_of(view.recipe(key), where) for view, key in cells]
    values: dict[int, list[str]] = {}
    for item in items:
        if item is not None and item.n_scales is not None:
            values.setdefault(item.n_scales, []).append(str(item))
    if not values:
        return []
    *few, (most, _) = sorted(values.items(), key=lambda pair: len(pair[1]))
    text = "".join(f"{', '.join(dict.fromkeys(numbers))} over {n} scales, " for n, numbers in few)
    rest = f"the others over {most}" if few else f"over {most} scales"
    return [f"Published spreads: {text}{rest}; measured: over {len(grid)}"]


def depth(records: Sequence[RunRecord], studies: Sequence[Study], *, reference: bool = False) -> Table:
    """Table 5: accuracies by network, and below them when it fitted and when it was selected."""
    found = pairs(records, studies, DEPTHS)
    grid = found.view.grid_of([member.key for member in found.everyone()]) or list(SCALES)
    rows: list[list[Entry]] = []
    for quantity in PUBLISHED:
        for b, optimizer, member in _everyone(found):
            cell = found.view.cell(member.key)
            row: list[Entry] = [quantity, b, optimizer, member.label, *_quantity(quantity, cell, grid)]
            row.append(_spread(cell, grid) if quantity == TEST_ROWS else "")
            rows.append(row + _depth_paper(quantity, found.view, member.key, reference))
    columns = [
        Column("quantity", "text", "what the row shows"),
        BATCH,
        OPTIMIZER,
        Column("network", "text", "its name"),
    ]
    columns += [Column(f"σ = {scale:g}", about="the quantity at that scale") for scale in grid]
    columns.append(SPREAD_COLUMN)
    if reference:
        columns.append(
            Column("paper", about="published: of test accuracy the spread (pp), else at every scale")
        )
    notes = [SPREAD, "τ_interp: median, runs that never got there counted as later than their last epoch"]
    if reference:
        notes += _over_scales("table 5", [(found.view, m.key) for _, _, m in _everyone(found)], grid)
    return _pairs_table("Table 5. Networks of different depth", found, columns, rows, notes, reference)


def _depth_paper(quantity: str, view: View, key: Key, reference: bool) -> list[Entry]:
    recipe, wanted = view.recipe(key), PUBLISHED[quantity]
    item = memory_of(recipe, "table 5") if wanted == "spread" else find("table 5", recipe, wanted)
    return [str(item) if item else ""] if reference else []


def _everyone(found: Pairs) -> list[tuple[int, str, Member]]:
    return [(b, name, m) for b in found.batches for name in found.optimizers for m in found.members(name, b)]


def _quantity(quantity: str, cell: Sequence[RunRecord], grid: Sequence[float]) -> list[Entry]:
    match quantity.partition(",")[0]:
        case "test accuracy":
            return [*means_by_scale(cell, grid, TEST)]
        case "train accuracy":
            return [*means_by_scale(cell, grid, value_of("train_accuracy_last"))]
        case "τ_interp":
            return [interpolated([r for r in cell if r.run.scale == scale]) for scale in grid]
        case _:
            means = means_by_scale(cell, grid, lambda record: record.summary.tau_best)
            return [mean and mean._replace(digits=0) for mean in means]


def norms(records: Sequence[RunRecord], studies: Sequence[Study], *, reference: bool = False) -> Table:
    """Table 6: normalization and augmentation."""
    found = pairs(records, studies, NORMS)
    grid = found.view.grid_of([member.key for member in found.everyone()]) or list(SCALES)
    rows: list[list[Entry]] = []
    for b, optimizer, member in _everyone(found):
        cell = found.view.cell(member.key)
        row: list[Entry] = [b, optimizer, label_of(NORMS, member.key[:-2]), *means_by_scale(cell, grid, TEST)]
        rows.append([*row, _spread(cell, grid), *_published("table 6", found.view, member.key, reference)])
    columns = [
        BATCH,
        OPTIMIZER,
        Column("normalization", "text", "and augmentation"),
        *_scale_columns(grid),
    ]
    columns += [SPREAD_COLUMN, *_paper(reference)]
    notes = [SPREAD]
    if reference:
        notes += _over_scales("table 6", [(found.view, m.key) for _, _, m in _everyone(found)], grid)
    title = "Table 6. Test accuracy by normalization and augmentation"
    return _pairs_table(title, found, columns, rows, notes, reference)


def _pairs_table(
    title: str,
    found: Pairs,
    columns: list[Column],
    rows: list[list[Entry]],
    notes: list[str],
    reference: bool,
) -> Table:
    keys = [member.key for member in found.everyone()]
    origin = sources(found.view, keys, columns, rows, reference=reference)
    everything = [*notes, *origin, *found.view.selection.notes]
    return paper_table(title, columns, rows, everything, found.view.missing(keys), group=2)
