"""Table 1: the settings of the optimizers."""

from __future__ import annotations

from collections.abc import Sequence

from initmem.clocks import is_adaptive
from initmem.paper.figures.select import OPTIMIZERS, also
from initmem.paper.reference import settings_of
from initmem.paper.tables.cells import NO_VALUES, OPTIMIZER, paper_table
from initmem.plots.captions import phrase
from initmem.recipe import TORCH_OPTIMIZERS, Recipe
from initmem.record import RunRecord
from initmem.study import Study, recipes_of
from initmem.table import Column, Table, Value

INERTIA = ("momentum", "muon", "muon-conv", "normuon", "sf-normuon")
AS_PUBLISHED = "as published"
PAPER = (
    "Paper: stated are learning rate, decay, β₁, β₂ of the Adam family, schedule and epochs of the main grid"
)


def settings(records: Sequence[RunRecord], studies: Sequence[Study], *, reference: bool = False) -> Table:
    """Table 1: every distinct setting of an optimizer, from the recipes that were run or asked for."""
    recipes = dict.fromkeys([*recipes_of(studies), *(record.run.recipe for record in records)])
    rows: dict[tuple[Value, ...], set[int]] = {}
    for recipe in (recipe for recipe in recipes if isinstance(recipe, Recipe)):
        paper = (_published(recipe),) if reference else ()
        rows.setdefault((*_settings(recipe), *paper), set()).add(recipe.batch_size)
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
            *([Column("paper", "text", "what the paper's main grid has instead")] if reference else []),
            Column("batch sizes", "text", "that were run or asked for"),
        ],
        rows=[[*row, ", ".join(map(str, sorted(rows[row])))] for row in ordered]
        + [[name, *[None] * (11 if reference else 10)] for name in absent],
        notes=[
            "cosine: the learning rate falls from η to the given fraction of it over the run",
            "Blank: does not apply",
            *([PAPER if any(row[-1] for row in rows) else NO_VALUES] if reference else []),
        ],
        missing=[f"{name}: no recipe" for name in absent],
    )


def _published(recipe: Recipe) -> str:
    """In what a recipe of the main grid differs from the published settings; nothing for other recipes."""
    paper = settings_of(recipe.optimizer)
    if not paper or (recipe.learning_rate, recipe.l2) != (paper["learning_rate"], 0.0):
        return ""
    differ = {name: value for name, value in paper.items() if getattr(recipe, name) != value}
    changed = recipe.model_copy(update=differ)
    return ", ".join(phrase(changed, name) for name in differ) or AS_PUBLISHED


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
