"""The record of a run: history, summary, provenance, traceback of a crash. Immutable once committed."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from initmem.clocks import CLOCKS
from initmem.study import Run

if TYPE_CHECKING:  # `initmem status` needs no history, and so not the quarter of a second that NumPy takes
    import numpy as np
    from numpy.typing import NDArray


INTERPOLATION = 0.995

Status = Literal["completed", "diverged", "crashed"]

SCHEMA = 3

# Of bundled networks. An objective is the cross-entropy plus the kernel penalty, l2 * sum(W^2), at the end of
# the epoch; without a penalty the two are equal.
COLUMNS = (
    "train_cross_entropy",  # running mean over the epoch's minibatches
    "train_objective",
    "train_accuracy",
    "val_cross_entropy",
    "val_objective",  # it selects the checkpoint
    "val_accuracy",
    "learning_rate",  # of the epoch's last update
    "norm",  # Frobenius norm of all kernels
    *(f"clock_{name}" for name in CLOCKS),
    "seconds",  # this run's share of the pack's wall time
)

History: TypeAlias = "Mapping[str, NDArray[np.float64]]"
# Recorded once per run, by name; a run that lacks one did not record it. Of user code, the first two.
#   predictions              classes that the selected model predicts for the test examples, (example, ...)
#   initial_predictions      the same for the network before training
#   layer_epochs             epochs of the two below, from 0 on, (epoch,)
#   norm:NAME, cosine:NAME   of a kernel: its norm, and its cosine to the initial weights, (epoch,)
#   alignment                centered kernel alignment of the last hidden layer to its state at initialization
Arrays: TypeAlias = "Mapping[str, NDArray[Any]]"
MOST_PREDICTIONS = 20_000  # values per run: of 10 classes 12.5 kB in a record
MOST_INITIAL = 2_000  # of the network before training
MOST_EPOCHS = 32  # of norms and cosines, next to the selected epoch and the last
LARGEST_VALUE = 1e100  # of what is recorded: squares and sums are finite as well


class Stored(Mapping[str, "NDArray[Any]"]):
    """A history, or arrays, loaded when first used."""

    def __init__(self, load: Callable[[], Arrays]) -> None:
        self._load = load

    @cached_property
    def _columns(self) -> Arrays:
        return _read_only(self._load())

    def __getitem__(self, name: str) -> NDArray[Any]:
        return self._columns[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._columns)

    def __len__(self) -> int:
        return len(self._columns)


def _read_only(arrays: Arrays) -> Arrays:
    for array in arrays.values():
        array.setflags(write=False)
    return arrays


@dataclass(frozen=True, slots=True)
class Summary:
    """The few numbers most measures need. Epochs count from 1; None means it never happened."""

    epochs: int
    tau_best: int | None = None  # 0: the untrained network, when the first epoch diverged
    tau_interp: int | None = None
    test_accuracy: float | None = None
    test_loss: float | None = None  # of user code, as that code defines it
    val_accuracy_best: float | None = None
    val_accuracy_interp: float | None = None
    val_accuracy_last: float | None = None
    train_accuracy_last: float | None = None
    repair_gap: float | None = None
    norm_init: float | None = None
    norm_best: float | None = None
    norm_last: float | None = None
    test_cross_entropy: float | None = None
    test_objective: float | None = None


TESTED = ("test_accuracy", "test_loss", "test_cross_entropy", "test_objective")  # of the selected model


@dataclass(frozen=True, slots=True)
class RunRecord:
    """The record of one run.

    Attributes:
        run: what was trained.
        status: `completed`, `diverged` or `crashed`.
        summary: values of the selected model and of the whole run.
        history: one array of shape (epoch,) per column.
        provenance: machine, versions, pack, attempts and faults.
        error: the traceback of a crashed run.
        finals: metrics that user code returned.
        arrays: predictions, and norms and cosines of layers, where they were recorded.
    """

    run: Run
    status: Status
    summary: Summary
    history: History = field(repr=False)
    provenance: Mapping[str, Any] = field(default_factory=dict, repr=False)
    error: str | None = field(default=None, repr=False)
    finals: Mapping[str, float] = field(default_factory=dict, repr=False)
    arrays: Arrays = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        for arrays in (self.history, self.arrays):
            if not isinstance(arrays, Stored):  # it does so when it is loaded
                _read_only(arrays)

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
        if name == "alignment" and name in self.arrays:
            return float(self.arrays[name])
        best = self.summary.tau_best
        value = self.history[name][best - 1] if best and name in self.history else math.nan
        return float(value) if math.isfinite(value) else None

    def same_result(self, other: RunRecord) -> bool:
        """Whether two records hold the same outcome, whatever the machine and the time it took.

        Arrays are not compared: earlier versions recorded none.
        """
        return (
            (self.run, self.status, self.summary, self.finals)
            == (other.run, other.status, other.summary, other.finals)
            and self.history.keys() == other.history.keys()
            and all(
                repr(column.tolist()) == repr(other.history[name].tolist())  # gaps are NaN
                for name, column in self.history.items()
                if name != "seconds"
            )
        )


def summarize(
    history: History, *, norm_init: float | None, selects: str = "val_objective", **tested: Any
) -> Summary:
    """Derive the summary of a run from its history, shape (epoch,) per column, and its test results.

    `selects` is the loss of a bundled network whose least value selects the predictor. Summary values whose
    column was not recorded, as may be with user code, are None.
    """
    epochs = max((len(column) for column in history.values()), default=0)
    if epochs == 0:
        return Summary(0, 0, norm_init=norm_init, norm_best=norm_init, norm_last=norm_init, **tested)
    if loss := next((name for name in ("val_loss", selects) if name in history), None):
        best = _first_best(-history[loss])
    else:  # without a validation loss by accuracy, or else the last epoch
        best = _first_best(history["val_accuracy"]) if "val_accuracy" in history else epochs - 1
    interp = None
    if "train_accuracy" in history:
        (reached,) = (history["train_accuracy"] >= INTERPOLATION).nonzero()
        interp = int(reached[0]) if len(reached) else None

    def at(name: str, epoch: int | None) -> float | None:
        value = math.nan if epoch is None or name not in history else float(history[name][epoch])
        return None if math.isnan(value) else value

    val_best, val_interp = at("val_accuracy", best), at("val_accuracy", interp)
    return Summary(
        epochs=epochs,
        tau_best=best + 1,
        tau_interp=None if interp is None else interp + 1,
        val_accuracy_best=val_best,
        val_accuracy_interp=val_interp,
        val_accuracy_last=at("val_accuracy", -1),
        train_accuracy_last=at("train_accuracy", -1),
        repair_gap=None if val_best is None or val_interp is None else val_best - val_interp,
        norm_init=norm_init,
        norm_best=at("norm", best),
        norm_last=at("norm", -1),
        **tested,
    )


def _first_best(values: NDArray[np.float64]) -> int:
    """The index of the largest value; what is missing is not the best."""
    best = max((value for value in values.tolist() if not math.isnan(value)), default=None)
    return 0 if best is None else values.tolist().index(best)


def finite(record: RunRecord) -> RunRecord:
    """The record of a bundled network; a summary value that is not finite becomes None, and it has diverged.

    Its history holds finite values only: training ends before an epoch with others.
    """
    values = {name: getattr(record.summary, name) for name in SUMMARY_FIELDS}
    wrong = [name for name, value in values.items() if value is not None and not math.isfinite(value)]
    if not wrong:
        return record
    return replace(record, status="diverged", summary=Summary(**(values | dict.fromkeys(wrong))))


def crashed(run: Run, error: str, provenance: Mapping[str, Any]) -> RunRecord:
    """A run that raised is a result as well, with its traceback."""
    return RunRecord(run, "crashed", Summary(epochs=0), {}, provenance, error)


SUMMARY_FIELDS = tuple(item.name for item in fields(Summary))
