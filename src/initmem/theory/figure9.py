"""Four optimizers on the scalar network p = a b with the loss (a b - 1)^2, started at (1, 6).

The minima form a hyperbola. Initialization determines which of them is reached, and the imbalance
D = a^2 - b^2 measures how far it is from the two minima of least norm, where D = 0. Gradient descent and
full-batch Adam stop at a point that remembers the initialization. Minibatches, here targets with mean one,
keep both moving until nothing is remembered.

The loops are plain scalar Python: for a single trajectory this is about twenty times faster than
`descend` on 1 x 1 matrices, with the same result.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import cycle, islice
from typing import Any, NamedTuple

import numpy as np

from initmem.plots.model import Entry, Panel, Plot, Series, Style, Text
from initmem.plots.styles import SEQUENCE
from initmem.table import flat

START = (1.0, 6.0)
RATES = (0.01, 0.04)
TARGETS = (0.0, 1.0, 2.0)
TITLES = {
    "a": "Gradient descent",
    "b": "SGD, cyclic targets",
    "c": "Adam, full batch",
    "d": "Adam, minibatch targets",
}
Points = list[tuple[float, float]]


class Trajectory(NamedTuple):
    """One trajectory, whose points `a` and `b` are thinned for drawing.

    `order` says how the targets follow each other: `full` (always their mean), `cyclic`, `random`.
    """

    panel: str
    eta: float
    D: float  # a^2 - b^2 where it ends
    order: str
    steps: int
    a: list[float]
    b: list[float]


def rows(trajectories: Sequence[Trajectory]) -> list[dict[str, Any]]:
    """One row per trajectory: all but its points."""
    return flat([one._asdict() for one in trajectories])


def compute(seed: int) -> list[Trajectory]:
    """All trajectories; `seed` draws the random targets of panel d."""
    random = np.random.default_rng(seed).choice(TARGETS, size=200_000).tolist()
    cyclic = list(islice(cycle(TARGETS), 200_000))
    return [
        _thin(panel, eta, order, path(eta, targets))
        for panel, order, path, targets in (
            ("a", "full", gradient_path, [1.0] * 20),
            ("b", "cyclic", gradient_path, cyclic[:50_000]),
            ("c", "full", adam_path, [1.0] * 5_000),
            ("d", "random", adam_path, random),
            ("d", "cyclic", adam_path, cyclic),
        )
        for eta in RATES
    ]


def gradient_path(eta: float, targets: Iterable[float]) -> Points:
    """Points (a, b) of simultaneous gradient steps on (a b - target)^2, one target per step."""
    a, b = START
    points = [START]
    for target in targets:
        g = 2.0 * (a * b - target)
        a, b = a - eta * g * b, b - eta * g * a
        points.append((a, b))
    return points


def adam_path(eta: float, targets: Iterable[float]) -> Points:
    """Points (a, b) of Adam on (a b - target)^2, one target per step."""
    beta1, beta2, epsilon = 0.9, 0.999, 1e-7
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


def _thin(panel: str, eta: float, order: str, points: Points, keep: int = 600) -> Trajectory:
    """Keep about `keep` points: all of the first steps, ever fewer later, always the last."""
    steps = len(points) - 1
    kept = np.unique(np.rint(np.geomspace(1, steps + 1, keep)).astype(np.int64)) - 1
    a, b = np.array(points)[kept].T.tolist()
    return Trajectory(panel, eta, a[-1] ** 2 - b[-1] ** 2, order, steps, a, b)


# The shapes of the end points carry the difference between the rates without any color.
_STYLES = {
    RATES[0]: Style(SEQUENCE[0], "o", "none", size=7),
    RATES[1]: Style(SEQUENCE[2], "^", "none", size=7),
}
_MINIMA = Style("#595959", width=1.0)
_LEAST_NORM = Style(SEQUENCE[4], "*", "none", size=13)
_START = Style("#000000", "s", "none", size=5)


def plot(trajectories: Sequence[Trajectory]) -> Plot:
    """The four panels: minima, least-norm points, trajectories, and what is left of D."""
    panels = [_panel(title, [one for one in trajectories if one.panel == p]) for p, title in TITLES.items()]
    hollow = Entry("hollow, in (d): cyclic", Style("#595959", "o", "none", hollow=True, size=6))
    entries = [
        Entry("minima ab = 1", _MINIMA),
        Entry("least norm", _LEAST_NORM),
        *(Entry(f"η = {eta:g}", style) for eta, style in _STYLES.items()),
        Entry("start", _START),
        hollow,
    ]
    return Plot([panels[:2], panels[2:]], [entries], row_height=3.7)


def _panel(title: str, trajectories: list[Trajectory]) -> Panel:
    a = np.linspace(0.1, 6.0, 400)
    first = trajectories[0]
    several = len(trajectories) > len(RATES)
    text = "\n".join(_describe(one, several) for one in trajectories)
    start_text = f"start: D = {START[0] ** 2 - START[1] ** 2:g}"
    return Panel(
        title=f"{title}: {first.steps:,} steps",
        x_title="a",
        y_title="b",
        series=[drawn for one in trajectories for drawn in _drawn(one, hollow=one.order != first.order)],
        guides=[
            Series("", _MINIMA, a.tolist(), (1 / a).tolist()),
            Series("", _MINIMA, (-a).tolist(), (-1 / a).tolist()),
            Series("", _LEAST_NORM, [1, -1], [1, -1]),
            Series("", _START, [START[0]], [START[1]]),
        ],
        texts=[Text(0.97, 0.03, text), Text(0.97, 0.97, start_text)],
        x_limits=(-2.4, 3.6),
        y_limits=(-1.9, 6.6),
    )


def _drawn(one: Trajectory, *, hollow: bool) -> list[Series]:
    """A trajectory and its end point, hollow for the second target order of a panel."""
    end = _STYLES[one.eta]._replace(hollow=hollow)
    # Steps are told apart only where there are few of them.
    dots = "." if one.steps < 50 else ""
    path = Style(end.color, dots, "-", size=4, width=0.9)
    return [
        Series("", path, one.a, one.b),
        Series(f"η = {one.eta:g}", end, one.a[-1:], one.b[-1:]),
    ]


def _describe(one: Trajectory, name_order: bool) -> str:
    """The rate and the final D, which below a tenth is given by the power of ten above it."""
    size = abs(one.D)
    final = f"D = {one.D:.3g}"
    if size < 0.1:
        final = f"|D| < 1e{math.floor(math.log10(max(size, 1e-13))) + 1}"
    return f"{one.order + ', ' if name_order else ''}η = {one.eta:g}:  {final}"
