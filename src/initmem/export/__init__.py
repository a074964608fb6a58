"""Export results to CSV, Parquet, TensorBoard, MLflow, Weights & Biases and Trackio."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, get_args, get_type_hints

import numpy as np
import polars as pl
from numpy.typing import NDArray

from initmem.errors import ConfigError, allowed
from initmem.files import write_output
from initmem.measures.design import labelled
from initmem.recipe import Recipe
from initmem.record import RunRecord, Summary
from initmem.store.results import Results
from initmem.study import recipes_of
from initmem.table import cell_text

# The packages that write the formats of `initmem.export.trackers`, each an extra of its own but for the last.
PACKAGES = {"tensorboard": "tensorboard", "mlflow": "mlflow-skinny", "wandb": "wandb", "trackio": "trackio"}
FORMATS = ("csv", "parquet", *PACKAGES)
KEYS = {"run": pl.String, "recipe": pl.String, "scale": pl.Float64, "seed": pl.Int64, "epoch": pl.Int64}

Value = str | int | float | bool
T = TypeVar("T")


class Exported(NamedTuple):
    """What was written, and where."""

    format: str
    output: str
    runs: int  # in the results
    written: int  # by this export
    damaged: list[str]  # records that could not be read and were skipped


def export(results: Results, to: str, output: str | None = None) -> Exported:
    """Write all runs in another tool's format; without `output`, next to the results."""
    if to not in FORMATS:
        raise ConfigError(f"--to {to!r} ({allowed(FORMATS, to)})")
    runs, damaged = named_runs(results)
    home = results.path.resolve()
    default = home.with_name(f"{home.name.removesuffix(home.suffix)}-{to}{'.db' if to == 'mlflow' else ''}")
    output = output or str(default)
    try:
        if to in PACKAGES:
            from initmem.export.trackers import WRITERS

            written = WRITERS[to](runs, output)
        else:
            written = write_tables(runs, output, to)
    except ModuleNotFoundError:
        install = to if to == "trackio" else f"'initmem[{to}]'"
        raise ConfigError(f"--to {to} needs the package {PACKAGES[to]} (pip install {install})") from None
    except OSError as error:
        raise ConfigError(f"{output}: cannot be written ({error.strerror})") from None
    return Exported(to, output, len(runs), written, damaged)


# -- what the back ends write -----------------------------------------------------------------------------


class NamedRun(NamedTuple):
    """A record, the readable name of its recipe, and the studies that contain it."""

    record: RunRecord
    recipe: str
    studies: tuple[str, ...]

    @property
    def name(self) -> str:
        """The run among those of its recipe: its scale or intervention, and its seeds."""
        run = self.record.run
        parts = [
            str(run.level) if run.intervention else f"scale={run.scale!r}",
            f"seed={run.seed}",
            *(f"{role}={seed}" for role, seed in run.pins),
            *[f"perturbation={run.perturbation:g}"] * (run.perturbation != 1.0),
        ]
        return " ".join(parts)

    @property
    def settings(self) -> dict[str, Value | None]:
        """What defines a run: the fields of its recipe, then its scale, seeds and perturbation."""
        run = self.record.run
        pins = {f"seed_{role}": seed for role, seed in run.pins}
        settings = run.recipe.settings() | {"scale": run.scale, "seed": run.seed}
        settings |= {"intervention": run.level} if run.intervention else {}
        return settings | pins | {"perturbation": run.perturbation}

    @property
    def results(self) -> dict[str, float | None]:
        """The summary, None where an event never happened, and the final values of user code."""
        finals = {f"final_{name}": value for name, value in self.record.finals.items()}
        return asdict(self.record.summary) | finals

    @property
    def summary(self) -> dict[str, float]:
        """The same for trackers: under `summary/`, without what is missing."""
        return {f"summary/{name}": float(value) for name, value in plain(present(self.results)).items()}

    @property
    def provenance(self) -> dict[str, Value]:
        """The plain values of the provenance."""
        items = self.record.provenance.items()
        return {name: value for name, value in items if isinstance(value, str | int | float | bool)}

    @property
    def seconds(self) -> NDArray[np.float64]:
        """Seconds from the start of the run to the end of each epoch, (epoch,); records hold no dates."""
        return np.cumsum(self.record.history.get("seconds", np.zeros(self.record.summary.epochs)))

    @property
    def groups(self) -> tuple[str, ...]:
        """The studies that contain the run, for tools that group runs; `initmem` if there is none."""
        return self.studies or ("initmem",)


def named_runs(results: Results) -> tuple[list[NamedRun], list[str]]:
    """All runs, grouped by recipe, and what is wrong with the damaged records."""
    records, damaged = results.survey()
    studies = results.studies()
    requested = {f"{study.name} {study.preset}": {run.id for run in study.all_runs()} for study in studies}
    runs = []
    for label, group in labelled(records, recipes_of(studies)).items():
        for record in group:
            containing = tuple(title for title, ids in requested.items() if record.id in ids)
            runs.append(NamedRun(record, label, containing))
    return runs, damaged


def present(values: Mapping[str, T | None]) -> dict[str, T]:
    """The values that are there, for tools that cannot represent the others."""
    return {name: value for name, value in values.items() if value is not None}


def plain(values: Mapping[str, T]) -> dict[str, T]:
    """Values under names that every tool accepts."""
    names = plain_names(values)
    return {names[name]: value for name, value in values.items()}


def plain_names(names: Iterable[str]) -> dict[str, str]:
    """Map names to distinct names of letters, digits and a few signs, which every tool and disk accepts."""
    plain_of: dict[str, str] = {}
    taken: Counter[str] = Counter()
    for name in names:
        plain = re.sub(r"[^A-Za-z0-9_=+.-]+|(?<![0-9])\.|\.(?![0-9])", "_", name) or "_"
        taken[plain] += 1
        plain_of[name] = plain if taken[plain] == 1 else f"{plain}__{taken[plain]}"
    return plain_of


# -- CSV and Parquet --------------------------------------------------------------------------------------


def write_tables(runs: Sequence[NamedRun], output: str, format: str) -> int:
    """Write `runs` with a row per run, and `history` with a row per run and epoch, into a directory."""
    folder = Path(output)
    folder.mkdir(parents=True, exist_ok=True)
    for name, table in (("runs", run_table(runs)), ("history", history_table(runs))):
        buffer = BytesIO()
        if format == "csv":
            texts = pl.col(pl.String).map_elements(cell_text, return_dtype=pl.String)
            table.with_columns(texts).rename(lambda name: str(cell_text(name))).write_csv(buffer)
        else:
            table.write_parquet(buffer)
        write_output(folder / f"{name}.{format}", buffer.getvalue())
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
