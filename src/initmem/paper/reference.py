"""Published values, as data, to be shown beside what was measured."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import resources
from typing import Any, NamedTuple

from initmem.data.sources import sizes
from initmem.measures.advice import Observation, family_clock
from initmem.measures.statistics import TOLERANCE_PP
from initmem.plots.model import SYMBOLS
from initmem.recipe import SIZE_FIELDS, AnyRecipe, Recipe
from initmem.study_file import combinations, load_study

# What the paper leaves open, so that a value may have been published for either.
OPEN = frozenset({"select_by", "train_eval"})


class Reference(NamedTuple):
    """One published value, and the recipes that it was published for."""

    study: str
    recipes: Sequence[Recipe]
    quantity: str  # spread, test, train, gap, beta, tau_best or tau_interp
    value: float
    unit: str
    shown: Sequence[str]  # "figure 4", "table 4", ...
    relation: str = "="
    scale: float | None = None
    n_scales: int | None = None  # of a spread: more scales, larger spread
    upper: float | None = None  # the other end, where a range is published

    def __str__(self) -> str:
        digits = {"beta": 2, "tau_best": 0, "tau_interp": 0}.get(self.quantity, 1)
        upper = "" if self.upper is None else f" to {self.upper:.{digits}f}"
        return f"{SYMBOLS[self.relation]}{self.value:.{digits}f}{upper}"

    def fits(self, recipe: AnyRecipe) -> bool:
        """Whether the value was published for this procedure, at whatever size, as far as it is stated."""
        return isinstance(recipe, Recipe) and _procedure(recipe) in map(_procedure, self.recipes)


def _procedure(recipe: Recipe) -> dict[str, Any]:
    return {name: value for name, value in recipe.settings().items() if name not in SIZE_FIELDS | OPEN}


@cache
def _content() -> Mapping[str, list[dict[str, Any]]]:
    return tomllib.loads((resources.files("initmem") / "paper/reference.toml").read_text("utf-8"))


@cache
def references() -> tuple[Reference, ...]:
    """All published values that were measured."""
    return tuple(
        Reference(**row | {"recipes": [*map(Recipe.parse, combinations(row["recipes"]))]})
        for row in _content()["value"]
    )


def find(where: str, recipe: AnyRecipe, quantity: str, scale: float | None = None) -> Reference | None:
    """The published value that a figure or table, such as "figure 4", can show for a recipe."""
    for item in references():
        same = item.quantity == quantity and item.scale == scale
        if same and where in item.shown and item.fits(recipe):
            return item
    return None


def memory_of(recipe: AnyRecipe, where: str = "") -> Reference | None:
    """The published memory of a procedure: its spread, or the difference between its two scales.

    Where there are several, the one of a certain figure or table.
    """
    fitting = [item for item in references() if item.quantity in ("spread", "gap") and item.fits(recipe)]
    return next((item for item in fitting if where in item.shown), next(iter(fitting), None))


def observations() -> list[Observation]:
    """What the paper saw: the published memory of its recipes, and their clocks over the real schedule."""
    seen: dict[Recipe, Observation] = {}
    for item in references():
        if item.quantity not in ("spread", "gap"):
            continue
        study = load_study(item.study, "paper")
        within = item.value <= TOLERANCE_PP
        known = item.relation not in ((">", ">=") if within else ("<", "<="))
        forgot = within if known else None
        for label, recipe in zip(study.labels(), (recipe.network for recipe in study.recipes), strict=True):
            if item.fits(recipe) and recipe not in seen:
                family, clock = family_clock(recipe, sizes(recipe).n_train)
                name, text = f"{label} ({item.study})", f"{item} {item.unit}"
                about = (family, clock, item.value, text, "", forgot)
                seen[recipe] = Observation("paper", name, recipe, *about)
    return list(seen.values())


def clock_of(recipe: AnyRecipe, clock: str) -> float | None:
    """The published value of a clock, for exactly this recipe at its full size."""
    rows = (row for row in _content()["clock"] if row["clock"] == clock)
    return next((row["value"] for row in rows if Recipe.parse(row["recipe"]) == recipe), None)


def stated(table: str, **of: Any) -> dict[str, Any]:
    """The row with these values in a table of what was published besides measurements and clocks.

    The tables are `setting`, of an optimizer in the main grid, `parameters`, of a model in millions, and
    `imbalance`, D at the end of a trajectory of figure 9. Without such a row it is empty.
    """
    rows = (row for rows in _content()[table] for row in combinations(rows))
    return next((row for row in rows if of.items() <= row.items()), {})
