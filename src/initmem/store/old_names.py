"""Records of schema 1 under the names that their losses have today, and back.

Up to then the history of a bundled network had `train_loss`, which was the cross-entropy, and `val_loss`,
which was the objective; the summary had `test_loss`, the cross-entropy again. Renamed, their names say which.
The objectives of training and test follow from the recorded norm. A record that is copied, as into an
archive, is written as it was.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from typing import Any

from initmem.recipe import AnyRecipe, Recipe
from initmem.record import RENAMED, History, Summary

FORMER = {new: old for old, new in RENAMED.items()}
ADDED = ("train_objective", "test_cross_entropy", "test_objective")  # what schema 1 does not have


def present_history(history: History, recipe: AnyRecipe) -> History:
    """A history of schema 1 under present names; (epoch,) each."""
    if not isinstance(recipe, Recipe) or not history:
        return history
    import numpy as np

    return {name: np.asarray(column) for name, column in present_rows(history, recipe.l2).items()}


def present_rows(rows: Mapping[str, Iterable[float]], l2: float) -> dict[str, Iterable[float]]:
    """The columns of a bundled network under present names; the objective of training is added."""
    named = {RENAMED.get(name, name): column for name, column in rows.items()}
    if "train_objective" not in named and {"train_cross_entropy", "norm"} <= named.keys():
        pairs = zip(named["train_cross_entropy"], named["norm"], strict=True)
        named["train_objective"] = [plain + l2 * norm**2 for plain, norm in pairs]
    return named


def former_history(history: History, recipe: AnyRecipe) -> History:
    """The inverse: as it was written."""
    if not isinstance(recipe, Recipe):
        return history
    return {FORMER.get(name, name): column for name, column in history.items() if name not in ADDED}


def present_summary(summary: Summary, recipe: AnyRecipe) -> Summary:
    """A summary of schema 1 under present names."""
    plain, norm = summary.test_loss, summary.norm_best
    if not isinstance(recipe, Recipe) or plain is None:
        return summary
    objective = None if norm is None else plain + recipe.l2 * norm**2
    return replace(summary, test_loss=None, test_cross_entropy=plain, test_objective=objective)


def former_summary(summary: Summary, recipe: AnyRecipe) -> Mapping[str, Any]:
    """The inverse: as it was written."""
    values = asdict(summary)
    if isinstance(recipe, Recipe):
        values["test_loss"] = values["test_cross_entropy"]
    return {name: value for name, value in values.items() if name not in ADDED}
