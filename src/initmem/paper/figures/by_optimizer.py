"""Figures 1 to 3: what the optimizers do from every scale, by batch size."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from initmem.measures.design import by_scale
from initmem.measures.fit import fit
from initmem.paper.figures.select import OPTIMIZERS, also, batch_sizes, left_out, numbers, select
from initmem.paper.figures.view import Member, View
from initmem.paper.reference import find
from initmem.plots import styles
from initmem.plots.captions import SIGMA
from initmem.plots.model import AnyPanel, Heatmap, Panel, Plot, Series
from initmem.plots.series import (
    MEAN,
    MEDIAN,
    accuracy_gap,
    interpolation_series,
    scale_series,
    value_of,
)
from initmem.record import INTERPOLATION, RunRecord
from initmem.study import Study

FIELDS = ("optimizer", "batch_size")
ALL_BATCHES = (16, 32, 64, 128, 256)
BATCHES = (16, 128)
FEW_SCALES = 5  # so many are named one by one


class ByOptimizer(NamedTuple):
    """The records of every optimizer at every batch size that a figure shows."""

    view: View
    batches: list[int]
    names: list[str]

    def members(self, b: int) -> list[Member]:
        """The optimizers at one batch size: those of the paper, and what else has runs."""
        return [
            Member((name, b), name, styles.optimizer_style(name))
            for name in self.names
            if name in OPTIMIZERS or self.view.cell((name, b))
        ]

    def everyone(self) -> list[Member]:
        """The optimizers at all batch sizes."""
        return [member for b in self.batches for member in self.members(b)]


def by_optimizer(
    records: Sequence[RunRecord], studies: Sequence[Study], wanted: Sequence[int], *, every: bool = False
) -> ByOptimizer:
    """Find the records; `every` shows all batch sizes that there are beside those that are wanted."""
    selection = select(records, FIELDS, [(name, b) for b in wanted for name in OPTIMIZERS], own_rates=True)
    names = also(selection.axis("optimizer"), OPTIMIZERS)
    batches = batch_sizes(selection, wanted)
    if every:
        batches = sorted(also(selection.axis("batch_size"), wanted))
    return ByOptimizer(View.of(selection, studies), batches, names)


def plot_scales(records: Sequence[RunRecord], studies: Sequence[Study], *, reference: bool = False) -> Plot:
    """Figure 1: rows are batch sizes, columns the accuracy gap, the test accuracy and the kernel norm."""
    shown = by_optimizer(records, studies, BATCHES)
    plot = shown.view.plot(
        [_scale_row(shown, b, reference=reference) for b in shown.batches],
        shown.everyone(),
        head="Accuracy gap, test accuracy and kernel norm of the predictor with the least validation loss",
        about=["Kernel norm: Frobenius"],
        reference=reference,
    )
    others = left_out(shown.view.selection, shown.batches)
    return plot._replace(notes=[*plot.notes, *others, *_unlike_published(shown)])


def _unlike_published(shown: ByOptimizer) -> list[str]:
    """Where SGD differs from the published figure, in which it interpolates and its gap grows with scale."""
    notes = []
    for member in shown.everyone():
        of_scales = fit(shown.view.cell(member.key)) if member.label == "sgd" else None
        if of_scales is None or of_scales.gap_change is None:
            continue
        gap, name = of_scales.gap_change, f"{member.label} b{member.key[1]}"
        small, large = of_scales.train[0], of_scales.train[-1]
        fitted = f"train accuracy {small:.1f}% at the smallest scale, {large:.1f}% at the largest"
        if gap.high is not None and gap.high < 0:
            notes.append(
                f"Unlike the published figure, the accuracy gap of {name} falls with the scale, by "
                f"{-gap.value:.1f} pp; {fitted}"
            )
        elif min(of_scales.train) < 100 * INTERPOLATION:
            notes.append(f"Unlike in the published figure, {name} does not interpolate: {fitted}")
    return notes


def _scale_row(shown: ByOptimizer, b: int, *, reference: bool) -> list[AnyPanel]:
    view, members, title = shown.view, shown.members(b), f"b = {b}"
    tests = view.series(members, value_of("test_accuracy"))
    norms = view.series(members, value_of("norm_best"))
    start = [_initial_norm(view, members)] if norms else []
    marks = view.published("figure 1", members) if reference else ()
    gaps = view.series(members, accuracy_gap)
    row: list[AnyPanel] = [
        Panel(title, SIGMA, "train − test accuracy (pp)", gaps, MEAN),
        Panel(title, SIGMA, "test accuracy (%)", tests, MEAN, published=marks, top=100),
        Panel(title, SIGMA, "kernel norm ‖W‖", norms, MEAN, guides=start),
    ]
    return [*row, view.spreads("figure 1", title, members)] if reference else row


def _initial_norm(view: View, members: Sequence[Member]) -> Series:
    every = [record for key, _, _ in members for record in view.cell(key)]
    expected = {scale: 0 for key, _, _ in members for scale in view.expected(key)}
    label, style = "at initialization", styles.GUIDE
    return scale_series(every, value_of("norm_init"), expected, label=label, style=style)


# -- figure 2 ---------------------------------------------------------------------------------------------


def plot_heatmaps(records: Sequence[RunRecord], studies: Sequence[Study], *, reference: bool = False) -> Plot:
    """Figure 2: test accuracy, optimizer x scale, a map per batch size, two in a row."""
    shown = by_optimizer(records, studies, ALL_BATCHES, every=True)
    maps = [_heatmap(shown, b, reference=reference) for b in shown.batches]
    known = [y for panel in maps for row in panel.rows for y in row.known()]
    limits = (min(known), max(known)) if known else (0.0, 100.0)
    maps = [panel._replace(limits=limits) for panel in maps]
    full = [panel for panel in maps if panel.has_runs()]
    rows = [full[i : i + 2] for i in range(0, len(full), 2)]
    empty = [panel for panel in maps if not panel.has_runs()]
    plot = shown.view.plot(
        [*rows, *([empty] if empty else [])],
        shown.everyone(),
        head="Test accuracy of the predictor with the least validation loss",
        reference=reference,
    )
    return plot._replace(legend=())


def _heatmap(shown: ByOptimizer, b: int, *, reference: bool) -> Heatmap:
    view = shown.view
    members = [Member((name, b), name, styles.optimizer_style(name)) for name in shown.names]
    tests = [_row(view, member, "test_accuracy") for member in members]
    trains = [_row(view, member, "train_accuracy") for member in members]
    spreads = view.spreads("figure 2", f"b = {b}", members) if reference else None
    return Heatmap(
        title=f"b = {b}",
        x_title=SIGMA,
        y_title="test accuracy (%)",
        rows=tests,
        limits=(0.0, 100.0),
        crossed=[[y < 100 * INTERPOLATION for y in row.y] for row in trains],
        intervals=spreads.rows if spreads else (),
        n_scales=spreads.n_scales if spreads else 0,
    )


def _row(view: View, member: Member, metric: str) -> Series:
    """A metric over all scales of the figure, whether or not a cell was asked for there."""
    expected = dict.fromkeys(view.scales, 0) | view.expected(member.key)
    return scale_series(view.cell(member.key), value_of(metric), expected, label=member.label)


# -- figure 3 ---------------------------------------------------------------------------------------------


def plot_interpolation(
    records: Sequence[RunRecord], studies: Sequence[Study], *, reference: bool = False
) -> Plot:
    """Figure 3: columns are batch sizes; above the interpolation epoch, below the repair gap."""
    shown = by_optimizer(records, studies, BATCHES, every=True)
    plot = shown.view.plot(
        [[_times(shown, b) for b in shown.batches], [_repair(shown, b) for b in shown.batches]],
        shown.everyone(),
        head="Interpolation epoch (first with 99.5% train accuracy) and repair gap",
        about=[
            "Repair gap: validation accuracy at the least validation loss less that at interpolation, "
            "over the runs that interpolated",
        ],
        reference=reference,
    )
    never = [text for member in shown.everyone() for text in _undefined(shown.view, member)]
    published = _published_epochs(shown) if reference else []
    return plot._replace(missing=[*plot.missing, *never], published=published)


def _published_epochs(shown: ByOptimizer) -> list[str]:
    """Published interpolation epochs of what is shown, in words: one range holds for several lines."""
    cells: dict[str, list[Member]] = {}
    for member in shown.everyone():
        item = find("figure 3", shown.view.recipe(member.key), "tau_interp")
        if item is not None and shown.view.cell(member.key):
            cells.setdefault(str(item), []).append(member)
    return [
        f"interpolation epoch {epochs} for {', '.join(dict.fromkeys(one.label for one in members))} "
        f"at b = {', '.join(dict.fromkeys(str(one.key[1]) for one in members))}"
        for epochs, members in cells.items()
    ]


def _times(shown: ByOptimizer, b: int) -> Panel:
    view, members = shown.view, [member for member in shown.members(b) if shown.view.cell(member.key)]
    series = [
        interpolation_series(view.cell(key), view.expected(key), label=label, style=style)
        for key, label, style in members
    ]
    last = max((float(view.recipe(member.key).epochs) for member in members), default=None)
    return Panel(f"b = {b}", SIGMA, "interpolation epoch", series, MEDIAN, ceiling=last, log_y=True)


def _repair(shown: ByOptimizer, b: int) -> Panel:
    series = shown.view.series(shown.members(b), value_of("repair_gap"))
    return Panel(f"b = {b}", SIGMA, "repair gap (pp)", series, MEAN, void="99.5% never reached")


def _undefined(view: View, member: Member) -> list[str]:
    """Scales at which no run interpolated, so that there is no repair gap."""
    groups = by_scale(view.cell(member.key))
    never = [scale for scale, group in groups.items() if all(r.summary.tau_interp is None for r in group)]
    name = f"{member.label} b{member.key[1]}"
    few = len(never) <= FEW_SCALES
    where = f"σ = {numbers(never)}" if few else f"{len(never)} of {len(groups)} scales"
    return [f"{name}: no repair gap at {where} (99.5% never reached)"] if never else []
