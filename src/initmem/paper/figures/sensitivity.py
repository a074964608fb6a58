"""Figure 6: |beta|, the slope of validation accuracy on scale, against epoch and against the clocks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from initmem.measures.beta import BetaCurve, beta_curve
from initmem.paper.figures.select import OPTIMIZERS, Key, Setting, also, batch_sizes, select
from initmem.paper.figures.view import Member, View, legend_entries
from initmem.paper.reference import find
from initmem.plots import captions, styles
from initmem.plots.builders import BETA
from initmem.plots.model import Panel, Plot, Series
from initmem.plots.series import SLOPE, beta_series
from initmem.record import RunRecord
from initmem.study import Study

FIELDS = ("optimizer", "batch_size")
PENALISED = ("optimizer", "learning_rate", "l2", "batch_size")
PLAIN, ADAPTIVE = ("sgd", "momentum"), ("adam", "adamw", "muon", "muon-conv")
BATCHES, ALL_BATCHES = (16, 128), (16, 32, 64, 128, 256)


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

    def records(self, key: Key) -> list[RunRecord]:
        """The records of a cell."""
        return self.view(key).cell(key)

    def series(self, members: Sequence[Member], clock: str | None = None) -> list[Series]:
        """|beta| of every member that has runs, against epoch or a clock."""
        there = [member for member in members if self.records(member.key)]
        for key, _, _ in there:
            if key not in self.curves:
                self.curves[key] = beta_curve(self.records(key))
        return [beta_series(self.curves[m.key], clock, label=m.label, style=m.style) for m in there]


def slopes(records: Sequence[RunRecord], studies: Sequence[Study]) -> Slopes:
    """Find the plain recipes, and in the same setting SGD with a penalty: 0.01 at a rate of 0.01.

    Where that is not there, the penalty that acts most stands in.
    """
    wanted = [(name, b) for name in OPTIMIZERS for b in ALL_BATCHES]
    selection = select(records, FIELDS, wanted, own_rates=True)
    rest: Setting = tuple(item for item in selection.setting if item[0] not in PENALISED)
    ours = [r for r in records if r.run.recipe.get("optimizer") == "sgd" and r.run.recipe.get("l2")]
    others = select(ours, PENALISED, [], within=rest)
    settings = {key[1:3] for key in others.cells}
    best = (1e-2, 1e-2)
    if settings and best not in settings:
        best = max(settings, key=lambda pair: (pair[0] * pair[1], pair))
    return Slopes(View.of(selection, studies), View.of(others, studies), *best)


def plot(records: Sequence[RunRecord], studies: Sequence[Study], *, reference: bool = False) -> Plot:
    """Against epoch: a row per batch size, the SGD family left, adaptive methods right; below: the clocks."""
    shown = slopes(records, studies)
    selection = shown.main.selection
    batches = batch_sizes(selection, BATCHES)
    every = sorted(also(selection.axis("batch_size"), ALL_BATCHES))
    level = _published(shown) if reference else None
    left = {b: [*_family(shown, b, PLAIN), _penalised(shown, b)] for b in batches}
    right = {b: _family(shown, b, ADAPTIVE) for b in batches}
    rows = [
        [
            _panel(f"b = {b}, SGD", "epoch", shown.series(left[b]))._replace(published_level=level),
            _panel(f"b = {b}, adaptive", "epoch", shown.series(right[b])),
        ]
        for b in batches
    ]
    rows.append(_clock_row(shown, every, level))
    top = [member for b in batches for member in left[b] + right[b]]
    bottom = [member for group in _clock_members(shown, every) for member in group]
    return _finish(shown, rows, top, bottom, reference=reference)


def _panel(title: str, x_title: str, series: Sequence[Series]) -> Panel:
    log_x = x_title != "epoch"
    panel = Panel(title, x_title, BETA, series, SLOPE, "runs per line", log_x=log_x, log_y=True)
    return panel._replace(void="batch norm was cold in all epochs")


def _family(shown: Slopes, b: int, names: Sequence[str]) -> list[Member]:
    return [
        Member((name, b), name, styles.optimizer_style(name))
        for name in names
        if name in OPTIMIZERS or shown.main.cell((name, b))
    ]


def _penalised(shown: Slopes, b: int) -> Member:
    return Member(shown.penalised_key(b), f"sgd η = {shown.rate:g}, λ = {shown.l2:g}", styles.PENALISED)


def _clock_members(shown: Slopes, every: Sequence[int]) -> list[list[Member]]:
    """SGD, SGD with a penalty, Adam: a line per batch size each. The penalty is wanted at two sizes only."""
    style = styles.in_order(every)
    black = {b: style[b]._replace(color=styles.PENALISED.color) for b in every}  # as in the panels above
    some = [b for b in every if b in BATCHES or shown.penalised.cell(shown.penalised_key(b))]
    return [
        [Member(("sgd", b), f"b = {b}", style[b]) for b in every],
        [Member(shown.penalised_key(b), f"b = {b}, λ = {shown.l2:g}", black[b]) for b in some],
        [Member(("adam", b), f"b = {b}", style[b]) for b in every],
    ]


def _clock_row(shown: Slopes, every: Sequence[int], level: float | None) -> list[Panel]:
    """SGD with and without a penalty in one panel, each against the clock that is its own."""
    sgd, penalised, adam = _clock_members(shown, every)
    plain, decayed = shown.series(sgd, "sgd"), shown.series(penalised, "l2")
    own = "SGD clock  (1/b) Σ η²" + (", with penalty  λ Σ η" if decayed else "")
    return [
        _panel("sgd", own, [*plain, *decayed])._replace(published_level=level),
        _panel("adam", "sum of learning rates  Σ η", shown.series(adam, "adaptive")),
    ]


def _published(shown: Slopes) -> float | None:
    item = find("figure 6", shown.main.recipe(("sgd", 16)), "beta")
    return item.value if item else None


def _finish(
    shown: Slopes,
    rows: Sequence[Sequence[Panel]],
    top: Sequence[Member],
    bottom: Sequence[Member],
    *,
    reference: bool,
) -> Plot:
    keys = list(dict.fromkeys(member.key for member in [*top, *bottom]))
    with_runs = {key for key in keys if shown.records(key)}
    recipes = [shown.view(key).recipe(key) for key in keys if key in with_runs]
    return Plot(
        rows=rows,
        legend=[legend_entries(top, with_runs), legend_entries(bottom, with_runs)],
        head="Slope β of validation accuracy on initialization scale, against epoch and against the clocks",
        source=captions.source(recipes, shown.main.studies),
        setting=captions.common(recipes, PENALISED),
        missing=[text for key in keys for text in shown.view(key).missing([key])],
        notes=shown.main.selection.notes,
        reference=reference,
        row_height=1.9,
    )
