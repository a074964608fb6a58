"""What stands on the pages: the survey of a store, and what each recipe's records say."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import cached_property

from initmem.measures.collapse import Collapse
from initmem.measures.design import by_recipe
from initmem.measures.looks import looks_of
from initmem.measures.memory import Memory, adjust_memories
from initmem.measures.rows import families
from initmem.plots.captions import common
from initmem.recipe import AnyRecipe, PipelineRecipe, labels
from initmem.report.facets import Facet, facets, styled
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
        self.stats = self._kept.stats(self.groups, looks_of(survey.studies))
        self._families = families({self.names[recipe]: records for recipe, records in self.groups.items()})

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
        named = [replace(item.memory, recipe=self.names[recipe]) for recipe, item in self.stats.items()]
        return adjust_memories(named)

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
        """What all recipes share: data, network, length. Of a user's own code that is not known."""
        own = any(isinstance(recipe, PipelineRecipe) for recipe in self.names)
        return "" if own else common(list(self.names))

    def epochs(self, recipe: AnyRecipe) -> int | None:
        """How long a recipe trains; of a user's own code, as long as the longest run so far."""
        trained = self.stats[recipe].epochs if recipe in self.stats else 0
        return recipe.get("epochs") or trained or None
