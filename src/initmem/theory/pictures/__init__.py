"""What `initmem theory NAME` shows: each part of the linear theory as rows and, for most, a picture."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from initmem.errors import ConfigError, allowed
from initmem.plots.model import Plot
from initmem.theory import exponents, figure9, propositions
from initmem.theory.pictures.diagonal import diagonal_plot, diagonal_view
from initmem.theory.pictures.linear import linear_plot, linear_rows, linear_view
from initmem.theory.pictures.resetting import resetting_plot, resetting_view

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

    @property
    def table(self) -> Rows:
        """The rows in brief, in words where a value is no number."""
        return [{key: _in_words(row[key]) for key in self.columns} for row in self.rows]


def show(name: str, *, seed: int = 0, output: Path | None = None) -> Shown:
    """Compute one part of the theory, and draw it if a file is given."""
    if name not in ENTRIES:
        raise ConfigError(f"theory {name!r} ({allowed(ENTRIES)})")
    entry = ENTRIES[name]
    if output is not None:
        _check_drawable(name, output)  # before anything is computed
    data = entry.compute(seed)
    if output is not None and entry.plot is not None:
        from initmem.plots.matplotlib import draw, save

        figure, _ = draw(entry.plot(data))
        save(figure, output)
    rows = [_plain(row) for row in entry.rows(data)]
    return Shown(entry.title, rows, entry.in_brief or tuple(rows[0]))


def _check_drawable(name: str, output: Path) -> None:
    from initmem.plots.matplotlib import check

    if ENTRIES[name].plot is None:
        drawn = [other for other, entry in ENTRIES.items() if entry.plot is not None]
        raise ConfigError(f"output: theory {name} has no picture ({allowed(drawn)})")
    check(output)


def _in_words(value: object) -> object:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "-" if value is None else value


def _plain(row: Mapping[str, Any]) -> dict[str, Any]:
    """NaN, the value of what diverged, becomes None: JSON has no word for it."""
    return {
        key: None if isinstance(value, float) and not math.isfinite(value) else value
        for key, value in row.items()
    }


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
        lambda data: data.rows(),
        figure9.plot,
    ),
    "diagonal": Entry(
        "Diagonal networks: the solution against the scale of initialization (place: 0 least l1, 1 least l2)",
        diagonal_view,
        lambda view: view.reached.rows(),
        diagonal_plot,
        in_brief=("method", "scale", "effective_scale", "l1_norm", "l2_norm", "place", "to_closed_form"),
    ),
    "resetting": Entry(
        "Resetting at rate r: the distance of the stationary mean to ridge with penalty r",
        resetting_view,
        lambda view: view.means.rows(),
        resetting_plot,
    ),
    "linear": Entry(
        "The study `linear`: the slope of the norm on the scale, against epochs and against its clock",
        linear_view,
        linear_rows,
        linear_plot,
    ),
}
