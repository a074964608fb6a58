"""What stands on the pages: a store by recipe, and which recipes share a chart."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import NamedTuple

from initmem.labels import labels
from initmem.measures.collapse import Collapse, families
from initmem.measures.design import analyses_of, by_recipe
from initmem.measures.memory import Memory, judged
from initmem.plots.captions import common, phrase
from initmem.plots.model import Member, Style
from initmem.plots.styles import PALETTE, nth
from initmem.recipe import AnyRecipe, PipelineRecipe
from initmem.report.recipe_stats import Kept
from initmem.store.results import Survey
from initmem.study import Study


def runs_of(recipe_id: str, scale: float | None = None) -> str:
    """Where on the page the runs behind a number are listed."""
    return f"#runs:{recipe_id}" + ("" if scale is None else f":{scale:g}")


class Content:
    """Everything the parts of a page are made of. Recipes in the order of the studies."""

    def __init__(self, survey: Survey, kept: Kept | None = None) -> None:
        """Group a survey by recipe; `kept` holds what was worked out for an earlier one."""
        self._kept = kept or Kept()
        self.survey = survey
        self.groups = by_recipe(survey.records, survey.order())
        every = list(dict.fromkeys([*survey.order(), *self.groups]))
        self.names = dict(zip(every, labels(every), strict=True))  # those of the studies and of the records
        self.stats = self._kept.stats(self.groups, analyses_of(survey.studies, self.groups))
        self._families = families(self.groups.values())

    @property
    def families(self) -> dict[str, list[AnyRecipe]]:
        """Recipes that differ in batch size alone, by what they share."""
        return {name: [one[0].run.recipe for one in members] for name, members in self._families.items()}

    @cached_property
    def collapses(self) -> dict[str, Collapse]:
        """Against which axis the batch sizes of each family agree."""
        return self._kept.collapses(self._families)

    @cached_property
    def memories(self) -> list[Memory]:
        """The memory of every recipe, as `initmem measure` has it."""
        return judged([replace(one.memory, recipe=self.names[key]) for key, one in self.stats.items()])

    @cached_property
    def memory_of(self) -> dict[AnyRecipe, Memory]:
        """The same by recipe."""
        return dict(zip(self.stats, self.memories, strict=True))

    def study_of(self, recipe: AnyRecipe) -> Study | None:
        """The first study that asks for a recipe."""
        return next((study for study in self.survey.studies if recipe in study.recipes), None)

    @cached_property
    def facets(self) -> list[Facet]:
        """The charts of metrics against scale: by study, then by whatever keeps the lines few."""
        groups: dict[str, list[AnyRecipe]] = {}
        for recipe in self.stats:
            study = self.study_of(recipe)
            groups.setdefault(f"{study.name} ({study.effort})" if study else "other runs", []).append(recipe)
        return facets(list(groups.items()))

    @cached_property
    def family_facets(self) -> list[Facet]:
        """The charts of beta: a family of batch sizes each, where there are families."""
        if not self.families:
            return self.facets
        inside = {recipe for members in self.families.values() for recipe in members}
        alone = [recipe for recipe in self.stats if recipe not in inside]
        together = styled(list(self.families.items()), by_batch_size=True)
        return together + [facet._replace(title=facet.title or "others") for facet in facets([("", alone)])]

    @property
    def metric(self) -> str:
        """What the memory of most recipes is measured in."""
        counts = Counter(item.metric for item in self.stats.values())
        return counts.most_common(1)[0][0] if counts else "test_accuracy"

    @property
    def setting(self) -> str:
        """What all recipes share: data, network, length. Of user code that is not known."""
        own = any(isinstance(recipe, PipelineRecipe) for recipe in self.names)
        return "" if own else common(list(self.names))

    def epochs(self, recipe: AnyRecipe) -> int | None:
        """How long a recipe trains; of user code, as long as the longest run so far."""
        trained = self.stats[recipe].epochs if recipe in self.stats else 0
        return recipe.get("epochs") or trained or None


# -- which recipes share a chart --------------------------------------------------------------------------


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
