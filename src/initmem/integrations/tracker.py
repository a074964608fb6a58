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
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from initmem.errors import ConfigError, allowed
from initmem.integrations.init import Init
from initmem.integrations.variables import Kernels, Variable, kernel_variables, variables
from initmem.record import CLOCKS, SUMMARY_FIELDS

Row = dict[str, float]
OnEpoch = Callable[[Row], None]
Optimizers = torch.optim.Optimizer | Sequence[torch.optim.Optimizer]

NORM_EVERY = (
    64  # updates between two looks at the kernels: well below 1% of a step even where steps are short
)
TESTED = ("test_accuracy", "test_loss")  # summary values that are given as metrics
OWN = {"learning_rate", "seconds", "epoch", *(f"clock_{name}" for name in CLOCKS)}  # added to the metrics
RESERVED = OWN | (set(SUMMARY_FIELDS) - set(TESTED))


class _Group:
    """Sums over the updates of one parameter group."""

    __slots__ = ("corrected", "decay", "first", "rate", "second", "share", "size")

    def __init__(self) -> None:
        self.size = 0  # values of kernels in it
        self.share = 0.0  # of the kernels' values of all groups
        self.rate = 0.0  # of the last update
        self.first = self.second = 0.0  # sums of eta and eta^2
        self.corrected = 0.0  # sum of (eta / (1 - momentum))^2
        self.decay = 0.0  # sum of eta * penalty

    def add(self, rate: float, momentum: float, penalty: float) -> None:
        square = rate * rate
        self.rate = rate
        self.first += rate
        self.second += square
        self.corrected += square / (1.0 - momentum) ** 2 if momentum else square
        self.decay += rate * penalty

    def clocks(self, batch: int) -> dict[str, float]:
        return {
            "sgd": self.second / batch,
            "l2": self.decay,
            "adaptive": self.first,
            "momentum": self.corrected / batch,
        }


SUMS = ("rate", "first", "second", "corrected", "decay")


Update = list[tuple[_Group, float, float, float]]  # (group, rate, momentum, penalty)


class _Step(NamedTuple):
    """An update of which only the device knows yet whether it was skipped."""

    skipped: Tensor
    update: Update
    leading: bool


class Tracker:
    """Records one run. See the module for how to use it; `initmem.measure` hands you one.

    On its own, `Tracker()` keeps its `history` in memory, `Tracker(out=path)` also appends it to a file, one
    JSON line per epoch, as `initmem run --command` reads it; `state_dict` goes into your checkpoints.
    """

    def __init__(
        self, init: Init | None = None, *, out: str | Path | None = None, on_epoch: OnEpoch | None = None
    ) -> None:
        self.finals: Row = {}  # metrics of the predictor that is returned
        self.diverged = False  # a metric was not finite: the history ends before that epoch
        self.updates = 0
        self.norm_init: float | None = None
        self._init, self._on_epoch, self._out = init, on_epoch, Path(out) if out else None
        self._rows: list[Row] = []
        self._given: set[str] = set()  # names of the metrics
        self._groups: list[_Group] = []
        self._kernels: list[Variable] = []
        self._hooks: list[Any] = []
        self._waiting: list[_Step] = []
        self._batch, self._l2, self._every = 1, 0.0, NORM_EVERY
        self._angular = 0.0  # the angular clock up to the last look at the kernels
        self._inverse = 0.0  # 1 / ||W||^2 at that look
        self._since = 0.0  # sum of eta since then
        self._window = 0  # updates since then
        self._looks: list[tuple[float, int, Tensor]] = []  # (sum of eta, updates, ||W||^2), not read yet
        self._clock = time.perf_counter()

    # -- what you call ----------------------------------------------------------------------------------

    def attach(
        self,
        model: Any = None,
        optimizer: Optimizers | None = None,
        batch_size: int = 1,
        *,
        accumulation: int = 1,
        l2: float = 0.0,
        kernels: Kernels = None,
        norm_every: int = NORM_EVERY,
    ) -> None:
        """Watch a model and its optimizer (or optimizers). Call it before the first update.

        batch_size: examples per forward and backward pass; with `accumulation` passes per update, the
            clocks divide by their product. Over several devices: examples of all of them together.
        l2: a penalty l2 * sum(W^2) that your loss contains. Weight decay of the optimizer is seen by itself:
            a decay of d shrinks weights as a penalty of d / 2 does.
        kernels: as in `Init.apply`; unless given, those that `init.apply` found in this model.
        norm_every: updates between two looks at the kernels, which the angular clock needs.
        """
        if batch_size < 1 or accumulation < 1:
            raise ConfigError(f"batch_size = {batch_size}, accumulation = {accumulation} (allowed: from 1)")
        self.detach()
        self._batch, self._l2, self._every = batch_size * accumulation, l2, max(1, norm_every)
        if model is not None:
            self._kernels = self._kernels_of(model, kernels)
            square = self._norm_squared()
            self._inverse = _inverse(square)
            if self.norm_init is None:
                self.norm_init = math.sqrt(float(square))
        for group in self._groups:
            group.size = 0
        first = 0
        for one in _optimizers(optimizer):
            self._hooks.append(one.register_step_post_hook(_Hook(self, first, one)))
            self._watch([group["params"] for group in one.param_groups], first)
            first += len(one.param_groups)
        self._clock = time.perf_counter()

    def step(self, learning_rate: float, *, momentum: float = 0.0) -> None:
        """Count one update by hand, where there is no torch optimizer to watch."""
        if not self._groups:
            self._group(0).share = 1.0
        self._add([(self._groups[0], float(learning_rate), momentum, self._l2)], leading=True)

    def end_epoch(self, **metrics: Any) -> None:
        """End an epoch with its metrics: numbers of any name, the same names in every epoch.

        A metric that is not finite marks the run as diverged: its history ends before this epoch, and
        `tracker.diverged` tells you that there is no use in going on.
        """
        row = checked_metrics(metrics)
        self._check(row)
        self._settle()
        row |= self._measured()
        self._append(row)

    def add_row(self, row: Mapping[str, Any]) -> None:
        """End an epoch with a row that another tracker or program made: its own columns are among them."""
        own = OWN | {"norm", "norm_init"}
        known = {name: _number(name, value) for name, value in row.items() if name in own}
        metrics = checked_metrics({name: value for name, value in row.items() if name not in known})
        self._check(metrics)
        start = known.pop("norm_init", None)
        self.norm_init = start if self.norm_init is None else self.norm_init
        self._append(metrics | known)

    def finish(self, **metrics: Any) -> None:
        """Metrics of the predictor that training returns, where they are not those of an epoch."""
        self.finals |= checked_metrics(metrics)
        self._write({"final": self.finals})

    def _append(self, row: Row) -> None:
        row.setdefault("seconds", time.perf_counter() - self._clock)
        self._clock = time.perf_counter()
        if not self.diverged:
            self._write(row | ({} if self.norm_init is None else {"norm_init": self.norm_init}))
        if self.diverged or not all(map(math.isfinite, row.values())):
            self.diverged = True
            return
        self._rows.append(row)
        if self._on_epoch is not None:
            self._on_epoch({"epoch": float(len(self._rows))} | row)

    def _write(self, line: Mapping[str, Any]) -> None:
        if self._out is not None:
            with self._out.open("a") as stream:
                stream.write(json.dumps(line) + "\n")

    def detach(self) -> None:
        """Take the hooks off the optimizers."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    @property
    def history(self) -> dict[str, NDArray[np.float64]]:
        """The metrics of every epoch so far, an array of shape (epoch,) per column."""
        # A parameter group that joined later has no column of its own.
        names = (
            [name for name in self._rows[0] if all(name in row for row in self._rows)] if self._rows else []
        )
        return {name: np.array([row[name] for row in self._rows]) for name in names}

    def clocks(self) -> dict[str, float]:
        """The clocks at this moment: means over parameter groups, by their share of the kernels' values."""
        self._settle()
        found = dict.fromkeys(CLOCKS, 0.0)
        for group in self._groups:
            for name, value in group.clocks(self._batch).items():
                found[name] += group.share * value
        return found | {"angular": self._angular}

    @property
    def device(self) -> torch.device | None:
        """Where the watched kernels are."""
        return self._kernels[0].place.value().device if self._kernels else None

    def state_dict(self) -> dict[str, Any]:
        """Plain values (JSON will do) from which `load_state_dict` goes on."""
        self._settle()
        return {
            "rows": [dict(row) for row in self._rows],
            "metrics": sorted(self._given),
            "groups": [{name: getattr(group, name) for name in SUMS} for group in self._groups],
            "updates": self.updates,
            "norm_init": self.norm_init,
            "angular": self._angular,
            "diverged": self.diverged,
            "finals": dict(self.finals),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where `state_dict` was taken; before or after `attach`."""
        self._rows, self._given = [dict(row) for row in state["rows"]], set(state["metrics"])
        for index, sums in enumerate(state["groups"]):
            group = self._group(index)
            for name in SUMS:
                setattr(group, name, float(sums[name]))
        self.updates, self.norm_init = int(state["updates"]), state["norm_init"]
        self._angular, self.diverged = float(state["angular"]), bool(state["diverged"])
        self._since, self._window, self._looks, self._waiting = 0.0, 0, [], []
        self.finals = dict(state["finals"])
        self._inverse = _inverse(self._norm_squared())

    # -- what happens at every update -------------------------------------------------------------------

    def _add(self, update: Update, *, leading: bool) -> None:
        """Count an update, and look at the kernels now and then: more often at first, when they move most."""
        for group, rate, momentum, penalty in update:
            group.add(rate, momentum, penalty)
            self._since += group.share * rate
        if not leading:  # of several optimizers, the first one counts
            return
        self.updates += 1
        self._window += 1
        k = self.updates
        if self._kernels and (k % self._every == 0 or (k < self._every and k & (k - 1) == 0)):
            self._look()

    def _look(self) -> None:
        """Note ||W||^2 without waiting for the device."""
        self._looks.append((self._since, self._window, self._norm_squared()))
        self._since, self._window = 0.0, 0

    def _settle(self) -> None:
        """Read what the device has computed meanwhile."""
        if self._waiting:
            skipped = torch.stack([step.skipped.reshape(()).cpu() for step in self._waiting]).tolist()
            for was_skipped, step in zip(skipped, self._waiting, strict=True):
                if not was_skipped:
                    self._add(step.update, leading=step.leading)
            self._waiting = []
        if self._kernels and self._window:
            self._look()
        for since, window, square in self._looks:
            inverse = _inverse(square)
            # The norm before each update counts, taken to change evenly between two looks.
            mean = self._inverse + (inverse - self._inverse) * (window - 1) / (2 * window)
            self._angular += since * mean
            self._inverse = inverse
        self._looks = []

    @torch.no_grad()
    def _norm_squared(self) -> Tensor:
        """The squared Frobenius norm of all kernels."""
        if not self._kernels:
            return torch.zeros(())
        values = [kernel.place.value().detach() for kernel in self._kernels]
        half = any(value.dtype in (torch.float16, torch.bfloat16) for value in values)
        norms = torch._foreach_norm(values, 2, torch.float32) if half else torch._foreach_norm(values, 2)
        place = norms[0].device
        return torch.stack([norm.to(place) for norm in norms]).square().sum()

    # -- details ----------------------------------------------------------------------------------------

    def _kernels_of(self, model: Any, kernels: Kernels) -> list[Variable]:
        if kernels is None and self._init is not None:
            own = {id(p) for v in variables(model) for p in v.place.parameters}
            known = [v for v in self._init.kernels() if any(id(p) in own for p in v.place.parameters)]
            if known:
                return known
        return kernel_variables(model, kernels)

    def _watch(self, groups: Sequence[Sequence[Tensor]], first: int) -> None:
        """Make room for parameter groups and share the clocks among all of them."""
        kernels = {id(p): p.numel() for v in self._kernels for p in v.place.parameters}
        for index, parameters in enumerate(groups, start=first):
            sizes = (kernels.get(id(p), 0) if kernels else p.numel() for p in parameters)
            self._group(index).size = sum(sizes)
        total = sum(group.size for group in self._groups) or 1
        for group in self._groups:
            group.share = group.size / total

    def _group(self, index: int) -> _Group:
        while len(self._groups) <= index:
            self._groups.append(_Group())
        return self._groups[index]

    def _measured(self) -> Row:
        """What the tracker adds to the metrics of an epoch."""
        row: Row = {}
        if self._kernels:
            row["norm"] = math.sqrt(float(self._norm_squared()))
        if self.updates:
            row["learning_rate"] = sum(group.share * group.rate for group in self._groups)
            row |= {f"clock_{name}": value for name, value in self.clocks().items()}
        if len(self._groups) > 1:
            for index, group in enumerate(self._groups):
                row[f"group{index}_learning_rate"] = group.rate
                ticks = group.clocks(self._batch)
                row |= {f"group{index}_clock_{name}": value for name, value in ticks.items()}
        return row

    def _check(self, row: Row) -> None:
        if "norm" in row and self._kernels:
            raise ConfigError("metric norm: initmem records that itself (choose another name)")
        if not self._rows:
            self._given = set(row)
        changed = ", ".join(sorted(self._given ^ set(row)))
        if changed:
            epoch = len(self._rows) + 1
            raise ConfigError(
                f"epoch {epoch}: metric {changed} is not in every epoch ({allowed(self._given)})"
            )


class _Hook:
    """Runs after every real step of one optimizer; made to be quick."""

    def __init__(self, tracker: Tracker, first: int, optimizer: torch.optim.Optimizer) -> None:
        self.tracker, self.first = tracker, first
        # The momentum of Muon does not lengthen its steps.
        self.inert = "muon" in type(optimizer).__name__.lower()

    def __call__(self, optimizer: torch.optim.Optimizer, args: object, kwargs: object) -> None:
        tracker, params = self.tracker, optimizer.param_groups
        if len(tracker._groups) < self.first + len(params):  # a group was added while training
            tracker._watch([group["params"] for group in params], self.first)
        update = []
        for index, group in enumerate(params, start=self.first):
            momentum = 0.0 if self.inert else group.get("momentum", 0.0)
            penalty = tracker._l2 + group.get("weight_decay", 0.0) / 2
            update.append((tracker._groups[index], float(group["lr"]), momentum, penalty))
        leading = self.first == 0
        skipped = getattr(
            optimizer, "found_inf", None
        )  # fused steps under mixed precision skip on the device
        if skipped is None:
            tracker._add(update, leading=leading)
        else:
            tracker._waiting.append(_Step(skipped.clone(), update, leading))


def _optimizers(given: Optimizers | None) -> list[torch.optim.Optimizer]:
    several = [] if given is None else list(given) if isinstance(given, Sequence) else [given]
    found = []
    for one in several:
        inner = getattr(one, "optimizer", None)  # wrappers of other libraries carry the real one
        real = inner if isinstance(inner, torch.optim.Optimizer) else one
        if not isinstance(real, torch.optim.Optimizer):
            raise ConfigError(
                f"optimizer: a {type(one).__name__} (allowed: torch.optim.Optimizer; else Tracker.step)"
            )
        found.append(real)
    return found


def checked_metrics(given: Mapping[Any, Any]) -> Row:
    """Metrics as plain numbers, under names that are free."""
    row = {str(name): _number(str(name), value) for name, value in given.items()}
    for name, value in row.items():
        if name in RESERVED:
            raise ConfigError(f"metric {name}: initmem records that itself (choose another name)")
        if "accuracy" in name and not (math.isnan(value) or -1e-6 <= value <= 1 + 1e-6):
            raise ConfigError(f"metric {name} = {value:g} (allowed: a fraction from 0 to 1)")
    return row


def _number(name: str, value: Any) -> float:
    try:
        return float(value.detach() if isinstance(value, Tensor) else value)
    except (TypeError, ValueError, RuntimeError):
        raise ConfigError(f"metric {name} = {value!r} (allowed: a number)") from None


def _inverse(square: Tensor) -> float:
    return 1 / float(square) if float(square) else 0.0
