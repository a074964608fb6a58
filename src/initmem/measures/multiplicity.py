"""Many recipes, or many pairs of them, tested at once: p-values adjusted for their number."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

import numpy as np

from initmem.errors import ConfigError, allowed

Adjustment = Literal["bh", "holm", "none"]
ADJUSTMENTS: tuple[Adjustment, ...] = get_args(Adjustment)


def adjusted(ps: Sequence[float | None], method: str = "bh") -> list[float | None]:
    """Adjust p-values; None, where there was no test, stays None and does not count.

    bh: Benjamini and Hochberg, the expected share of false discoveries. holm: the probability of any.
    """
    from scipy.stats import false_discovery_control

    if method not in ADJUSTMENTS:
        raise ConfigError(f"adjust = {method!r} ({allowed(ADJUSTMENTS)})")
    known = np.array([p for p in ps if p is not None])
    if method == "bh" and len(known):
        known = false_discovery_control(known)
    elif method == "holm":
        order = np.argsort(known)
        steps = known[order] * np.arange(len(known), 0, -1)
        known[order] = np.minimum(np.maximum.accumulate(steps), 1.0)
    values = iter(known.tolist())
    return [None if p is None else next(values) for p in ps]
