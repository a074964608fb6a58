"""The main grid, every optimizer at every batch size: figures 1 to 3, tables 2 and 3."""

from __future__ import annotations

from collections.abc import Sequence

from initmem.intervention import level_text
from initmem.measures.design import by_level
from initmem.measures.fit import fit
from initmem.paper import parts
from initmem.paper.parts import Field, lines_table, plot_of_lines, published_marks, series, spreads
from initmem.paper.reference import find
from initmem.paper.selection import Line, Records, Selection, Studies, select, wanted_first
from initmem.plots import styles
from initmem.plots.captions import SIGMA
from initmem.plots.model import AnyPanel, Heatmap, Panel, Plot, Series
from initmem.plots.series import MEAN, MEDIAN, accuracy_gap, interpolation_series, scale_series, value_of
from initmem.record import INTERPOLATION
from initmem.table import Column, Table

OPTIMIZERS = ("sgd", "momentum", "adam", "adamw", "muon")
ALL_BATCHES = (16, 32, 64, 128, 256)
BATCHES = (16, 128)
FEW_SCALES = 5  # so many are named one by one
TEST = value_of("test_accuracy")


def select_grid(records: Records, studies: Studies, batches: Sequence[int] = ALL_BATCHES) -> Selection:
    """The records of the main grid."""
    wanted = [(name, b) for b in batches for name in OPTIMIZERS]
    return select(records, studies, ("optimizer", "batch_size"), wanted, own_rates=True)


def every_batch(grid: Selection, wanted: Sequence[int]) -> list[int]:
    """The batch sizes that are wanted, and all others that have runs."""
    return sorted(wanted_first(wanted, grid.axis("batch_size")))


def optimizer_line(grid: Selection, name: str, b: int) -> Line:
    """An optimizer at one batch size."""
    return grid.line((name, b), name, styles.optimizer_style(name))


def optimizer_names(grid: Selection) -> list[str]:
    """The optimizers of the paper, and what else has runs."""
    return wanted_first(OPTIMIZERS, grid.axis("optimizer"))


def lines_at(grid: Selection, *batches: int) -> list[Line]:
    """The optimizers at some batch sizes: those of the paper, and what else has runs there."""
    lines = [optimizer_line(grid, name, b) for b in batches for name in optimizer_names(grid)]
    return [line for line in lines if line.label in OPTIMIZERS or line.records]


# -- figure 1 ---------------------------------------------------------------------------------------------


def plot_scales(records: Records, studies: Studies, *, reference: bool = False) -> Plot:
    """Figure 1: rows are batch sizes, columns the accuracy gap, the test accuracy and the kernel norm."""
    grid = select_grid(records, studies, BATCHES)
    batches = grid.batch_sizes(BATCHES)
    lines = lines_at(grid, *batches)
    return plot_of_lines(
        grid,
        [_scale_row(grid, b, reference=reference) for b in batches],
        lines,
        head="Accuracy gap, test accuracy and kernel norm of the predictor with the least validation loss",
        about=["Kernel norm: Frobenius"],
        reference=reference,
        notes=[*grid.left_out(batches), *_unlike_published(lines)],
    )


def _scale_row(grid: Selection, b: int, *, reference: bool) -> list[AnyPanel]:
    lines, title = lines_at(grid, b), f"b = {b}"
    norms = series(lines, value_of("norm_best"))
    marks = published_marks("figure 1", lines) if reference else ()
    row: list[AnyPanel] = [
        Panel(title, SIGMA, "train − test accuracy (pp)", series(lines, accuracy_gap), MEAN),
        Panel(title, SIGMA, "test accuracy (%)", series(lines, TEST), MEAN, published=marks, top=100),
        Panel(title, SIGMA, "kernel norm ‖W‖", norms, MEAN, guides=[_initial_norm(lines)] if norms else []),
    ]
    return [*row, spreads("figure 1", title, lines)] if reference else row


def _initial_norm(lines: Sequence[Line]) -> Series:
    records = [record for line in lines for record in line.records]
    expected = {scale: 0 for line in lines for scale in line.expected}
    return scale_series(
        records, value_of("norm_init"), expected, label="at initialization", style=styles.GUIDE
    )


def _unlike_published(lines: Sequence[Line]) -> list[str]:
    """Where SGD differs from the published figure, in which it interpolates and its gap grows with scale."""
    notes = []
    for line in lines:
        of_scales = fit(line.records) if line.label == "sgd" else None
        if of_scales is None or of_scales.gap_change is None:
            continue
        gap, small, large = of_scales.gap_change, of_scales.train[0], of_scales.train[-1]
        fitted = f"train accuracy {small:.1f}% at the smallest scale, {large:.1f}% at the largest"
        if gap.value is not None and gap.high is not None and gap.high < 0:
            notes.append(
                f"Unlike the published figure, the accuracy gap of {line.name} falls with the scale, by "
                f"{-gap.value:.1f} pp; {fitted}"
            )
        elif min(of_scales.train) < 100 * INTERPOLATION:
            notes.append(f"Unlike in the published figure, {line.name} does not interpolate: {fitted}")
    return notes


# -- figure 2 ---------------------------------------------------------------------------------------------


def plot_heatmaps(records: Records, studies: Studies, *, reference: bool = False) -> Plot:
    """Figure 2: test accuracy, optimizer x scale, a map per batch size, two in a row."""
    grid = select_grid(records, studies)
    batches = every_batch(grid, ALL_BATCHES)
    maps = [_heatmap(grid, b, reference=reference) for b in batches]
    values = [y for panel in maps for row in panel.rows for y in row.known()]
    limits = (min(values), max(values)) if values else (0.0, 100.0)
    full = [panel._replace(limits=limits) for panel in maps if panel.has_runs()]
    empty = [panel._replace(limits=limits) for panel in maps if not panel.has_runs()]
    rows = [full[i : i + 2] for i in range(0, len(full), 2)]
    return plot_of_lines(
        grid,
        [*rows, empty] if empty else rows,
        lines_at(grid, *batches),
        head="Test accuracy of the predictor with the least validation loss",
        reference=reference,
        legend=(),
    )


def _heatmap(grid: Selection, b: int, *, reference: bool) -> Heatmap:
    lines = [optimizer_line(grid, name, b) for name in optimizer_names(grid)]
    every = dict.fromkeys(grid.scales(), 0)  # also where a line was not asked for

    def rows(metric: str) -> list[Series]:
        value = value_of(metric)
        return [scale_series(one.records, value, every | one.expected, label=one.label) for one in lines]

    beside = spreads("figure 2", f"b = {b}", lines) if reference else None
    return Heatmap(
        title=f"b = {b}",
        x_title=SIGMA,
        y_title="test accuracy (%)",
        rows=rows("test_accuracy"),
        limits=(0.0, 100.0),
        crossed=[[y < 100 * INTERPOLATION for y in row.y] for row in rows("train_accuracy")],
        intervals=beside.rows if beside else (),
        n_scales=beside.n_scales if beside else 0,
    )


# -- figure 3 ---------------------------------------------------------------------------------------------


def plot_interpolation(records: Records, studies: Studies, *, reference: bool = False) -> Plot:
    """Figure 3: columns are batch sizes; above the interpolation epoch, below the repair gap."""
    grid = select_grid(records, studies, BATCHES)
    batches = every_batch(grid, BATCHES)
    lines = lines_at(grid, *batches)
    plot = plot_of_lines(
        grid,
        [[_epochs_panel(grid, b) for b in batches], [_repair_panel(grid, b) for b in batches]],
        lines,
        head="Interpolation epoch (first with 99.5% train accuracy) and repair gap",
        about=[
            "Repair gap: validation accuracy at the least validation loss less that at interpolation, "
            "over the runs that interpolated",
        ],
        reference=reference,
        published=_published_epochs(lines) if reference else [],
    )
    return plot._replace(missing=[*plot.missing, *(text for line in lines for text in _undefined(line))])


def _epochs_panel(grid: Selection, b: int) -> Panel:
    lines = [line for line in lines_at(grid, b) if line.records]
    medians = [
        interpolation_series(line.records, line.expected, label=line.label, style=line.style)
        for line in lines
    ]
    last = max((float(line.recipe.epochs) for line in lines), default=None)
    return Panel(f"b = {b}", SIGMA, "interpolation epoch", medians, MEDIAN, ceiling=last, log_y=True)


def _repair_panel(grid: Selection, b: int) -> Panel:
    gaps = series(lines_at(grid, b), value_of("repair_gap"))
    return Panel(f"b = {b}", SIGMA, "repair gap (pp)", gaps, MEAN, void="99.5% never reached")


def _published_epochs(lines: Sequence[Line]) -> list[str]:
    """Published interpolation epochs of what is shown, in words: one range holds for several lines."""
    ranges: dict[str, list[Line]] = {}
    for line in lines:
        item = find("figure 3", line.recipe, "tau_interp")
        if item is not None and line.records:
            ranges.setdefault(str(item), []).append(line)
    return [
        f"interpolation epoch {epochs} for {', '.join(dict.fromkeys(line.label for line in group))} "
        f"at b = {', '.join(dict.fromkeys(str(line.recipe.batch_size) for line in group))}"
        for epochs, group in ranges.items()
    ]


def _undefined(line: Line) -> list[str]:
    """Scales at which no run interpolated, so that there is no repair gap."""
    groups = by_level(line.records)
    never = [scale for scale, group in groups.items() if all(r.summary.tau_interp is None for r in group)]
    few = len(never) <= FEW_SCALES
    scales = f"σ = {', '.join(map(level_text, never))}" if few else f"{len(never)} of {len(groups)} scales"
    return [f"{line.name}: no repair gap at {scales} (99.5% never reached)"] if never else []


# -- tables 2 and 3 ---------------------------------------------------------------------------------------

NOTES = [
    "At τ_interp and repair gap: over the runs that interpolated (99.5% train accuracy)",
    "A negative repair gap: the least validation loss came before interpolation; accuracy rose until then",
    "τ_interp: median, runs that never got there counted as later than their last epoch; τ_best: mean",
]


def moments_table(
    where: str, target: float, records: Records, studies: Studies, *, reference: bool = False
) -> Table:
    """Table 2 or 3: validation accuracy at three moments, from the scale nearest to `target`."""
    grid = select_grid(records, studies)
    scale = min(grid.scales(), key=lambda scale: (abs(scale - target), scale), default=target)
    stands_in = f"σ = {scale:g} stands in for {target:g}, which the store lacks"
    fields = [
        parts.BATCH,
        parts.OPTIMIZER,
        Field(
            Column("at τ_interp", about="validation accuracy when interpolation is reached", unit="%"),
            _at_interpolation,
        ),
        _moment("at τ_best", "validation accuracy of the selected predictor", "val_accuracy_best"),
        _moment("last epoch", "validation accuracy at the end", "val_accuracy_last"),
        Field(Column("repair gap", about="at τ_best less at τ_interp", unit="pp"), _repair_gap),
        Field(parts.TAU_INTERP, parts.tau_interp),
        Field(parts.TAU_BEST, parts.tau_best),
        Field(Column("interpolated", about="runs that reached interpolation", unit="runs"), _reached),
        _moment("test", "test accuracy of the selected predictor", "test_accuracy")._replace(
            shown="with published"
        ),
        parts.published(where, "test, paper", "test", "%", scale=scale),
        parts.published(where, "τ_interp, paper", "tau_interp", "epochs"),
        parts.published(where, "τ_best, paper", "tau_best", "epochs"),
    ]
    return lines_table(
        where,
        f"Validation accuracy at three moments, initialization scale σ = {scale:g}",
        [fields],
        grid,
        [line.at(scale) for line in lines_at(grid, *every_batch(grid, ALL_BATCHES))],
        reference=reference,
        notes=[*NOTES, stands_in] if scale != target else NOTES,
    )


def _moment(title: str, about: str, metric: str) -> Field:
    return Field(Column(title, about=about, unit="%"), lambda line: parts.mean(line, metric))


def _never(line: Line) -> bool:
    """Whether there are runs, and none interpolated."""
    return bool(line.records) and all(record.summary.tau_interp is None for record in line.records)


def _at_interpolation(line: Line) -> parts.Entry:
    return "not reached" if _never(line) else parts.mean(line, "val_accuracy_interp")


def _repair_gap(line: Line) -> parts.Entry:
    return "" if _never(line) else parts.mean(line, "repair_gap")


def _reached(line: Line) -> parts.Entry:
    n = sum(record.summary.tau_interp is not None for record in line.records)
    return f"{n} of {len(line.records)}" if line.records else None
