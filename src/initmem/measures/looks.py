"""More than one look at the same study: how much of the level each look may spend.

A test at 5% after five seeds, again after ten, and so on, reports a memory that is not there in far more than
5% of all studies. With a schedule that is fixed beforehand every look gets a share of the level, by the
spending function of Lan and DeMets that resembles Pocock's design: alpha log(1 + (e - 1) t) at the share t of
the largest number of seeds. A look is tested at exactly what it spends, so that the sum bounds the error
whatever the dependence between looks. Unplanned looks come on top: each has half the level of the one before,
and the verdict says what all of them have spent.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

from initmem.measures.statistics import ALPHA
from initmem.recipe import AnyRecipe
from initmem.study import Study

FIRST_LOOK = 5  # seeds


class Look(NamedTuple):
    """Which look at a recipe this is, from 1, its own level, and the level of all looks so far together."""

    number: int = 1
    alpha: float = ALPHA
    spent: float = ALPHA


def schedule(seeds: int, most: int) -> tuple[int, ...]:
    """Numbers of seeds at which to look: from five, or what is there, doubling up to `most`."""
    looks = [max(seeds, min(FIRST_LOOK, most))]
    while looks[-1] < most:
        looks.append(2 * looks[-1] if 8 * looks[-1] <= 3 * most else most)  # no last step of a few seeds
    return tuple(looks)


def levels(planned: tuple[int, ...]) -> list[float]:
    """The level of each planned look; they add up to ALPHA."""
    spent = [ALPHA * math.log1p((math.e - 1) * n / planned[-1]) for n in planned]
    return [now - before for now, before in zip(spent, [0.0, *spent], strict=False)]


def look_of(study: Study, recipe: AnyRecipe) -> Look:
    """The look that the seeds of a recipe in a study make."""
    planned, unplanned = study.schedule, len(study.looked)
    if not planned:
        return Look(unplanned + 1, ALPHA / 2**unplanned, ALPHA * (2 - 0.5**unplanned))
    seeds = len(study.seeds_of(recipe))
    each = levels(planned)
    made = next((i for i, n in enumerate(planned) if n >= seeds), len(planned) - 1)
    beyond = unplanned + (seeds > planned[-1])
    if beyond:
        return Look(made + 1 + beyond, ALPHA / 2**beyond, ALPHA * (2 - 0.5**beyond))
    return Look(made + 1, each[made], sum(each[: made + 1]))


def looks_of(studies: Iterable[Study], recipes: Iterable[AnyRecipe] = ()) -> dict[AnyRecipe, Look]:
    """The looks at every recipe; of several studies that share one, the one that has spent most counts.

    Of `recipes`, those in no study were in one that was since run with others under the same name. Its looks
    were theirs too, so they get the look that has spent most of all.
    """
    looks: dict[AnyRecipe, Look] = {}
    for study in studies:
        for recipe in study.recipes:
            look = look_of(study, recipe)
            if recipe not in looks or look.spent > looks[recipe].spent:
                looks[recipe] = look
    most = max(looks.values(), key=lambda look: look.spent, default=Look())
    return dict.fromkeys(recipes, most) | looks
