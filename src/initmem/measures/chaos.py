"""Two kinds of noise: sensitivity to one perturbed weight, and the variance due to each seed role."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from initmem.measures.design import plain, unit_of
from initmem.measures.statistics import expected_range
from initmem.record import RunRecord
from initmem.seeds import ROLES, Role


class Chaos(NamedTuple):
    """How far runs drift apart when one weight is perturbed; in the metric's display unit."""

    metric: str
    deviation: float  # standard deviation of a run that chaos alone explains
    largest: float  # largest difference between a run and its perturbed replicate
    floor: float  # expected range over scales from chaos alone, at this number of scales and seeds
    n_pairs: int


class RoleVariance(NamedTuple):
    """The standard deviation of a metric when only one seed role varies, in the display unit."""

    role: str  # a role, or "all" for whole seeds
    deviation: float
    low: float
    high: float
    share: float  # of the variance of whole seeds; shares add up to 1 when roles do not interact
    n: int


def chaos_floor(records: Sequence[RunRecord], metric: str = "test_accuracy") -> Chaos | None:
    """Compare every perturbed replicate with its run; None where there are none."""
    factor, _ = unit_of(metric)
    values = {record.run: record.metric(metric) for record in records}
    pairs = [
        (value, values.get(replace(run, perturbation=1.0)))
        for run, value in values.items()
        if run.perturbation != 1.0
    ]
    known = [factor * (a - b) for a, b in pairs if a is not None and b is not None]
    if not known:
        return None
    differences = np.array(known)
    deviation = float(np.sqrt((differences**2).mean() / 2))  # a difference has twice a run's variance
    main = plain(records)
    scales = len({record.run.scale for record in main})
    seeds = max(1, len(main) // max(scales, 1))
    return Chaos(
        metric,
        deviation,
        float(np.abs(differences).max()),
        expected_range(scales) * deviation / math.sqrt(seeds),
        len(known),
    )


def seed_variance(records: Sequence[RunRecord], metric: str = "test_accuracy") -> list[RoleVariance]:
    """Split the variance over seeds by role (init, order, augment), scale by scale.

    The runs that vary one role share the first seed for the others; that run belongs to every role.
    """
    factor, _ = unit_of(metric)
    main = plain(records)
    groups: dict[str, dict[float, list[float]]] = {"all": {}}
    base: dict[float, float] = {}
    for record in main:
        value = record.metric(metric)
        if value is not None:
            groups["all"].setdefault(record.run.scale, []).append(factor * value)
    first = _first_seed(records)
    for record in main:
        value = record.metric(metric)
        if record.run.seed == first and value is not None:
            base[record.run.scale] = factor * value
    ids = {record.id for record in main}
    for record in records:
        role, value = _varied_role(record), record.metric(metric)
        if role is not None and value is not None and record.id not in ids:
            scale = record.run.scale
            known = groups.setdefault(role, {})
            known.setdefault(scale, [base[scale]] if scale in base else []).append(factor * value)
    rows = {name: _pooled(group) for name, group in groups.items()}
    whole = rows["all"][0] ** 2
    return [
        RoleVariance(name, *rows[name][:3], rows[name][0] ** 2 / whole if whole else math.nan, rows[name][3])
        for name in ("all", *ROLES)
        if name in rows and rows[name][3] > 0
    ]


def _first_seed(records: Sequence[RunRecord]) -> int | None:
    """The seed that runs with one varied role have for the others."""
    seeds = {record.run.seed for record in records if _varied_role(record) is not None}
    return min(seeds) if seeds else None


def _varied_role(record: RunRecord) -> Role | None:
    pins = record.run.pins
    single = len(pins) == 1 and record.run.perturbation == 1.0 and pins[0][1] != record.run.seed
    return pins[0][0] if single else None


def _pooled(group: dict[float, list[float]]) -> tuple[float, float, float, int]:
    """Standard deviation pooled over scales, its 95% limits (normal noise), and the number of values."""
    from scipy.special import chdtri

    usable = [np.array(values) for values in group.values() if len(values) > 1]
    freedom = sum(len(values) - 1 for values in usable)
    if freedom == 0:
        return math.nan, math.nan, math.nan, 0
    total = sum(float(((values - values.mean()) ** 2).sum()) for values in usable)
    low = math.sqrt(total / float(chdtri(freedom, 0.025)))
    high = math.sqrt(total / float(chdtri(freedom, 0.975)))
    return math.sqrt(total / freedom), low, high, sum(len(values) for values in usable)
