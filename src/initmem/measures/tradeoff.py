"""Are the recipes that forget also those that generalize? Memory against the best mean over scales."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from scipy.special import ndtri

from initmem.errors import ConfigError, count
from initmem.labels import phrase
from initmem.measures.statistics import ALPHA, Limits
from initmem.measures.verdict import Memory
from initmem.metric import metric_of
from initmem.recipe import AnyRecipe

FEWEST = 4  # recipes: the error of a rank correlation is that of n - 3 values


class Tradeoff(NamedTuple):
    """The recipes that were trained on the same data."""

    data: str
    memories: list[Memory]
    best: list[float]  # by recipe: the metric at its best scale, mean over seeds
    correlation: Limits

    def __str__(self) -> str:
        value, low, high = self.correlation
        return f"{value:.2f} [{low:.2f}, {high:.2f}]"


def tradeoffs(
    memories: Iterable[Memory], recipes: Mapping[str, AnyRecipe]
) -> tuple[list[Tradeoff], list[str]]:
    """The rank correlation for every dataset and number of training examples, and which have too few recipes.

    Metrics of different data do not compare. `recipes` are given by their ids.
    """
    parts: dict[str, list[Memory]] = {}
    few = []
    for row in memories:
        if row.memory is None or row.n_scales < 2 or row.verdict in ("untrained", "not applicable"):
            few.append(f"{row.recipe}: {'no memory' if row.verdict == 'inconclusive' else row.verdict}")
        else:
            recipe = recipes[row.recipe_id]
            known = [phrase(recipe, name) for name in ("dataset", "train_size") if recipe.get(name)]
            parts.setdefault(", ".join(known) or "own data", []).append(row)
    groups = []
    for data, rows in parts.items():
        if len(rows) < FEWEST:
            few.append(f"{data}: {count(len(rows), 'recipe')} (needed: {FEWEST})")
            continue
        choose = np.min if metric_of(rows[0].metric).better == "lower" else np.max
        best = [float(choose(row.values.mean(axis=0))) for row in rows]
        groups.append(Tradeoff(data, rows, best, rank_correlation([row.memory or 0.0 for row in rows], best)))
    if not groups:
        raise ConfigError(f"figure tradeoff: too few recipes with a memory ({'; '.join(few) or 'none'})")
    return groups, few


def rank_correlation(x: Sequence[float], y: Sequence[float], *, alpha: float = ALPHA) -> Limits:
    """Spearman's rank correlation with Fisher's interval, by the error of Bonett and Wright (2000).

    A perfect order counts as half an exchange of neighbors less in the error: without that, four recipes in
    order would have an interval of no width. The limits are those of a random sample of recipes.
    """
    from scipy.stats import rankdata

    n = len(x)
    ranks = np.array([rankdata(x), rankdata(y)])
    if n < FEWEST or not np.ptp(ranks, axis=1).all():
        return Limits(math.nan, -1.0, 1.0)
    value = float(np.corrcoef(ranks)[0, 1])
    most = 1 - 6 / (n**3 - n)
    inside = min(max(value, -most), most)
    half = float(ndtri(1 - alpha / 2)) * math.sqrt((1 + inside**2 / 2) / (n - 3))
    low, high = (math.tanh(math.atanh(inside) + side * half) for side in (-1, 1))
    return Limits(value, -1.0 if value < -most else low, 1.0 if value > most else high)
