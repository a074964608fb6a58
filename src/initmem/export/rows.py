"""Runs with readable names, and their values as flat rows."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from initmem.errors import ConfigError
from initmem.measures.design import labelled
from initmem.record import RunRecord
from initmem.store.results import Results
from initmem.study import recipes_of

Value = str | int | float | bool
T = TypeVar("T")


class NamedRun(NamedTuple):
    """A record, the readable names of its recipe and run, and the studies that contain it."""

    record: RunRecord
    recipe: str
    name: str
    studies: tuple[str, ...]


def named_runs(results: Results) -> tuple[list[NamedRun], list[str]]:
    """All runs, grouped by recipe, and what is wrong with the damaged records."""
    records, damaged = results.survey()
    studies = results.studies()
    asked = {f"{study.name} {study.effort}": {run.id for run in study.all_runs()} for study in studies}
    runs = [
        NamedRun(
            record, label, _name(record), tuple(title for title, ids in asked.items() if record.id in ids)
        )
        for label, group in labelled(records, recipes_of(studies)).items()
        for record in group
    ]
    return runs, damaged


def studies_of(run: NamedRun) -> tuple[str, ...]:
    """The studies that contain a run, for tools that group runs; `initmem` if there is none."""
    return run.studies or ("initmem",)


def _name(record: RunRecord) -> str:
    run = record.run
    parts = [f"scale={run.scale!r}", f"seed={run.seed}", *(f"{role}={seed}" for role, seed in run.pins)]
    return " ".join(parts + ([f"perturbation={run.perturbation:g}"] if run.perturbation != 1.0 else []))


def settings(record: RunRecord) -> dict[str, Value | None]:
    """What defines a run: the fields of its recipe, then its scale, seeds and perturbation."""
    run = record.run
    pins = {f"seed_{role}": seed for role, seed in run.pins}
    settings = run.recipe.settings() | {"scale": run.scale, "seed": run.seed}
    return settings | pins | {"perturbation": run.perturbation}


def summary(record: RunRecord) -> dict[str, float | None]:
    """The summary of a run, None where an event never happened, and the final values of user code."""
    return asdict(record.summary) | {f"final_{name}": value for name, value in record.finals.items()}


def known(values: Mapping[str, T | None]) -> dict[str, T]:
    """Drop the missing values, for tools that cannot represent them."""
    return {name: value for name, value in values.items() if value is not None}


def provenance(record: RunRecord) -> dict[str, Value]:
    """The provenance of a record: its plain values only."""
    return {
        name: value
        for name, value in record.provenance.items()
        if isinstance(value, str | int | float | bool)
    }


def spent(record: RunRecord) -> NDArray[np.float64]:
    """Seconds from the start of the run to the end of each epoch, shape (epoch,); records hold no dates."""
    each = record.history.get("seconds", np.zeros(record.summary.epochs))
    return np.cumsum(each)


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
