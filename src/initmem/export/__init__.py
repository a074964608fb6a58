"""Export results to CSV, Parquet, TensorBoard, MLflow and Weights & Biases."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from initmem.errors import ConfigError, allowed
from initmem.export.rows import NamedRun, named_runs
from initmem.store.results import Results


class Exported(NamedTuple):
    """What was written, and where."""

    format: str
    place: str
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
    place = output or str(default)
    try:
        written = FORMATS[to](runs, place)
    except OSError as error:
        raise ConfigError(f"{place}: cannot be written ({error.strerror})") from None
    return Exported(to, place, len(runs), written, damaged)


def _csv(runs: list[NamedRun], place: str) -> int:
    from initmem.export.tables import write_tables

    return write_tables(runs, Path(place), "csv")


def _parquet(runs: list[NamedRun], place: str) -> int:
    from initmem.export.tables import write_tables

    return write_tables(runs, Path(place), "parquet")


def _tensorboard(runs: list[NamedRun], place: str) -> int:
    from initmem.export.to_tensorboard import write_events

    return write_events(runs, Path(place))


def _mlflow(runs: list[NamedRun], place: str) -> int:
    from initmem.export.to_mlflow import log_runs

    return log_runs(runs, place)


def _wandb(runs: list[NamedRun], place: str) -> int:
    from initmem.export.to_wandb import write_runs

    return write_runs(runs, Path(place))


# Each function imports its library when it is called.
FORMATS: dict[str, Callable[[list[NamedRun], str], int]] = {
    "csv": _csv,
    "parquet": _parquet,
    "tensorboard": _tensorboard,
    "mlflow": _mlflow,
    "wandb": _wandb,
}
