"""Two tables, as CSV or Parquet: `runs` with a row per run, and `history` with a row per run and epoch."""

from __future__ import annotations

from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import Any, get_args, get_type_hints

import numpy as np
import polars as pl

from initmem.export import NamedRun
from initmem.files import write_atomic
from initmem.recipe import Recipe
from initmem.record import Summary

KEYS = {"run": pl.String, "recipe": pl.String, "scale": pl.Float64, "seed": pl.Int64, "epoch": pl.Int64}


def write(runs: Sequence[NamedRun], output: str, format: str) -> int:
    """Write both tables into a directory."""
    folder = Path(output)
    folder.mkdir(parents=True, exist_ok=True)
    for name, table in (("runs", run_table(runs)), ("history", history_table(runs))):
        buffer = BytesIO()
        if format == "csv":
            table.write_csv(buffer)
        else:
            table.write_parquet(buffer)
        write_atomic(folder / f"{name}.{format}", buffer.getvalue())
    return len(runs)


def run_table(runs: Sequence[NamedRun]) -> pl.DataFrame:
    """One row per run: its settings, status, summary, provenance and error."""
    rows = [_row(run) for run in runs]
    # A column that is empty in all rows must have the same type in every export.
    hints = {name: field.annotation for name, field in Recipe.model_fields.items()}
    hints |= get_type_hints(Summary) | {"error": str, "epochs_done": int}
    named = {name for row in rows for name in row}
    types = {name: _type({hint, *get_args(hint)}) for name, hint in hints.items() if name in named}
    return pl.DataFrame(rows, schema_overrides=types, infer_schema_length=None, strict=False)


def _type(kinds: set[Any]) -> type[pl.DataType]:
    return pl.Float64 if float in kinds else pl.Int64 if int in kinds else pl.String


def _row(named: NamedRun) -> dict[str, Any]:
    record = named.record
    results = named.results
    results["epochs_done"] = results.pop("epochs")  # `epochs` is a field of the recipe
    return (
        {"run": record.id, "recipe": named.recipe, "studies": "; ".join(named.studies)}
        | named.settings
        | {"status": record.status}
        | results
        | {f"provenance_{name}": value for name, value in named.provenance.items()}
        | {"error": record.error}
    )


def history_table(runs: Sequence[NamedRun]) -> pl.DataFrame:
    """One row per run and epoch; values that a run did not record are empty."""
    return pl.concat([pl.DataFrame(schema=KEYS), *map(_frame, runs)], how="diagonal")


def _frame(named: NamedRun) -> pl.DataFrame:
    record = named.record
    epochs = np.arange(1, record.summary.epochs + 1)
    columns = {f"own_{name}" if name in KEYS else name: column for name, column in record.history.items()}
    run = (record.id, named.recipe, record.run.scale, record.run.seed)
    keys = {name: [value] * len(epochs) for name, value in zip(KEYS, run, strict=False)}
    return pl.DataFrame(keys | {"epoch": epochs} | columns)
