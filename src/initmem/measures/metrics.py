"""Metrics: their units, and which one is measured where none was asked for, and why."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from initmem.errors import ConfigError
from initmem.recipe import PipelineRecipe
from initmem.store.record import COLUMNS, SHARPNESS, SUMMARY_FIELDS, RunRecord

# The names with a meaning: those of bundled networks, and the losses of user code, which defines them.
METRICS = tuple(dict.fromkeys([*SUMMARY_FIELDS, *COLUMNS, *SHARPNESS, "train_loss", "val_loss"]))
# In order of preference; the epochs of a curve need a metric that is recorded in each.
CURVES = tuple(
    f"{split}_{name}"
    for split in ("val", "test", "train")
    for name in ("accuracy", "loss", "objective", "cross_entropy")
)
DERIVED = ("clock_", "group", "seconds", "learning_rate", "norm", "epoch")


def unit_of(metric: str) -> tuple[float, str]:
    """Factor and name of the unit in which a metric is shown."""
    return (100.0, "pp") if "accuracy" in metric or metric == "repair_gap" else (1.0, "")


def own_metrics(records: Sequence[RunRecord]) -> list[str]:
    """What a user's own training code recorded under names of its own."""
    found = dict.fromkeys(
        name
        for record in records
        if isinstance(record.run.recipe, PipelineRecipe)
        for name in (*record.history, *record.finals)
    )
    return [name for name in found if name not in METRICS]


def default_metric(records: Sequence[RunRecord]) -> str:
    """Test accuracy where it is known, else the next best that the records hold."""
    for name in ("test_accuracy", "val_accuracy_best", "test_loss", "val_loss", *own_metrics(records)):
        if any(record.metric(name) is not None for record in records):
            return name
    return "test_accuracy"


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


def curve_metrics(records: Sequence[RunRecord]) -> list[str]:
    """The metrics that were recorded epoch by epoch, in order of preference."""
    return preferred(name for record in records for name in record.history)


def preferred(columns: Iterable[str]) -> list[str]:
    """The metrics among the columns of histories, those that are asked for most first."""
    known = dict.fromkeys(columns)
    own = [name for name in known if not name.startswith(DERIVED)]
    return list(dict.fromkeys(name for name in (*CURVES, *own) if name in known))


def curve_metric(records: Sequence[RunRecord]) -> str:
    """The metric whose dependence on the scale is followed over epochs."""
    found = curve_metrics(records)
    if not found:
        raise ConfigError("no metric was recorded epoch by epoch (tracker.end_epoch records them)")
    return found[0]


def _recorded(records: Sequence[RunRecord]) -> list[str]:
    losses = ("test_loss", "test_cross_entropy", "test_objective", "val_loss", "val_cross_entropy")
    names = ["test_accuracy", "val_accuracy", *losses, "val_objective", *own_metrics(records)]
    known = [name for name in names if not name.startswith(DERIVED)]
    return [name for name in known if any(record.metric(name) is not None for record in records)]
