"""What a run leaves behind: history, summary, provenance. Immutable once committed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from initmem.errors import StoreError
from initmem.study import Run

SCHEMA = 1
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
    finals: Mapping[str, float] = field(default_factory=dict, repr=False)  # of a user's own training code

    def __post_init__(self) -> None:
        for column in self.history.values():
            column.setflags(write=False)

    @property
    def id(self) -> str:
        """The id of the run."""
        return self.run.id

    def metric(self, name: str) -> float | None:
        """A summary or final value by name, or the value of a history column at the selected epoch."""
        if name in SUMMARY_FIELDS:
            value = getattr(self.summary, name)
            return None if value is None else float(value)
        if name in self.finals:
            return self.finals[name]
        best = self.summary.tau_best
        return float(self.history[name][best - 1]) if best and name in self.history else None

    def same_result(self, other: RunRecord) -> bool:
        """Whether two records hold the same outcome, whatever machine and time they took."""
        return (
            self.run == other.run
            and self.status == other.status
            and self.summary == other.summary
            and self.finals == other.finals
            and self.history.keys() == other.history.keys()
            and all(
                np.array_equal(column, other.history[name])
                for name, column in self.history.items()
                if name != "seconds"
            )
        )


SUMMARY_FIELDS = tuple(item.name for item in fields(Summary))


def summarise(
    history: History, *, norm_init: float | None, test_accuracy: float | None, test_loss: float | None
) -> Summary:
    """Derive the summary of a run from its history, shape (epoch,) per column, and its test result.

    Columns that a user's own training code does not record leave their summary values empty.
    """
    epochs = max((len(column) for column in history.values()), default=0)
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
    best, interp = _selected(history, epochs), None
    if "train_accuracy" in history:
        reached = np.flatnonzero(history["train_accuracy"] >= INTERPOLATION)
        interp = int(reached[0]) if len(reached) else None

    def at(name: str, epoch: int | None) -> float | None:
        return None if epoch is None or name not in history else float(history[name][epoch])

    val_best, val_interp = at("val_accuracy", best), at("val_accuracy", interp)
    return Summary(
        epochs=epochs,
        tau_best=best + 1,
        tau_interp=None if interp is None else interp + 1,
        test_accuracy=test_accuracy,
        test_loss=test_loss,
        val_accuracy_best=val_best,
        val_accuracy_interp=val_interp,
        val_accuracy_last=at("val_accuracy", -1),
        train_accuracy_last=at("train_accuracy", -1),
        repair_gap=None if val_best is None or val_interp is None else val_best - val_interp,
        norm_init=norm_init,
        norm_best=at("norm", best),
        norm_last=at("norm", -1),
    )


def _selected(history: History, epochs: int) -> int:
    """The epoch of the returned predictor, counted from 0: by validation, or else the last one."""
    if "val_loss" in history:
        return int(np.argmin(history["val_loss"]))
    return int(np.argmax(history["val_accuracy"])) if "val_accuracy" in history else epochs - 1


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
        }
        | ({"finals": dict(record.finals)} if record.finals else {})
        | {"history": {name: column.tolist() for name, column in record.history.items()}},
        separators=(",", ":"),
        allow_nan=False,
    ).encode()
    return _HEAD % hashlib.sha256(payload).hexdigest().encode() + payload + b"}\n"


def decode(data: bytes) -> RunRecord:
    """Read a record back; anything that is not exactly what was written is an error."""
    head = len(_HEAD % (b"0" * 64))
    payload = data[head:-2]
    if data[:head] != _HEAD % hashlib.sha256(payload).hexdigest().encode():
        raise StoreError("damaged record (checksum does not match)")
    content = json.loads(payload)
    if content["schema"] != SCHEMA:
        raise StoreError(f"record of schema {content['schema']} (allowed: {SCHEMA})")
    if content["status"] not in get_args(Status):
        raise StoreError(f"record of status {content['status']!r} (allowed: {get_args(Status)})")
    return RunRecord(
        run=Run.from_json(content["run"]),
        status=content["status"],
        summary=Summary(**content["summary"]),
        history={name: np.asarray(column, dtype=np.float64) for name, column in content["history"].items()},
        provenance=content["provenance"],
        error=content["error"],
        finals=content.get("finals", {}),
    )
