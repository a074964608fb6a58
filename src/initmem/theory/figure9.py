"""Four optimizers on the scalar network p = a b with the loss (a b - 1)^2, started at (1, 6).

The minima form a hyperbola. Initialization determines which of them is reached, and the imbalance
D = a^2 - b^2 measures how far it is from the two minima of least norm, where D = 0. Gradient descent and
full-batch Adam stop at a point that remembers the initialization. Minibatches, here targets with mean one,
keep both moving until nothing is remembered.

The loops are plain scalar Python: for a single trajectory this is about twenty times faster than
`descent.descend` on 1 x 1 matrices, with the same result.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from itertools import cycle, islice
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from initmem.theory._arrays import Array

if TYPE_CHECKING:
    from matplotlib.axes import Axes

START = (1.0, 6.0)
RATES = (0.01, 0.04)
TARGETS = (0.0, 1.0, 2.0)
Points = list[tuple[float, float]]


class Line(NamedTuple):
    """One trajectory, thinned for drawing: `steps`, `a` and `b` are (point,).

    `order` says how the targets follow each other: `full` (always their mean), `cyclic`, `random`.
    """

    eta: float
    order: str
    steps: Array
    a: Array
    b: Array

    @property
    def imbalance(self) -> float:
        """D = a^2 - b^2 where the trajectory ends."""
        return float(self.a[-1] ** 2 - self.b[-1] ** 2)


class Panel(NamedTuple):
    """One optimizer: its letter, what it is, and a trajectory per rate (and target order)."""

    letter: str
    title: str
    lines: tuple[Line, ...]


class Figure9(NamedTuple):
    """The four panels."""

    panels: tuple[Panel, ...]

    def rows(self) -> list[dict[str, object]]:
        """One row per trajectory: `panel`, `eta`, `D`, and the `order` and number of `steps`."""
        return [
            {
                "panel": panel.letter,
                "eta": line.eta,
                "D": line.imbalance,
                "order": line.order,
                "steps": int(line.steps[-1]),
            }
            for panel in self.panels
            for line in panel.lines
        ]


def figure9_data(*, seed: int) -> Figure9:
    """Compute all trajectories; `seed` draws the random targets of panel d."""
    rng = np.random.default_rng(seed)
    full, cyclic = ("full", (1.0,)), ("cyclic", TARGETS)
    random = ("random", tuple(rng.choice(TARGETS, size=200_000).tolist()))
    return Figure9(
        (
            Panel("a", "Gradient descent", _lines(gradient_path, 20, full)),
            Panel("b", "SGD, cyclic targets", _lines(gradient_path, 50_000, cyclic)),
            Panel("c", "Adam, full batch", _lines(adam_path, 5_000, full)),
            Panel("d", "Adam, minibatch targets", _lines(adam_path, 200_000, random, cyclic)),
        )
    )


def gradient_path(eta: float, targets: Iterable[float]) -> Points:
    """Points (a, b) of simultaneous gradient steps on (a b - target)^2, one target per step."""
    a, b = START
    points = [START]
    for target in targets:
        g = 2.0 * (a * b - target)
        a, b = a - eta * g * b, b - eta * g * a
        points.append((a, b))
    return points


def adam_path(
    eta: float,
    targets: Iterable[float],
    *,
    beta1: float = 0.9,
    beta2: float = 0.999,
    epsilon: float = 1e-7,
) -> Points:
    """Points (a, b) of Adam on (a b - target)^2, one target per step."""
    a, b = START
    m_a = m_b = v_a = v_b = 0.0
    decay1 = decay2 = 1.0
    points = [START]
    for target in targets:
        g = 2.0 * (a * b - target)
        g_a, g_b = g * b, g * a
        m_a += (1 - beta1) * (g_a - m_a)
        m_b += (1 - beta1) * (g_b - m_b)
        v_a += (1 - beta2) * (g_a * g_a - v_a)
        v_b += (1 - beta2) * (g_b * g_b - v_b)
        decay1 *= beta1
        decay2 *= beta2
        rate = eta * math.sqrt(1 - decay2) / (1 - decay1)
        a -= rate * m_a / (math.sqrt(v_a) + epsilon)
        b -= rate * m_b / (math.sqrt(v_b) + epsilon)
        points.append((a, b))
    return points


def _lines(
    path: Callable[[float, Iterable[float]], Points],
    steps: int,
    *orders: tuple[str, tuple[float, ...]],
) -> tuple[Line, ...]:
    """A trajectory for each rate and each order, a name and the targets to cycle through."""
    seen = [(order, list(islice(cycle(targets), steps))) for order, targets in orders]
    return tuple(_thin(eta, order, path(eta, goals)) for order, goals in seen for eta in RATES)


def _thin(eta: float, order: str, points: Points, keep: int = 600) -> Line:
    """Keep about `keep` points: all of the first steps, ever fewer later, always the last."""
    last = len(points) - 1
    steps = np.unique(np.rint(np.geomspace(1, last + 1, keep)).astype(np.int64)) - 1
    a, b = np.array(points)[steps].T
    return Line(eta, order, steps.astype(np.float64), a, b)


def draw(data: Figure9, file: str | Path) -> None:
    """Draw the four panels into `file`; its suffix picks the format."""
    # The object interface leaves pyplot's global figures and the user's back end alone.
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    figure = Figure(figsize=(7.2, 8.0), layout="constrained")
    grid = figure.subplots(2, 2, sharex=True, sharey=True)
    for axes, panel in zip(grid.flat, data.panels, strict=True):
        _draw_panel(axes, panel)
    for axes in grid[1]:
        axes.set_xlabel("$a$")
    for axes in grid[:, 0]:
        axes.set_ylabel("$b$")
    handles, labels = grid[0, 0].get_legend_handles_labels()
    handles.append(Line2D([], [], marker="o", color="0.35", mfc="white", markersize=7, ls="none"))
    labels.append("hollow, in (d): cyclic")
    figure.legend(
        handles,
        labels,
        loc="outside lower center",
        ncols=6,
        frameon=False,
        fontsize=9,
        columnspacing=1.2,
        handletextpad=0.5,
    )
    figure.savefig(file, dpi=150)


# Blue and vermilion of Okabe and Ito, apart for every common kind of colour vision; the shapes of
# the end points carry the same difference without any colour.
_STYLES = dict(zip(RATES, (("#0072B2", "o"), ("#D55E00", "^")), strict=True))


def _draw_panel(axes: Axes, panel: Panel) -> None:
    """Minima, least-norm points, trajectories, and what is left of D in the empty corner."""
    a = np.linspace(0.1, 6.0, 400)
    axes.plot(a, 1 / a, color="0.35", linewidth=1, label="minima $ab = 1$")
    axes.plot(-a, -1 / a, color="0.35", linewidth=1)
    axes.plot((1, -1), (1, -1), "*", color="#F0E442", markersize=17, mec="black", label="least norm")
    first = panel.lines[0].order
    for line in panel.lines:
        _draw_line(axes, line, hollow=line.order != first)
    axes.plot(*START, "s", color="black", markersize=5, label="start")
    axes.annotate(f"$D = {START[0] ** 2 - START[1] ** 2:g}$", START, (1.2, 5.9), fontsize=9)
    text = "\n".join(_describe(line, len(panel.lines) > len(RATES)) for line in panel.lines)
    axes.text(0.97, 0.03, text, transform=axes.transAxes, ha="right", va="bottom", fontsize=9)
    steps = int(panel.lines[0].steps[-1])
    axes.set_title(f"({panel.letter}) {panel.title}: {steps:,} steps", fontsize=10)
    axes.set(xlim=(-2.4, 3.6), ylim=(-1.9, 6.6))


def _draw_line(axes: Axes, line: Line, *, hollow: bool) -> None:
    """A trajectory and its end point, hollow for the second target order of a panel."""
    colour, marker = _STYLES[line.eta]
    face = "white" if hollow else colour
    # Steps are told apart only where there are few of them.
    dots = "." if len(line.steps) < 50 else ""
    axes.plot(line.a, line.b, color=colour, linewidth=0.9, alpha=0.75, marker=dots, markersize=4)
    axes.plot(
        line.a[-1],
        line.b[-1],
        marker,
        color=colour,
        markerfacecolor=face,
        markeredgecolor=colour if hollow else "white",
        markersize=7,
        zorder=4,
        linestyle="none",
        label=rf"$\eta = {line.eta:g}$",
    )


def _describe(line: Line, name_order: bool) -> str:
    """The rate and the final D, which below a tenth is given by the power of ten above it."""
    size = abs(line.imbalance)
    final = f"D = {line.imbalance:.3g}"
    if size < 0.1:
        final = rf"|D| < 10^{{{math.floor(math.log10(max(size, 1e-13))) + 1}}}"
    return rf"{line.order + ', ' if name_order else ''}$\eta = {line.eta:g}$:  ${final}$"
