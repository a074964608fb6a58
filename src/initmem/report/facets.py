"""Which recipes share a chart: few enough lines to be told apart, and the same style for the same name."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import NamedTuple

from initmem.plots.captions import phrase
from initmem.plots.model import Member, Style
from initmem.plots.styles import PALETTE, nth
from initmem.recipe import AnyRecipe, labels

MOST_LINES = 8
# What charts are split by, the most telling first; the optimizer tells lines apart within a chart.
FIRST = ("batch_size", "l2", "learning_rate", "model", "norm", "augment")
NEVER = ("optimizer", "data_sha256")


class Facet(NamedTuple):
    """One chart; the key of a member is its recipe, its label what tells it from the others here."""

    title: str
    members: list[Member]


def facets(groups: Sequence[tuple[str, Sequence[AnyRecipe]]]) -> list[Facet]:
    """Charts for named groups of recipes, such as the studies of a store."""
    several = len(groups) > 1
    parts = [
        (", ".join(filter(None, [name if several else "", title])), members)
        for name, recipes in groups
        for title, members in _split(recipes)
    ]
    return styled(parts)


def styled(parts: Sequence[tuple[str, Sequence[AnyRecipe]]], *, by_batch_size: bool = False) -> list[Facet]:
    """Name the lines of every chart. A name keeps its style, unless two in one chart would look alike."""
    styles: dict[str, Style] = {}
    charts = []
    for title, recipes in parts:
        names = [f"b{r.get('batch_size')}" for r in recipes] if by_batch_size else labels(list(recipes))
        chosen = _styles(names, styles)
        charts.append(Facet(title, [Member(*member) for member in zip(recipes, names, chosen, strict=True)]))
    return charts


def _styles(names: Sequence[str], styles: dict[str, Style]) -> list[Style]:
    """A style for each line of a chart, all different as long as there are enough; new names are noted."""
    wanted = {styles[name] for name in names if name in styles}
    chosen: list[Style] = []
    for i, name in enumerate(names):
        style = styles.get(name)
        if style is None or style in chosen:
            free = [s for s in PALETTE if s not in chosen]
            style = next((s for s in free if s not in wanted), free[0] if free else nth(i))
        styles.setdefault(name, style)
        chosen.append(style)
    return chosen


def _split(recipes: Sequence[AnyRecipe]) -> list[tuple[str, list[AnyRecipe]]]:
    """Add fields to split by until every chart has few enough lines."""
    fields: list[str] = []
    groups = _grouped(recipes, fields)
    names = dict.fromkeys(name for recipe in recipes for name in recipe.settings())
    for name in [*FIRST, *(field for field in names if field not in FIRST)]:
        if max(map(len, groups), default=0) <= MOST_LINES:
            break
        if name not in NEVER and len({str(recipe.get(name)) for recipe in recipes}) > 1:
            fields.append(name)
            groups = _grouped(recipes, fields)
    charts = []
    for members in groups:
        title = ", ".join(_title(members[0], name) for name in fields)
        pieces = [members[i : i + MOST_LINES] for i in range(0, len(members), MOST_LINES)]
        charts += [(f"{title} ({i + 1})" if i else title, piece) for i, piece in enumerate(pieces)]
    return charts


def _grouped(recipes: Sequence[AnyRecipe], fields: Sequence[str]) -> list[list[AnyRecipe]]:
    groups: dict[Hashable, list[AnyRecipe]] = {}
    for recipe in recipes:
        groups.setdefault(tuple(str(recipe.get(name)) for name in fields), []).append(recipe)
    return list(groups.values())


def _title(recipe: AnyRecipe, name: str) -> str:
    """One field of a recipe in the title of a chart."""
    return f"batch size {recipe.get(name)}" if name == "batch_size" else phrase(recipe, name)
