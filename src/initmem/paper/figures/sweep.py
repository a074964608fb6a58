"""Figure 4: test accuracy against scale per learning rate and kernel penalty, with the spreads in order."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from initmem.paper.figures.select import Selection, also, batch_sizes, select
from initmem.paper.figures.view import Member, View
from initmem.plots import canvas, captions, styles
from initmem.plots.panels import draw_panels
from initmem.plots.plotdata import (
    Entry,
    Panel,
    PanelPlot,
    Spread,
    SpreadPanel,
    common_grid,
    percent,
)
from initmem.recipe import AnyRecipe
from initmem.store.record import RunRecord
from initmem.study import Study

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FIELDS = ("optimizer", "learning_rate", "l2", "batch_size")
RATES = (1e-3, 1e-2, 1e-1)
PENALTIES = (0.0, 1e-3, 5e-3, 1e-2)
BATCHES = (16, 128)
LONG = ("sgd", 1e-3, 0.0)
LONG_FIELDS = ("optimizer", "learning_rate", "schedule", "batch_size")


class Sweep(NamedTuple):
    """The records of the sweep over learning rate and penalty, Adam, and long training at a constant rate."""

    main: View
    long: View
    batches: list[int]
    rates: list[float]
    penalties: list[float]

    def members(self, b: int) -> list[Member]:
        """SGD at one batch size, rate by rate, then Adam."""
        style = styles.crossed(self.rates, self.penalties)
        keys = [("sgd", rate, penalty, b) for rate in self.rates for penalty in self.penalties]
        keys = [key for key in keys if _wanted(key) or key in self.main.found.cells]
        found = [Member(key, f"η = {key[1]:g}, λ = {key[2]:g}", style[key[1], key[2]]) for key in keys]
        others = [key for key in self.main.found.cells if key[0] == "adam" and key[3] == b]
        adam = also(others, [("adam", 1e-3, 0.0, b)])
        return found + [Member(k, _adam_label(k), styles.adam_beside_sgd(i)) for i, k in enumerate(adam)]

    def long_members(self, b: int) -> list[Member]:
        """SGD at a constant rate."""
        runs = self.long.found.recipes()
        epochs = f"{runs[0].epochs:,}" if runs else "5,000"
        return [Member(("sgd", 1e-3, "constant", b), f"constant η, {epochs} epochs", styles.LONG)]

    def everyone(self, b: int) -> list[tuple[View, Member]]:
        """All lines of one panel, each with the view that holds its records."""
        return [(self.main, m) for m in self.members(b)] + [(self.long, m) for m in self.long_members(b)]

    def grid(self, *batches: int) -> list[float]:
        """The scales that most of the panels' recipes share: spreads are taken over these alone."""
        every = [(view, member.key) for b in batches for view, member in self.everyone(b)]
        return common_grid([view.expected(key) for view, key in every if view.cell(key)])

    def missing(self) -> list[str]:
        """What the panels lack."""
        main = self.main.missing([member.key for b in self.batches for member in self.members(b)])
        return main + self.long.missing([m.key for b in self.batches for m in self.long_members(b)])

    def notes(self) -> list[str]:
        """What else the store holds, and in what the long training differs from the rest."""
        found = self.main.found.notes + self.long.found.notes
        if self.main.found.cells and self.long.found.cells:
            main, long = self.main.found.recipes()[0], self.long.found.recipes()[0]
            names = [n for n in ("dataset", "train_size", "width") if getattr(main, n) != getattr(long, n)]
            differs = ", ".join(captions.phrase(long, name) for name in names)
            found = [*found, f"Constant rate: {differs}"] if names else found
        return found

    def source(self, *, reference: bool) -> list[str]:
        """Where the numbers come from."""
        recipes = self.main.found.recipes() + self.long.found.recipes()
        text = captions.source(recipes, self.main.studies, reference=reference)
        return [text, captions.common(self.main.found.recipes(), FIELDS)]


def _wanted(key: tuple[str, float, float, int]) -> bool:
    return key[1] in RATES and key[2] in PENALTIES


def _adam_label(key: tuple[str, float, float, int]) -> str:
    return f"adam η = {key[1]:g}" + (f", λ = {key[2]:g}" if key[2] else "")


def sweep(records: Sequence[RunRecord], studies: Sequence[Study]) -> Sweep:
    """Find the records of the sweep; the constant schedule is a recipe of its own, of another length."""
    wanted = [("sgd", rate, penalty, b) for rate in RATES for penalty in PENALTIES for b in BATCHES]
    wanted += [("adam", 1e-3, 0.0, b) for b in BATCHES]
    ours = [r for r in records if r.run.recipe.get("optimizer") in ("sgd", "adam")]
    constant = [r for r in ours if _is_long(r.run.recipe)]
    main = select(ours, FIELDS, wanted)
    if ("schedule", "constant") in main.setting:
        sweeps = any(key[:3] != LONG for key in main.cells)
        if sweeps:
            constant = []  # a sweep at a constant rate: they are shown already
        else:
            main = select([r for r in ours if not _is_long(r.run.recipe)], FIELDS, wanted)
    long = select(constant, LONG_FIELDS, [("sgd", 1e-3, "constant", b) for b in BATCHES])
    return Sweep(
        View.of(main, studies),
        View.of(long, studies),
        batches=batch_sizes(main if main.cells else long, BATCHES),
        rates=sorted(also(_axis(main, "learning_rate"), RATES)),
        penalties=sorted(also(_axis(main, "l2"), PENALTIES)),
    )


def _is_long(recipe: AnyRecipe) -> bool:
    settings = (recipe.get("optimizer"), recipe.get("learning_rate"), recipe.get("l2"))
    return recipe.get("schedule") == "constant" and settings == LONG


def _axis(found: Selection, field: str) -> list[float]:
    index = FIELDS.index(field)
    return [key[index] for key in found.cells if key[0] == "sgd"]


def plot(records: Sequence[RunRecord], studies: Sequence[Study], *, reference: bool = False) -> PanelPlot:
    """A panel per batch size; below the lines, their spreads in ascending order."""
    found = sweep(records, studies)
    row = [_panel(found, b, reference=reference) for b in found.batches]
    missing = found.missing()
    notes = found.notes()
    parts = [f"{captions.BANDS}, {captions.counts(row)}", "Bars: spread of test accuracy, in ascending order"]
    parts += [captions.published(row)] if reference else []
    head = "Test accuracy of SGD by learning rate η and kernel penalty λ"
    text = captions.caption(
        head, [*parts, *found.source(reference=reference and captions.has_published(row))], missing, notes
    )
    return PanelPlot([list(row)], _legend(found), text, missing, notes)


def _panel(found: Sweep, b: int, *, reference: bool) -> Panel:
    lines = [line for view, m in found.everyone(b) for line in view.lines([m], percent("test_accuracy"))]
    grid = found.grid(b)
    bars = [
        spread
        for view, member in found.everyone(b)
        for spread in view.spreads("figure 4", "", [member], grid).spreads
    ]
    bars.sort(key=lambda bar: (bar.measured is None, bar.measured or 0.0))
    if not reference:
        bars = [bar._replace(reference=None) for bar in bars]
    inset = SpreadPanel(f"b = {b}", f"spread over {len(grid)} scales (pp)", bars, len(grid))
    return Panel(f"b = {b}", captions.SIGMA, "test accuracy (%)", lines, inset=inset)


def _legend(found: Sweep) -> list[list[Entry]]:
    """A row per learning rate, a column per penalty; the others below."""
    every: dict[str, Entry] = {}
    for b in found.batches:
        for view, member in found.everyone(b):
            (entry,) = view.entries([member])
            seen = every.get(entry.label, entry)
            every[entry.label] = entry._replace(present=entry.present or seen.present)
    rows = [[e for label, e in every.items() if label.startswith(f"η = {rate:g},")] for rate in found.rates]
    used = {entry.label for row in rows for entry in row}
    return [row for row in [*rows, [e for label, e in every.items() if label not in used]] if row]


def draw(plot: PanelPlot, path: Path) -> None:
    """Draw figure 4."""
    draw_panels(plot, path, row_height=3.4, extra=_draw_inset)


def _draw_inset(axes: Axes, panel: Panel) -> None:
    """Bars in the lower part of the panel, which the lines leave free."""
    if panel.inset is None:
        return
    low, high = axes.get_ylim()
    ticks = [tick for tick in axes.get_yticks() if low <= tick <= high]
    axes.set_ylim(low - 0.8 * (high - low), high)
    axes.set_yticks(ticks)
    inset = axes.inset_axes((0.02, 0.02, 0.97, 0.38))
    inset.grid(visible=False)
    inset.spines[:].set_visible(False)
    bars = panel.inset.spreads
    top = max([1.0, *(x for bar in bars for x in (bar.measured, bar.reference) if x is not None)])
    inset.set(xticks=[], yticks=[], xlim=(-0.6, len(bars) - 0.4), ylim=(-0.2 * top, 1.15 * top))
    inset.text(0.01, 1.01, panel.inset.x_title, transform=inset.transAxes, va="bottom", fontsize=6.5)
    inset.axhline(0, color="#404040", linewidth=0.5)
    for i, bar in enumerate(bars):
        _draw_bar(inset, i, bar, top)


def _draw_bar(inset: Axes, i: int, bar: Spread, top: float) -> None:
    """A bar with its value, the sign of its line below, and the published value."""
    inset.plot(i, -0.1 * top, **canvas.look(bar.style, size=3.5), clip_on=False)
    if bar.reference is not None:
        sign = "v" if bar.relation in ("<", "<=") else "D"
        inset.plot(i, bar.reference, sign, color="none", mec="black", mew=0.8, ms=4.5, zorder=5)
    if bar.measured is None:
        inset.bar(i, 0.7 * top, color="white", edgecolor="#D0D0D0", hatch="////", width=0.75, linewidth=0.4)
        if bar.reference is None:
            inset.text(i, 0.35 * top, bar.void, rotation=90, ha="center", va="center", fontsize=5.5)
        return
    inset.bar(i, bar.measured, color=bar.style.colour, width=0.75, alpha=0.75)
    above = max(bar.measured, (bar.reference or 0.0) + 0.04 * top)
    inset.text(i, above + 0.02 * top, f"{bar.measured:.1f}", ha="center", va="bottom", fontsize=5.5)
