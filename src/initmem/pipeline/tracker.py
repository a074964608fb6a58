"""`Tracker`: what a run of your own pipeline records, epoch by epoch.

    tracker.attach(model, optimizer, batch_size=128)    # once, when both are there and nothing is trained yet
    for epoch in range(30):
        ...                                             # train as you always do
        tracker.end_epoch(val_loss=..., val_accuracy=..., train_accuracy=..., test_accuracy=...)

Any metrics will do; the ones named here have a meaning: the epoch of the least `val_loss` is the selected
one (without it: that of the largest `val_accuracy`; without both: the last). An accuracy is a fraction from
0 to 1. Kernel norm, learning rate and clocks are added. The clocks come from the optimizer's own step hook:
they see the real rate of every parameter group under any scheduler, once per real update; passes that only
accumulate gradients and steps that mixed precision skips do not count. Without torch, call
`tracker.step(rate)` at every update.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from initmem.clocks import CLOCKS
from initmem.errors import ConfigError, allowed, is_text
from initmem.metric import metric_name, metric_of
from initmem.pipeline.init import TRACKER_FILE, Init, Model, parameters_of, told_path
from initmem.pipeline.observers import NORM_EVERY, FirstBatches, Optimizers, UpdateClocks
from initmem.record import LARGEST_VALUE, MOST_INITIAL, MOST_PREDICTIONS, SUMMARY_FIELDS, TESTED
from initmem.store.encoding import LARGEST_CLASS, decode_array, encode_array
from initmem.train.variables import Kernels, Variable

Row = dict[str, float]
OnEpoch = Callable[[Row], None]

OWN = {"learning_rate", "seconds", "epoch", *(f"clock_{name}" for name in CLOCKS)}  # added to the metrics
MAY_BE_GIVEN = ("norm", "updates")  # added too, unless nothing is there to take them from
OF_UPDATES = ("clock_", "learning_rate", "updates")
RESERVED = OWN | (set(SUMMARY_FIELDS) - set(TESTED))


class Tracker:
    """Records one run: its metrics, the norm of its weights and its clocks. `initmem.run` passes you one.

    Of several processes that train one model (torchrun), only rank 0 writes. `state_dict` and
    `load_state_dict` are for your own checkpoints.

    Args:
        init: the initialization of the run; `initmem.run` sets it.
        out: also append every epoch to this file, one JSON line each, as `initmem run --command` reads it.
        on_epoch: called with the row of every epoch.
        on_start: called at the first `attach`; `initmem.run` sets it.
    """

    def __init__(
        self,
        init: Init | None = None,
        *,
        out: str | Path | None = None,
        on_epoch: OnEpoch | None = None,
        on_start: Callable[[], None] | None = None,
    ) -> None:
        self.finals: Row = {}  # metrics of the predictor that is returned
        self.arrays: dict[str, NDArray[Any]] = {}  # predictions
        self.diverged_by = ""  # what was not finite, and when: the history ends before that epoch
        self.norm_init: float | None = None
        self.started = False
        self._on_start = on_start
        self._init, self._on_epoch, self._out = init, on_epoch, Path(out) if out else None
        self._rows: list[Row] = []
        self._given: set[str] = set()  # names of the metrics
        self._updates = UpdateClocks()
        self._batches = FirstBatches()
        self._clock = time.perf_counter()

    def attach(
        self,
        model: Any = None,
        optimizer: Optimizers | None = None,
        batch_size: int | None = None,
        *,
        accumulation: int = 1,
        reduction: Literal["mean", "sum"] = "mean",
        l2: float = 0.0,
        kernels: Kernels = None,
        norm_every: int = NORM_EVERY,
    ) -> None:
        """Observe a model and its optimizer. Call it before the first update.

        Args:
            model: the model that is trained.
            optimizer: a torch optimizer, or several. Where there is none, count updates with `step`.
            batch_size: examples per forward and backward pass, over all devices. Without it, clocks that
                divide by the batch size are not measured.
            accumulation: passes per update; clocks divide by its product with `batch_size`.
            reduction: of your loss over the examples of an update. The gradient of a sum is larger than the
                gradient of a mean by the number of examples, and SGD steps count with that multiple.
            l2: the coefficient of a term l2 * sum(W^2) that your loss contains. Weight decay of the optimizer
                is read from the optimizer; a decay of d counts as d / 2.
            kernels: as in `Init.apply`; unless given, the kernels that `init.apply` found in this model.
            norm_every: updates between two samples of the kernel norm, which the angular clock needs.
        """
        if reduction not in ("mean", "sum"):
            raise ConfigError(f"reduction = {reduction!r} (allowed: mean, sum)")
        if reduction == "sum" and batch_size is None:
            raise ConfigError('reduction = "sum" without batch_size (allowed: with one)')
        if (batch_size is not None and batch_size < 1) or accumulation < 1:
            raise ConfigError(f"batch_size = {batch_size}, accumulation = {accumulation} (allowed: from 1)")
        watched = [] if model is None else self._kernels_of(model, kernels)
        batch = None if batch_size is None else batch_size * accumulation
        multiple = batch or 1 if reduction == "sum" else 1
        self._updates.watch(watched, optimizer, batch=batch, penalty=l2, every=norm_every, multiple=multiple)
        self._batches.watch(model)
        if self.norm_init is None:
            self.norm_init = self._updates.norm()
        self._clock = time.perf_counter()
        if not self.started and self._on_start is not None:
            self._on_start()  # construction ends here: what follows draws from the order stream
        self.started = True

    def step(self, learning_rate: Any, *, momentum: float = 0.0, model: Any = None) -> None:
        """Count an update by hand, where there is no torch optimizer to observe.

        Args:
            learning_rate: of the update, or an array with one value for each of several updates.
            momentum: of the update; the momentum clock uses learning_rate / (1 - momentum).
            model: the updated model, where it is a new object (a pytree of JAX).
        """
        clocks = self._updates
        if not clocks.groups:
            clocks.group(0).share = 1.0
        for kernel in clocks.kernels if model is not None else ():
            kernel.place.follow(model)
        for rate in np.asarray(learning_rate, dtype=float).reshape(-1).tolist():
            clocks.add(clocks.groups[0], rate, momentum, clocks.penalty)
            clocks.end_update()

    def intervene(self, model: Model, optimizer: Any = None) -> Model:
        """Make the intervention of the run if it is due now, and return the model (of JAX: a new one).

        Call it at the start of every epoch of code that `initmem.run(train, interventions=...)` trains.

        Args:
            model: the model to change.
            optimizer: its optimizer, for interventions that reset it.
        """
        if self._init is None or not self._rows:  # at the start, `init.apply` makes it
            return model
        return self._init.intervene(model, self.epochs, optimizer)

    @property
    def epochs(self) -> int:
        """How many epochs have ended."""
        return len(self._rows)

    def end_epoch(self, **metrics: Any) -> None:
        """End an epoch with its `metrics`: numbers of any name, the same names in every epoch.

        A run has diverged if its validation loss is not finite after an update (without one: the metrics that
        stand in for it), or the norm of its weights. Its history ends before this epoch, and
        `tracker.diverged` is true, so that training can stop. Any other metric that is not finite
        is missing in this epoch.
        """
        row = checked_metrics(metrics)
        self._check(row)
        untrained = self._updates.not_yet(self.norm_init)
        self._append(row | self._updates.columns(self.norm_init), untrained=untrained)

    def add_row(self, row: Mapping[str, Any]) -> None:
        """End an epoch with a row that another tracker or program made: its own columns are among them."""
        own = OWN | {*MAY_BE_GIVEN, "norm_init"}
        columns = {name: _number(name, value) for name, value in row.items() if name in own}
        metrics = checked_metrics({name: value for name, value in row.items() if name not in own})
        self._check(metrics)
        start = columns.pop("norm_init", None)
        self.norm_init = start if self.norm_init is None else self.norm_init
        self._append(metrics | columns, untrained=columns.get("clock_adaptive") == 0)

    def finish(self, **metrics: Any) -> None:
        """Record `metrics` of the returned model, where they are not the metrics of an epoch."""
        given = checked_metrics(metrics)
        self._write({"final": given})
        self.finals |= {name: value for name, value in given.items() if math.isfinite(value)}
        self._judge(given, "at the end")
        self._tell()

    def predictions(self, given: Any, *, initial: bool = False) -> None:
        """Record predictions of the returned model for the test examples; the last call counts.

        Args:
            given: classes, whole numbers from 0 to 65535 of shape (example,) or (example, token), or scores
                of shape (..., class) as floating-point numbers, of which the largest counts. The first 20,000
                are kept. The examples must be the same, in the same order, in all runs.
            initial: they are predictions of the model before training (the first 2,000 are kept).
        """
        name, most = ("initial_predictions", MOST_INITIAL) if initial else ("predictions", MOST_PREDICTIONS)
        classes = classes_of(given)
        self.arrays[name] = classes[: max(most // max(math.prod(classes.shape[1:]), 1), 1)]
        self._write({name: encode_array(self.arrays[name])})

    def detach(self) -> None:
        """Take the hooks off the model and the optimizers."""
        self._updates.detach()
        self._batches.remove()

    def about(self) -> dict[str, Any]:
        """What joins the provenance of the run: what was seen of its data, and columns that were left out."""
        return self._seen() | ({"dropped": self.dropped} if self.dropped else {})

    def _seen(self) -> dict[str, Any]:
        missing, device = self._updates.missing(self.norm_init), self.device
        seen: dict[str, Any] = {"order": self._batches.order, "classes": self._batches.classes}
        seen |= {"updates": self.updates, "clocks_missing": missing}
        seen |= {"diverged": self.diverged_by, "device": device and str(device)}
        return {name: value for name, value in seen.items() if value}

    @property
    def diverged(self) -> bool:
        """Whether the loss that selects, or the weights, stopped being finite."""
        return bool(self.diverged_by)

    @property
    def updates(self) -> int:
        """How many updates there were."""
        return self._updates.updates

    @property
    def history(self) -> dict[str, NDArray[np.float64]]:
        """The metrics of every epoch so far, an array of shape (epoch,) per column."""
        columns = self._columns()
        return {name: np.array(values, float) for name, values in columns.items() if None not in values}

    @property
    def dropped(self) -> list[str]:
        """Columns that are not in the history, because some epochs do not have them."""
        return [name for name, values in self._columns().items() if None in values]

    def _columns(self) -> dict[str, list[float | None]]:
        """Columns, None where an epoch does not have them.

        Clocks that ended, because steps were made that nobody counted, are none.
        """
        columns: dict[str, list[float | None]] = {}
        for name in dict.fromkeys(name for row in self._rows for name in row):
            if name.startswith(OF_UPDATES) and name not in self._rows[-1]:
                continue
            values = [row.get(name) for row in self._rows]
            if name.startswith("clock_") or name == "learning_rate":  # zero before the first update
                start = next(index for index, value in enumerate(values) if value is not None)
                values[:start] = [0.0] * start
            columns[name] = values
        return columns

    def clocks(self) -> dict[str, float]:
        """The clocks at this moment: means over parameter groups, by their share of the kernels' values."""
        return self._updates.clocks()

    @property
    def device(self) -> torch.device | None:
        """Where the watched kernels are."""
        kernels = self._updates.kernels
        return kernels[0].place.value().device if kernels else None

    def state_dict(self) -> dict[str, Any]:
        """Plain values (JSON will do) from which `load_state_dict` resumes."""
        return self._updates.state_dict() | {
            "rows": [dict(row) for row in self._rows],
            "metrics": sorted(self._given),
            "norm_init": self.norm_init,
            "diverged": self.diverged_by,
            "finals": dict(self.finals),
            "arrays": {name: encode_array(array) for name, array in self.arrays.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state_dict` was taken; before or after `attach`."""
        self._updates.load_state_dict(state)
        self._rows, self._given = [dict(row) for row in state["rows"]], set(state["metrics"])
        self.norm_init, self.diverged_by = state["norm_init"], str(state["diverged"])
        self.finals = dict(state["finals"])
        self.arrays = {name: decode_array(array) for name, array in state.get("arrays", {}).items()}

    def _append(self, row: Row, *, untrained: bool) -> None:
        row.setdefault("seconds", time.perf_counter() - self._clock)
        self._clock = time.perf_counter()
        if self.diverged:
            return
        self._write(row | ({} if self.norm_init is None else {"norm_init": self.norm_init}))
        # An untrained model may have an infinite loss.
        judged = {name: value for name, value in row.items() if name == "norm" or not untrained}
        diverged = self._judge(judged, f"in epoch {len(self._rows) + 1}")
        self._tell()
        if diverged:
            return
        finite = {name: value for name, value in row.items() if math.isfinite(value)}
        self._rows.append(dict.fromkeys(row, math.nan) | finite)
        if self._on_epoch is not None and _is_first_rank():
            self._on_epoch({"epoch": float(len(self._rows))} | finite)

    def _judge(self, row: Row, when: str) -> bool:
        """Whether the run has diverged by now."""
        wrong = [name for name in judged_by(row) if not math.isfinite(row[name])]
        if wrong and not self.diverged:
            self.diverged_by = f"{wrong[0]} is not finite {when}"
        return self.diverged

    def _write(self, line: Mapping[str, Any]) -> None:
        if self._out is not None and _is_first_rank():
            with self._out.open("a") as stream:
                stream.write(json.dumps(line) + "\n")

    def _tell(self) -> None:
        """In a program of `initmem run --command`: leave what joins the provenance next to the history."""
        if self._out is not None and _is_first_rank() and (path := told_path(TRACKER_FILE)):
            path.write_text(json.dumps(self._seen()))

    def _kernels_of(self, model: Any, kernels: Kernels) -> list[Variable]:
        parameters = parameters_of(model, kernels)
        if kernels is None and self._init is not None:
            own = {id(p) for v in parameters for p in v.place.parameters}
            applied = [v for table in self._init.tables for v in table.variables if v.role == "kernel"]
            if drawn := [v for v in applied if any(id(p) in own for p in v.place.parameters)]:
                return drawn
        return [variable for variable in parameters if variable.role == "kernel"]

    def _check(self, row: Row) -> None:
        for name, counted in zip(MAY_BE_GIVEN, (self._updates.kernels, self._updates.updates), strict=True):
            if name in row and counted:
                raise ConfigError(f"metric {name}: initmem records that itself (choose another name)")
        if not self._rows:
            self._given = set(row)
        changed = ", ".join(sorted(self._given ^ set(row)))
        if changed:
            epoch = len(self._rows) + 1
            raise ConfigError(
                f"epoch {epoch}: metric {changed} is not in every epoch ({allowed(self._given)})"
            )


def judged_by(row: Row) -> list[str]:
    """What has to be finite: the norm, and the validation loss or else the metrics that stand in for it."""
    norm = [name for name in row if name == "norm"]
    for names in (("val_loss",), ("val_accuracy", "train_loss"), TESTED):
        if present := [name for name in names if name in row]:
            return [*present, *norm]
    return list(row)


def _is_first_rank() -> bool:
    """Whether this is the process of distributed training that speaks for all."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return int(torch.distributed.get_rank()) == 0
    return os.environ.get("RANK", "0") == "0"


def checked_metrics(given: Mapping[Any, Any]) -> Row:
    """Metrics as plain numbers, under the names of initmem: `test_acc` is `test_accuracy`."""
    row: Row = {}
    for key, raw in given.items():
        name, value = metric_name(str(key)), _number(str(key), raw)
        if not is_text(name):
            raise ConfigError(f"metric {name!r} (allowed: a name that can be written as UTF-8)")
        if name in RESERVED:
            raise ConfigError(f"metric {key}: initmem records that itself (choose another name)")
        if name in row:
            raise ConfigError(f"metric {key}: there is a {name} already (allowed: one of each)")
        if metric_of(name).is_percentage and not (math.isnan(value) or -1e-6 <= value <= 1 + 1e-6):
            raise ConfigError(f"metric {key} = {value:g} (allowed: a fraction from 0 to 1)")
        row[name] = value
    return row


def classes_of(given: Any) -> NDArray[np.uint16]:
    """Predicted classes from classes or scores."""
    if isinstance(given, Tensor):
        given = given.detach().cpu().float() if given.is_floating_point() else given.cpu()
    try:
        values = np.asarray(given)
    except ValueError as error:
        raise ConfigError(f"predictions that are no array ({error})") from None
    if values.dtype.kind == "f" and values.ndim > 1 and values.shape[-1] > 1 and np.isfinite(values).all():
        values = values.argmax(-1)
    whole = values.dtype.kind in "uib" and values.ndim in (1, 2) and values.size > 0
    if not whole or int(values.min()) < 0 or int(values.max()) > LARGEST_CLASS:
        raise ConfigError(
            f"predictions of type {values.dtype} and shape {values.shape} (allowed: classes from 0 to "
            f"{LARGEST_CLASS} as whole numbers, or finite scores of shape (example, class))"
        )
    return values.astype(np.uint16)


def _number(name: str, value: Any) -> float:
    """A metric as a number; infinite where it is too large to compute with."""
    try:
        number = float(value.detach() if isinstance(value, Tensor) else value)
    except (TypeError, ValueError, RuntimeError):
        raise ConfigError(f"metric {name} = {value!r} (allowed: a number)") from None
    return math.copysign(math.inf, number) if abs(number) > LARGEST_VALUE else number
