"""Which records a figure or a table shows, and what it wants but the store does not hold.

A figure varies a few recipe fields (its axes) and holds all others fixed, at one *setting*. Records that
differ in any other field are never pooled: the setting that fills most of what is wanted is shown, and the
rest of what could have been shown is named in the notes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from initmem.labels import SILENT, label, phrase
from initmem.measures.design import by_recipe, plain
from initmem.plots.model import Style
from initmem.plots.series import usual_grid
from initmem.recipe import DEFAULTS, SIZE_FIELDS, AnyRecipe, Recipe
from initmem.record import RunRecord
from initmem.study import Study

Key = tuple[Any, ...]  # the values of the axes
Cells = dict[Key, list[RunRecord]]
Setting = tuple[tuple[str, Any], ...]  # the fixed fields, as changes from the defaults
Records = Sequence[RunRecord]
Studies = Sequence[Study]

# What a preset changes; the remaining fields are the procedure that a figure is about.
SIZE = SIZE_FIELDS | {"dataset"}
RATES = ("learning_rate", "l2")  # an optimizer may have its own


@dataclass(frozen=True, slots=True)
class Line:
    """A recipe as it is shown: a line of a panel, a row of a table. Without runs, `records` is empty."""

    key: Key
    label: str
    style: Style
    name: str  # in the list of what is missing
    recipe: Recipe  # without runs: what it would be
    records: list[RunRecord]
    expected: dict[float, int]  # how many seeds there should be at every scale, in ascending order

    def at(self, *scales: float) -> Line:
        """The same line at some of its scales."""
        records = [record for record in self.records if record.run.scale in scales]
        expected = {scale: n for scale, n in self.expected.items() if scale in scales}
        return replace(self, records=records, expected=expected)

    def missing(self) -> list[str]:
        """What the line lacks, in at most one sentence: scales without runs, seeds that are not there."""
        if not self.records:
            return [f"{self.name}: no runs"]
        n = Counter(record.run.scale for record in self.records)
        gone = [scale for scale in self.expected if not n[scale]]
        partial: dict[tuple[int, int], list[float]] = {}
        for scale, expected in self.expected.items():
            if 0 < n[scale] < expected:
                partial.setdefault((n[scale], expected), []).append(scale)
        phrases = [f"no runs at σ = {numbers(gone)}"] if gone else []
        phrases += [f"{a} of {b} seeds at σ = {numbers(scales)}" for (a, b), scales in partial.items()]
        return [f"{self.name}: {'; '.join(phrases)}"] if phrases else []


@dataclass(frozen=True, slots=True)
class Selection:
    """Records by the values of a figure's axes; all other recipe fields are the same in all cells."""

    fields: tuple[str, ...]
    cells: Cells
    setting: Setting
    notes: list[str]  # what could have been shown instead
    studies: Studies

    def axis(self, field: str) -> list[Any]:
        """The values of one axis for which there are records, in order of appearance."""
        index = self.fields.index(field)
        return list(dict.fromkeys(key[index] for key in self.cells))

    def any_recipe(self) -> Recipe | None:
        """One of the recipes shown; None without runs."""
        return next((records[0].run.recipe.network for records in self.cells.values()), None)

    def asked(self, recipe: AnyRecipe) -> Counter[float]:
        """How many seeds of a recipe the studies ask for, by scale; none if it is in no study."""
        studies = [study for study in self.studies if recipe in study.recipes]
        runs = {(scale, seed) for s in studies for seed in s.seeds_of(recipe) for scale, _ in s.levels}
        return Counter(scale for scale, _ in runs)

    def scales(self) -> list[float]:
        """All scales that were run or asked for."""
        groups = self.cells.values()
        run = {record.run.scale for group in groups for record in group}
        return sorted(run.union(*(self.asked(group[0].run.recipe) for group in groups)))

    def batch_sizes(self, wanted: Sequence[int]) -> list[int]:
        """The batch sizes to show: those wanted; and all there are, where a wanted one has no runs."""
        present = set(self.axis("batch_size"))
        return sorted(set(wanted) if present >= set(wanted) else present | set(wanted))

    def left_out(self, shown: Sequence[int]) -> list[str]:
        """A note on the batch sizes that have runs but are not shown."""
        others = [str(b) for b in sorted(self.axis("batch_size")) if b not in shown]
        return [f"Not shown: batch sizes {', '.join(others)}"] if others else []

    def line(self, key: Key, label: str, style: Style) -> Line:
        """The line of a cell, whether or not there are runs."""
        name, records = name_of(self.fields, key), self.cells.get(key, [])
        if not records:
            # Not validated: what is wanted of every store need not be allowed with every network.
            recipe = Recipe.model_construct(**dict(self.setting) | dict(zip(self.fields, key, strict=True)))
            return Line(key, label, style, name, recipe, [], {})
        recipe, n = records[0].run.recipe.network, Counter(record.run.scale for record in records)
        asked = self.asked(recipe)
        if not asked:  # no study: at every scale that most cells have, as many seeds as the fullest has
            asked = Counter(dict.fromkeys(usual_grid(self.cells.values()), max(n.values())))
        expected = {scale: max(asked[scale], n[scale]) for scale in sorted(asked.keys() | n.keys())}
        return Line(key, label, style, name, recipe, records, expected)


def select(
    records: Records,
    studies: Studies,
    fields: Sequence[str],
    wanted: Iterable[Key],
    *,
    own_rates: bool = False,
) -> Selection:
    """Arrange records by `fields` in the setting that covers most of `wanted`.

    Ties go to the setting whose procedure is nearest to the defaults, then to more runs. Networks may differ
    in patience. With `own_rates`, where the first field is the optimizer, one that has no run in the setting
    at all is shown with the learning rate and L2 that it has, and a note says so.
    """
    without = [*fields, *["patience"] * ("model" in fields)]
    settings: dict[Setting, Cells] = {}
    there: Counter[Key] = Counter()
    for recipe, group in by_recipe(records).items():
        usable = [record for record in plain(group) if record.status != "crashed"]
        if usable:
            cells = settings.setdefault(setting_of(recipe, without), {})
            key = tuple(getattr(recipe, name) for name in fields)
            cells[key] = max(cells.get(key, []), usable, key=len)
            there[key] += len(usable)
    goal = set(wanted)

    def rank(setting: Setting) -> tuple[int, int, int]:
        shown = settings[setting]
        changed = sum(name not in SIZE and DEFAULTS.get(name) != value for name, value in setting)
        return -len(goal & shown.keys()), changed, -sum(map(len, shown.values()))

    chosen, *rest = sorted(settings, key=rank) or [()]
    cells, others = settings.get(chosen, {}), {setting: settings[setting] for setting in rest}
    notes = _add_own_rates(cells, chosen, others) if own_rates else []
    hidden = sum(there[key] - len(cells.get(key, [])) for key in goal)
    notes += [f"Not shown: {hidden} runs that differ in other fields"] if hidden else []
    crashed = [record.run.recipe for record in records if record.status == "crashed"]
    lost = sum(setting_of(recipe, without) == chosen for recipe in crashed)
    notes += [f"{lost} runs crashed"] if lost else []
    return Selection(tuple(fields), cells, chosen, notes, studies)


def setting_of(recipe: AnyRecipe, without: Sequence[str]) -> Setting:
    """The changes of a recipe from its defaults, less the named fields."""
    changes = recipe.changes()
    return tuple(sorted((name, value) for name, value in changes.items() if name not in without))


def _add_own_rates(cells: Cells, chosen: Setting, others: Mapping[Setting, Cells]) -> list[str]:
    """Move the cells of optimizers that have none here from settings that differ in the rates alone.

    What is returned are notes: the learning rate and L2 of every optimizer, where these differ.
    """
    origin = {key[0]: chosen for key in cells}  # the setting of each optimizer
    for setting, other in others.items():
        if _without_rates(setting) == _without_rates(chosen):
            own = [key for key in other if origin.setdefault(key[0], setting) == setting]
            cells.update({key: other.pop(key) for key in own})
    differing = {name for setting in origin.values() for name, _ in set(setting) ^ set(chosen)}
    names: dict[str, list[str]] = {}
    for optimizer, recipe in {key[0]: group[0].run.recipe for key, group in cells.items()}.items():
        rates = ", ".join(phrase(recipe, name) for name in RATES if name in differing)
        names.setdefault(rates, []).append(optimizer)
    return [f"{', '.join(own)}: {rates}" for rates, own in names.items() if differing]


def _without_rates(setting: Setting) -> Setting:
    return tuple(item for item in setting if item[0] not in RATES)


# -- names and axes ---------------------------------------------------------------------------------------


def name_of(fields: Sequence[str], key: Key) -> str:
    """A cell in words: sgd b16 lr=0.01; no L2 and no augmentation go without saying."""
    values = dict(zip(fields, key, strict=True))
    shown = [name for name, value in values.items() if name not in SILENT or value != DEFAULTS[name]]
    return label(Recipe.model_construct(**values), shown)  # a name needs no complete recipe


def numbers(values: Iterable[float]) -> str:
    """Numbers in words: 0.1, 0.5, 2.5."""
    return ", ".join(f"{value:.3g}" for value in values)


def wanted_first(wanted: Sequence[Any], present: Iterable[Any]) -> list[Any]:
    """The wanted values in their order, then what else is present."""
    return list(dict.fromkeys([*wanted, *present]))
