"""Two tables, as CSV or Parquet: `runs` with a row per run, and `history` with a row per run and epoch."""

from __future__ import annotations

from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import Any, Literal, get_args, get_type_hints

import numpy as np
import polars as pl

from initmem.export.rows import NamedRun, provenance, settings, summary
from initmem.files import write_atomic
from initmem.recipe import Recipe
from initmem.record import Summary

KEYS = ("run", "recipe", "scale", "seed", "epoch")  # of the history table


def write_tables(runs: Sequence[NamedRun], folder: Path, kind: Literal["csv", "parquet"]) -> int:
    """Write both tables into a directory."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, table in (("runs", run_table(runs)), ("history", history_table(runs))):
        buffer = BytesIO()
        if kind == "csv":
            table.write_csv(buffer)
        else:
            table.write_parquet(buffer)
        write_atomic(folder / f"{name}.{kind}", buffer.getvalue())
    return len(runs)


def run_table(runs: Sequence[NamedRun]) -> pl.DataFrame:
    """One row per run: its settings, status, summary, provenance and error."""
    rows = [_row(run) for run in runs]
    named = {name for row in rows for name in row}
    types = {name: kind for name, kind in _types().items() if name in named}
    return pl.DataFrame(rows, schema_overrides=types, infer_schema_length=None, strict=False)


def _types() -> dict[str, type[pl.DataType]]:
    """The types of columns that may be empty in all rows, so that they are the same in every export."""
    hints = {name: field.annotation for name, field in Recipe.model_fields.items()}
    hints |= get_type_hints(Summary) | {"error": str, "epochs_done": int}
    return {name: _type({hint, *get_args(hint)}) for name, hint in hints.items()}


def _type(kinds: set[Any]) -> type[pl.DataType]:
    return pl.Float64 if float in kinds else pl.Int64 if int in kinds else pl.String


def _row(named: NamedRun) -> dict[str, Any]:
    record = named.record
    results = summary(record)
    results["epochs_done"] = results.pop("epochs")  # `epochs` is a field of the recipe
    return (
        {"run": record.id, "recipe": named.recipe, "studies": "; ".join(named.studies)}
        | settings(record)
        | {"status": record.status}
        | results
        | {f"provenance_{name}": value for name, value in provenance(record).items()}
        | {"error": record.error}
    )


def history_table(runs: Sequence[NamedRun]) -> pl.DataFrame:
    """One row per run and epoch; values that a run did not record are empty."""
    frames = [_frame(run) for run in runs]
    empty = pl.DataFrame(
        schema=dict(zip(KEYS, (pl.String, pl.String, pl.Float64, pl.Int64, pl.Int64), strict=True))
    )
    return pl.concat([empty, *frames], how="diagonal")


def _frame(named: NamedRun) -> pl.DataFrame:
    record = named.record
    epochs = record.summary.epochs
    where = (record.id, named.recipe, record.run.scale, record.run.seed)
    keys = {name: [value] * epochs for name, value in zip(KEYS, where, strict=False)}
    columns = {f"own_{name}" if name in KEYS else name: column for name, column in record.history.items()}
    return pl.DataFrame(keys | {"epoch": np.arange(1, epochs + 1)} | columns)
