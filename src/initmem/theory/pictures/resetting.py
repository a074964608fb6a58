"""Resetting: the stationary mean against ridge."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from initmem.plots.model import Entry, Panel, Plot, Series, Style
from initmem.plots.styles import COLORS, MARKERS
from initmem.theory import resetting

Array = NDArray[np.float64]
RATES = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0)


class ResettingView(NamedTuple):
    """The measured means, and ridge over a fine grid of penalties: (penalty,), (penalty, feature)."""

    means: resetting.Resetting
    penalties: Array
    ridge: Array


def resetting_view(seed: int) -> ResettingView:
    """Stationary means at several rates, for the small example of a seed."""
    x, y = resetting.example(seed=seed)
    means = resetting.stationary_mean(x, y, RATES, seed=seed)
    penalties = np.geomspace(0.008, 3.8, 80)
    return ResettingView(means, penalties, np.stack([resetting.ridge(x, y, p) for p in penalties]))


def resetting_plot(view: ResettingView) -> Plot:
    """Coefficients against the rate of resetting, and their distance from ridge in standard errors."""
    means, x_title = view.means, "rate of resetting $r$ = ridge penalty"
    points = [Style(COLORS[i], MARKERS[i], "none", size=5) for i in range(view.ridge.shape[1])]
    left = Panel(
        title="",
        x_title=x_title,
        y_title="coefficient",
        series=[
            Series(
                "",
                style,
                means.rates.tolist(),
                means.mean[:, i].tolist(),
                (means.mean - 2 * means.error)[:, i].tolist(),
                (means.mean + 2 * means.error)[:, i].tolist(),
            )
            for i, style in enumerate(points)
        ],
        guides=[
            Series("", Style(style.color), view.penalties.tolist(), path.tolist())
            for style, path in zip(points, view.ridge.T, strict=True)
        ],
        log_x=True,
    )
    reach = max(3.5, 1.1 * float(np.abs(means.z).max()))
    # Side by side, not on top of each other.
    beside = [means.rates * 1.03 ** (i - 2.5) for i in range(len(points))]
    right = Panel(
        title="",
        x_title=x_title,
        y_title="(mean $-$ ridge) / standard error",
        series=[Series("", s, beside[i].tolist(), means.z[:, i].tolist()) for i, s in enumerate(points)],
        log_x=True,
        levels=(0,),
        span=(-2, 2),
        y_limits=(-reach, reach),
    )
    entries = [
        Entry("ridge regression", Style("0.4")),
        Entry(f"resetting: mean of {means.runs:,} processes, 2 standard errors", Style("0.4", "o", "none")),
    ]
    return Plot([[left, right]], [entries], row_height=3.0, lettered=False)
