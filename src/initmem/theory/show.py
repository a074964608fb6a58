"""What `initmem theory NAME` shows: each part of the linear theory as rows and, for most, a picture."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from initmem.errors import ConfigError, allowed
from initmem.plots.model import Plot
from initmem.store.encoding import plain_values
from initmem.theory import diagonal, figure9, propositions, resetting

Rows = list[dict[str, Any]]


class Part(NamedTuple):
    """One part of the theory: how it is computed from a seed, told in rows, and plotted."""

    title: str
    compute: Callable[[int], Any]
    rows: Callable[[Any], Rows] = list  # what is computed are rows already
    plot: Callable[[Any], Plot] | None = None


PARTS = {
    "propositions": Part(
        "Eight propositions on the imbalance: the largest discrepancy between their two sides",
        propositions.check_all,
    ),
    "exponents": Part(
        "The orders behind the clocks, fitted over sweeps, with 99% intervals", propositions.measure_all
    ),
    "fig9": Part(
        "Loss (ab - 1)^2 from (1, 6): what is left of the imbalance D = -35",
        figure9.compute,
        figure9.rows,
        figure9.plot,
    ),
    "diagonal": Part(
        "Diagonal networks: the solution against the scale of initialization (place: 0 least l1, 1 least l2)",
        diagonal.compute,
        diagonal.rows,
        diagonal.plot,
    ),
    "resetting": Part(
        "Resetting at rate r: the distance of the stationary mean to ridge regression with coefficient r",
        resetting.compute,
        resetting.rows,
        resetting.plot,
    ),
}


def show(name: str, *, seed: int = 0, output: Path | None = None) -> Rows:
    """Compute one part of the theory as rows of equal keys, and draw it if a file is given.

    NaN, the value of what diverged, becomes None: JSON has no word for it.
    """
    if name not in PARTS:
        raise ConfigError(f"theory {name!r} ({allowed(PARTS)})")
    part = PARTS[name]
    if output is None:
        data = part.compute(seed)
    else:
        from initmem.plots import matplotlib as renderer

        if part.plot is None:
            drawn = [other for other in PARTS if PARTS[other].plot is not None]
            raise ConfigError(f"output: theory {name} has no picture ({allowed(drawn)})")
        renderer.check(output)  # before anything is computed
        data = part.compute(seed)
        figure, _ = renderer.draw(part.plot(data))
        renderer.save(figure, output)
    rows: Rows = plain_values(part.rows(data))
    return rows
