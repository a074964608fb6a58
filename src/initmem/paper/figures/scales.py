"""Figure 1: accuracy gap, test accuracy and kernel norm against scale, one line per optimizer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from initmem.paper.figures.select import OPTIMIZERS, also, batch_sizes, select
from initmem.paper.figures.view import Member, View
from initmem.plots import captions, styles
from initmem.plots.panels import draw_panels
from initmem.plots.plotdata import Line, Panel, PanelPlot, SpreadPanel, gap, line, percent
from initmem.store.record import RunRecord
from initmem.study import Study

FIELDS = ("optimizer", "batch_size")
BATCHES = (16, 128)


def plot(records: Sequence[RunRecord], studies: Sequence[Study], *, reference: bool = False) -> PanelPlot:
    """Rows are batch sizes, columns the three quantities; the dashed line is the norm at initialization."""
    found = select(records, FIELDS, [(name, b) for b in BATCHES for name in OPTIMIZERS], own_rates=True)
    view, batches = View.of(found, studies), batch_sizes(found, BATCHES)
    names = also(found.axis("optimizer"), OPTIMIZERS)
    members = {
        b: [
            Member((name, b), name, styles.OPTIMIZERS[name])
            for name in names
            if name in OPTIMIZERS or (name, b) in found.cells
        ]
        for b in batches
    }
    return view.plot(
        [_row(view, b, members[b], reference=reference) for b in batches],
        [member for b in batches for member in members[b]],
        head="Accuracy gap, test accuracy and kernel norm of the predictor with the least validation loss",
        about=["Kernel norm: Frobenius; dashed: at initialization"],
        reference=reference,
    )


def _row(view: View, b: int, members: Sequence[Member], *, reference: bool) -> list[Panel | SpreadPanel]:
    tests = view.lines(members, percent("test_accuracy"))
    norms = view.lines(members, lambda record: record.summary.norm_best)
    start = (_initial_norm(view, members),) if norms else ()
    marks = view.marks("figure 1", members) if reference else ()
    panels: list[Panel | SpreadPanel] = [
        Panel(f"b = {b}", captions.SIGMA, "train − test accuracy (pp)", view.lines(members, gap)),
        Panel(f"b = {b}", captions.SIGMA, "test accuracy (%)", tests, marks=marks),
        Panel(f"b = {b}", captions.SIGMA, "kernel norm ‖W‖", norms, guides=start),
    ]
    return [*panels, view.spreads("figure 1", f"b = {b}", members)] if reference else panels


def _initial_norm(view: View, members: Sequence[Member]) -> Line:
    every = [record for key, _, _ in members for record in view.cell(key)]
    expected = {scale: 0 for key, _, _ in members for scale in view.expected(key)}
    return line("at initialization", styles.REFERENCE, every, lambda r: r.summary.norm_init, expected)


def draw(plot: PanelPlot, path: Path) -> None:
    """Draw figure 1."""
    draw_panels(plot, path, row_height=1.95)
