"""The sweep of SGD over learning rate and L2: figure 4 and table 4."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from initmem.paper import parts
from initmem.paper.parts import Field, legend, lines_table, plot_of_lines, series, shared_scales, spreads
from initmem.paper.selection import Line, Records, Selection, Studies, select, wanted_first
from initmem.plots import captions, styles
from initmem.plots.model import Entry, Panel, Plot
from initmem.plots.series import MEAN, value_of
from initmem.recipe import AnyRecipe
from initmem.table import Cell, Column, Table

FIELDS = ("optimizer", "learning_rate", "l2", "batch_size")
RATES = (1e-3, 1e-2, 1e-1)
PENALTIES = (0.0, 1e-3, 5e-3, 1e-2)
BATCHES = (16, 128)
LONG = ("sgd", 1e-3, 0.0)
LONG_FIELDS = ("optimizer", "learning_rate", "schedule", "batch_size")
HEAD = "Test accuracy of SGD by learning rate η and kernel penalty λ"


class Sweep(NamedTuple):
    """SGD over learning rates and L2, Adam, and long training at a constant learning rate."""

    main: Selection
    long: Selection
    batches: list[int]
    rates: list[float]
    penalties: list[float]

    def lines(self, *batches: int) -> list[Line]:
        """SGD at every learning rate and L2, then Adam, then long training: batch size by batch size."""
        return [line for b in batches for line in (*self._sgd(b), *self._adam(b), self._long(b))]

    def _sgd(self, b: int) -> list[Line]:
        style = styles.crossed(self.rates, self.penalties)
        lines = [
            self.main.line(("sgd", rate, l2, b), f"η = {rate:g}, λ = {l2:g}", style[rate, l2])
            for rate in self.rates
            for l2 in self.penalties
        ]
        return [line for line in lines if line.records or (line.key[1] in RATES and line.key[2] in PENALTIES)]

    def _adam(self, b: int) -> list[Line]:
        present = [key for key in self.main.cells if key[0] == "adam" and key[3] == b]
        lines = []
        for i, key in enumerate(wanted_first([("adam", 1e-3, 0.0, b)], present)):
            label = f"adam η = {key[1]:g}" + (f", λ = {key[2]:g}" if key[2] else "")
            lines.append(self.main.line(key, label, styles.adam_beside_sgd(i)))
        return lines

    def _long(self, b: int) -> Line:
        recipe = self.long.any_recipe()
        epochs = 5000 if recipe is None else recipe.epochs
        key, label = ("sgd", 1e-3, "constant", b), f"constant η, {epochs:,} epochs"
        return self.long.line(key, label, styles.LONG)

    def notes(self) -> list[str]:
        """What else the store holds, and in what the long training differs from the rest."""
        notes = self.long.notes + self.main.left_out(self.batches)
        main, long = self.main.any_recipe(), self.long.any_recipe()
        if main and long:
            names = [n for n in ("dataset", "train_size", "width") if getattr(main, n) != getattr(long, n)]
            differs = ", ".join(captions.phrase(long, name) for name in names)
            notes += [f"Constant rate: {differs}"] if names else []
        return notes


def select_sweep(records: Records, studies: Studies) -> Sweep:
    """The records of the sweep; the constant schedule is a recipe of its own, of another length."""
    wanted = [("sgd", rate, l2, b) for rate in RATES for l2 in PENALTIES for b in BATCHES]
    wanted += [("adam", 1e-3, 0.0, b) for b in BATCHES]
    ours = [r for r in records if r.run.recipe.get("optimizer") in ("sgd", "adam")]
    constant = [r for r in ours if _is_long(r.run.recipe)]
    main = select(ours, studies, FIELDS, wanted)
    if ("schedule", "constant") in main.setting:
        if any(key[:3] != LONG for key in main.cells):
            constant = []  # a sweep at a constant rate: they are shown already
        else:
            main = select([r for r in ours if not _is_long(r.run.recipe)], studies, FIELDS, wanted)
    long = select(constant, studies, LONG_FIELDS, [("sgd", 1e-3, "constant", b) for b in BATCHES])
    if not long.cells:  # what is missing is of the same data and network as what is shown
        rest = tuple(item for item in main.setting if item[0] not in LONG_FIELDS)
        long = replace(long, setting=rest)
    of_sgd = [key for key in main.cells if key[0] == "sgd"]
    return Sweep(
        main,
        long,
        batches=(main if main.cells else long).batch_sizes(BATCHES),
        rates=sorted(wanted_first(RATES, [key[1] for key in of_sgd])),
        penalties=sorted(wanted_first(PENALTIES, [key[2] for key in of_sgd])),
    )


def _is_long(recipe: AnyRecipe) -> bool:
    settings = (recipe.get("optimizer"), recipe.get("learning_rate"), recipe.get("l2"))
    return recipe.get("schedule") == "constant" and settings == LONG


# -- figure 4 ---------------------------------------------------------------------------------------------


def plot_sweep(records: Records, studies: Studies, *, reference: bool = False) -> Plot:
    """Figure 4: a panel per batch size; below the lines, their spreads in ascending order."""
    sweep = select_sweep(records, studies)
    lines = sweep.lines(*sweep.batches)
    return plot_of_lines(
        sweep.main,
        [[_panel(b, sweep.lines(b), reference=reference) for b in sweep.batches]],
        lines,
        legend=_legend(lines, sweep.rates),
        head=HEAD,
        notes=sweep.notes(),
        reference=reference,
        row_height=3.4,
    )


def _panel(b: int, lines: Sequence[Line], *, reference: bool) -> Panel:
    inset = spreads("figure 4", f"b = {b}", lines)
    bars = sorted(inset.rows, key=lambda bar: (bar.value is None, bar.value or 0.0))
    if not reference:
        bars = [bar._replace(reference=None) for bar in bars]
    inset = inset._replace(x_title=f"spread over {inset.n_scales} scales (pp)", rows=bars)
    tests = series(lines, value_of("test_accuracy"))
    return Panel(f"b = {b}", captions.SIGMA, "test accuracy (%)", tests, MEAN, inset=inset, top=100)


def _legend(lines: Sequence[Line], rates: Sequence[float]) -> list[list[Entry]]:
    """A row per learning rate, a column per L2; Adam and long training below."""
    sgd = [
        [line for line in lines if line.key[:2] == ("sgd", r) and line.style != styles.LONG] for r in rates
    ]
    others = [line for line in lines if not any(line in row for row in sgd)]
    return [legend(row) for row in [*sgd, others] if row]


# -- table 4 ----------------------------------------------------------------------------------------------


def sweep_table(records: Records, studies: Studies, *, reference: bool = False) -> Table:
    """Table 4: learning rate x L2, then Adam and long training."""
    sweep = select_sweep(records, studies)
    lines = sweep.lines(*sweep.batches)
    grid = shared_scales(lines) or parts.SCALES

    def train_accuracy(line: Line) -> Cell | None:
        here = [record for record in line.records if record.run.scale in grid]
        train = parts.mean(replace(line, records=here), "train_accuracy")
        return parts.number(train and train.mean)

    fields = [
        parts.BATCH,
        Field(Column("recipe", "text", "optimizer, learning rate and kernel penalty"), _recipe),
        Field(Column("schedule", "text", "of the learning rate"), _schedule),
        *parts.spread_fields("table 4", grid),
        Field(Column("train", about="train accuracy of the selected predictors", unit="%"), train_accuracy),
    ]
    return lines_table(
        "table 4",
        HEAD,
        [fields],
        sweep.main,
        lines,
        reference=reference,
        notes=["Train: mean train accuracy of the selected predictors over all scales shown"],
        further_notes=sweep.notes(),
        grid=grid,
    )


def _recipe(line: Line) -> str:
    return line.label if line.recipe.optimizer == "adam" else f"sgd {line.label}"


def _schedule(line: Line) -> str | None:
    return f"{line.recipe.schedule}, {line.recipe.epochs:,} epochs" if line.records else None
