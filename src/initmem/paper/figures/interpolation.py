"""Figure 3: when the labels are fitted, and what the selected predictor gained since."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from initmem.measures.interpolation import median_interpolation
from initmem.paper.figures.select import OPTIMIZERS, also, batch_sizes, numbers, select
from initmem.paper.figures.view import Member, View
from initmem.plots import captions, styles
from initmem.plots.panels import draw_panels
from initmem.plots.plotdata import Line, Panel, PanelPlot, by_scale, percent
from initmem.store.record import RunRecord
from initmem.study import Study

FIELDS = ("optimizer", "batch_size")
BATCHES = (16, 128)


def plot(records: Sequence[RunRecord], studies: Sequence[Study], *, reference: bool = False) -> PanelPlot:
    """Columns are batch sizes; above the interpolation epoch, below the repair gap."""
    found = select(records, FIELDS, [(name, b) for b in BATCHES for name in OPTIMIZERS], own_rates=True)
    view, batches = View.of(found, studies), batch_sizes(found, BATCHES)
    names = also(found.axis("optimizer"), OPTIMIZERS)
    members = [
        Member((name, b), name, styles.OPTIMIZERS[name])
        for b in batches
        for name in names
        if name in OPTIMIZERS or (name, b) in found.cells
    ]
    columns = {b: [member for member in members if member.key[1] == b] for b in batches}
    drawn = view.plot(
        [
            [_times(view, b, columns[b]) for b in batches],
            [_repair(view, b, columns[b]) for b in batches],
        ],
        members,
        head="Interpolation epoch (first with 99.5% train accuracy) and repair gap",
        bands="Interpolation: median with 95% limits, runs that never got there counted as later than the "
        "last epoch; repair gap: mean with 10th to 90th percentile",
        about=[
            "Repair gap: validation accuracy at the least validation loss less that at interpolation, "
            "over the runs that interpolated",
        ],
        reference=reference,
    )
    never = [text for member in members for text in _undefined(view, member)]
    return drawn._replace(missing=drawn.missing + never)


def _times(view: View, b: int, members: Sequence[Member]) -> Panel:
    lines = [_median_line(view, member) for member in members if view.cell(member.key)]
    horizon = max((view.recipe(key).epochs for key, _, _ in members if view.cell(key)), default=None)
    ceiling = None if horizon is None else float(horizon)
    return Panel(f"b = {b}", captions.SIGMA, "interpolation epoch", lines, ceiling=ceiling, log_y=True)


def _median_line(view: View, member: Member) -> Line:
    """Medians by survival estimate; a median beyond the last epoch is NaN, with its runs in n_censored."""
    key, label, style = member
    groups = by_scale(view.cell(key))
    found = {scale: median_interpolation(group) for scale, group in groups.items()}
    expected = view.expected(key)
    rows = [found.get(scale) for scale in expected]
    last = float(view.recipe(key).epochs)
    return Line(
        label=label,
        style=style,
        x=list(expected),
        y=[math.nan if row is None or row.median is None else row.median for row in rows],
        low=[math.nan if row is None or row.median is None else row.low or row.median for row in rows],
        high=[math.nan if row is None or row.median is None else row.high or last for row in rows],
        n=[0 if row is None else row.n for row in rows],
        n_censored=[0 if row is None else row.n_censored for row in rows],
        expected=list(expected.values()),
    )


def _repair(view: View, b: int, members: Sequence[Member]) -> Panel:
    lines = view.lines(members, percent("repair_gap"))
    return Panel(f"b = {b}", captions.SIGMA, "repair gap (pp)", lines, void="99.5% never reached")


def _undefined(view: View, member: Member) -> list[str]:
    """Scales at which no run interpolated, so that there is no repair gap."""
    groups = by_scale(view.cell(member.key))
    never = [scale for scale, group in groups.items() if all(r.summary.tau_interp is None for r in group)]
    name = f"{member.label} b{member.key[1]}"
    return [f"{name}: no repair gap at σ = {numbers(never)} (99.5% never reached)"] if never else []


def draw(plot: PanelPlot, path: Path) -> None:
    """Draw figure 3."""
    draw_panels(plot, path, row_height=2.1)
