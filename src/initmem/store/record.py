"""What a run leaves behind: history, summary, provenance. Immutable once committed."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, get_args

import orjson

from initmem.clocks import CLOCKS
from initmem.errors import ConfigError, StoreError
from initmem.study import Run

if TYPE_CHECKING:  # to say how far a store is takes no history, and then not a quarter of a second for NumPy
    import numpy as np
    from numpy.typing import NDArray

SCHEMA = 1
LARGEST_RECORD = 64 << 20  # bytes: a hundred thousand epochs
INTERPOLATION = 0.995

Status = Literal["completed", "diverged", "failed"]
STATUSES: tuple[Status, ...] = get_args(Status)

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

History: TypeAlias = "Mapping[str, NDArray[np.float64]]"


class StoredHistory(Mapping[str, "NDArray[np.float64]"]):
    """A history that stays where it is kept until somebody looks at it."""

    __slots__ = ("_columns", "_load")

    def __init__(self, load: Callable[[], History]) -> None:
        self._load = load
        self._columns: History | None = None

    def _loaded(self) -> History:
        if self._columns is None:
            self._columns = _read_only(self._load())
        return self._columns

    def __getitem__(self, name: str) -> NDArray[np.float64]:
        return self._loaded()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._loaded())

    def __len__(self) -> int:
        return len(self._loaded())


def _read_only(history: History) -> History:
    for column in history.values():
        column.setflags(write=False)
    return history


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
        if not isinstance(self.history, StoredHistory):  # that one does it when it is loaded
            _read_only(self.history)

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
                column.tolist() == other.history[name].tolist()
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
        (reached,) = (history["train_accuracy"] >= INTERPOLATION).nonzero()
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
        return int(history["val_loss"].argmin())
    return int(history["val_accuracy"].argmax()) if "val_accuracy" in history else epochs - 1


def failed(run: Run, error: str, provenance: Mapping[str, Any]) -> RunRecord:
    """A run that raised is a result too, with its traceback."""
    return RunRecord(run, "failed", Summary(epochs=0), {}, provenance, error)


# On disk a record is one JSON object whose first member is the digest of the bytes of the second, so that
# a damaged file is noticed without parsing and printing it again. The history, by far the most of it, comes
# last: everything before it, the head, can be read alone.
_START = b'{"sha256":"%s","record":'
_HISTORY = b',"history":'


class Encoded(NamedTuple):
    """A record as it is kept: its head as plain values, and the digest that names its exact content."""

    sha256: str
    head: Mapping[str, Any]
    history: bytes


def head_of(record: RunRecord) -> dict[str, Any]:
    """A record less its history, as plain values."""
    return {
        "schema": SCHEMA,
        "id": record.id,
        "run": record.run.to_json(),
        "status": record.status,
        "summary": asdict(record.summary),
        "provenance": dict(record.provenance),
        "error": record.error,
    } | ({"finals": dict(record.finals)} if record.finals else {})


def encode(record: RunRecord) -> bytes:
    """Serialise a record for the store."""
    check_history(record.history, record.summary.epochs)
    history = {name: column.tolist() for name, column in record.history.items()}
    payload = json.dumps(
        head_of(record) | {"history": history}, separators=(",", ":"), allow_nan=False
    ).encode()
    return _START % hashlib.sha256(payload).hexdigest().encode() + payload + b"}\n"


def split(data: bytes) -> Encoded:
    """Check the bytes of a record and part its head from its history, which is not parsed."""
    if len(data) > LARGEST_RECORD:
        raise StoreError(f"record of {len(data):,} bytes (allowed: up to {LARGEST_RECORD:,})")
    start = len(_START % (b"0" * 64))
    payload = data[start:-2]
    digest = hashlib.sha256(payload).hexdigest()
    if data[:start] != _START % digest.encode() or data[-2:] != b"}\n":
        raise StoreError("damaged record (checksum does not match)")
    # The last such bytes: quotes inside a text are escaped, and in a history no value is an object.
    cut = payload.rfind(_HISTORY + b"{")
    try:
        head = parse_json(payload[: max(cut, 0)] + b"}")
    except (ValueError, RecursionError) as error:
        raise StoreError(f"not a record ({error})") from None
    return Encoded(digest, head, payload[cut + len(_HISTORY) : -1])


def parse_json(text: bytes) -> Any:
    """Read JSON of finite numbers: NaN, Infinity and 1e999, which Python would let pass, are errors."""
    return json.loads(text, parse_constant=_no_number, parse_float=_finite)


def _finite(text: str) -> float:
    number = float(text)
    return number if math.isfinite(number) else _no_number(text)


def _no_number(name: str) -> float:
    raise ValueError(f"{name} is not a number")


def join(head: Mapping[str, Any], history: History) -> RunRecord:
    """Rebuild a record from its head and a history."""
    try:
        if head["schema"] != SCHEMA:
            raise StoreError(f"record of schema {head['schema']} (allowed: {SCHEMA})")
        if head["status"] not in STATUSES:
            raise StoreError(f"record of status {head['status']!r} (allowed: {STATUSES})")
        if not isinstance(head["error"], str | None):
            raise StoreError(f"record with the error {head['error']!r} (allowed: a text, or null)")
        return RunRecord(
            run=Run.from_json(head["run"]),
            status=head["status"],
            summary=_summary(head["summary"]),
            history=history,
            provenance=dict(head["provenance"]),
            error=head["error"],
            finals=_numbers(head.get("finals", {})),
        )
    except ConfigError as error:
        raise StoreError(f"record of no known run ({error})") from None
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise StoreError(f"not a record ({error!r})") from None


def _summary(content: Mapping[str, Any]) -> Summary:
    """A summary whose numbers are numbers, and whose epochs are epochs of the run."""
    summary = Summary(**content)
    _numbers({name: value for name, value in content.items() if value is not None})
    epochs = (summary.epochs, summary.tau_best or 0, summary.tau_interp or 0)
    if not all(type(epoch) is int and 0 <= epoch <= summary.epochs for epoch in epochs):
        raise StoreError(f"record with epochs that are none ({content})")
    return summary


def _numbers(content: Mapping[str, Any]) -> dict[str, float]:
    values = content.values()
    if not (set(map(type, values)) <= {int, float} and all(map(math.isfinite, values))):
        raise StoreError(f"record with values that are no finite numbers ({content})")
    return dict(content)


def parse_history(text: bytes, epochs: int) -> History:
    """Read the history that `split` left as bytes."""
    import numpy as np

    try:
        columns = orjson.loads(text)
        history = {name: np.asarray(column, dtype=np.float64) for name, column in columns.items()}
    except (ValueError, TypeError, AttributeError) as error:
        raise StoreError(f"not a history ({error})") from None
    check_history(history, epochs)
    if not all(np.isfinite(column).all() for column in history.values()):  # a null is read as NaN
        raise StoreError("history with values that are no finite numbers")
    return history


def check_history(history: History, epochs: int) -> None:
    """Every column has one value per epoch."""
    for name, column in history.items():
        if column.shape != (epochs,):
            raise StoreError(f"column {name!r} has shape {column.shape} (allowed: {(epochs,)})")


def decode(data: bytes) -> RunRecord:
    """Read a record back; anything that is not exactly what was written is an error."""
    encoded = split(data)
    record = join(encoded.head, {})
    if record.id != encoded.head.get("id"):
        raise StoreError(f"record of run {record.id} under the id {encoded.head.get('id')!r}")
    return replace(record, history=parse_history(encoded.history, record.summary.epochs))
