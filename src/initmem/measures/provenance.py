"""What `Init.apply` did to the models of a run, from the provenance of its record."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from pydantic import BaseModel, TypeAdapter, ValidationError

from initmem.record import RunRecord
from initmem.table import Column, Table, number, table_of

MOST_ROWS = 200  # of a model in a record; the counts are of all parameters
MOST_MODELS = 4
NAMED = 5  # parameters in a line
TITLE = "What initmem did to your model"
# What became of a parameter; the first is the rule, the others are named.
OUTCOMES = ("scaled", "drawn at a fixed size", "all zero", "left alone", "not recognized")


class Treated(NamedTuple):
    """One parameter: `own` and `used` are standard deviations before and after."""

    name: str
    shape: tuple[int, ...]
    role: str
    outcome: str
    own: float | None
    used: float | None


class Applied(BaseModel):
    """One model: its first parameters, and how many there are of each outcome."""

    scale: float
    draw: str
    counts: dict[str, int]
    rows: list[Treated]

    @property
    def kind(self) -> tuple[object, ...]:
        """Equal for models that differ in names and scale alone: Keras counts its layers up in a process."""
        return (self.draw, *sorted(self.counts.items()), *((r.shape, r.role, r.outcome) for r in self.rows))

    @property
    def line(self) -> str:
        """The model in one line: how much was scaled, and what was not."""
        parts = [f"scaled {self.counts.get('scaled', 0)} of {sum(self.counts.values())} parameters"]
        for outcome in OUTCOMES[1:]:
            if n := self.counts.get(outcome, 0):
                names = [row.name for row in self.rows if row.outcome == outcome][:NAMED]
                rest = [f"and {n - len(names)} more"] if n > len(names) else []
                parts.append(f"{outcome}: {', '.join([*names, *rest])}")
        return "; ".join(parts)


_MODELS = TypeAdapter(list[Applied])


def applied(record: RunRecord) -> list[Applied]:
    """The models of a run to which an initialization was applied."""
    try:
        return _MODELS.validate_python(record.provenance.get("init", []))
    except ValidationError:
        return []  # an archive from elsewhere


def applied_lines(records: Sequence[RunRecord]) -> list[str]:
    """What was done to the models, each kind of model once."""
    kinds: dict[tuple[object, ...], str] = {}
    for model in (model for record in records for model in applied(record)):
        kinds.setdefault(model.kind, model.line)
    lines = list(dict.fromkeys(kinds.values()))
    more = len(lines) - MOST_MODELS
    return [*lines[:MOST_MODELS], *([f"and {more} more kinds of model"] if more > 0 else [])]


def applied_tables(records: Sequence[RunRecord]) -> list[Table]:
    """A table for each kind of model, of the smallest scale that is not 1."""
    models = [model for record in records for model in applied(record)]
    kinds: dict[tuple[object, ...], Applied] = {}
    for model in sorted(models, key=lambda model: (model.scale == 1.0, model.scale)):
        kinds.setdefault(model.kind, model)
    return [_table(model) for model in list(kinds.values())[:MOST_MODELS]]


def _table(model: Applied) -> Table:
    rows = [row._asdict() | {"shape": " x ".join(map(str, row.shape))} for row in model.rows]
    more = sum(model.counts.values()) - len(rows)
    how = "the model's own values times a factor" if model.draw == "own" else "drawn by fan-in"
    notes = [f"scale {model.scale:g}, {how}", *([f"and {more} more parameters"] if more else [])]
    columns: dict[str | tuple[str, str], Column] = {
        "name": Column("parameter", "text"),
        "shape": Column("shape", "text"),
        "role": Column("role", "text"),
        "outcome": Column("outcome", "text"),
        "own": number("own std", "standard deviation as the model came", ".3g"),
        "used": number("std used", "standard deviation that training began with", ".3g"),
    }
    return table_of(model.line, rows, columns, notes)
