"""What `initmem theory NAME` shows: each part of the linear theory as rows and, for most, a picture."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from initmem.errors import ConfigError, allowed
from initmem.plots.model import Plot
from initmem.theory import diagonal, exponents, fading, figure9, propositions, resetting

Rows = list[dict[str, Any]]


class Entry(NamedTuple):
    """One part of the theory: how it is computed from a seed, told in rows, and plotted."""

    title: str
    compute: Callable[[int], Any]
    rows: Callable[[Any], Rows]
    plot: Callable[[Any], Plot] | None = None
    in_brief: tuple[str, ...] = ()  # the columns that a terminal has room for; empty: all


class Shown(NamedTuple):
    """What to print: a title, rows of equal keys, and those of their columns that a table shows."""

    title: str
    rows: Rows
    columns: tuple[str, ...]


def show(name: str, *, seed: int = 0, output: Path | None = None) -> Shown:
    """Compute one part of the theory, and draw it if a file is given."""
    if name not in ENTRIES:
        raise ConfigError(f"theory {name!r} ({allowed(ENTRIES)})")
    entry = ENTRIES[name]
    if output is None:
        data = entry.compute(seed)
    else:
        from initmem.plots import matplotlib as renderer

        if entry.plot is None:
            drawn = [other for other in ENTRIES if ENTRIES[other].plot is not None]
            raise ConfigError(f"output: theory {name} has no picture ({allowed(drawn)})")
        renderer.check(output)  # before anything is computed
        data = entry.compute(seed)
        figure, _ = renderer.draw(entry.plot(data))
        renderer.save(figure, output)
    rows = [{key: _finite(value) for key, value in row.items()} for row in entry.rows(data)]
    return Shown(entry.title, rows, entry.in_brief or tuple(rows[0]))


def _finite(value: Any) -> Any:
    """NaN, the value of what diverged, becomes None: JSON has no word for it."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


ENTRIES = {
    "propositions": Entry(
        "Eight propositions on the imbalance: the largest discrepancy between their two sides",
        lambda seed: propositions.check_all(seed=seed),
        propositions.rows,
        in_brief=("proposition", "statement", "trials", "discrepancy", "tolerance", "holds"),
    ),
    "exponents": Entry(
        "The orders behind the clocks, fitted over sweeps, with 99% intervals",
        lambda seed: exponents.measure_all(seed=seed),
        exponents.rows,
    ),
    "fig9": Entry(
        "Loss (ab - 1)^2 from (1, 6): what is left of the imbalance D = -35",
        lambda seed: figure9.figure9_data(seed=seed),
        figure9.rows,
        figure9.plot,
    ),
    "diagonal": Entry(
        "Diagonal networks: the solution against the scale of initialization (place: 0 least l1, 1 least l2)",
        lambda seed: diagonal.reach(diagonal.sparse_problem(seed=seed), seed=seed),
        lambda reached: reached.rows(),
        diagonal.plot,
        in_brief=("method", "scale", "effective_scale", "l1_norm", "l2_norm", "place", "to_closed_form"),
    ),
    "resetting": Entry(
        "Resetting at rate r: the distance of the stationary mean to ridge with penalty r",
        lambda seed: resetting.stationary_mean(*resetting.example(seed=seed), resetting.RATES, seed=seed),
        lambda means: means.rows(),
        resetting.plot,
    ),
    "linear": Entry(
        "The study `linear`: the slope of the norm on the scale, against epochs and against its clock",
        fading.families,
        fading.rows,
        fading.plot,
    ),
}
