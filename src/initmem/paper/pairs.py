"""Comparisons of networks and of norms: figures 5, 7 and 8, tables 5 and 6.

A panel for each optimizer at each batch size, with a line for every kind that is compared.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from initmem.paper import parts
from initmem.paper.parts import (
    Entry,
    Field,
    lines_table,
    plot_of_lines,
    published_marks,
    series,
    shared_scales,
    spreads,
)
from initmem.paper.reference import find
from initmem.paper.selection import Key, Line, Records, Selection, Studies, name_of, select, wanted_first
from initmem.plots import styles
from initmem.plots.captions import SIGMA
from initmem.plots.model import AnyPanel, Intervals, Panel, Plot, Style
from initmem.plots.series import MEAN, value_of
from initmem.table import Column, Table

OPTIMIZERS = ("sgd", "adam")  # of the paper's figures; others have rows of their own below
BATCHES = (16, 128)


class Family(NamedTuple):
    """What a figure compares: the values of some recipe fields, each a line."""

    title: str
    fields: tuple[str, ...]
    wanted: tuple[Key, ...]
    style: Callable[[Key], Style]
    label: Callable[[Key], str]
    short: Mapping[Key, str]  # others are called by their labels
    ignore: tuple[str, ...] = ()


DEPTHS = Family(
    title="network",
    fields=("model",),
    wanted=(("resnet9",), ("resnet9-avgpool",), ("resnet56",), ("resnet110",)),
    style=lambda kind: styles.model_style(str(kind[0])),
    label=lambda kind: name_of(("model",), kind),
    short={
        ("resnet9",): "R9",
        ("resnet9-avgpool",): "R9-avgpool",
        ("resnet56",): "R56",
        ("resnet110",): "R110",
        ("mlp",): "MLP",
    },
    ignore=("patience",),
)
NORMS = Family(
    title="normalization and augmentation",
    fields=("norm", "augment"),
    wanted=(("batch", "flip-crop"), ("layer", "flip-crop"), ("batch", "none")),
    style=lambda kind: styles.NORMS[kind],
    label=lambda kind: f"{kind[0]} norm, {'no augmentation' if kind[1] == 'none' else kind[1]}",
    short={
        ("batch", "flip-crop"): "BN + aug.",
        ("layer", "flip-crop"): "LN + aug.",
        ("batch", "none"): "BN",
        ("layer", "none"): "LN",
    },
)


class Pairs(NamedTuple):
    """The records of a family, by kind, optimizer and batch size."""

    family: Family
    selection: Selection
    kinds: list[Key]
    batches: list[int]
    others: list[str]  # further optimizers with which several kinds were run

    def lines(self, optimizer: str, b: int) -> list[Line]:
        """The lines of one panel."""
        family = self.family
        wanted = family.wanted if optimizer in OPTIMIZERS else ()
        return [
            self.selection.line((*kind, optimizer, b), family.label(kind), family.style(kind))
            for kind in self.kinds
            if kind in wanted or (*kind, optimizer, b) in self.selection.cells
        ]

    def every_line(self) -> list[Line]:
        """All lines of all panels, batch size by batch size."""
        names = [*OPTIMIZERS, *self.others]
        return [line for b in self.batches for name in names for line in self.lines(name, b)]


def select_pairs(records: Records, studies: Studies, family: Family) -> Pairs:
    """The records of a family."""
    fields = (*family.fields, "optimizer", "batch_size")
    wanted = [(*kind, name, b) for kind in family.wanted for name in OPTIMIZERS for b in BATCHES]
    selection = select(records, studies, fields, wanted, ignore=family.ignore)
    kinds_of: dict[str, set[Key]] = {}
    for *kind, name, _ in selection.cells:
        kinds_of.setdefault(name, set()).add(tuple(kind))
    others = [name for name, kinds in kinds_of.items() if len(kinds) > 1 and name not in OPTIMIZERS]
    kinds = wanted_first(family.wanted, [key[:-2] for key in selection.cells])
    return Pairs(family, selection, kinds, selection.batch_sizes(BATCHES), others)


# -- figures ----------------------------------------------------------------------------------------------


METRICS = {  # what figures show, and of which predictor
    "test_accuracy": ("test accuracy", "at the least validation loss"),
    "train_accuracy_last": ("train accuracy", "at the last epoch"),
}


def plot_pairs(
    where: str, family: Family, metric: str, records: Records, studies: Studies, *, reference: bool = False
) -> Plot:
    """Figure 5, 7 or 8: a row per batch size, a column per optimizer; other optimizers below."""
    pairs = select_pairs(records, studies, family)
    quantity, moment = METRICS[metric]

    def panel(name: str, b: int) -> AnyPanel:
        lines = pairs.lines(name, b)
        values = series(lines, value_of(metric))
        shown = Panel(f"b = {b}, {name}", SIGMA, f"{quantity} (%)", values, MEAN, top=100)
        return _with_published(shown, where, lines) if reference else shown

    rows = [[panel(name, b) for name in OPTIMIZERS] for b in pairs.batches]
    if reference and metric == "test_accuracy":
        rows = [[*row, _spreads(pairs, where, b)] for row, b in zip(rows, pairs.batches, strict=True)]
    rows += [[panel(name, b) for name in pairs.others] for b in pairs.batches if pairs.others]
    return plot_of_lines(
        pairs.selection,
        rows,
        pairs.every_line(),
        head=f"{quantity.capitalize()} by {family.title}, {moment}",
        reference=reference,
        notes=pairs.selection.left_out(pairs.batches),
    )


def _with_published(panel: Panel, where: str, lines: Sequence[Line]) -> Panel:
    levels = [find(where, line.recipe, "train") for line in lines]
    level = next((item.value for item in levels if item), None)
    return panel._replace(published=published_marks(where, lines), published_level=level)


def _spreads(pairs: Pairs, where: str, b: int) -> Intervals:
    short = pairs.family.short
    lines = [
        replace(line, label=f"{name}, {short.get(line.key[:-2], line.label)}")
        for name in OPTIMIZERS
        for line in pairs.lines(name, b)
    ]
    return spreads(where, f"b = {b}", lines)


# -- tables -----------------------------------------------------------------------------------------------


class Quantity(NamedTuple):
    """What a part of table 5 shows at every scale, and which published value stands next to it."""

    name: str
    entry: Callable[[Line], Entry]
    published: str


QUANTITIES = (
    Quantity("test accuracy, %", parts.mean, "spread"),
    Quantity("train accuracy, last, %", partial(parts.mean, metric="train_accuracy_last"), "train"),
    Quantity("τ_interp, epochs", parts.tau_interp, "tau_interp"),
    Quantity("τ_best, epochs", parts.tau_best, "tau_best"),
)


def depth_table(records: Records, studies: Studies, *, reference: bool = False) -> Table:
    """Table 5: accuracies by network, and below them when it fitted and when it was selected."""
    pairs = select_pairs(records, studies, DEPTHS)
    lines = pairs.every_line()
    grid = shared_scales(lines) or parts.SCALES
    return lines_table(
        "table 5",
        "Networks of different depth",
        [_depth_fields(quantity, grid) for quantity in QUANTITIES],
        pairs.selection,
        lines,
        reference=reference,
        notes=["τ_interp: median, runs that never got there counted as later than their last epoch"],
        grid=grid,
        group=2,
    )


def _depth_fields(quantity: Quantity, grid: Sequence[float]) -> list[Field]:
    spread = parts.spread(grid)
    return [
        Field(Column("quantity", "text", "what the row shows"), lambda _: quantity.name),
        parts.BATCH,
        parts.OPTIMIZER,
        parts.label("network", "its name"),
        *parts.at_scales(grid, quantity.entry, about="the quantity at that scale", unit=""),
        spread if quantity.published == "spread" else spread._replace(entry=lambda _: ""),
        parts.published(
            "table 5",
            "paper",
            quantity.published,
            "",
            about="published: of test accuracy the spread (pp), else at every scale",
        ),
    ]


def norms_table(records: Records, studies: Studies, *, reference: bool = False) -> Table:
    """Table 6: normalization and augmentation."""
    pairs = select_pairs(records, studies, NORMS)
    lines = pairs.every_line()
    grid = shared_scales(lines) or parts.SCALES
    fields = [
        parts.BATCH,
        parts.OPTIMIZER,
        parts.label("normalization", "and augmentation"),
        *parts.spread_fields("table 6", grid),
    ]
    return lines_table(
        "table 6",
        "Test accuracy by normalization and augmentation",
        [fields],
        pairs.selection,
        lines,
        reference=reference,
        notes=[],
        grid=grid,
        group=2,
    )
