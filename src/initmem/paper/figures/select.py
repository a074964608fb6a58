"""Which records a figure or a table shows, and what it wants but the store does not hold.

A figure varies a few recipe fields (its axes) and holds all others fixed. Records that differ in any other
field are never pooled: the one setting of the other fields that fills most of what is wanted is shown, and
the rest of what could have been shown is named in the notes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from initmem.measures.design import by_recipe, plain
from initmem.plots.captions import phrase
from initmem.recipe import SIZE_FIELDS, AnyRecipe, Recipe, network_of
from initmem.record import RunRecord
from initmem.study import Study

Key = tuple[Any, ...]
Setting = tuple[tuple[str, Any], ...]
Settings = dict[Setting, dict[Key, list[list[RunRecord]]]]  # per cell, a group for each recipe

OPTIMIZERS = ("sgd", "momentum", "adam", "adamw", "muon")
# What an effort changes; the remaining fields are the procedure that a figure is about.
SIZE = SIZE_FIELDS | {"dataset"}
RATES = ("learning_rate", "l2")  # what an optimizer may have of its own
SILENT = (("l2", 0.0), ("augment", "none"))
DIGITS = 3  # significant digits of a scale in words


class Selection(NamedTuple):
    """Records by the values of a figure's axes; all other recipe fields are the same in all cells."""

    fields: tuple[str, ...]
    cells: dict[Key, list[RunRecord]]
    setting: Setting  # the fixed fields, as changes from the defaults
    notes: list[str]  # what could have been shown in its place

    def axis(self, field: str) -> list[Any]:
        """The values of one axis for which there are records, in order of appearance."""
        index = self.fields.index(field)
        return list(dict.fromkeys(key[index] for key in self.cells))

    def recipes(self) -> list[Recipe]:
        """The recipes shown."""
        return [network_of(records[0].run.recipe) for records in self.cells.values()]


def select(
    records: Sequence[RunRecord],
    fields: Sequence[str],
    wanted: Iterable[Key],
    *,
    prefer: Mapping[str, Any] | None = None,
    ignore: Sequence[str] = (),
    within: Setting | None = None,
    own_rates: bool = False,
) -> Selection:
    """Arrange records by `fields` in the setting that covers most of `wanted`.

    Ties go to the setting whose procedure is nearest to the defaults (or to `prefer`), then to more runs.
    Fields of `ignore` may differ between cells, as patience does between networks. `within` fixes the
    setting beforehand. With `own_rates` an optimizer that has no run in the setting at all is shown with
    the learning rate and penalty that it has, and a note says so.
    """
    settings: Settings = {}
    for recipe, group in by_recipe(usable(records)).items():
        key = tuple(getattr(recipe, name) for name in fields)
        rest = setting_of(recipe, [*fields, *ignore])
        settings.setdefault(rest, {}).setdefault(key, []).append(group)
    if within is not None:
        return Selection(tuple(fields), _largest(settings.get(within, {})), within, [])
    if not settings:
        return Selection(tuple(fields), {}, (), [])
    goal = set(wanted)

    def rank(setting: Setting) -> tuple[int, int, int]:
        cells = settings[setting]
        runs = sum(len(group) for groups in cells.values() for group in groups)
        return (-len(goal & cells.keys()), _distance(setting, prefer or {}), -runs)

    first, *others = sorted(settings, key=rank)
    if own_rates:
        notes = _adopt(settings, first, others, fields.index("optimizer"))
    else:
        ambiguous = [key for key, groups in settings[first].items() if len(groups) > 1]
        notes = [f"{name_of(fields, key)}: only the {', '.join(ignore)} with most runs" for key in ambiguous]
    notes += _not_drawn(others, settings, goal, first)
    notes += _failures(records, [*fields, *ignore], first)
    return Selection(tuple(fields), _largest(settings[first]), first, notes)


def _adopt(settings: Settings, first: Setting, others: Sequence[Setting], index: int) -> list[str]:
    """Move the cells of absent optimizers (at `index` of a key) into the first setting, and say so."""
    notes: list[str] = []
    differ: set[str] = set()
    rest = [item for item in first if item[0] not in RATES]
    own = {key[index]: groups[0][0].run.recipe for key, groups in settings[first].items()}
    for setting in others:
        present = {key[index] for key in settings[first]}
        absent = [key for key in settings[setting] if key[index] not in present]
        if absent and [item for item in setting if item[0] not in RATES] == rest:
            for key in absent:
                settings[first][key] = settings[setting].pop(key)
            recipe = settings[first][absent[0]][0][0].run.recipe
            names = ", ".join(dict.fromkeys(key[index] for key in absent))
            notes.append(f"{names}: {_difference(recipe, setting, first)}")
            differ |= {name for name, _ in set(setting) ^ set(first)}
    if not notes:
        return []
    # Those that the figure is set by have rates of their own, too.
    rates = ", ".join(phrase(next(iter(own.values())), name) for name in RATES if name in differ)
    return [f"{', '.join(own)}: {rates}", *notes]


def usable(records: Sequence[RunRecord]) -> list[RunRecord]:
    """The runs of the main design that have a result: no perturbed replicates, no crashed runs."""
    groups = by_recipe(records).values()
    return [record for group in groups for record in plain(group) if record.status != "crashed"]


def setting_of(recipe: AnyRecipe, without: Sequence[str]) -> Setting:
    """The changes of a recipe from its defaults, less the named fields."""
    changes = recipe.changes()
    return tuple(sorted((name, value) for name, value in changes.items() if name not in without))


def _largest(cells: Mapping[Key, Sequence[list[RunRecord]]]) -> dict[Key, list[RunRecord]]:
    return {key: max(groups, key=len) for key, groups in cells.items()}


def _distance(setting: Setting, prefer: Mapping[str, Any]) -> int:
    """How many fields of the procedure differ from what the figure is about."""
    changes = dict(_procedure(setting))
    defaults = {name: field.default for name, field in Recipe.model_fields.items()}
    names = changes.keys() | prefer.keys()
    return sum(
        changes.get(name, defaults.get(name)) != prefer.get(name, defaults.get(name)) for name in names
    )


def _not_drawn(
    others: Sequence[Setting],
    settings: Settings,
    goal: set[Key],
    first: Setting,
) -> list[str]:
    """Name what a reader might look for: the same at another size, or what would fill a gap."""
    notes, elsewhere = [], 0
    for setting in others:
        cells = settings[setting]
        same = _procedure(setting) == _procedure(first)
        keys = goal & cells.keys() if same else (goal & cells.keys()) - settings[first].keys()
        runs = sum(len(group) for key in keys for group in cells[key])
        if same and runs:
            recipe = cells[next(iter(keys))][0][0].run.recipe
            notes.append(f"Not shown: {runs} runs with {_difference(recipe, setting, first)}")
        else:
            elsewhere += runs
    return notes + ([f"Not shown: {elsewhere} runs of other procedures"] if elsewhere else [])


def _procedure(setting: Setting) -> Setting:
    return tuple(item for item in setting if item[0] not in SIZE)


def _failures(records: Sequence[RunRecord], fields: Sequence[str], setting: Setting) -> list[str]:
    lost = Counter(record.run.recipe for record in records if record.status == "crashed")
    n = sum(count for recipe, count in lost.items() if setting_of(recipe, fields) == setting)
    return [f"{n} runs crashed"] if n else []


def _difference(recipe: AnyRecipe, setting: Setting, base: Setting) -> str:
    """In which fields the setting of a recipe differs from the one that is shown."""
    fields = {name for name, _ in set(setting) ^ set(base)}
    return ", ".join(phrase(recipe, name) for name in recipe.settings() if name in fields)


def name_of(fields: Sequence[str], key: Key) -> str:
    """A cell in words: sgd b16 lr=0.01. What says nothing is left out: no penalty, no augmentation."""
    values = dict(zip(fields, key, strict=True))
    shown = [name for name, value in values.items() if (name, value) not in SILENT]
    return Recipe.model_construct(**values).label(shown)  # a name needs no complete recipe


def batch_sizes(selection: Selection, wanted: Sequence[int]) -> list[int]:
    """The batch sizes to show: those wanted; and all there are, where a wanted one has no runs."""
    present = set(selection.axis("batch_size")) if selection.cells else set()
    return sorted(set(wanted) if present >= set(wanted) else present | set(wanted))


def left_out(selection: Selection, shown: Sequence[int]) -> list[str]:
    """A note on the batch sizes that have runs but are not shown."""
    others = [b for b in sorted(selection.axis("batch_size")) if b not in shown] if selection.cells else []
    return [f"Not shown: batch sizes {', '.join(map(str, others))}"] if others else []


def also(present: Iterable[Any], wanted: Sequence[Any]) -> list[Any]:
    """The wanted values in their order, then what else is present."""
    return list(dict.fromkeys([*wanted, *present]))


Asked = dict[AnyRecipe, set[tuple[float, int]]]


def asked_for(studies: Sequence[Study]) -> Asked:
    """(scale, seed) that the studies of the store asked for, by recipe."""
    asked: Asked = {}
    for study in studies:
        for recipe in study.recipes:
            main = [run for run in study.runs(recipe) if run.pins == study.pins and run.perturbation == 1.0]
            asked.setdefault(recipe, set()).update((run.scale, run.seed) for run in main)
    return asked


def shortfall(name: str, records: Sequence[RunRecord], expected: Mapping[float, int]) -> list[str]:
    """What is missing in one cell, as at most one line: scales without runs, seeds that are not there."""
    if not records:
        return [f"{name}: no runs"]
    n = Counter(record.run.scale for record in records)
    gone = [scale for scale in sorted(expected) if not n[scale]]
    partial: dict[tuple[int, int], list[float]] = {}
    for scale in sorted(expected):
        if 0 < n[scale] < expected[scale]:
            partial.setdefault((n[scale], expected[scale]), []).append(scale)
    phrases = [f"no runs at σ = {numbers(gone)}"] if gone else []
    phrases += [f"{a} of {b} seeds at σ = {numbers(where)}" for (a, b), where in partial.items()]
    return [f"{name}: {'; '.join(phrases)}"] if phrases else []


def numbers(values: Iterable[float]) -> str:
    """Numbers in words: 0.1, 0.5, 2.5."""
    return ", ".join(f"{value:.{DIGITS}g}" for value in values)
