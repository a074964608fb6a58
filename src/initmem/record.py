"""What a run leaves behind: history, summary, provenance. Immutable once committed."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from initmem.errors import ConfigError, StoreError
from initmem.study import Run

SCHEMA = 1
LARGEST_RECORD = 64 << 20  # bytes: a hundred thousand epochs
INTERPOLATION = 0.995

Status = Literal["completed", "diverged", "failed"]

CLOCKS = ("sgd", "l2", "adaptive", "momentum", "angular")
COLUMNS = (
    "train_loss",  # running mean over the epoch's minibatches, plain cross-entropy
    "train_accuracy",
    "val_loss",  # the objective: cross-entropy plus the kernel penalty; it selects the checkpoint
    "val_cross_entropy",
    "val_accuracy",
    "learning_rate",  # of the epoch's last update
    "norm",  # Frobenius norm of all kernels
    *(f"clock_{name}" for name in CLOCKS),
    "seconds",  # this run's share of the pack's wall time
)

History = Mapping[str, NDArray[np.float64]]


@dataclass(frozen=True, slots=True)
class Summary:
    """The few numbers most measures need. Epochs count from 1; None means it never happened."""

    epochs: int
    tau_best: int | None = None  # 0: the untrained network, when the first epoch diverged
    tau_interp: int | None = None
    test_accuracy: float | None = None
    test_loss: float | None = None
    val_accuracy_best: float | None = None
    val_accuracy_interp: float | None = None
    val_accuracy_last: float | None = None
    train_accuracy_last: float | None = None
    repair_gap: float | None = None
    norm_init: float | None = None
    norm_best: float | None = None
    norm_last: float | None = None


@dataclass(frozen=True, slots=True)
class RunRecord:
    """The record of one run. `history` has one array of shape (epoch,) per column."""

    run: Run
    status: Status
    summary: Summary
    history: History = field(repr=False)
    provenance: Mapping[str, Any] = field(default_factory=dict, repr=False)
    error: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        for column in self.history.values():
            column.setflags(write=False)

    @property
    def id(self) -> str:
        """The id of the run."""
        return self.run.id

    def metric(self, name: str) -> float | None:
        """A summary value by name, or the value of a history column at the selected epoch."""
        if name in SUMMARY_FIELDS:
            value = getattr(self.summary, name)
            return None if value is None else float(value)
        best = self.summary.tau_best
        return float(self.history[name][best - 1]) if best and name in self.history else None

    def noted(self, **more: Any) -> RunRecord:
        """The same record with more said of where it comes from."""
        return replace(self, provenance={**self.provenance, **more})

    def same_result(self, other: RunRecord) -> bool:
        """Whether two records hold the same outcome, whatever machine and time they took."""
        return (
            self.run == other.run
            and self.status == other.status
            and self.summary == other.summary
            and self.history.keys() == other.history.keys()
            and all(
                np.array_equal(column, other.history[name])
                for name, column in self.history.items()
                if name != "seconds"
            )
        )


SUMMARY_FIELDS = tuple(item.name for item in fields(Summary))


def summarise(history: History, *, norm_init: float, test_accuracy: float, test_loss: float) -> Summary:
    """Derive the summary of a run from its history, shape (epoch,) per column, and its test result."""
    epochs = len(history["val_loss"])
    if epochs == 0:
        return Summary(
            epochs=0,
            tau_best=0,
            test_accuracy=test_accuracy,
            test_loss=test_loss,
            norm_init=norm_init,
            norm_best=norm_init,
            norm_last=norm_init,
        )
    best = int(np.argmin(history["val_loss"]))
    reached = np.flatnonzero(history["train_accuracy"] >= INTERPOLATION)
    val = history["val_accuracy"]
    interp = int(reached[0]) if len(reached) else None
    return Summary(
        epochs=epochs,
        tau_best=best + 1,
        tau_interp=None if interp is None else interp + 1,
        test_accuracy=test_accuracy,
        test_loss=test_loss,
        val_accuracy_best=float(val[best]),
        val_accuracy_interp=None if interp is None else float(val[interp]),
        val_accuracy_last=float(val[-1]),
        train_accuracy_last=float(history["train_accuracy"][-1]),
        repair_gap=None if interp is None else float(val[best] - val[interp]),
        norm_init=norm_init,
        norm_best=float(history["norm"][best]),
        norm_last=float(history["norm"][-1]),
    )


def failed(run: Run, error: str, provenance: Mapping[str, Any]) -> RunRecord:
    """A run that raised is a result too, with its traceback."""
    return RunRecord(run, "failed", Summary(epochs=0), {}, provenance, error)


# On disk a record is one JSON object whose first member is the digest of the bytes of the second, so that
# a damaged file is noticed without parsing and printing it again.
_HEAD = b'{"sha256":"%s","record":'


def encode(record: RunRecord) -> bytes:
    """Serialise a record for the store."""
    payload = json.dumps(
        {
            "schema": SCHEMA,
            "id": record.id,
            "run": record.run.to_json(),
            "status": record.status,
            "summary": asdict(record.summary),
            "provenance": dict(record.provenance),
            "error": record.error,
            "history": {name: column.tolist() for name, column in record.history.items()},
        },
        separators=(",", ":"),
        allow_nan=False,
    ).encode()
    return _HEAD % hashlib.sha256(payload).hexdigest().encode() + payload + b"}\n"


def decode(data: bytes) -> RunRecord:
    """Read a record back; anything that is not exactly what was written is an error."""
    head = len(_HEAD % (b"0" * 64))
    payload = data[head:-2]
    if len(data) > LARGEST_RECORD:
        raise StoreError(f"record of {len(data):,} bytes (allowed: up to {LARGEST_RECORD:,})")
    if data[:head] != _HEAD % hashlib.sha256(payload).hexdigest().encode():
        raise StoreError("damaged record (checksum does not match)")
    try:
        return _record(json.loads(payload, parse_constant=_no_constant))
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
        raise StoreError(f"not a record ({type(error).__name__}: {error})") from None
    except ConfigError as error:
        raise StoreError(f"record of no known run ({error})") from None


def _record(content: Any) -> RunRecord:
    """Build a record from what its file says. A checksum proves no good will: every value is looked at."""
    if content["schema"] != SCHEMA:
        raise StoreError(f"record of schema {content['schema']!r} (allowed: {SCHEMA})")
    if content["status"] not in get_args(Status):
        raise StoreError(f"record of status {content['status']!r} (allowed: {get_args(Status)})")
    summary = Summary(**content["summary"])
    values = [value for value in asdict(summary).values() if value is not None]
    if not all(type(value) in (int, float) and math.isfinite(value) for value in values):
        raise StoreError("record with a summary that is not made of numbers")
    history = content["history"]
    columns = {name: np.asarray(column, dtype=np.float64) for name, column in history.items()}
    if not all(column.ndim == 1 and np.isfinite(column).all() for column in columns.values()):
        raise StoreError("record with a history that is not made of columns of numbers")
    lengths = {len(column) for column in columns.values()}
    if len(lengths) > 1:
        raise StoreError("record with columns of different lengths")
    epochs = [e for e in (summary.epochs, summary.tau_best, summary.tau_interp) if e is not None]
    if not all(type(epoch) is int and 0 <= epoch <= max(lengths, default=epoch) for epoch in epochs):
        raise StoreError("record with epochs that its history does not have")
    if not isinstance(content["provenance"], dict) or not isinstance(content["error"], str | None):
        raise StoreError("record with a provenance or error of another form")
    json.dumps(content["provenance"], allow_nan=False)
    run = Run.from_json(content["run"])
    if run.id != content["id"]:
        raise StoreError(f"record of run {run.id} under the id {content['id']!r}")
    return RunRecord(
        run=run,
        status=content["status"],
        summary=summary,
        history=columns,
        provenance=content["provenance"],
        error=content["error"],
    )


def _no_constant(name: str) -> float:
    raise StoreError(f"record with the value {name} (allowed: finite numbers)")
