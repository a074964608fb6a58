"""Colors, markers and dashes: Okabe and Ito's palette, and never color alone.

An optimizer has one color in every figure; its recipes are shades of it. What is compared within one
optimizer (networks, norms, batch sizes of a page) has the ordered colors.
"""

from __future__ import annotations

from collections.abc import Sequence

from initmem.plots.model import Style
from initmem.recipe import AnyRecipe

BLUE, VERMILLION, GREEN = "#0072B2", "#D55E00", "#009E73"
PURPLE, ORANGE, SKY = "#CC79A7", "#E69F00", "#56B4E9"
GREY, OLIVE = "#7F7F7F", "#B8A900"
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
DASHES = ("-", "--", "-.", ":")
COLORS = (BLUE, VERMILLION, GREEN, PURPLE, ORANGE, SKY, GREY, OLIVE)
# The page has a light and a dark shade of every color, in the same order; those of ordered values follow.
PALETTE = tuple(Style(color, MARKERS[i], DASHES[i % len(DASHES)]) for i, color in enumerate(COLORS))
_NAMES = ("adam", "sgd", "muon", "muon-conv", "momentum", "adamw", "normuon", "lion")
OPTIMIZERS = dict(zip(_NAMES, PALETTE, strict=True)) | {
    "schedule-free-sgd": Style("#8C3D00", "o", ":"),
    "schedule-free-adamw": Style("#1F5F8B", "s", ":"),
}
GUIDE = Style("#404040", "", "--", width=0.9)

# From dark to light, so that order shows in print too; markers tell them apart as well.
SEQUENCE = ("#440154", "#3B528B", "#21918C", "#5EC962", "#C2A000", "#7F7F7F")
ORDERED = tuple(Style(color, MARKERS[i], DASHES[i % len(DASHES)]) for i, color in enumerate(SEQUENCE))


def nth(i: int) -> Style:
    """The style of the i-th recipe; after eight they repeat."""
    return PALETTE[i % len(PALETTE)]


def in_order(i: int) -> Style:
    """The style of the i-th of some values that are compared; colors repeat with other markers."""
    color = SEQUENCE[i % len(SEQUENCE)]
    return Style(color, MARKERS[i % len(MARKERS)], DASHES[i % len(DASHES)])


def optimizer_style(name: str) -> Style:
    """The style of an optimizer; those of plugins are black."""
    return OPTIMIZERS.get(name, Style("#000000", "X", "-."))


def shades(color: str, n: int) -> list[str]:
    """n shades of a color from dark to light; a single one is the color itself."""
    channels = [int(color[i : i + 2], 16) for i in (1, 3, 5)]
    mixed = []
    for i in range(n):
        share = 0.0 if n == 1 else -0.5 + 1.1 * i / (n - 1)  # of black below zero, of white above
        goal = 0 if share < 0 else 255
        mixed.append("#" + "".join(f"{round(c + abs(share) * (goal - c)):02X}" for c in channels))
    return mixed


def variants(style: Style, n: int) -> list[Style]:
    """n styles in shades of one color, each with a marker and dashes of its own."""
    if n == 1:
        return [style]
    return [
        style._replace(color=color, marker=MARKERS[i % len(MARKERS)], dash=DASHES[i % len(DASHES)])
        for i, color in enumerate(shades(style.color, n))
    ]


def recipe_styles(recipes: Sequence[AnyRecipe]) -> list[Style]:
    """Recipes by the color of their optimizer; where none is known, each its own color."""
    groups: dict[str, list[int]] = {}
    for i, recipe in enumerate(recipes):
        name = str(recipe.get("optimizer")).lower()  # user code may declare torch's name of it
        groups.setdefault(name if name in OPTIMIZERS else f"{i}", []).append(i)
    taken = {OPTIMIZERS.get(name) for name in groups}
    free = [style for style in PALETTE if style not in taken] or PALETTE
    chosen: dict[int, Style] = {}
    for name, members in groups.items():
        own = OPTIMIZERS.get(name) or free[len(chosen) % len(free)]
        chosen |= dict(zip(members, variants(own, len(members)), strict=True))
    return [chosen[i] for i in range(len(recipes))]


def crossed(rates: Sequence[float], penalties: Sequence[float]) -> dict[tuple[float, float], Style]:
    """SGD by learning rate and L2: shades of its color for the one, markers and dashes for the other."""
    colors = shades(OPTIMIZERS["sgd"].color, len(rates))
    return {
        (rate, penalty): Style(colors[i], MARKERS[j % len(MARKERS)], DASHES[j % len(DASHES)])
        for i, rate in enumerate(rates)
        for j, penalty in enumerate(penalties)
    }
