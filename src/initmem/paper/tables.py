"""The paper's tables 1 to 7, from whatever a store holds.

They share columns that show something of a line, and notes on where it comes from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from initmem import catalog
from initmem.errors import ConfigError, StoreError, allowed
from initmem.labels import phrase
from initmem.measures.design import bundled
from initmem.measures.scales import median_interpolation
from initmem.paper import grids
from initmem.paper.reference import find, memory_of, stated
from initmem.paper.selection import Line, Records, Studies, name_of, select, wanted_first
from initmem.plots.series import spread_over, value_of
from initmem.plots.styles import GUIDE
from initmem.recipe import Recipe
from initmem.study import recipes_of
from initmem.table import MISSING, Cell, Column, Kind, Mean, Table, Value, cell

__all__ = ["NAMES", "make"]

Entry = Value | Cell  # None: missing; "": does not apply
SPREAD = "Spread: range (max - min) of the means over the scales shown, over seeds that have them all"
NO_VALUES = "No published values for what is shown"
SCALES = (0.1, 0.5, 1.0, 1.8, 2.5)  # where nothing has been run at all


def make(name: str, records: Records, studies: Studies, reference: bool = False) -> Table:
    """Make a table; `reference` adds published values next to what was measured."""
    if name not in NAMES:
        raise ConfigError(f"table = {name!r} ({allowed(NAMES)})")
    if not records:
        raise StoreError("no finished run yet (initmem run makes them)")
    of_recipes = bundled(records)
    if not of_recipes:
        raise StoreError(
            f"table {name}: the store holds runs of user code only (initmem measure --format latex)"
        )
    if name == "1":
        return settings_table(of_recipes, studies, reference=reference)
    return lines_table(f"table {name}", TABLES[name](of_recipes, studies), reference=reference)


# -- what they share --------------------------------------------------------------------------------------


class Field(NamedTuple):
    """A column, and what it shows of a line: an entry, or a published quantity, on request."""

    title: str
    about: str
    entry: Callable[[Line], Entry] = lambda line: ""
    unit: str = ""
    kind: Kind = "number"
    quantity: str = ""  # what was published, in place of an entry
    scale: float | None = None  # at which it was


class LinesTable(NamedTuple):
    """A table with a row for every line of a study, part by part."""

    title: str
    study: grids.Lines
    parts: Sequence[Sequence[Field]]  # all with the same columns
    notes: Sequence[str] = ()
    grid: Sequence[float] = ()  # the scales over which spreads are taken, if any are
    group: int = 1


def lines_table(where: str, shown: LinesTable, *, reference: bool) -> Table:
    """The rows of a table such as "table 4", with notes on where they come from and what is missing."""
    study, grid, lines = shown.study, shown.grid, shown.study.every

    def entry(field: Field, line: Line) -> Entry:
        if not field.quantity:
            return field.entry(line)
        item = find(where, line.recipe, field.quantity, field.scale)
        if field.quantity == "spread":  # it may also have been published for this procedure elsewhere
            item = memory_of(line.recipe, where)
        return "" if item is None else str(item)

    parts = [[field for field in fields if reference or not field.quantity] for fields in shown.parts]
    rows = [[entry(field, line) for field in fields] for fields in parts for line in lines]
    from_paper = [i for i, field in enumerate(parts[0]) if field.quantity]
    items = [memory_of(line.recipe, where) for line in lines]
    published = sorted({item.n_scales for item in items if item and item.n_scales})
    scales = f"over {' or '.join(map(str, published))} scales; measured: over {len(grid)}"
    has_published = any(row[i] for row in rows for i in from_paper)
    every_note = [
        *[SPREAD] * bool(grid),
        *shown.notes,
        *[NO_VALUES] * (reference and not has_published),
        *[f"Published spreads: {scales}"] * bool(reference and grid and published),
        *(f"{name}: {text}" for name, text in grids.origin(study.selection, lines).items() if text),
        *study.notes,
    ]
    columns = [Column(field.title, field.kind, field.about, field.unit) for field in parts[0]]
    missing, name = grids.missing(lines), where.capitalize()
    return paper_table(shown.title, columns, rows, every_note, missing, shown.group, name=name)


def paper_table(
    title: str,
    columns: Sequence[Column],
    rows: Sequence[Sequence[Entry]],
    notes: Sequence[str],
    missing: Sequence[str],
    group: int = 1,
    *,
    name: str = "",
) -> Table:
    """A table that says how many seeds its means are over; a mean over any other number says so itself."""
    counts = [entry.n for row in rows for entry in row if isinstance(entry, Mean)]
    usual = max(set(counts), key=lambda n: (counts.count(n), n)) if counts else None
    cells = [[_cell(entry, usual) for entry in row] for row in rows]
    seeds = []
    if usual is not None:
        text = f"Mean ± sample deviation over n = {usual} seeds" if usual > 1 else "One seed: no deviation"
        seeds = [text + ("; where n differs it is given in parentheses" if len(set(counts)) > 1 else "")]
    return Table(title, columns, cells, [*seeds, *notes], missing, name, group=group)


def _cell(entry: Entry, usual: int | None) -> Cell:
    if isinstance(entry, Mean):
        return Cell(entry, str(entry) if entry.n == usual else f"{entry} ({entry.n})")
    if entry is None or isinstance(entry, Cell):
        return entry or Cell(None, MISSING)
    return cell(entry, "d" if isinstance(entry, int) else "g")


# -- entries and fields -----------------------------------------------------------------------------------


def mean_of(values: Iterable[float | None], digits: int = 1) -> Mean | None:
    """Mean and sample deviation of the values that are there; None without any."""
    there = np.array([value for value in values if value is not None], dtype=float)
    if not len(there):
        return None
    std = float(there.std(ddof=1)) if len(there) > 1 else None
    return Mean(float(there.mean()), std, len(there), digits)


def mean(line: Line, metric: str = "test_accuracy") -> Mean | None:
    """The mean of a metric over the runs of a line."""
    return mean_of(map(value_of(metric), line.records))


def tau_best(line: Line) -> Mean | None:
    """The mean epoch of the selected models."""
    return mean_of((record.summary.tau_best for record in line.records), digits=0)


def tau_interp(line: Line) -> str | None:
    """The median interpolation epoch; one that was not reached is larger than the last epoch."""
    if not line.records:
        return None
    times = median_interpolation(line.records)
    if times.median is None:
        return f"> {max(record.summary.epochs for record in line.records)}"
    return f"{times.median:.0f}" + (f" ({times.n_censored} never)" if times.n_censored else "")


def tenths(value: float | None) -> Cell | None:
    """A number that is not a mean over seeds, to one digit."""
    return None if value is None else cell(value, ".1f")


BATCH = Field("b", "batch size", lambda line: line.recipe.batch_size)
OPTIMIZER = Field("optimizer", "its name", lambda line: line.recipe.optimizer, kind="text")
TAU_INTERP = Field("τ_interp", "epoch of interpolation", tau_interp, "epochs")
TAU_BEST = Field("τ_best", "epoch of the selected model", tau_best, "epochs")
MEDIAN = "τ_interp: median, runs that never got there counted as later than their last epoch"


def label_field(title: str, about: str) -> Field:
    """A column of the labels of lines."""
    return Field(title, about, lambda line: line.label, kind="text")


def at_scales(
    grid: Sequence[float],
    entry: Callable[[Line], Entry] = mean,
    about: str = "test accuracy at that scale",
    unit: str = "%",
) -> list[Field]:
    """A column for every scale."""

    def at_scale(line: Line, *, scale: float) -> Entry:
        return entry(line.at(scale))

    return [Field(f"σ = {scale:g}", about, partial(at_scale, scale=scale), unit) for scale in grid]


def spread_field(grid: Sequence[float]) -> Field:
    """A column of spreads over these scales."""
    about = "range over scales (max - min)"
    return Field("spread", about, lambda line: tenths(spread_over(line.records, grid)), "pp")


def spread_fields(grid: Sequence[float]) -> list[Field]:
    """Test accuracy at these scales, its spread, and the published one."""
    published = Field("spread, paper", "published", unit="pp", quantity="spread")
    return [*at_scales(grid), spread_field(grid), published]


# -- table 1 ----------------------------------------------------------------------------------------------

MAIN_GRID_ONLY = (
    "Paper: stated are learning rate, decay, β₁, β₂ of the Adam family, schedule and epochs of the main grid"
)
COEFFICIENTS = ("momentum", "beta1", "beta2", "epsilon")  # blank where the optimizer has none
SETTINGS = {  # by the field of a recipe
    "optimizer": Column("optimizer", "text", "its name"),
    "learning_rate": Column("η", about="learning rate"),
    "l2": Column("λ (l2)", about="L2"),
    "weight_decay": Column("weight decay", about="decoupled weight decay"),
    "momentum": Column("momentum", about="its coefficient"),
    "beta1": Column("β₁", about="decay of the first moment"),
    "beta2": Column("β₂", about="decay of the second moment"),
    "epsilon": Column("ε", about="added to the denominator"),
    "schedule": Column("schedule", "text", "of the learning rate"),
    "epochs": Column("epochs", about="length of training"),
}


def settings_table(records: Records, studies: Studies, *, reference: bool = False) -> Table:
    """Table 1: every distinct setting of an optimizer, from the recipes that were run or asked for."""
    batches: dict[tuple[Value, ...], set[int]] = {}  # by the cells of a row
    for recipe in dict.fromkeys([*recipes_of(studies), *(record.run.recipe for record in records)]):
        if isinstance(recipe, Recipe):
            paper = (_unlike_published(recipe),) if reference else ()
            batches.setdefault((*_settings(recipe), *paper), set()).add(recipe.batch_size)
    present = [row[0] for row in batches]
    names = wanted_first(grids.OPTIMIZERS, present)
    ordered = sorted(batches, key=lambda row: (names.index(row[0]), row[1:4]))
    absent = [name for name in grids.OPTIMIZERS if name not in present]
    columns = [
        *SETTINGS.values(),
        *([Column("paper", "text", "what the paper's main grid has instead")] if reference else []),
        Column("batch sizes", "text", "that were run or asked for"),
    ]
    notes = [
        "cosine: the learning rate falls from η to the given fraction of it over the run",
        "Blank: does not apply",
    ]
    if reference:
        notes.append(MAIN_GRID_ONLY if any(row[-1] for row in batches) else NO_VALUES)
    return paper_table(
        "Optimizer settings of the recipes in the store",
        columns,
        [[*row, ", ".join(map(str, sorted(batches[row])))] for row in ordered]
        + [[name, *[None] * (len(columns) - 1)] for name in absent],
        notes,
        missing=[f"{name}: no recipe" for name in absent],
        name="Table 1",
    )


def _settings(recipe: Recipe) -> tuple[Value, ...]:
    """The cells of a recipe, in the order of `SETTINGS`."""
    row = catalog.OPTIMIZERS.get(recipe.optimizer)
    blank = [name for name in COEFFICIENTS if row is None or name not in row.fields]
    cells = {name: "" if name in blank else getattr(recipe, name) for name in SETTINGS}
    if recipe.schedule == "cosine":
        cells["schedule"] = f"cosine to {recipe.lr_floor:g}"
    return tuple(cells.values())


def _unlike_published(recipe: Recipe) -> str:
    """In what a recipe of the main grid differs from the published settings; nothing for other recipes."""
    paper = stated("setting", optimizer=recipe.optimizer)
    if not paper or (recipe.learning_rate, recipe.l2) != (paper["learning_rate"], 0.0):
        return ""
    differ = {name: value for name, value in paper.items() if getattr(recipe, name) != value}
    changed = recipe.model_copy(update=differ)
    return ", ".join(phrase(changed, name) for name in differ) or "as published"


# -- tables 2 and 3 ---------------------------------------------------------------------------------------

VALIDATION, BEST = "validation accuracy", "val_accuracy_best"
MOMENTS = [
    "At τ_interp and repair gap: over the runs that interpolated (99.5% train accuracy)",
    "A negative repair gap: the least validation loss came before interpolation; accuracy rose until then",
    f"{MEDIAN}; τ_best: mean",
]


def moments_table(target: float, records: Records, studies: Studies) -> LinesTable:
    """Table 2 or 3: validation accuracy at three moments, from the scale nearest to `target`."""
    grid = grids.main_grid(records, studies)
    scale = min(grid.selection.scales(), key=lambda scale: (abs(scale - target), scale), default=target)
    at_scale = {key: [line.at(scale) for line in lines] for key, lines in grid.panels.items()}

    def reached(line: Line) -> int:
        return sum(record.summary.tau_interp is not None for record in line.records)

    def once(metric: str, otherwise: str = "not reached") -> Callable[[Line], Entry]:
        return lambda line: mean(line, metric) if reached(line) or not line.records else otherwise

    def interpolated(line: Line) -> str | None:
        return f"{reached(line)} of {len(line.records)}" if line.records else None

    fields = [
        BATCH,
        OPTIMIZER,
        Field("at τ_interp", f"{VALIDATION} when interpolation is reached", once("val_accuracy_interp"), "%"),
        Field("at τ_best", f"{VALIDATION} of the selected model", partial(mean, metric=BEST), "%"),
        Field("last epoch", f"{VALIDATION} at the end", partial(mean, metric="val_accuracy_last"), "%"),
        Field("repair gap", "at τ_best less at τ_interp", once("repair_gap", ""), "pp"),
        TAU_INTERP,
        TAU_BEST,
        Field("interpolated", "runs that reached interpolation", interpolated, "runs"),
        Field("test", "test accuracy of the selected model", mean, "%"),
        Field("test, paper", "published", unit="%", quantity="test", scale=scale),
        Field("τ_interp, paper", "published", unit="epochs", quantity="tau_interp"),
        Field("τ_best, paper", "published", unit="epochs", quantity="tau_best"),
    ]
    title = f"Validation accuracy at three moments, initialization scale σ = {scale:g}"
    return LinesTable(title, grid._replace(panels=at_scale), [fields], MOMENTS)


# -- table 4 ----------------------------------------------------------------------------------------------


def sweep_table(records: Records, studies: Studies) -> LinesTable:
    """Table 4: learning rate x L2, then Adam and long training."""
    study = grids.sweep(records, studies)
    grid = grids.shared_scales(study.every) or SCALES

    def train_accuracy(line: Line) -> Cell | None:
        train = mean(line.at(*grid), "train_accuracy")
        return tenths(train and train.mean)

    def recipe(line: Line) -> str:
        return line.label if line.recipe.optimizer == "adam" else f"sgd {line.label}"

    def schedule(line: Line) -> str | None:
        return f"{line.recipe.schedule}, {line.recipe.epochs:,} epochs" if line.records else None

    fields = [
        BATCH,
        Field("recipe", "optimizer, learning rate and L2", recipe, kind="text"),
        Field("schedule", "of the learning rate", schedule, kind="text"),
        *spread_fields(grid),
        Field("train", "train accuracy of the selected models", train_accuracy, "%"),
    ]
    notes = ["Train: mean train accuracy of the selected models over all scales shown"]
    return LinesTable("Test accuracy of SGD by learning rate η and L2 λ", study, [fields], notes, grid)


# -- tables 5 and 6 ---------------------------------------------------------------------------------------

QUANTITIES: dict[str, tuple[Callable[[Line], Entry], str]] = {  # at every scale, and what was published of it
    "test accuracy, %": (mean, "spread"),
    "train accuracy, last, %": (partial(mean, metric="train_accuracy_last"), "train"),
    "τ_interp, epochs": (tau_interp, "tau_interp"),
    "τ_best, epochs": (tau_best, "tau_best"),
}


def depth_table(records: Records, studies: Studies) -> LinesTable:
    """Table 5: accuracies by network, and below them when it fitted and when it was selected."""
    study = grids.pairs(records, studies, grids.DEPTHS)
    grid = grids.shared_scales(study.every) or SCALES
    about = "published: of test accuracy the spread (pp), else at every scale"

    def fields(name: str) -> list[Field]:
        entry, published = QUANTITIES[name]
        spread = spread_field(grid)
        return [
            Field("quantity", "what the row shows", lambda _: name, kind="text"),
            BATCH,
            OPTIMIZER,
            label_field("network", "its name"),
            *at_scales(grid, entry, about="the quantity at that scale", unit=""),
            spread if published == "spread" else spread._replace(entry=lambda _: ""),
            Field("paper", about, quantity=published),
        ]

    parts = [fields(name) for name in QUANTITIES]
    return LinesTable("Networks of different depth", study, parts, [MEDIAN], grid, group=2)


def norms_table(records: Records, studies: Studies) -> LinesTable:
    """Table 6: normalization and augmentation."""
    study = grids.pairs(records, studies, grids.NORMS)
    grid = grids.shared_scales(study.every) or SCALES
    kind = label_field("normalization", "and augmentation")
    fields = [BATCH, OPTIMIZER, kind, *spread_fields(grid)]
    title = "Test accuracy by normalization and augmentation"
    return LinesTable(title, study, [fields], grid=grid, group=2)


# -- table 7 ----------------------------------------------------------------------------------------------

BEST_RECIPES = (("momentum", 0.1, 5e-4), ("adam", 1e-3, 0.0))
BEST_BATCHES = (16, 128, 256)
BEST_SCALES = (0.1, 2.5)
AUGMENT = "flip-crop"


def best_table(records: Records, studies: Studies) -> LinesTable:
    """Table 7: the standard recipe and Adam, from a small and a large initialization."""
    wanted = [(*recipe, b) for recipe in BEST_RECIPES for b in BEST_BATCHES]
    # The setting is that of the standard recipe: Adam with augmentation is in other studies as well.
    standard = [key for key in wanted if key[0] == "momentum"]
    augmented = [record for record in records if record.run.recipe.get("augment") == AUGMENT]
    best = select(augmented or records, studies, grids.SWEPT, standard)
    # A study of this name may have been changed by its user: its recipes are wanted too.
    asked = [recipe for study in studies if study.name == "best-recipe" for recipe in study.recipes]
    keys = wanted_first(wanted, [tuple(recipe.get(name) for name in grids.SWEPT) for recipe in asked])
    lines = [best.line(key, name_of(grids.SWEPT[:3], key[:3]), GUIDE) for key in keys]
    scales = best.scales()
    small, large = BEST_SCALES if not scales or set(BEST_SCALES) <= set(scales) else (scales[0], scales[-1])
    notes = [
        *([] if augmented else ["These runs were trained without augmentation, the paper's with it"]),
        "a / b: at the smaller and at the larger scale",
        "|Δ|: difference of the two means; over two scales it is the spread",
        "τ_interp: median; τ_best: mean",
    ]
    study = grids.Lines(best, {(0, ""): lines}, best.notes)
    return LinesTable("The standard recipe and Adam", study, [_best_fields(small, large)], notes)


def _best_fields(small: float, large: float) -> list[Field]:
    def at(scale: float) -> list[Field]:
        about = "test accuracy at that scale"
        published = Field(f"paper, σ = {scale:g}", "published", unit="%", quantity="test", scale=scale)
        return [Field(f"test, σ = {scale:g}", about, lambda line: mean(line.at(scale)), "%"), published]

    def difference(line: Line) -> Entry:
        first, second = mean(line.at(small)), mean(line.at(large))
        return tenths(abs(first.mean - second.mean)) if first and second else None

    def selected(line: Line) -> str | None:
        epoch = tau_best(line)
        return None if epoch is None else f"{epoch.mean:.0f}"

    def both(line: Line, text: Callable[[Line], str | None]) -> Entry:
        first, second = text(line.at(small)), text(line.at(large))
        return f"{first or MISSING} / {second or MISSING}" if first or second else None

    return [
        label_field("recipe", "optimizer, learning rate and L2"),
        BATCH,
        *at(small),
        *at(large),
        Field("|Δ|", "difference between the two scales", difference, "pp"),
        Field("|Δ|, paper", "published", unit="pp", quantity="gap"),
        TAU_INTERP._replace(entry=partial(both, text=tau_interp)),
        TAU_BEST._replace(entry=partial(both, text=selected)),
    ]


TABLES: dict[str, Callable[[Records, Studies], LinesTable]] = {
    "2": partial(moments_table, 0.1),
    "3": partial(moments_table, 2.5),
    "4": sweep_table,
    "5": depth_table,
    "6": norms_table,
    "7": best_table,
}
NAMES = ("1", *TABLES)
