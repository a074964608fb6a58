"""Colors, markers and dashes: Okabe and Ito's palette, and never color alone.

An optimizer has one color in every figure; its recipes are shades of it. What is compared within one
optimizer (networks, norms, batch sizes of a page) has the ordered colors. Many recipes are divided into
panels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from initmem.labels import labels, phrase
from initmem.plots.model import Style
from initmem.recipe import AnyRecipe

MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
DASHES = ("-", "--", "-.", ":")
# Blue, vermillion, green, purple, orange, sky blue, gray and olive.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7F7F7F", "#B8A900")


def marked(color: str, i: int) -> Style:
    """A color with the i-th marker and dashes, which come again."""
    return Style(color, MARKERS[i % len(MARKERS)], DASHES[i % len(DASHES)])


PALETTE = tuple(marked(color, i) for i, color in enumerate(COLORS))
_NAMES = ("adam", "sgd", "muon", "muon-conv", "momentum", "adamw", "normuon", "lion")
OPTIMIZERS = dict(zip(_NAMES, PALETTE, strict=True)) | {
    "schedule-free-sgd": Style("#8C3D00", "o", ":"),
    "schedule-free-adamw": Style("#1F5F8B", "s", ":"),
}
GUIDE = Style("#404040", "", "--", width=0.9)

# From dark to light, so that order shows in print too; markers tell them apart as well.
SEQUENCE = ("#440154", "#3B528B", "#21918C", "#5EC962", "#C2A000", "#7F7F7F")
# The page has a light and a dark shade of every hue, in the same order.
HUES = (*COLORS, *SEQUENCE, "#8C3D00", "#1F5F8B")
ORDERED = tuple(marked(color, i) for i, color in enumerate(SEQUENCE))


def in_order(i: int) -> Style:
    """The style of the i-th of some values that are compared; colors repeat with other markers."""
    return marked(SEQUENCE[i % len(SEQUENCE)], i)


def optimizer_style(name: str) -> Style:
    """The style of an optimizer; those of plugins are black."""
    return OPTIMIZERS.get(name, Style("#000000", "X", "-."))


def shades(n: int) -> list[float]:
    """n shades of a color from dark to light, all of which stand out on paper; one is the color itself."""
    return [0.0 if n == 1 else round(-0.5 + 0.85 * i / (n - 1), 3) for i in range(n)]


def variants(style: Style, n: int, taken: Sequence[str] = ()) -> list[Style]:
    """n styles in shades of one color, each with dashes and a marker of its own, none of those taken."""
    if n == 1:
        return [style]
    free = [marker for marker in MARKERS if marker not in taken]
    markers = free if len(free) >= n else MARKERS
    return [
        style._replace(shade=shade, marker=markers[i % len(markers)], dash=DASHES[i % len(DASHES)])
        for i, shade in enumerate(shades(n))
    ]


def recipe_styles(recipes: Sequence[AnyRecipe]) -> list[Style]:
    """Recipes by the color of their optimizer; where none is known, each its own color."""
    groups: dict[str, list[int]] = {}
    for i, recipe in enumerate(recipes):
        name = str(recipe.get("optimizer")).lower()  # user code may declare torch's name of it
        groups.setdefault(name if name in OPTIMIZERS else f"{i}", []).append(i)
    own = [OPTIMIZERS.get(name) for name in groups]
    free = [style for style in PALETTE if style not in own] or PALETTE
    chosen: dict[int, Style] = {}
    taken = [
        style.marker
        for style, members in zip(own, groups.values(), strict=True)
        if style and len(members) == 1
    ]
    for style, members in zip(own, groups.values(), strict=True):
        styles = variants(style or free[len(chosen) % len(free)], len(members), taken)
        taken += [one.marker for one in styles]
        chosen |= dict(zip(members, styles, strict=True))
    return [chosen[i] for i in range(len(recipes))]


def crossed(rates: Sequence[float], penalties: Sequence[float]) -> dict[tuple[float, float], Style]:
    """SGD by learning rate and L2: shades of its color for the one, markers and dashes for the other."""
    return {
        (rate, penalty): marked(OPTIMIZERS["sgd"].hue, j)._replace(shade=shade)
        for rate, shade in zip(rates, shades(len(rates)), strict=True)
        for j, penalty in enumerate(penalties)
    }


# -- which recipes share a panel: figures and the page divide many alike ------------------------------------

MOST_LINES = 8


class Facet(NamedTuple):
    """One panel: its recipes, each with a label of the fields that vary within the panel, and its style."""

    title: str
    members: list[tuple[AnyRecipe, str, Style]]


Part = tuple[str, Sequence[AnyRecipe]]  # the title of a panel, and its recipes


def split(recipes: Sequence[AnyRecipe], fields: Sequence[str], title: str = "") -> list[Part]:
    """Divide recipes by one field after the other until panels have few enough lines; titles name them."""
    if len(recipes) <= MOST_LINES or not fields:
        return [
            (f"{title} ({i // MOST_LINES + 1})".strip() if i else title, recipes[i : i + MOST_LINES])
            for i in range(0, len(recipes), MOST_LINES)
        ]
    field, *others = fields
    if len({str(recipe.get(field)) for recipe in recipes}) == 1:
        return split(recipes, others, title)
    groups: dict[str, list[AnyRecipe]] = {}
    for recipe in recipes:
        groups.setdefault(", ".join(filter(None, [title, phrase(recipe, field)])), []).append(recipe)
    return [part for text, members in groups.items() for part in split(members, others, text)]


def styled(
    parts: Sequence[Part], names_of: Callable[[Sequence[AnyRecipe]], Sequence[str]] = labels
) -> list[Facet]:
    """Label the lines of every panel, in shades of the color of their optimizer.

    A label has the same style in all panels, unless there are too many of them to look different.
    """
    named = [(title, recipes, names_of(recipes)) for title, recipes in parts]
    every = {name: recipe for _, recipes, names in named for name, recipe in zip(names, recipes, strict=True)}
    shared = dict(zip(every, recipe_styles(list(every.values())), strict=True))
    few = len(every) <= MOST_LINES
    return [
        Facet(title, list(zip(recipes, names, styles, strict=True)))
        for title, recipes, names in named
        for styles in [[shared[name] for name in names] if few else recipe_styles(recipes)]
    ]
