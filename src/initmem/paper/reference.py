"""Published values, as data, to be shown beside what was measured."""

from __future__ import annotations

import itertools
import tomllib
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Any, NamedTuple

from initmem.recipe import AnyRecipe, Recipe

# What an effort may change: the size of the work, not the procedure. It is said wherever the two meet.
SIZE = frozenset({"train_size", "width", "epochs", "data_sha256"})
SYMBOLS = {"=": "", "<": "< ", "<=": "≤ ", ">": "> ", ">=": "≥ ", "about": "≈ "}


class Reference(NamedTuple):
    """One published value, and the recipes that it was published for."""

    study: str
    recipes: tuple[Recipe, ...]
    quantity: str  # spread, test, train, gap, beta, tau_best or tau_interp
    value: float
    unit: str
    shown: tuple[str, ...]  # "figure 4", "table 4", ...
    relation: str = "="
    scale: float | None = None
    n_scales: int | None = None  # of a spread: more scales, larger spread

    def __str__(self) -> str:
        digits = {"beta": 2, "tau_best": 0, "tau_interp": 0}.get(self.quantity, 1)
        return f"{SYMBOLS[self.relation]}{self.value:.{digits}f}"

    def fits(self, recipe: AnyRecipe) -> bool:
        """Whether the value was published for exactly this procedure, at whatever size."""
        return isinstance(recipe, Recipe) and _procedure(recipe) in map(_procedure, self.recipes)


def _procedure(recipe: Recipe) -> dict[str, Any]:
    return {name: value for name, value in recipe.settings().items() if name not in SIZE}


@cache
def references() -> tuple[Reference, ...]:
    """All published values."""
    text = (resources.files("initmem") / "paper/reference.toml").read_text("utf-8")
    return tuple(_reference(row) for row in tomllib.loads(text)["value"])


def _reference(row: Mapping[str, Any]) -> Reference:
    fields = dict(row)
    recipes, shown = _product(fields.pop("recipe")), tuple(fields.pop("shown"))
    return Reference(recipes=recipes, shown=shown, **fields)


def _product(fields: Mapping[str, Any]) -> tuple[Recipe, ...]:
    """The recipes of a value: a list stands for several that share it."""
    axes = [value if isinstance(value, list) else [value] for value in fields.values()]
    combinations = (dict(zip(fields, values, strict=True)) for values in itertools.product(*axes))
    return tuple(Recipe.parse(combination) for combination in combinations)


def find(where: str, recipe: AnyRecipe, quantity: str, scale: float | None = None) -> Reference | None:
    """The published value that a figure or table, such as "figure 4", can show for a recipe."""
    for item in references():
        same = item.quantity == quantity and item.scale == scale
        if same and where in item.shown and item.fits(recipe):
            return item
    return None
