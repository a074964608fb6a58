"""From what a tracker saw to the record of a run."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from initmem.errors import ConfigError
from initmem.pipeline.tracker import Tracker
from initmem.record import TESTED, RunRecord, summarize
from initmem.study import Run


def own_record(run: Run, tracker: Tracker, seconds: float, **about: Any) -> RunRecord:
    """The record of a run of user code; `about` joins its provenance."""
    history, finals = tracker.history, tracker.finals
    if not (history or finals or tracker.diverged):
        raise ConfigError("no epoch was ended and no metric returned (allowed: tracker.end_epoch, a mapping)")
    start = tracker.norm_init if math.isfinite(tracker.norm_init or 0.0) else None
    summary = summarize(history, norm_init=start)
    best = summary.tau_best or 0
    dropped = {"dropped": tracker.dropped} if tracker.dropped else {}
    tested = {name: float(history[name][best - 1]) for name in TESTED if name in history} | finals
    return RunRecord(
        run,
        "diverged" if tracker.diverged else "completed",
        replace(
            summary,
            test_accuracy=tested.get("test_accuracy"),
            test_loss=tested.get("test_loss"),
            test_cross_entropy=tested.get("test_cross_entropy"),
            test_objective=tested.get("test_objective"),
        ),
        history,
        {"device": str(tracker.device or "cpu"), "seconds": round(seconds, 3)} | dropped | about,
        finals={name: value for name, value in finals.items() if name not in TESTED},
    )
