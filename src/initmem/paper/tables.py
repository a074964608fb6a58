"""The paper's tables 1 to 7, from whatever a store holds; tables 1 and 7 are made here."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from initmem import catalog
from initmem.errors import ConfigError, StoreError, allowed
from initmem.measures.design import bundled
from initmem.paper import main_grid, pairs, parts, sweep
from initmem.paper.main_grid import OPTIMIZERS
from initmem.paper.parts import Entry, Field
from initmem.paper.reference import settings_of
from initmem.paper.selection import Line, Records, Selection, Studies, name_of, select, wanted_first
from initmem.plots.captions import phrase
from initmem.plots.styles import GUIDE
from initmem.recipe import Recipe
from initmem.study import recipes_of
from initmem.table import Column, Table, Value

__all__ = ["NAMES", "make"]


def make(name: str, records: Records, studies: Studies, reference: bool = False) -> Table:
    """Make a table; `reference` adds published values next to what was measured."""
    if name not in TABLES:
        raise ConfigError(f"table = {name!r} ({allowed(NAMES)})")
    if not records:
        raise StoreError("no finished run yet (initmem run makes them)")
    of_recipes = bundled(records)
    if not of_recipes:
        raise StoreError(
            f"table {name}: the store holds runs of user code only (initmem measure --format latex)"
        )
    return TABLES[name](of_recipes, studies, reference=reference)


# -- table 1 ----------------------------------------------------------------------------------------------

MAIN_GRID_ONLY = (
    "Paper: stated are learning rate, decay, β₁, β₂ of the Adam family, schedule and epochs of the main grid"
)
SETTINGS = [
    parts.OPTIMIZER.column,
    Column("η", about="learning rate"),
    Column("λ (l2)", about="kernel penalty"),
    Column("weight decay", about="decoupled weight decay"),
    Column("momentum", about="its coefficient"),
    Column("β₁", about="decay of the first moment"),
    Column("β₂", about="decay of the second moment"),
    Column("ε", about="added to the denominator"),
    Column("schedule", "text", "of the learning rate"),
    Column("epochs", about="length of training"),
]


def settings_table(records: Records, studies: Studies, *, reference: bool = False) -> Table:
    """Table 1: every distinct setting of an optimizer, from the recipes that were run or asked for."""
    batches: dict[tuple[Value, ...], set[int]] = {}  # by the cells of a row
    for recipe in dict.fromkeys([*recipes_of(studies), *(record.run.recipe for record in records)]):
        if isinstance(recipe, Recipe):
            paper = (_unlike_published(recipe),) if reference else ()
            batches.setdefault((*_settings(recipe), *paper), set()).add(recipe.batch_size)
    present = [row[0] for row in batches]
    names = wanted_first(OPTIMIZERS, present)
    ordered = sorted(batches, key=lambda row: (names.index(row[0]), row[1:4]))
    absent = [name for name in OPTIMIZERS if name not in present]
    columns = [
        *SETTINGS,
        *([Column("paper", "text", "what the paper's main grid has instead")] if reference else []),
        Column("batch sizes", "text", "that were run or asked for"),
    ]
    notes = [
        "cosine: the learning rate falls from η to the given fraction of it over the run",
        "Blank: does not apply",
    ]
    if reference:
        notes.append(MAIN_GRID_ONLY if any(row[-1] for row in batches) else parts.NO_VALUES)
    return parts.paper_table(
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
    fields = row.fields if row else ()
    coefficients = ("momentum", "beta1", "beta2", "epsilon")
    return (
        recipe.optimizer,
        recipe.learning_rate,
        recipe.l2,
        recipe.weight_decay,
        *(getattr(recipe, name) if name in fields else "" for name in coefficients),
        f"cosine to {recipe.lr_floor:g}" if recipe.schedule == "cosine" else recipe.schedule,
        recipe.epochs,
    )


def _unlike_published(recipe: Recipe) -> str:
    """In what a recipe of the main grid differs from the published settings; nothing for other recipes."""
    paper = settings_of(recipe.optimizer)
    if not paper or (recipe.learning_rate, recipe.l2) != (paper["learning_rate"], 0.0):
        return ""
    differ = {name: value for name, value in paper.items() if getattr(recipe, name) != value}
    changed = recipe.model_copy(update=differ)
    return ", ".join(phrase(changed, name) for name in differ) or "as published"


# -- table 7 ----------------------------------------------------------------------------------------------

BEST_FIELDS = ("optimizer", "learning_rate", "l2", "batch_size")
BEST_RECIPES = (("momentum", 0.1, 5e-4), ("adam", 1e-3, 0.0))
BEST_BATCHES = (16, 128, 256)
BEST_SCALES = (0.1, 2.5)
AUGMENT = "flip-crop"


def best_table(records: Records, studies: Studies, *, reference: bool = False) -> Table:
    """Table 7: the standard recipe and Adam, from a small and a large initialization."""
    wanted = [(*recipe, b) for recipe in BEST_RECIPES for b in BEST_BATCHES]
    # The setting is that of the standard recipe: Adam with augmentation is in other studies as well.
    standard = [key for key in wanted if key[0] == "momentum"]
    best = select(records, studies, BEST_FIELDS, standard, prefer={"augment": AUGMENT})
    # A study of this name may have been changed by its user: its recipes are wanted too.
    asked = [recipe for study in studies if study.name == "best-recipe" for recipe in study.recipes]
    keys = wanted_first(wanted, [tuple(recipe.get(name) for name in BEST_FIELDS) for recipe in asked])
    lines = [best.line(key, name_of(BEST_FIELDS[:3], key[:3]), GUIDE) for key in keys]
    scales = best.scales()
    small, large = BEST_SCALES if not scales or set(BEST_SCALES) <= set(scales) else (scales[0], scales[-1])
    return parts.lines_table(
        "table 7",
        "The standard recipe and Adam",
        [_best_fields(small, large)],
        best,
        lines,
        reference=reference,
        notes=[
            *_best_deviations(best, small, large),
            "a / b: at the smaller and at the larger scale",
            "|Δ|: difference of the two means; over two scales it is the spread",
            "τ_interp: median; τ_best: mean",
        ],
    )


def _best_fields(small: float, large: float) -> list[Field]:
    test_small, test_large = (
        field._replace(column=field.column._replace(title=f"test, {field.column.title}"))
        for field in parts.at_scales((small, large))
    )

    def difference(line: Line) -> Entry:
        first, second = parts.mean(line.at(small)), parts.mean(line.at(large))
        return parts.number(abs(first.mean - second.mean)) if first and second else None

    def selected(line: Line) -> str | None:
        epoch = parts.tau_best(line)
        return None if epoch is None else f"{epoch.mean:.0f}"

    def both(line: Line, text: Callable[[Line], str | None]) -> Entry:
        first, second = text(line.at(small)), text(line.at(large))
        return f"{first or '—'} / {second or '—'}" if first or second else None

    return [
        parts.label("recipe", "optimizer, learning rate and kernel penalty"),
        parts.BATCH,
        test_small,
        parts.published("table 7", f"paper, σ = {small:g}", "test", "%", scale=small),
        test_large,
        parts.published("table 7", f"paper, σ = {large:g}", "test", "%", scale=large),
        Field(Column("|Δ|", about="difference between the two scales", unit="pp"), difference),
        parts.published("table 7", "|Δ|, paper", "gap", "pp"),
        Field(parts.TAU_INTERP, partial(both, text=parts.tau_interp)),
        Field(parts.TAU_BEST, partial(both, text=selected)),
    ]


def _best_deviations(best: Selection, small: float, large: float) -> list[str]:
    """Where the table is of other scales or of another augmentation than the paper's."""
    notes = []
    if (small, large) != BEST_SCALES:
        notes.append(f"σ = {small:g} and {large:g} stand in for 0.1 and 2.5, which the store lacks")
    augment = dict(best.setting).get("augment", "none")
    if best.cells and augment != AUGMENT:
        shown = "without augmentation" if augment == "none" else f"with {augment}"
        notes.append(f"These runs were trained {shown}; the paper's of this table with flips and crops")
    return notes


TABLES: dict[str, Callable[..., Table]] = {
    "1": settings_table,
    "2": partial(main_grid.moments_table, "table 2", 0.1),
    "3": partial(main_grid.moments_table, "table 3", 2.5),
    "4": sweep.sweep_table,
    "5": pairs.depth_table,
    "6": pairs.norms_table,
    "7": best_table,
}
NAMES = tuple(TABLES)
