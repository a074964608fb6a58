"""Diagonal networks: where the solution lies, against the scale of initialization."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from initmem.plots.model import Entry, Panel, Plot, Series, Style, Text
from initmem.plots.styles import BLUE, GREEN, PURPLE, VERMILLION
from initmem.theory import diagonal

Array = NDArray[np.float64]


class DiagonalView(NamedTuple):
    """Every method's outcome, and the place of the closed form over a fine grid of scales, (scale,)."""

    reached: diagonal.Diagonal
    scales: Array
    closed: Array


def diagonal_view(seed: int) -> DiagonalView:
    """The sparse problem of a seed, solved by every method from every scale."""
    problem = diagonal.sparse_problem(seed=seed)
    reached = diagonal.reach(problem, seed=seed)
    scales = np.geomspace(3e-6, 2.0, 60)
    closed = np.stack([diagonal.closed_form(problem, scale) for scale in scales])
    return DiagonalView(reached, scales, reached.place(closed))


# Two methods often end at one point: the first of each pair is hollow and holds the second.
CLOSED_FORM = Style("0.75", "", "-", width=4.0)
METHOD_STYLES = {
    "flow": Style(BLUE, "o", "none", hollow=True, size=10),
    "decay": Style(VERMILLION, "s", "none", hollow=True, size=9),
    "sgd": Style(GREEN, "D", "none", size=4.5),
    "sgd with label noise": Style(PURPLE, "^", "none", size=5.5),
}


def diagonal_plot(view: DiagonalView) -> Plot:
    """Where each solution lies between least l1 and least l2, against two scales."""
    outcomes = view.reached.outcomes
    places = {outcome.method: view.reached.place(outcome.solution).tolist() for outcome in outcomes}
    left_scales = {outcome.method: list(outcome.scales) for outcome in outcomes}
    right_scales = {o.method: np.exp(np.log(o.effective).mean(axis=1)).tolist() for o in outcomes}
    left = _panel(view, "scale of initialization $\\alpha$", left_scales, places, view.scales >= 6e-4)
    right_title = "scale that is left, geometric mean of $\\sqrt{u_i v_i}$"
    right = _panel(view, right_title, right_scales, places, view.scales > 0)
    left = left._replace(texts=[Text(0.45, 0.6, "remembered"), Text(0.97, 0.1, "forgotten")])
    entries = [Entry("closed form", CLOSED_FORM), *(Entry(m, METHOD_STYLES[m]) for m in places)]
    return Plot([[left, right]], [entries], row_height=3.0, lettered=False)


def _panel(
    view: DiagonalView,
    x_title: str,
    scales: dict[str, list[float]],
    places: dict[str, list[float]],
    in_range: NDArray[np.bool_],
) -> Panel:
    closed = Series(
        "closed form", CLOSED_FORM, view.scales[in_range].tolist(), view.closed[in_range].tolist()
    )
    return Panel(
        title="",
        x_title=x_title,
        y_title="where the solution lies",
        series=[Series(m, METHOD_STYLES[m], scales[m], places[m]) for m in places],
        guides=[closed],
        levels=(0, 1),
        log_x=True,
        y_ticks={0: "least $\\ell_1$", 0.5: "half-way", 1: "least $\\ell_2$"},
    )
