"""What each initialization scale reached: mean, deviation over seeds, and how many runs there are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from initmem.measures.design import plain
from initmem.measures.memory import unit_of
from initmem.store.record import RunRecord


class AtScale(NamedTuple):
    """A metric at one scale, over seeds: accuracies in percent, anything else in its own unit."""

    scale: float
    mean: float | None
    deviation: float | None  # None: fewer than two runs
    n: int
    n_failed: int


def by_scale(records: Sequence[RunRecord], metric: str) -> list[AtScale]:
    """Mean and standard deviation of a metric at every scale, smallest scale first."""
    factor, _ = unit_of(metric)
    rows = []
    for scale in sorted({record.run.scale for record in plain(records)}):
        at = [record for record in plain(records) if record.run.scale == scale]
        values = factor * np.array([v for record in at if (v := record.metric(metric)) is not None])
        rows.append(
            AtScale(
                scale,
                float(values.mean()) if len(values) else None,
                float(values.std(ddof=1)) if len(values) > 1 else None,
                len(values),
                sum(record.status == "failed" for record in at),
            )
        )
    return rows
