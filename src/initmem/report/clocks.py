"""Clocks, forecast and half-lives per recipe."""

from __future__ import annotations

import contextlib
from functools import lru_cache

from initmem.clocks import CLOCKS
from initmem.clocks import clocks as clocks_of
from initmem.data import sizes
from initmem.errors import InitmemError
from initmem.measures.advice import Row, advice_row
from initmem.measures.beta import HalfLife
from initmem.measures.forecast import checked
from initmem.recipe import AnyRecipe, PipelineRecipe, Recipe, network_of
from initmem.report.content import Content
from initmem.report.table import Cell, Column, Table, interval, number, runs_of, significant


def forecast_table(content: Content) -> Table:
    """What the clocks alone predict, and what was observed."""
    columns = [
        Column("recipe", "text"),
        Column("forecast", "text", "from the clocks alone, with the thresholds of the paper's networks"),
        Column("clock", "text", "the one that is furthest on its way"),
        Column("at the end", about="its value at the last epoch"),
        Column("needed", about="from where on memory should be gone"),
        Column("when selected", about="its value when the returned predictor was selected, median over runs"),
        Column("measured", "text"),
        Column("the forecast", "text"),
        Column("least change that should make it forget", "text"),
    ]
    return Table("forecast", "Forecast", columns, [_forecast(content, r) for r in content.names])


def _forecast(content: Content, recipe: AnyRecipe) -> list[Cell]:
    name = Cell(content.names[recipe], href=runs_of(recipe.id), style="name")
    facts = content.facts.get(recipe)
    measured = facts.memory.verdict if facts else None
    try:
        if isinstance(recipe, PipelineRecipe):
            raise InitmemError("its clocks are measured, below; the thresholds are those of bundled networks")
        row = _advice(recipe)
    except InitmemError as error:
        empty = [Cell()] * 5
        return [name, *empty, _verdict(measured), Cell(), Cell(f"no forecast: {error}", style="remark")]
    lived = facts.lived.get(row["clock"]) if facts else None
    return [
        name,
        Cell(row["forecast"], style=row["forecast"]),
        Cell(row["clock"]),
        significant(row["value"]),
        significant(row["needed"]),
        significant(lived),
        _verdict(measured),
        Cell(checked(row["forecast"], measured) if measured else ""),
        Cell(row["advice"], style="remark"),
    ]


@lru_cache(maxsize=1024)
def _advice(recipe: Recipe) -> Row:
    """Known from the recipe alone, and slow to find."""
    return advice_row(recipe, "")


@lru_cache(maxsize=1024)
def _at_end(recipe: AnyRecipe) -> dict[str, float]:
    """The clocks at the horizon, known from the recipe alone as well."""
    network = network_of(recipe)
    return clocks_of(network, sizes(network).n_train).at_end()


def _verdict(verdict: str | None) -> Cell:
    return Cell("no run yet") if verdict is None else Cell(verdict, style=verdict)


def clock_table(content: Content) -> Table:
    """All clocks at the last epoch; the angular one, and all of a user's own code, are measured."""
    columns = [Column("recipe", "text"), Column("updates"), *(Column(name) for name in CLOCKS)]
    return Table("clocks-all", "All clocks", columns, [_clocks(content, r) for r in content.names])


def _clocks(content: Content, recipe: AnyRecipe) -> list[Cell]:
    facts = content.facts.get(recipe)
    ends: dict[str, float] = dict(facts.last_clocks) if facts else {}
    with contextlib.suppress(InitmemError):  # the data may not be here, or be known to a user's code alone
        ends |= _at_end(recipe)
    updates = number(ends.get("updates"), ",.0f")
    name = Cell(content.names[recipe], style="name")
    return [name, updates, *(significant(ends.get(clock)) for clock in CLOCKS)]


def half_life_table(content: Content) -> Table:
    """How long |beta| takes to halve for good, in epochs and on every clock."""
    units = ["epochs", *CLOCKS]
    columns = [Column("recipe", "text"), *(Column(unit) for unit in units)]
    rows = []
    for recipe, facts in content.facts.items():
        lives = {life.unit: life for life in facts.half_lives}
        name = Cell(content.names[recipe], href=runs_of(recipe.id), style="name")
        rows.append([name, *(_half_life(lives.get(unit)) for unit in units)])
    return Table("half-lives", "Half-life of |β|", columns, rows)


def _half_life(life: HalfLife | None) -> Cell:
    if life is None:
        return Cell()
    if life.value is None:
        return Cell("not reached", float("inf"))
    low = "?" if life.low is None else f"{life.low:.3g}"
    high = "…" if life.high is None else f"{life.high:.3g}"
    return Cell(f"{life.value:.3g} [{low}, {high}]", life.value)


def collapse_table(content: Content) -> Table | None:
    """The exponent of the batch size with which the curves of different batch sizes agree."""
    columns = [
        Column("recipes", "text"),
        Column("alpha", about="0: epochs, 1: the sum of eta, 2: the SGD clock; empty: cannot tell"),
        Column("95% interval"),
        Column("reading", "text"),
        Column("levels", about="of |β| that at least two curves pass"),
        Column("disagreement", "text", "decades of |β| between the curves, against each axis"),
    ]
    rows = [
        [
            Cell(name, style="name"),
            number(found.alpha, ".2f"),
            interval(found.low, found.high, ".2f"),
            Cell(found.reading),
            Cell(str(found.n_levels), found.n_levels),
            Cell(
                ", ".join(
                    f"{s.axis} {s.disagreement:.2f}" for s in found.scores if s.disagreement is not None
                )
            ),
        ]
        for name, found in content.collapses.items()
    ]
    return Table("collapse", "Collapse of batch sizes", columns, rows) if rows else None
