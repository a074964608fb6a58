"""Figure 4: test accuracy against scale per learning rate and kernel penalty, with the spreads in order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from initmem.paper.figures.select import Selection, also, batch_sizes, left_out, select
from initmem.paper.figures.view import Member, View, legend_entries
from initmem.plots import captions, styles
from initmem.plots.model import Entry, Intervals, Panel, Plot
from initmem.plots.series import MEAN, common_grid, value_of
from initmem.recipe import AnyRecipe
from initmem.record import RunRecord
from initmem.study import Study

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
        keys = [key for key in keys if _wanted(key) or key in self.main.selection.cells]
        sgd = [Member(key, f"η = {key[1]:g}, λ = {key[2]:g}", style[key[1], key[2]]) for key in keys]
        others = [key for key in self.main.selection.cells if key[0] == "adam" and key[3] == b]
        adam = also(others, [("adam", 1e-3, 0.0, b)])
        return sgd + [Member(k, _adam_label(k), styles.adam_beside_sgd(i)) for i, k in enumerate(adam)]

    def long_members(self, b: int) -> list[Member]:
        """SGD at a constant rate."""
        runs = self.long.selection.recipes()
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
        notes = self.main.selection.notes + self.long.selection.notes
        notes = notes + left_out(self.main.selection, self.batches)
        if self.main.selection.cells and self.long.selection.cells:
            main, long = self.main.selection.recipes()[0], self.long.selection.recipes()[0]
            names = [n for n in ("dataset", "train_size", "width") if getattr(main, n) != getattr(long, n)]
            differs = ", ".join(captions.phrase(long, name) for name in names)
            notes = [*notes, f"Constant rate: {differs}"] if names else notes
        return notes

    def source(self, *, reference: bool) -> list[str]:
        """Where the numbers come from."""
        recipes = self.main.selection.recipes() + self.long.selection.recipes()
        paper = "; reference: the paper" if reference else ""
        text = captions.source(recipes, self.main.studies) + paper
        return [text, captions.common(self.main.selection.recipes(), FIELDS)]


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
    if not long.cells:  # what is missing is of the same data and network as what is shown
        rest = tuple(item for item in main.setting if item[0] not in LONG_FIELDS)
        long = long._replace(setting=rest)
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


def _axis(selection: Selection, field: str) -> list[float]:
    index = FIELDS.index(field)
    return [key[index] for key in selection.cells if key[0] == "sgd"]


def plot(records: Sequence[RunRecord], studies: Sequence[Study], *, reference: bool = False) -> Plot:
    """A panel per batch size; below the lines, their spreads in ascending order."""
    shown = sweep(records, studies)
    source, setting = shown.source(reference=False)
    return Plot(
        rows=[[_panel(shown, b, reference=reference) for b in shown.batches]],
        legend=_legend(shown),
        head="Test accuracy of SGD by learning rate η and kernel penalty λ",
        source=source,
        setting=setting,
        missing=shown.missing(),
        notes=shown.notes(),
        reference=reference,
        row_height=3.4,
    )


def _panel(shown: Sweep, b: int, *, reference: bool) -> Panel:
    everyone, grid = shown.everyone(b), shown.grid(b)
    series = [one for view, m in everyone for one in view.series([m], value_of("test_accuracy"))]
    bars = [bar for view, m in everyone for bar in view.spreads("figure 4", "", [m], grid).rows]
    bars.sort(key=lambda bar: (bar.value is None, bar.value or 0.0))
    if not reference:
        bars = [bar._replace(reference=None) for bar in bars]
    inset = Intervals(f"b = {b}", f"spread over {len(grid)} scales (pp)", bars, len(grid))
    return Panel(f"b = {b}", captions.SIGMA, "test accuracy (%)", series, MEAN, inset=inset, top=100)


def _legend(shown: Sweep) -> list[list[Entry]]:
    """A row per learning rate, a column per penalty; the others below."""
    everyone = [pair for b in shown.batches for pair in shown.everyone(b)]
    with_runs = {member.key for view, member in everyone if view.cell(member.key)}
    entries = legend_entries([member for _, member in everyone], with_runs)
    rows = [[e for e in entries if e.label.startswith(f"η = {rate:g},")] for rate in shown.rates]
    others = [e for e in entries if not any(e in row for row in rows)]
    return [row for row in [*rows, others] if row]
