"""Diagonal networks: where the solution lies, against the scale of initialization."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from initmem.plots.curves import COLOURS
from initmem.theory import diagonal
from initmem.theory.pictures.style import tidy

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
CLOSED_FORM: dict[str, Any] = {"color": "0.75", "lw": 4, "zorder": 1}
METHOD_STYLES: dict[str, dict[str, Any]] = {
    "flow": {"marker": "o", "ms": 11, "mfc": "none", "mec": COLOURS[0], "mew": 1.6},
    "decay": {"marker": "s", "ms": 10, "mfc": "none", "mec": COLOURS[1], "mew": 1.6},
    "sgd": {"marker": "D", "ms": 4.5, "color": COLOURS[2]},
    "sgd with label noise": {"marker": "^", "ms": 5.5, "color": COLOURS[3]},
}


def draw_diagonal(view: DiagonalView, file: Path) -> None:
    """The place of each solution between least l1 and least l2, against two scales."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.2, 3.5), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    for axes in (left, right):
        tidy(axes)
        for height in (0, 1):
            axes.axhline(height, color="0.3", lw=0.8, ls=":")
    in_range = view.scales >= 6e-4
    left.plot(view.scales[in_range], view.closed[in_range], **CLOSED_FORM, label="closed form")
    right.plot(view.scales, view.closed, **CLOSED_FORM)
    for outcome in view.reached.outcomes:
        style = {"ls": "none", "label": outcome.method} | METHOD_STYLES[outcome.method]
        place = view.reached.place(outcome.solution)
        left.plot(outcome.scales, place, **style)
        right.plot(np.exp(np.log(outcome.effective).mean(axis=1)), place, **style)
    left.set(xscale="log", xlabel=r"scale of initialization $\alpha$", ylabel="where the solution lies")
    left.set_yticks((0, 0.5, 1), ("least $\\ell_1$", "half-way", "least $\\ell_2$"))
    left.text(0.12, 0.55, "remembered", ha="right", fontsize=9)
    left.text(1.0, 0.06, "forgotten", ha="right", fontsize=9)
    right.set(xscale="log", xlabel=r"scale that is left, geometric mean of $\sqrt{u_i v_i}$")
    handles, names = left.get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=5, frameon=False, fontsize=9)
    figure.savefig(file, dpi=150)
