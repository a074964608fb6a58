"""Figure 6: |beta|, the slope of validation accuracy on scale, against epoch and against the clocks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from initmem.measures.beta import BetaCurve, beta_curve
from initmem.paper.figures.select import OPTIMIZERS, Key, Setting, also, batch_sizes, select
from initmem.paper.figures.view import Member, View
from initmem.paper.reference import find
from initmem.plots import captions, styles
from initmem.plots.panels import draw_panels
from initmem.plots.plotdata import Entry, Line, Panel, PanelPlot, SpreadPanel
from initmem.store.record import RunRecord
from initmem.study import Study

FIELDS = ("optimizer", "batch_size")
PENALISED = ("optimizer", "learning_rate", "l2", "batch_size")
PLAIN, ADAPTIVE = ("sgd", "momentum"), ("adam", "adamw", "muon", "muon-conv")
BATCHES, ALL_BATCHES = (16, 128), (16, 32, 64, 128, 256)
SLOPE = "|β| per unit of σ"


@dataclass(frozen=True, slots=True)
class Slopes:
    """The slopes of all recipes of the figure; each is computed once."""

    main: View
    penalised: View  # SGD with a kernel penalty
    rate: float
    l2: float
    curves: dict[Key, BetaCurve] = field(default_factory=dict)

    def penalised_key(self, b: int) -> Key:
        """The recipe with a penalty at one batch size."""
        return ("sgd", self.rate, self.l2, b)

    def view(self, key: Key) -> View:
        """Where the records of a cell are."""
        return self.main if len(key) == len(FIELDS) else self.penalised

    def line(self, member: Member, clock: str | None = None) -> list[Line]:
        """|beta| against epoch or a clock, shape (epoch,); nothing where there are no runs."""
        key, label, style = member
        records = self.view(key).cell(key)
        if not records:
            return []
        if key not in self.curves:
            self.curves[key] = beta_curve(records)
        curve = self.curves[key]
        size, low, high = folded(curve)
        count = len(size)
        asked = sum(self.view(key).expected(key).values())
        return [
            Line(
                label=label,
                style=style,
                x=(curve.epochs if clock is None else curve.clocks[clock]).tolist(),
                y=size,
                low=low,
                high=high,
                n=[curve.n_runs] * count,
                n_censored=[0] * count,
                expected=[min(asked, curve.n_runs)] * count,  # open markers on 300 points would say little
            )
        ]

    def by_epoch(self, members: Sequence[Member]) -> list[Line]:
        """Lines against epoch."""
        return [line for member in members for line in self.line(member)]

    def by_clock(self, members: Sequence[Member], clock: str) -> list[Line]:
        """Lines against a clock."""
        return [line for member in members for line in self.line(member, clock)]


def folded(curve: BetaCurve) -> tuple[list[float], list[float], list[float]]:
    """|beta| with the limits of |beta|, shape (epoch,) each: an interval around zero starts at zero."""
    around_zero = (curve.low <= 0) & (curve.high >= 0)
    ends = np.abs(np.stack([curve.low, curve.high]))
    low = np.where(around_zero, 0.0, ends.min(axis=0))
    return np.abs(curve.beta).tolist(), low.tolist(), ends.max(axis=0).tolist()


def slopes(records: Sequence[RunRecord], studies: Sequence[Study]) -> Slopes:
    """Find the plain recipes, and in the same setting SGD with a penalty: 0.01 at a rate of 0.01.

    Where that is not there, the penalty that acts most stands in.
    """
    found = select(records, FIELDS, [(name, b) for name in OPTIMIZERS for b in ALL_BATCHES], own_rates=True)
    rest: Setting = tuple(item for item in found.setting if item[0] not in PENALISED)
    ours = [r for r in records if r.run.recipe.get("optimizer") == "sgd" and r.run.recipe.get("l2")]
    others = select(ours, PENALISED, [], within=rest)
    settings = {key[1:3] for key in others.cells}
    best = (1e-2, 1e-2)
    if settings and best not in settings:
        best = max(settings, key=lambda pair: (pair[0] * pair[1], pair))
    return Slopes(View.of(found, studies), View.of(others, studies), *best)


def plot(records: Sequence[RunRecord], studies: Sequence[Study], *, reference: bool = False) -> PanelPlot:
    """Against epoch: a row per batch size, the SGD family left, adaptive methods right; below: the clocks."""
    found = slopes(records, studies)
    cells = found.main.found
    batches = batch_sizes(cells, BATCHES)
    every = sorted(also(cells.axis("batch_size"), ALL_BATCHES))
    level = _published(found) if reference else None
    left = {b: [*_family(found, b, PLAIN), _penalised(found, b)] for b in batches}
    right = {b: _family(found, b, ADAPTIVE) for b in batches}
    rows: list[list[Panel | SpreadPanel]] = [
        [
            Panel(f"b = {b}, SGD", "epoch", SLOPE, found.by_epoch(left[b]), level=level, log_y=True),
            Panel(f"b = {b}, adaptive", "epoch", SLOPE, found.by_epoch(right[b]), log_y=True),
        ]
        for b in batches
    ]
    rows.append(_clock_row(found, every, level))
    top = [member for b in batches for member in left[b] + right[b]]
    bottom = [member for group in _clock_members(found, every) for member in group]
    return _finish(found, rows, top, bottom, reference=reference)


def _family(found: Slopes, b: int, names: Sequence[str]) -> list[Member]:
    return [
        Member((name, b), name, styles.OPTIMIZERS[name])
        for name in names
        if name in OPTIMIZERS or found.main.cell((name, b))
    ]


def _penalised(found: Slopes, b: int) -> Member:
    return Member(found.penalised_key(b), f"sgd η = {found.rate:g}, λ = {found.l2:g}", styles.PENALISED)


def _clock_members(found: Slopes, every: Sequence[int]) -> list[list[Member]]:
    """SGD, SGD with a penalty, Adam: a line per batch size each. The penalty is wanted at two sizes only."""
    style = styles.in_order(every)
    some = [b for b in every if b in BATCHES or found.penalised.cell(found.penalised_key(b))]
    return [
        [Member(("sgd", b), f"b = {b}", style[b]) for b in every],
        [Member(found.penalised_key(b), f"b = {b}", style[b]) for b in some],
        [Member(("adam", b), f"b = {b}", style[b]) for b in every],
    ]


def _clock_row(found: Slopes, every: Sequence[int], level: float | None) -> list[Panel | SpreadPanel]:
    axes = (
        ("sgd", "sgd", "SGD clock  (1/b) Σ η²", level),
        (f"sgd η = {found.rate:g}, λ = {found.l2:g}", "l2", "penalty clock  λ Σ η", None),
        ("adam", "adaptive", "adaptive clock  Σ η", None),
    )
    return [
        Panel(title, x_title, SLOPE, found.by_clock(members, clock), level=at, log_x=True, log_y=True)
        for (title, clock, x_title, at), members in zip(axes, _clock_members(found, every), strict=True)
    ]


def _published(found: Slopes) -> float | None:
    item = find("figure 6", found.main.recipe(("sgd", 16)), "beta")
    return item.value if item else None


def _finish(
    found: Slopes,
    rows: list[list[Panel | SpreadPanel]],
    top: Sequence[Member],
    bottom: Sequence[Member],
    *,
    reference: bool,
) -> PanelPlot:
    keys = list(dict.fromkeys(member.key for member in [*top, *bottom]))
    missing = [text for key in keys for text in found.view(key).missing([key])]
    panels = [panel for row in rows for panel in row]
    recipes = [found.view(key).recipe(key) for key in keys if found.view(key).cell(key)]
    counts = captions.counts(panels, what="runs per line")
    bands = f"Bands: 95% intervals, one seed left out at a time, {counts}"
    parts = [
        bands,
        "Values too small for the axis stand at its lower edge",
        *([captions.published(panels)] if reference else []),
    ]
    parts += [
        captions.source(recipes, found.main.studies, reference=reference),
        captions.common(recipes, PENALISED),
    ]
    head = "Slope β of validation accuracy on initialization scale, against epoch and against the clocks"
    notes = found.main.found.notes
    present = {m.label for m in [*top, *bottom] if found.view(m.key).cell(m.key)}
    legend = [
        list({m.label: Entry(m.label, m.style, m.label in present) for m in members}.values())
        for members in (top, bottom)
    ]
    return PanelPlot(rows, legend, captions.caption(head, parts, missing, notes), missing, notes)


def draw(plot: PanelPlot, path: Path) -> None:
    """Draw figure 6."""
    draw_panels(plot, path, row_height=1.9)
