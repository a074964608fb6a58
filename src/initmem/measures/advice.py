"""Forecast and advice per recipe, and whether the advice was right once it was run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from initmem.data.sources import sizes
from initmem.measures.design import by_recipe
from initmem.measures.forecast import Advice, advise, forecast
from initmem.measures.memory import memory
from initmem.recipe import Recipe, network_of
from initmem.store.record import RunRecord
from initmem.study import Study

Row = dict[str, Any]


def advice_rows(study: Study) -> list[Row]:
    """Clock, forecast and the changes that should make each recipe forget, the least first."""
    recipes = [network_of(recipe) for recipe in study.recipes]
    return [advice_row(recipe, label) for recipe, label in zip(recipes, study.labels(), strict=True)]


def advice_row(recipe: Recipe, label: str) -> Row:
    """One recipe: its clock, its forecast, and what should make it forget."""
    n_train = sizes(recipe).n_train
    outlook, advice = forecast(recipe, n_train), advise(recipe, n_train)
    return {
        "recipe": label,
        "forecast": outlook.forecast,
        "clock": outlook.clock,
        "value": outlook.value,
        "needed": outlook.needed,
        "advice": "; ".join(map(in_words, advice)) or _no_advice(outlook.forecast),
    }


def in_words(advice: Advice) -> str:
    """One change, as one would type it."""
    value = int(advice.value) if advice.field in ("batch_size", "epochs") else advice.value
    return f"{advice.field}={value:g} ({advice.clock} clock)"


def _no_advice(said: str) -> str:
    return "none needed" if said == "forgets" else "no single change within usual bounds"


def advised_study(study: Study) -> Study | None:
    """The same study with the first advice taken in every recipe that has one; None where none has."""
    changed = [advise(recipe, sizes(recipe).n_train) for recipe in map(network_of, study.recipes)]
    recipes = tuple(dict.fromkeys(options[0].recipe for options in changed if options))
    if not recipes:
        return None
    return replace(study, name=f"{study.name}-advised", recipes=recipes, more_seeds=())


def verdicts(rows: list[Row], study: Study, records: Sequence[RunRecord]) -> list[Row]:
    """Add to each row the observed effect of its first advice."""
    groups = by_recipe(records)
    checked = []
    for row, recipe in zip(rows, map(network_of, study.recipes), strict=True):
        options = advise(recipe, sizes(recipe).n_train)
        measured = memory(groups[options[0].recipe]) if options and options[0].recipe in groups else None
        right = {"forgets": "yes", "remembers": "no"}
        checked.append(
            row
            | {
                "checked": in_words(options[0]) if options else "",
                "memory": str(measured) if measured else "",
                "correct": right.get(measured.verdict, "cannot tell") if measured else "",
            }
        )
    return checked
