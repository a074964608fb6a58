"""Table 7: the standard recipe against Adam, from a small and a large initialization."""

from __future__ import annotations

from collections.abc import Sequence

from initmem.paper.figures.select import Key, also, name_of, select
from initmem.paper.figures.view import View
from initmem.paper.reference import find
from initmem.paper.tables.cells import BATCH, Entry, interpolated, mean_of, number, paper_table, sources
from initmem.plots.series import value_of
from initmem.record import RunRecord
from initmem.study import Study
from initmem.table import Cell, Column, Mean, Table

FIELDS = ("optimizer", "learning_rate", "l2", "batch_size")
RECIPES = (("momentum", 0.1, 5e-4), ("adam", 1e-3, 0.0))
BATCHES = (16, 128, 256)
SCALES = (0.1, 2.5)
AUGMENT = "flip-crop"


def best(records: Sequence[RunRecord], studies: Sequence[Study], *, reference: bool = False) -> Table:
    """Test accuracy at both scales, their difference, and when it fitted and was selected."""
    wanted = [(*recipe, b) for recipe in RECIPES for b in BATCHES]
    # The setting is that of the standard recipe: Adam with augmentation is in other studies as well.
    standard = [key for key in wanted if key[0] == "momentum"]
    selection = select(records, FIELDS, standard, prefer={"augment": AUGMENT})
    view = View.of(selection, studies)
    # A study of this name may have been changed by its user: its recipes are wanted too.
    asked = [r for study in studies if study.name == "best-recipe" for r in study.recipes]
    keys = also([tuple(getattr(r, name) for name in FIELDS) for r in asked], wanted)
    small, large = _ends(view)
    columns = _columns(small, large, reference)
    rows = [_row(view, key, small, large, reference=reference) for key in keys]
    notes = [
        "a / b: at the smaller and at the larger scale",
        "|Δ|: difference of the two means; over two scales it is the spread",
        "τ_interp: median; τ_best: mean",
        *sources(view, keys, columns, rows, reference=reference),
        *selection.notes,
    ]
    augment = dict(selection.setting).get("augment", "none")
    if selection.cells and augment != AUGMENT:
        shown = "without augmentation" if augment == "none" else f"with {augment}"
        notes.insert(0, f"These runs were trained {shown}; the paper's of this table with flips and crops")
    if (small, large) != SCALES:
        notes.insert(0, f"σ = {small:g} and {large:g} stand in for 0.1 and 2.5, which the store lacks")
    title = "Table 7. The standard recipe and Adam"
    return paper_table(title, columns, rows, notes, view.missing(keys))


def _ends(view: View) -> tuple[float, float]:
    """The two scales where the store has them, else its smallest and largest."""
    if not view.scales or set(SCALES) <= set(view.scales):
        return SCALES
    return view.scales[0], view.scales[-1]


def _columns(small: float, large: float, reference: bool) -> list[Column]:
    columns = [Column("recipe", "text", "optimizer, learning rate and kernel penalty"), BATCH]
    for scale in (small, large):
        columns += [Column(f"test, σ = {scale:g}", about="test accuracy at that scale", unit="%")]
        columns += [Column(f"paper, σ = {scale:g}", about="published", unit="%")] if reference else []
    columns += [Column("|Δ|", about="difference between the two scales", unit="pp")]
    columns += [Column("|Δ|, paper", about="published", unit="pp")] if reference else []
    return [
        *columns,
        Column("τ_interp", about="epoch of interpolation", unit="epochs"),
        Column("τ_best", about="epoch of the selected predictor", unit="epochs"),
    ]


def _row(view: View, key: Key, small: float, large: float, *, reference: bool) -> list[Entry]:
    ends = [[r for r in view.cell(key) if r.run.scale == scale] for scale in (small, large)]
    tests = [mean_of(map(value_of("test_accuracy"), end)) for end in ends]
    row: list[Entry] = [name_of(FIELDS[:3], key[:3]), key[3]]
    for scale, test in zip((small, large), tests, strict=True):
        row.append(test)
        if reference:
            item = find("table 7", view.recipe(key), "test", scale)
            row.append(str(item) if item else "")
    row.append(_difference(*tests))
    if reference:
        item = find("table 7", view.recipe(key), "gap")
        row.append(str(item) if item else "")
    selected = [mean_of(record.summary.tau_best for record in end) for end in ends]
    best_at = [None if epoch is None else f"{epoch.mean:.0f}" for epoch in selected]
    return [*row, _both(*(interpolated(end) for end in ends)), _both(*best_at)]


def _difference(first: Mean | None, second: Mean | None) -> Cell | None:
    return None if first is None or second is None else number(abs(first.mean - second.mean))


def _both(first: str | None, second: str | None) -> str | None:
    return None if first is None and second is None else f"{first or '—'} / {second or '—'}"
