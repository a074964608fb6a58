"""Figures 5, 7 and 8: a panel for each optimizer at each batch size, lines by network or norm."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from initmem.paper.figures.select import Key, also, batch_sizes, left_out, name_of, select
from initmem.paper.figures.view import Member, View
from initmem.paper.reference import find
from initmem.plots import styles
from initmem.plots.captions import SIGMA
from initmem.plots.model import AnyPanel, Intervals, Panel, Plot, Style
from initmem.plots.series import MEAN, value_of
from initmem.record import RunRecord
from initmem.study import Study

OPTIMIZERS = ("sgd", "adam")  # those of the paper's figures; others have rows of their own below
BATCHES = (16, 128)


class Family(NamedTuple):
    """What a figure compares: the values of some recipe fields, each a line."""

    fields: tuple[str, ...]
    wanted: tuple[Key, ...]
    style: Callable[[Key], Style]
    short: Mapping[Key, str]  # others are called by their names
    ignore: tuple[str, ...] = ()


DEPTHS = Family(
    fields=("model",),
    wanted=(("resnet9",), ("resnet9-avgpool",), ("resnet56",), ("resnet110",)),
    style=lambda key: styles.model_style(str(key[0])),
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
    fields=("norm", "augment"),
    wanted=(("batch", "flip-crop"), ("layer", "flip-crop"), ("batch", "none")),
    style=lambda key: styles.NORMS[key],
    short={
        ("batch", "flip-crop"): "BN + aug.",
        ("layer", "flip-crop"): "LN + aug.",
        ("batch", "none"): "BN",
        ("layer", "none"): "LN",
    },
)


class Pairs(NamedTuple):
    """The records of a family, by optimizer and batch size."""

    view: View
    kinds: list[Key]
    batches: list[int]
    family: Family
    others: list[str]  # further optimizers with which several kinds were run

    def members(self, optimizer: str, b: int) -> list[Member]:
        """The lines of one panel."""
        keys = [(*kind, optimizer, b) for kind in self.kinds]
        keys = [key for key in keys if key[:-2] in self.family.wanted or self.view.cell(key)]
        return [Member(key, label_of(self.family, key[:-2]), self.family.style(key[:-2])) for key in keys]

    @property
    def optimizers(self) -> list[str]:
        """All that are shown."""
        return [*OPTIMIZERS, *self.others]

    def everyone(self) -> list[Member]:
        """All lines of all panels."""
        wanted = [m for b in self.batches for name in OPTIMIZERS for m in self.members(name, b)]
        others = [m for b in self.batches for name in self.others for m in self.members(name, b)]
        return wanted + [member for member in others if self.view.cell(member.key)]


def label_of(family: Family, kind: Key) -> str:
    """A kind in words: resnet56; batch norm, flip-crop."""
    if family.fields == ("norm", "augment"):
        norm, augment = kind
        return f"{norm} norm, {'no augmentation' if augment == 'none' else augment}"
    return name_of(family.fields, kind)


def pairs(records: Sequence[RunRecord], studies: Sequence[Study], family: Family) -> Pairs:
    """Find the records of a family."""
    fields = (*family.fields, "optimizer", "batch_size")
    wanted = [(*kind, name, b) for kind in family.wanted for name in OPTIMIZERS for b in BATCHES]
    selection = select(records, fields, wanted, ignore=family.ignore)
    kinds = also([key[:-2] for key in selection.cells], family.wanted)
    several = [
        name
        for name in selection.axis("optimizer")
        if len({key[:-2] for key in selection.cells if key[-2] == name}) > 1
    ]
    others = [name for name in several if name not in OPTIMIZERS]
    return Pairs(View.of(selection, studies), kinds, batch_sizes(selection, BATCHES), family, others)


def plot_depth(records: Sequence[RunRecord], studies: Sequence[Study], *, reference: bool = False) -> Plot:
    """Figure 5: test accuracy by depth."""
    shown = pairs(records, studies, DEPTHS)
    head = "Test accuracy by network, at the least validation loss"
    return _plot(shown, "figure 5", "test_accuracy", head, reference=reference)


def plot_depth_train(
    records: Sequence[RunRecord], studies: Sequence[Study], *, reference: bool = False
) -> Plot:
    """Figure 7: train accuracy by depth."""
    shown = pairs(records, studies, DEPTHS)
    head = "Train accuracy by network, at the last epoch"
    return _plot(shown, "figure 7", "train_accuracy_last", head, reference=reference)


def plot_norms(records: Sequence[RunRecord], studies: Sequence[Study], *, reference: bool = False) -> Plot:
    """Figure 8: normalization and augmentation."""
    shown = pairs(records, studies, NORMS)
    head = "Test accuracy by normalization and augmentation, at the least validation loss"
    return _plot(shown, "figure 8", "test_accuracy", head, reference=reference)


def _plot(shown: Pairs, where: str, metric: str, head: str, *, reference: bool) -> Plot:
    def row(names: Sequence[str], b: int) -> list[AnyPanel]:
        return [_panel(shown, where, name, b, metric, reference=reference) for name in names]

    rows = [row(OPTIMIZERS, b) for b in shown.batches]
    if reference and where != "figure 7":
        rows = [[*panels, _spreads(shown, where, b)] for b, panels in zip(shown.batches, rows, strict=True)]
    rows += [row(shown.others, b) for b in shown.batches if shown.others]
    plot = shown.view.plot(rows, shown.everyone(), head=head, reference=reference)
    return plot._replace(notes=[*plot.notes, *left_out(shown.view.selection, shown.batches)])


def _panel(shown: Pairs, where: str, name: str, b: int, metric: str, *, reference: bool) -> Panel:
    members = shown.members(name, b)
    series = shown.view.series(members, value_of(metric))
    y_title = f"{metric.partition('_')[0]} accuracy (%)"
    panel = Panel(f"b = {b}, {name}", SIGMA, y_title, series, MEAN, top=100)
    if not reference:
        return panel
    fitted = [find(where, shown.view.recipe(member.key), "train") for member in members]
    level = next((item.value for item in fitted if item), None) if where == "figure 7" else None
    return panel._replace(published=shown.view.published(where, members), published_level=level)


def _spreads(shown: Pairs, where: str, b: int) -> Intervals:
    members = [
        member._replace(label=f"{name}, {shown.family.short.get(member.key[:-2], member.label)}")
        for name in OPTIMIZERS
        for member in shown.members(name, b)
    ]
    return shown.view.spreads(where, f"b = {b}", members)
