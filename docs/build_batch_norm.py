"""Draw docs/images/batch-norm.png: one training, evaluated with moving and re-estimated statistics.

    python docs/build_batch_norm.py      # from the root of the project; seconds, trains nothing

Epochs whose moving averages are cold count here, in order to show what they do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import matplotlib.pyplot as plt
from matplotlib.axes import Axes

import initmem
from initmem.measures.beta import beta_curve, half_lives
from initmem.measures.collapse import collapse
from initmem.measures.design import by_recipe
from initmem.plots.styles import COLORS
from initmem.recipe import Recipe
from initmem.record import RunRecord

ROOT = Path(__file__).resolve().parents[1]
STYLE = ROOT / "src" / "initmem" / "plots" / "initmem.mplstyle"
FOLDER = Path("docs")
OPTIMIZERS, BATCHES, KINDS = ("sgd", "adam"), (16, 32, 64), ("moving", "re-estimated")
COLOR = dict(zip(KINDS, (COLORS[1], COLORS[0]), strict=True))


def with_cold_epochs(record: RunRecord) -> RunRecord:
    """The record under a recipe whose epochs are never left out."""
    recipe = record.run.recipe.network.replace(batch_statistics="re-estimated")
    return replace(record, run=replace(record.run, recipe=recipe))


def groups() -> dict[tuple[str, int, str], list[RunRecord]]:
    """The records by optimizer, batch size and kind of statistics."""
    records = initmem.open_results(FOLDER / "results" / "batch-norm.initmem").records()
    found = {}
    for recipe, group in by_recipe(records).items():
        assert isinstance(recipe, Recipe)
        key = recipe.optimizer, recipe.batch_size, str(recipe.batch_statistics)
        found[key] = [with_cold_epochs(record) for record in group]
    return found


def slopes(axes: Axes, found: dict[tuple[str, int, str], list[RunRecord]], optimizer: str) -> None:
    """beta(t) at batch size 16."""
    for kind in KINDS:
        curve = beta_curve(found[optimizer, 16, kind])
        axes.plot(curve.epochs, curve.beta, color=COLOR[kind], label=kind)
        axes.fill_between(curve.epochs, curve.band_low, curve.band_high, color=COLOR[kind], alpha=0.2, lw=0)
    axes.axhline(0, color="0.6", lw=0.8)
    axes.set(xlabel="epoch", ylabel="β, slope of validation accuracy on σ", title=f"{optimizer}, b = 16")
    axes.legend(frameon=False)


def ranges(
    axes: Axes, rows: Sequence[tuple[str, str, float | None, float | None, float | None]], none: str
) -> None:
    """Estimates with their 95% intervals; an open end reaches the edge of the panel."""
    right = 1.15 * max(value for *_, low, high in rows for value in (low, high) if value is not None)
    for i, (_, kind, value, low, high) in enumerate(rows):
        if value is None and low is None:
            axes.text(0.0, -i, f" {none}", color=COLOR[kind], va="center", fontsize=8)
            continue
        ends = low or 0.0, right if high is None else high
        axes.plot(ends, (-i, -i), color=COLOR[kind], lw=2, ls=":" if high is None else "-")
        if value is not None:
            axes.plot(value, -i, "o", color=COLOR[kind], ms=5)
    axes.set_yticks([-i for i in range(0, len(rows), 2)], [row[0] for row in rows[::2]])
    axes.set(xlim=(0, right), ylim=(0.6 - len(rows), 0.6))


def shown(value: float | None, low: float | None, high: float | None, none: str, end: str = "") -> str:
    """An estimate with its interval in words."""
    if value is None:
        return none
    return f"{value:.2f} [{low or 0.0:.2f}, {end if high is None else f'{high:.2f}'}]"


def main() -> None:
    """Four panels: two curves, half-lives, exponents."""
    found = groups()
    figure, axes = plt.subplots(1, 4, figsize=(13, 3.2), layout="constrained")
    for panel, optimizer in zip(axes, OPTIMIZERS, strict=False):
        slopes(panel, found, optimizer)
    lives, exponents = [], []
    for optimizer in OPTIMIZERS:
        for b in BATCHES:
            line = []
            for kind in KINDS:
                epochs = next(life for life in half_lives(found[optimizer, b, kind]) if life.unit == "epochs")
                lives.append((f"{optimizer} b{b}", kind, *epochs[1:]))
                line.append(f"{kind} {shown(*epochs[1:], 'beyond the last epoch', 'beyond')}")
            print(f"half-life in epochs, {optimizer} b{b}: {', '.join(line)}")
    for optimizer in OPTIMIZERS:
        line = []
        for kind in KINDS:
            one = collapse([found[optimizer, b, kind] for b in BATCHES])
            exponents.append((optimizer, kind, one.alpha, one.low, one.high))
            line.append(f"{kind} {shown(one.alpha, one.low, one.high, 'cannot tell')}")
        print(f"alpha of the collapse, {optimizer}: {', '.join(line)}")
    ranges(axes[2], lives, "beyond the last epoch")
    axes[2].set(xlabel="half-life of |β| in epochs", title="half-life (dotted: beyond the last epoch)")
    ranges(axes[3], exponents, "cannot tell")
    axes[3].set(xlabel="α (0 epochs, 1 sum of η, 2 SGD clock)", title="collapse of batch sizes")
    figure.savefig(FOLDER / "images" / "batch-norm.png", dpi=120, metadata={"Software": None})
    plt.close(figure)


if __name__ == "__main__":
    with plt.style.context(STYLE):
        main()
