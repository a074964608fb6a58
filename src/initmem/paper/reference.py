"""Published values, as data, to be shown beside what was measured."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Any, NamedTuple

from initmem.recipe import Recipe

# The procedure of a recipe; a value of the paper names what differs from these, whatever the size of a study.
PLAIN: Mapping[str, Any] = {
    "model": "resnet9",
    "norm": "batch",
    "l2": 0.0,
    "augment": "none",
    "schedule": "cosine",
}
WORDS = {"=": "", "<": "< ", "<=": "≤ ", ">=": "≥ ", "about": "≈ "}


class Reference(NamedTuple):
    """One published value; `recipe` holds the fields that it was published for."""

    study: str
    recipe: Mapping[str, Any]
    quantity: str  # spread, test, train, gap or beta
    value: float
    unit: str
    shown: tuple[str, ...]  # "figure 4", "table 4", ...
    relation: str = "="
    scale: float | None = None
    n_scales: int | None = None  # over how many scales a spread was taken

    def __str__(self) -> str:
        digits = 2 if self.quantity == "beta" else 1
        return f"{WORDS[self.relation]}{self.value:.{digits}f}"

    def fits(self, recipe: Recipe) -> bool:
        """Whether the value was published for the procedure of this recipe, whatever its size."""
        needed = {**PLAIN, **self.recipe}
        return all(
            getattr(recipe, name) in (value if isinstance(value, list) else [value])
            for name, value in needed.items()
        )


@cache
def references() -> tuple[Reference, ...]:
    """All published values."""
    text = (resources.files("initmem") / "paper/reference.toml").read_text("utf-8")
    return tuple(Reference(**row | {"shown": tuple(row["shown"])}) for row in tomllib.loads(text)["value"])


def find(where: str, recipe: Recipe, quantity: str, scale: float | None = None) -> Reference | None:
    """The published value that a figure or table, such as "figure 4", can show for a recipe."""
    for item in references():
        same = item.quantity == quantity and item.scale == scale
        if same and where in item.shown and item.fits(recipe):
            return item
    return None
