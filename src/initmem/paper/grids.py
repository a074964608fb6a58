"""The studies of the paper as lines: which recipes a figure or table shows, by panel, with label and style.

The main grid has every optimizer at every batch size. The sweep has SGD over learning rate and L2. Networks
and norms are compared within an optimizer and a batch size. Each shows what there is, and what the paper has
as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from dataclasses import replace
from typing import NamedTuple

from initmem.labels import common, phrase
from initmem.paper.selection import Key, Line, Records, Selection, Studies, select, setting_of, wanted_first
from initmem.plots import styles
from initmem.plots.builders import machines
from initmem.plots.model import Entry
from initmem.plots.series import common_grid
from initmem.recipe import AnyRecipe, Recipe

OPTIMIZERS = ("sgd", "momentum", "adam", "adamw", "muon")
ALL_BATCHES = (16, 32, 64, 128, 256)
BATCHES = (16, 128)
PAIR = ("sgd", "adam")  # with which networks and norms are compared


class Lines(NamedTuple):
    """A study: its lines by batch size and, where a panel holds a single optimizer, by its name."""

    selection: Selection
    panels: dict[tuple[int, str], list[Line]]
    notes: list[str]

    @property
    def batches(self) -> list[int]:
        """The batch sizes that are shown."""
        return list(dict.fromkeys(b for b, _ in self.panels))

    @property
    def every(self) -> list[Line]:
        """All lines of all panels."""
        return [line for lines in self.panels.values() for line in lines]


def missing(lines: Iterable[Line]) -> list[str]:
    """What the lines lack, a sentence for each that is not whole."""
    return [text for line in {line.key: line for line in lines}.values() for text in line.missing()]


def legend(lines: Iterable[Line]) -> list[Entry]:
    """Every label with runs once."""
    return list({line.label: Entry(line.label, line.style) for line in lines if line.records}.values())


def shared_scales(lines: Iterable[Line]) -> list[float]:
    """The scales over which these lines can be compared."""
    return common_grid([line.expected for line in lines if line.records])


def asking(studies: Studies, recipes: Set[AnyRecipe]) -> str:
    """The studies that ask for some of these recipes, with their presets."""
    names = [f"{study.name} (preset {study.preset})" for study in studies if recipes & set(study.recipes)]
    return ", ".join(dict.fromkeys(names))


def origin(selection: Selection, lines: Iterable[Line], shown: Sequence[str] = ()) -> dict[str, str]:
    """The studies that asked for these lines, the machines, and what the recipes share, less the axes of the
    selection or the fields that are shown."""
    lines = [line for line in lines if line.records]
    own = [line.recipe for line in lines if shown or line.key in selection.cells]
    return {
        "Study": asking(selection.studies, {line.recipe for line in lines}) or "not known",
        "Machine": machines([record for line in lines for record in line.records]),
        "Setting": common(own, shown or selection.fields) if own else "",
    }


# -- the main grid ----------------------------------------------------------------------------------------


def main_grid(
    records: Records, studies: Studies, wanted: Sequence[int] = ALL_BATCHES, *, every_batch: bool = True
) -> Lines:
    """Every optimizer at every batch size, or at those that are wanted."""
    keys = [(name, b) for b in wanted for name in OPTIMIZERS]
    grid = select(records, studies, ("optimizer", "batch_size"), keys, own_rates=True)
    present = grid.axis("batch_size")
    batches = sorted({*wanted, *present}) if every_batch else grid.batch_sizes(wanted)
    names = wanted_first(OPTIMIZERS, grid.axis("optimizer"))
    panels = {
        (b, ""): [
            grid.line((name, b), name, styles.optimizer_style(name))
            for name in names
            if name in OPTIMIZERS or (name, b) in grid.cells
        ]
        for b in batches
    }
    return Lines(grid, panels, [*grid.notes, *grid.left_out(batches)])


# -- the sweep --------------------------------------------------------------------------------------------

SWEPT = ("optimizer", "learning_rate", "l2", "batch_size")
RATES = (1e-3, 1e-2, 1e-1)
PENALTIES = (0.0, 1e-3, 5e-3, 1e-2)
CONSTANT = ("optimizer", "learning_rate", "schedule", "batch_size")
LONG = {"optimizer": "sgd", "learning_rate": 1e-3, "l2": 0.0, "schedule": "constant"}


def sweep(records: Records, studies: Studies) -> Lines:
    """SGD at every learning rate and L2, then Adam, then long training at a constant learning rate."""
    main, long = _select_sweep(records, studies)
    batches = (main if main.cells else long).batch_sizes(BATCHES)
    of_sgd = [key for key in main.cells if key[0] == "sgd"]
    rates = sorted(wanted_first(RATES, [key[1] for key in of_sgd]))
    penalties = sorted(wanted_first(PENALTIES, [key[2] for key in of_sgd]))
    style = styles.crossed(rates, penalties)
    constant = long.any_recipe()
    epochs = f"{constant.epochs if constant else 5000:,} epochs"
    unlike_sgd = styles.optimizer_style("sgd")._replace(marker="X", dash=":", hollow=True)
    panels = {}
    for b in batches:
        lines = [
            main.line(("sgd", rate, l2, b), f"η = {rate:g}, λ = {l2:g}", style[rate, l2])
            for rate in rates
            for l2 in penalties
            if (rate in RATES and l2 in PENALTIES) or ("sgd", rate, l2, b) in main.cells
        ]
        present = [key for key in main.cells if key[0] == "adam" and key[3] == b]
        adams = wanted_first([("adam", 1e-3, 0.0, b)], present)
        for key, own in zip(adams, styles.variants(styles.optimizer_style("adam"), len(adams)), strict=True):
            label = f"adam η = {key[1]:g}" + (f", λ = {key[2]:g}" if key[2] else "")
            lines.append(main.line(key, label, own))
        key = ("sgd", 1e-3, "constant", b)
        panels[b, ""] = [*lines, long.line(key, f"constant η, {epochs}", unlike_sgd)]
    notes = [*main.notes, *long.notes, *main.left_out(batches)]
    usual = main.any_recipe()
    if usual and constant:
        names = [n for n in ("dataset", "train_size", "width") if getattr(usual, n) != getattr(constant, n)]
        differs = ", ".join(phrase(constant, name) for name in names)
        notes += [f"Constant learning rate: {differs}"] if names else []
    return Lines(main, panels, notes)


def _select_sweep(records: Records, studies: Studies) -> tuple[Selection, Selection]:
    """The sweep, and long training: a recipe of its own, of another length."""
    wanted: list[Key] = [("sgd", rate, l2, b) for rate in RATES for l2 in PENALTIES for b in BATCHES]
    wanted += [("adam", 1e-3, 0.0, b) for b in BATCHES]
    ours = [r for r in records if r.run.recipe.get("optimizer") in PAIR]
    constant = [r for r in ours if _is_long(r.run.recipe)]
    main = select(ours, studies, SWEPT, wanted)
    if ("schedule", "constant") in main.setting:
        if any(key[:3] != ("sgd", 1e-3, 0.0) for key in main.cells):
            constant = []  # a sweep at a constant learning rate: they are shown already
        else:
            main = select([r for r in ours if not _is_long(r.run.recipe)], studies, SWEPT, wanted)
    long = select(constant, studies, CONSTANT, [("sgd", 1e-3, "constant", b) for b in BATCHES])
    if not long.cells:  # what is missing is of the same data and network as what is shown
        long = replace(long, setting=tuple(item for item in main.setting if item[0] not in CONSTANT))
    return main, long


def _is_long(recipe: AnyRecipe) -> bool:
    return all(recipe.get(name) == value for name, value in LONG.items())


# -- networks and norms -----------------------------------------------------------------------------------


class Family(NamedTuple):
    """What is compared: the values of some recipe fields, each a line."""

    title: str
    fields: tuple[str, ...]
    wanted: tuple[Key, ...]

    def label(self, kind: Key) -> str:
        """One of them in words: layer norm, no augmentation."""
        recipe = Recipe.model_construct(**dict(zip(self.fields, kind, strict=True)))
        return ", ".join(phrase(recipe, name) for name in self.fields)


DEPTHS = Family(
    title="network",
    fields=("model",),
    wanted=(("resnet9",), ("resnet9-avgpool",), ("resnet56",), ("resnet110",)),
)
NORMS = Family(
    title="normalization and augmentation",
    fields=("norm", "augment"),
    wanted=(("batch", "flip-crop"), ("layer", "flip-crop"), ("batch", "none")),
)


def pairs(records: Records, studies: Studies, family: Family) -> Lines:
    """A panel for SGD and Adam at each batch size; others only where several kinds were run with them."""
    fields = (*family.fields, "optimizer", "batch_size")
    wanted = [(*kind, name, b) for kind in family.wanted for name in PAIR for b in BATCHES]
    selection = select(records, studies, fields, wanted)
    kinds_of: dict[str, set[Key]] = {}
    for *kind, name, _ in selection.cells:
        kinds_of.setdefault(name, set()).add(tuple(kind))
    others = [name for name, kinds in kinds_of.items() if len(kinds) > 1 and name not in PAIR]
    kinds = wanted_first(family.wanted, [key[:-2] for key in selection.cells])
    batches = selection.batch_sizes(BATCHES)
    panels: dict[tuple[int, str], list[Line]] = {}
    for b in batches:
        for name in (*PAIR, *others):
            panels[b, name] = [
                selection.line((*kind, name, b), family.label(kind), styles.in_order(i))
                for i, kind in enumerate(kinds)
                if (name in PAIR and kind in family.wanted) or (*kind, name, b) in selection.cells
            ]
    return Lines(selection, panels, [*selection.notes, *selection.left_out(batches)])


# -- slopes -----------------------------------------------------------------------------------------------


def penalized(records: Records, studies: Studies, grid: Selection) -> tuple[Selection, Key]:
    """SGD with L2 next to the main grid, and the optimizer, learning rate and L2 to show: 0.01 both, or where
    that is not there, the L2 that acts most."""
    setting = tuple(item for item in grid.setting if item[0] not in SWEPT)
    ours = [r for r in records if r.run.recipe.get("optimizer") == "sgd" and r.run.recipe.get("l2")]
    alike = [r for r in ours if setting_of(r.run.recipe, SWEPT) == setting]
    selection = select(alike, studies, SWEPT, [])
    present = {key[:3] for key in selection.cells}
    usual = ("sgd", 1e-2, 1e-2)
    strongest = max(present, key=lambda key: key[1] * key[2], default=usual)
    return selection, usual if usual in present else strongest
