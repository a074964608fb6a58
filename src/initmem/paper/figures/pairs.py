"""Figures 5, 7 and 8: a panel for SGD and one for Adam at each batch size, lines by network or norm."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from initmem.paper.figures.select import Key, also, batch_sizes, name_of, select
from initmem.paper.figures.view import Member, View
from initmem.paper.reference import find
from initmem.plots import captions, styles
from initmem.plots.panels import draw_panels
from initmem.plots.plotdata import Panel, PanelPlot, SpreadPanel, Style, Value, percent
from initmem.store.record import RunRecord
from initmem.study import Study

OPTIMIZERS = ("sgd", "adam")
BATCHES = (16, 128)


class Family(NamedTuple):
    """What a figure compares: the values of some recipe fields, each a line."""

    fields: tuple[str, ...]
    wanted: tuple[Key, ...]
    style: Mapping[Key, Style]
    short: Mapping[Key, str]
    ignore: tuple[str, ...] = ()


DEPTHS = Family(
    fields=("model",),
    wanted=(("resnet9",), ("resnet9-avgpool",), ("resnet56",), ("resnet110",)),
    style={(model,): style for model, style in styles.MODELS.items()},
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
    style=styles.NORMS,
    short={
        ("batch", "flip-crop"): "BN + aug.",
        ("layer", "flip-crop"): "LN + aug.",
        ("batch", "none"): "BN",
        ("layer", "none"): "LN",
    },
)


class Pairs(NamedTuple):
    """The records of a family at both optimizers."""

    view: View
    kinds: list[Key]
    batches: list[int]
    family: Family

    def members(self, optimizer: str, b: int) -> list[Member]:
        """The lines of one panel."""
        keys = [(*kind, optimizer, b) for kind in self.kinds]
        keys = [key for key in keys if key[:-2] in self.family.wanted or self.view.cell(key)]
        return [Member(key, label_of(self.family, key[:-2]), self.family.style[key[:-2]]) for key in keys]

    def everyone(self) -> list[Member]:
        """All lines of all panels."""
        return [m for b in self.batches for name in OPTIMIZERS for m in self.members(name, b)]


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
    ours = [record for record in records if record.run.recipe.get("optimizer") in OPTIMIZERS]
    found = select(ours, fields, wanted, ignore=family.ignore)
    kinds = also([key[:-2] for key in found.cells], family.wanted)
    return Pairs(View.of(found, studies), kinds, batch_sizes(found, BATCHES), family)


def plot_depth(
    records: Sequence[RunRecord], studies: Sequence[Study], *, reference: bool = False
) -> PanelPlot:
    """Figure 5: test accuracy by depth."""
    found = pairs(records, studies, DEPTHS)
    head = "Test accuracy by network, at the least validation loss"
    return _plot(found, "figure 5", percent("test_accuracy"), "test accuracy (%)", head, reference=reference)


def plot_depth_train(
    records: Sequence[RunRecord], studies: Sequence[Study], *, reference: bool = False
) -> PanelPlot:
    """Figure 7: train accuracy by depth."""
    found = pairs(records, studies, DEPTHS)
    head = "Train accuracy by network, at the last epoch"
    value, y_title = percent("train_accuracy_last"), "train accuracy (%)"
    return _plot(found, "figure 7", value, y_title, head, reference=reference)


def plot_norms(
    records: Sequence[RunRecord], studies: Sequence[Study], *, reference: bool = False
) -> PanelPlot:
    """Figure 8: normalization and augmentation."""
    found = pairs(records, studies, NORMS)
    head = "Test accuracy by normalization and augmentation, at the least validation loss"
    return _plot(found, "figure 8", percent("test_accuracy"), "test accuracy (%)", head, reference=reference)


def _plot(found: Pairs, where: str, value: Value, y_title: str, head: str, *, reference: bool) -> PanelPlot:
    rows: list[list[Panel | SpreadPanel]] = []
    for b in found.batches:
        row: list[Panel | SpreadPanel] = [
            _panel(found, where, name, b, value, y_title, reference=reference) for name in OPTIMIZERS
        ]
        if reference and where != "figure 7":
            row.append(_spreads(found, where, b))
        rows.append(row)
    return found.view.plot(rows, found.everyone(), head=head, reference=reference)


def _panel(
    found: Pairs, where: str, name: str, b: int, value: Value, y_title: str, *, reference: bool
) -> Panel:
    members = found.members(name, b)
    lines = found.view.lines(members, value)
    panel = Panel(f"b = {b}, {name}", captions.SIGMA, y_title, lines)
    if not reference:
        return panel
    fitted = [find(where, found.view.recipe(member.key), "train") for member in members]
    level = next((item.value for item in fitted if item), None) if where == "figure 7" else None
    return panel._replace(marks=found.view.marks(where, members), level=level)


def _spreads(found: Pairs, where: str, b: int) -> SpreadPanel:
    members = [
        member._replace(label=f"{name}, {found.family.short[member.key[:-2]]}")
        for name in OPTIMIZERS
        for member in found.members(name, b)
    ]
    return found.view.spreads(where, f"b = {b}", members)


def draw(plot: PanelPlot, path: Path) -> None:
    """Draw figure 5, 7 or 8."""
    draw_panels(plot, path, row_height=1.95)
