"""Which metric is measured where none was asked for, and why."""

from __future__ import annotations

from collections.abc import Sequence

from initmem.errors import ConfigError
from initmem.measures.memory import own_metrics
from initmem.store.record import RunRecord

# In order of preference; the epochs of a curve need a metric that is recorded in each.
CURVES = ("val_accuracy", "val_loss", "test_accuracy", "test_loss", "train_accuracy", "train_loss")
DERIVED = ("clock_", "group", "seconds", "learning_rate", "norm")


def metric_reason(metric: str, records: Sequence[RunRecord]) -> str:
    """Why a metric was chosen, in one line, with what else could be asked for."""
    recorded = [name for name in _recorded(records) if name != metric]
    match metric:
        case "test_accuracy":
            why = "the default"
        case "val_accuracy_best":
            why = "no test accuracy was recorded"
        case "test_loss" | "val_loss":
            why = "no accuracy was recorded"
        case _:
            why = "neither an accuracy nor a loss of test or validation was recorded"
    others = f"; also recorded: {', '.join(recorded)}" if recorded else ""
    return f"metric: {metric} ({why}{others})"


def curve_metric(records: Sequence[RunRecord]) -> str:
    """The metric whose dependence on the scale is followed over epochs."""
    columns = dict.fromkeys(name for record in records for name in record.history)
    own = [name for name in columns if not name.startswith(DERIVED)]
    found = [name for name in (*CURVES, *own) if name in columns]
    if not found:
        raise ConfigError("no metric was recorded epoch by epoch (tracker.end_epoch records them)")
    return found[0]


def _recorded(records: Sequence[RunRecord]) -> list[str]:
    losses = ("test_loss", "test_cross_entropy", "test_objective", "val_loss", "val_cross_entropy")
    names = ["test_accuracy", "val_accuracy", *losses, "val_objective", *own_metrics(records)]
    known = [name for name in names if not name.startswith(DERIVED)]
    return [name for name in known if any(record.metric(name) is not None for record in records)]
