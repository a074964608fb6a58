"""Export results to CSV, Parquet, TensorBoard, MLflow and Weights & Biases."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from importlib import import_module
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from initmem.errors import ConfigError, allowed
from initmem.measures.design import labelled
from initmem.record import RunRecord
from initmem.store.results import Results
from initmem.study import recipes_of

# The back end of every format: a module whose function write(runs, output, format) returns the number of runs
# written. It is imported when it is used, and names the package to install where one is missing.
FORMATS = {
    "csv": "tables",
    "parquet": "tables",
    "tensorboard": "to_tensorboard",
    "mlflow": "to_mlflow",
    "wandb": "to_wandb",
}

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
        written = import_module(f"initmem.export.{FORMATS[to]}").write(runs, output, to)
    except OSError as error:
        raise ConfigError(f"{output}: cannot be written ({error.strerror})") from None
    return Exported(to, output, len(runs), written, damaged)


# -- what the back ends write -----------------------------------------------------------------------------


class NamedRun(NamedTuple):
    """A record, the readable names of its recipe and run, and the studies that contain it."""

    record: RunRecord
    recipe: str
    name: str
    studies: tuple[str, ...]

    @property
    def settings(self) -> dict[str, Value | None]:
        """What defines a run: the fields of its recipe, then its scale, seeds and perturbation."""
        run = self.record.run
        pins = {f"seed_{role}": seed for role, seed in run.pins}
        settings = run.recipe.settings() | {"scale": run.scale, "seed": run.seed}
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
            runs.append(NamedRun(record, label, _name(record), containing))
    return runs, damaged


def _name(record: RunRecord) -> str:
    run = record.run
    parts = [f"scale={run.scale!r}", f"seed={run.seed}", *(f"{role}={seed}" for role, seed in run.pins)]
    return " ".join(parts + ([f"perturbation={run.perturbation:g}"] if run.perturbation != 1.0 else []))


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


def needs(package: str, extra: str) -> ConfigError:
    """The error for a format whose library is not installed."""
    return ConfigError(f"--to {extra} needs the package {package} (pip install 'initmem[{extra}]')")
