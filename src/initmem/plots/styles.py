"""Colors, markers and dashes: Okabe and Ito's palette, and never color alone."""

from __future__ import annotations

from collections.abc import Sequence

from initmem import catalog
from initmem.plots.model import Style

VERMILLION, ORANGE, BLUE, SKY, GREEN, PURPLE = (
    "#D55E00",
    "#E69F00",
    "#0072B2",
    "#56B4E9",
    "#009E73",
    "#CC79A7",
)
BLACK, GREY, OLIVE = "#000000", "#7F7F7F", "#B8A900"
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
DASHES = ("-", "--", "-.", ":")
COLORS = (BLUE, VERMILLION, GREEN, PURPLE, ORANGE, SKY, GREY, OLIVE)
# Recipes of any kind; the page has a light and a dark shade of every color, in the same order, and then of
# those of ordered values.
PALETTE = tuple(Style(color, MARKERS[i], DASHES[i % len(DASHES)]) for i, color in enumerate(COLORS))

OPTIMIZERS = {
    "sgd": Style(VERMILLION, "o", "-"),
    "momentum": Style(ORANGE, "s", "--"),
    "adam": Style(BLUE, "^", "-"),
    "adamw": Style(SKY, "v", "--"),
    "muon": Style(GREEN, "D", "-."),
    "muon-conv": Style(PURPLE, "P", ":"),
}
MODELS = {
    "resnet9": Style(BLUE, "o", "-"),
    "resnet9-avgpool": Style(SKY, "s", "--"),
    "resnet56": Style(ORANGE, "^", "-."),
    "resnet110": Style(VERMILLION, "D", ":"),
    "mlp": Style(PURPLE, "P", "-"),
    "vit": Style(GREEN, "v", "-"),
    "gpt": Style(BLACK, "X", "--"),
}
NORMS = {
    ("batch", "flip-crop"): Style(BLUE, "o", "-"),
    ("layer", "flip-crop"): Style(ORANGE, "s", "-."),
    ("batch", "none"): Style(GREY, "^", "--"),
    ("layer", "none"): Style(PURPLE, "D", ":"),
}
PENALISED = Style(BLACK, "X", ":")  # sgd with a kernel penalty, beside the optimizers of the main grid
ADAM = Style(BLACK, "*", "--")  # beside a sweep of SGD, whose colors mean learning rates
LONG = Style(GREY, "X", ":")
GUIDE = Style("#404040", "", "--", width=0.9)

# From dark to light, so that order shows in print too; markers tell them apart as well.
SEQUENCE = ("#440154", "#3B528B", "#21918C", "#5EC962", "#C2A000", "#7F7F7F")
ORDERED = tuple(Style(color, MARKERS[i], DASHES[i % len(DASHES)]) for i, color in enumerate(SEQUENCE))


def adam_beside_sgd(i: int) -> Style:
    """Adam in a sweep of SGD: black, a marker for each of its settings."""
    return ADAM._replace(marker=("*", "P", "X", "v")[i % 4])


def optimizer_style(name: str) -> Style:
    """The style of an optimizer; those without one of their own repeat the palette in a fixed order."""
    others = list(catalog.OPTIMIZERS)
    return OPTIMIZERS.get(name) or nth(others.index(name) if name in others else len(others))


def model_style(name: str) -> Style:
    """The style of a network; those of plugins share one."""
    return MODELS.get(name, Style(GREY, "*", ":"))


def nth(i: int) -> Style:
    """The style of the i-th recipe; after eight they repeat."""
    return PALETTE[i % len(PALETTE)]


def in_order(values: Sequence[object]) -> dict[object, Style]:
    """Styles for ordered values, such as batch sizes."""
    return {value: ORDERED[i % len(ORDERED)] for i, value in enumerate(values)}


def crossed(rates: Sequence[float], penalties: Sequence[float]) -> dict[tuple[float, float], Style]:
    """Learning rate by color, penalty by marker and dashes."""
    colors = (VERMILLION, BLUE, GREEN, PURPLE, ORANGE, SKY)
    return {
        (rate, penalty): Style(colors[i % len(colors)], MARKERS[j % len(MARKERS)], DASHES[j % len(DASHES)])
        for i, rate in enumerate(rates)
        for j, penalty in enumerate(penalties)
    }
