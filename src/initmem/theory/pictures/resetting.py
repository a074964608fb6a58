"""Resetting: the stationary mean against ridge."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from initmem.plots.curves import COLOURS
from initmem.theory import resetting
from initmem.theory.pictures.style import tidy

Array = NDArray[np.float64]
RATES = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0)


class ResettingView(NamedTuple):
    """The measured means, and ridge over a fine grid of penalties: (penalty,), (penalty, feature)."""

    found: resetting.Resetting
    penalties: Array
    ridge: Array


def resetting_view(seed: int) -> ResettingView:
    """Stationary means at several rates, for the small example of a seed."""
    x, y = resetting.example(seed=seed)
    found = resetting.stationary_mean(x, y, RATES, seed=seed)
    penalties = np.geomspace(0.008, 3.8, 80)
    return ResettingView(found, penalties, np.stack([resetting.ridge(x, y, p) for p in penalties]))


def draw_resetting(view: ResettingView, file: Path) -> None:
    """Coefficients against the rate of resetting, and their distance from ridge in standard errors."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.2, 3.5), layout="constrained")
    left, right = figure.subplots(1, 2)
    found = view.found
    right.axhspan(-2, 2, color="0.9", lw=0)
    right.axhline(0, color="0.5", lw=0.8)
    for i, (path, colour, marker) in enumerate(zip(view.ridge.T, COLOURS, "osD^vP", strict=False)):
        left.plot(view.penalties, path, color=colour, lw=1.2)
        style = {"color": colour, "marker": marker, "ms": 5, "mec": "white", "mew": 0.6, "ls": "none"}
        left.errorbar(found.rates, found.mean[:, i], yerr=2 * found.error[:, i], elinewidth=1, **style)
        right.plot(found.rates * 1.03 ** (i - 2.5), found.z[:, i], **style)  # side by side, not on top
    for axes in (left, right):
        tidy(axes)
        axes.set(xscale="log", xlabel="rate of resetting $r$ = ridge penalty")
    left.set_ylabel("coefficient")
    left.plot([], [], color="0.4", lw=1.2, label="ridge regression")
    left.plot([], [], "o", color="0.4", ms=5, label=f"resetting: mean of {found.runs:,} processes")
    figure.legend(loc="outside lower center", ncols=2, frameon=False, fontsize=9)
    reach = max(3.5, 1.1 * float(np.abs(found.z).max()))
    right.set(ylabel="(mean $-$ ridge) / standard error", ylim=(-reach, reach))
    figure.savefig(file, dpi=150)
