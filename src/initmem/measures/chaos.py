"""Two kinds of noise: sensitivity to perturbed weights, and the variance due to each seed role."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from initmem.measures.design import Measure, Row, by_level, levels_of, plain
from initmem.measures.statistics import expected_range
from initmem.metric import metric_of
from initmem.record import RunRecord
from initmem.seeds import ROLES, Role
from initmem.table import Column, number


def chaos(records: Sequence[RunRecord], metric: str = "test_accuracy") -> Row | None:
    """Compare every perturbed replicate with its run; None where there are none.

    `deviation` is the standard deviation of a run that chaos alone explains, `noise_range` the range over
    scales that follows from it for as many scales and seeds.
    """
    pairs = [
        (a - b, _same_course(record, parent))
        for record, parent in _pairs(records)
        if (a := record.metric(metric)) is not None and (b := parent.metric(metric)) is not None
    ]
    if not pairs:
        return None
    differences = metric_of(metric).factor * np.array([gap for gap, unseen in pairs if not unseen])
    n, unseen = len(differences), len(pairs) - len(differences)
    row: Row = {"metric": metric, "deviation": None, "largest": None, "noise_range": None, "n_pairs": n}
    note = f"the perturbation changed nothing in {unseen} of {len(pairs)} pairs" if unseen else ""
    if not n:
        return row | {"note": f"not measured: {note}"}
    deviation = float(np.sqrt((differences**2).mean() / 2))  # a difference has twice a run's variance
    main = plain(records)  # with the runs that were perturbed
    scales = len(levels_of(main))
    noise_range = expected_range(scales) * deviation / math.sqrt(len(main) // scales)
    row |= {"deviation": deviation, "largest": float(np.abs(differences).max())}
    return row | {"noise_range": noise_range, "note": note}


def _pairs(records: Sequence[RunRecord]) -> list[tuple[RunRecord, RunRecord]]:
    """The perturbed replicates, each with its run."""
    by_run = {record.run: record for record in records}
    return [
        (record, parent)
        for run, record in by_run.items()
        if run.perturbation != 1.0 and (parent := by_run.get(replace(run, perturbation=1.0)))
    ]


def replicates(records: Sequence[RunRecord]) -> list[tuple[RunRecord, RunRecord]]:
    """The perturbed replicates that saw the perturbation, each with its run."""
    return [(record, parent) for record, parent in _pairs(records) if not _same_course(record, parent)]


def _same_course(record: RunRecord, parent: RunRecord) -> bool:
    """Whether a perturbed replicate equals its parent bit by bit, but for the norm at the start."""
    summary = replace(record.summary, norm_init=parent.summary.norm_init)
    return replace(record, run=parent.run, summary=summary).same_result(parent)


def seed_variance(records: Sequence[RunRecord], metric: str = "test_accuracy") -> list[Row]:
    """Split the variance over seeds by role (init, order, augment), scale by scale.

    The runs that vary one role share the first seed for the others; that run belongs to every role. A share
    is one of the variance of whole seeds (`all`); shares add up to 1 when roles do not interact.
    """
    main = plain(records)
    ids = {record.id for record in main}
    varied = {role: [r for r in records if _varied_role(r) == role and r.id not in ids] for role in ROLES}
    first = min((record.run.seed for runs in varied.values() for record in runs), default=None)
    shared = [record for record in main if record.run.seed == first]
    groups = {"all": main} | {role: [*shared, *runs] for role, runs in varied.items() if runs}
    pooled = {name: row for name, runs in groups.items() if (row := _pooled(runs, metric))}
    whole = pooled["all"]["deviation"] ** 2 if "all" in pooled else 0.0
    shares = {name: row["deviation"] ** 2 / whole if whole else math.nan for name, row in pooled.items()}
    return [{"role": name} | row | {"share": shares[name]} for name, row in pooled.items()]


def _varied_role(record: RunRecord) -> Role | None:
    pins = record.run.pins
    single = len(pins) == 1 and record.run.perturbation == 1.0 and pins[0][1] != record.run.seed
    return pins[0][0] if single else None


def _pooled(records: Sequence[RunRecord], metric: str) -> Row | None:
    """The standard deviation pooled over scales, its 95% limits (normal noise), and the number of values."""
    from scipy.special import chdtri

    factor = metric_of(metric).factor
    recorded = [[r.metric(metric) for r in at] for at in by_level(records).values()]
    at_scales = (factor * np.array([x for x in values if x is not None]) for values in recorded)
    usable = [values for values in at_scales if len(values) > 1]
    freedom = sum(len(values) - 1 for values in usable)
    if freedom == 0:
        return None
    total = sum(float(((values - values.mean()) ** 2).sum()) for values in usable)
    low, high = (math.sqrt(total / float(chdtri(freedom, tail))) for tail in (0.025, 0.975))
    return {"deviation": math.sqrt(total / freedom), "low": low, "high": high, "n": sum(map(len, usable))}


# -- tables -----------------------------------------------------------------------------------------------


def _chaos_rows(records: Sequence[RunRecord], metric: str | None) -> list[Row]:
    row = chaos(records, metric or "test_accuracy")
    return [] if row is None else [row]


def _seed_rows(records: Sequence[RunRecord], metric: str | None) -> list[Row]:
    name = metric or "test_accuracy"
    return [row | {"unit": metric_of(name).unit} for row in seed_variance(records, name)]


MEASURES = {
    "chaos": Measure(
        "Chaos: how far a run moves when weights are perturbed",
        _chaos_rows,
        {
            "metric": Column("metric", "text", "what is compared", priority=2),
            "deviation": number("deviation", "standard deviation of a run due to chaos", ".2f~"),
            "largest": number("largest", "largest difference within a pair", ".2f~"),
            "noise_range": number("noise range", "memory expected from chaos alone", ".2f~"),
            "n_pairs": number("pairs", "number of runs with a perturbed replicate"),
            "note": Column("note", "text", "pairs that are left out"),
        },
    ),
    "seeds": Measure(
        "Standard deviation by seed role",
        _seed_rows,
        {
            "role": Column("role", "text", "the only source of randomness that varies; all: every one"),
            "deviation": number("deviation", "standard deviation over seeds", ".2f~"),
            ("low", "high"): number("95% interval", "of the deviation", ".2f~"),
            "share": number("share", "of the variance over whole seeds", ".2f"),
            "n": number("seeds", "number of seeds"),
            "unit": Column("unit", "text", "of the deviation", priority=2),
        },
    ),
}
