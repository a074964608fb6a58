"""The clocks of training, counted at every update of the optimizers, and the norm of the kernels."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from initmem.clocks import RateSums, decay_rate
from initmem.errors import ConfigError
from initmem.train.variables import Variable

Optimizers = torch.optim.Optimizer | Sequence[torch.optim.Optimizer]

# Updates between two samples of the kernel norm: well below 1% of a step, even where steps are short.
NORM_EVERY = 64
DIVIDED = ("sgd", "momentum")  # clocks that divide by the batch size
SUMS = ("rate", "eta", "eta2", "corrected", "decay")


class _Group(RateSums[float]):
    """Sums over the updates of one parameter group."""

    __slots__ = ("rate", "share", "size", "whole")

    def __init__(self) -> None:
        super().__init__(0.0, 0.0, 0.0, 0.0)
        self.size = self.whole = 0  # values of kernels in it, and values of any kind
        self.share = 0.0  # of the kernels' values of all groups
        self.rate = 0.0  # of the last update

    def add(self, rate: float, momentum: float, penalty: float) -> None:
        square = rate * rate
        self.rate = rate
        self.eta += rate
        self.eta2 += square
        self.corrected += square / (1.0 - momentum) ** 2 if momentum else square
        self.decay += rate * penalty


Update = list[tuple[_Group, float, float, float]]  # (group, rate, momentum, penalty)


class _Step(NamedTuple):
    """An update of which only the device knows yet whether it was skipped."""

    skipped: Tensor
    update: Update
    leading: bool


class UpdateClocks:
    """Counts updates. What a device has still to compute is read at the end of an epoch, not waited for."""

    def __init__(self) -> None:
        self.updates = 0
        self.kernels: list[Variable] = []
        self.groups: list[_Group] = []
        self.penalty = 0.0
        self.waiting: list[_Step] = []
        self.multiple = 1  # of the rate of SGD: examples of an update whose loss is a sum over them
        self._batch: int | None = None  # None: not given
        self._watched: list[str] | None = None  # types of the optimizers; None: nothing is attached
        self._every = NORM_EVERY
        self._hooks: list[Any] = []
        self._angular = 0.0  # the angular clock up to the last sample of the norm
        self._inverse = 0.0  # 1 / ||W||^2 at that sample
        self._since = 0.0  # sum of eta since then
        self._window = 0  # updates since then
        self._samples: list[tuple[float, int, Tensor]] = []  # (sum of eta, updates, ||W||^2), not read yet

    def watch(
        self,
        kernels: Sequence[Variable],
        optimizers: Optimizers | None,
        *,
        batch: int | None,
        penalty: float,
        every: int,
        multiple: int = 1,
    ) -> None:
        """Count the updates of these optimizers from now on; `batch` examples stand behind each."""
        self.detach()
        several = _optimizers(optimizers)
        self.multiple, self._watched = multiple, [type(one).__name__ for one in several]
        self.kernels, self._batch, self.penalty, self._every = list(kernels), batch, penalty, max(1, every)
        self._inverse = _inverse(self._norm_squared())
        for group in self.groups:
            group.size = 0
        first = 0
        for one in several:
            self._hooks.append(one.register_step_post_hook(_Hook(self, first, one)))
            self.weigh([group["params"] for group in one.param_groups], first)
            first += len(one.param_groups)

    def detach(self) -> None:
        """Take the hooks off the optimizers."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    def norm(self) -> float | None:
        """The Frobenius norm of all kernels; None: there are none to watch."""
        return math.sqrt(float(self._norm_squared())) if self.kernels else None

    def clocks(self) -> dict[str, float]:
        """The clocks at this moment: means over parameter groups, by their share of the kernels' values.

        What was not measured is not there: no clock without an update or an optimizer to watch, none that
        divides by a batch size that nobody gave, and no angular clock without kernels.
        """
        self._settle()
        if not self.groups:
            return {}
        ticks: dict[str, float] = {}
        for group in self.groups:
            for name, value in group.clocks(self._batch or 1).items():
                ticks[name] = ticks.get(name, 0.0) + group.share * value
        if self._batch is None:  # the L2 clock needs the penalty, which attach is told
            absent = (*DIVIDED, *(["l2"] if self._watched is None else []))
            ticks = {name: value for name, value in ticks.items() if name not in absent}
        return ticks | ({"angular": self._angular} if self.kernels else {})

    def not_yet(self, norm_init: float | None) -> bool:
        """Whether the optimizers that are watched have made no update so far."""
        return bool(self._watched) and not (self.updates or self.waiting or self.missed_steps(norm_init))

    def missed_steps(self, norm_init: float | None) -> bool:
        """Whether weights changed, though no update was counted."""
        if self.updates or self.waiting or not self._watched or norm_init is None:
            return False
        return self.norm() != norm_init

    def missing(self, norm_init: float | None) -> list[str]:
        """Which clocks were not measured, and why."""
        if self._watched is None:
            return []
        if self.missed_steps(norm_init):
            names = ", ".join(f"{name}.step" for name in self._watched)
            return [
                f"all clocks: weights changed, but {names} was never called (tracker.step counts updates)"
            ]
        if not self.groups:
            return [
                "all clocks: no optimizer was attached, and tracker.step was never called "
                "(attach it when it is made)"
            ]
        return [] if self._batch else [f"{', '.join(DIVIDED)}: no batch_size was given to tracker.attach"]

    def columns(self, norm_init: float | None) -> dict[str, float]:
        """What joins the metrics of an epoch: kernel norm, and means over the parameter groups.

        Without the means if steps were missed.
        """
        row = {}
        if self.groups and not self.missed_steps(norm_init):
            row = {f"clock_{name}": value for name, value in self.clocks().items()}
            row["learning_rate"] = sum(group.share * group.rate for group in self.groups)
        if (norm := self.norm()) is not None:
            row["norm"] = norm
        return row

    def state_dict(self) -> dict[str, Any]:
        """Plain values from which `load_state_dict` resumes."""
        self._settle()
        return {
            "groups": [{name: getattr(group, name) for name in SUMS} for group in self.groups],
            "updates": self.updates,
            "angular": self._angular,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state_dict` was taken; before or after `watch`."""
        for index, sums in enumerate(state["groups"]):
            group = self.group(index)
            for name in SUMS:
                setattr(group, name, float(sums[name]))
        self.updates, self._angular = int(state["updates"]), float(state["angular"])
        self._since, self._window, self._samples, self.waiting = 0.0, 0, [], []
        self._inverse = _inverse(self._norm_squared())

    def group(self, index: int) -> _Group:
        """A parameter group by its number over all optimizers."""
        while len(self.groups) <= index:
            self.groups.append(_Group())
        return self.groups[index]

    def weigh(self, groups: Sequence[Sequence[Tensor]], first: int) -> None:
        """Make room for parameter groups, and weigh all of them by the kernels that they hold."""
        kernels = {id(p): p.numel() for v in self.kernels for p in v.place.parameters}
        for index, parameters in enumerate(groups, start=first):
            group = self.group(index)
            group.size = sum(kernels.get(id(p), 0) for p in parameters)
            group.whole = sum(p.numel() for p in parameters)
        # Where an optimizer holds none of the kernels, as with flattened parameters, all values count.
        sizes = [group.size for group in self.groups]
        sizes = sizes if any(sizes) else [group.whole for group in self.groups]
        for group, size in zip(self.groups, sizes, strict=True):
            group.share = size / (sum(sizes) or 1)

    def add(self, update: Update, *, leading: bool) -> None:
        """Count an update, and sample the norm now and then: more often at first, when it moves most."""
        for group, rate, momentum, penalty in update:
            group.add(rate, momentum, penalty)
            self._since += group.share * rate
        if not leading:  # of several optimizers, the first one counts
            return
        self.updates += 1
        self._window += 1
        k = self.updates
        if self.kernels and (k % self._every == 0 or (k < self._every and k & (k - 1) == 0)):
            self._sample_norm()

    def _sample_norm(self) -> None:
        """Note ||W||^2 without waiting for the device."""
        self._samples.append((self._since, self._window, self._norm_squared()))
        self._since, self._window = 0.0, 0

    def _settle(self) -> None:
        """Read what the device has computed meanwhile."""
        if self.waiting:
            skipped = torch.stack([step.skipped.reshape(()).cpu() for step in self.waiting]).tolist()
            for was_skipped, step in zip(skipped, self.waiting, strict=True):
                if not was_skipped:
                    self.add(step.update, leading=step.leading)
            self.waiting = []
        if self.kernels and self._window:
            self._sample_norm()
        for since, window, square in self._samples:
            inverse = _inverse(square)
            # The norm before each update counts, taken to change evenly between two samples.
            mean = self._inverse + (inverse - self._inverse) * (window - 1) / (2 * window)
            self._angular += since * mean
            self._inverse = inverse
        self._samples = []

    @torch.no_grad()
    def _norm_squared(self) -> Tensor:
        """The squared Frobenius norm of all kernels."""
        if not self.kernels:
            return torch.zeros(())
        values = [kernel.place.value().detach() for kernel in self.kernels]
        half = any(value.dtype in (torch.float16, torch.bfloat16) for value in values)
        norms = torch._foreach_norm(values, 2, torch.float32) if half else torch._foreach_norm(values, 2)
        device = norms[0].device
        return torch.stack([norm.to(device) for norm in norms]).square().sum()


class _Hook:
    """Runs after every real step of one optimizer; made to be quick."""

    def __init__(self, clocks: UpdateClocks, first: int, optimizer: torch.optim.Optimizer) -> None:
        self.clocks, self.first = clocks, first
        # The momentum of Muon does not lengthen its steps.
        self.inert = "muon" in type(optimizer).__name__.lower()
        # Other optimizers normalize their gradients: their steps do not depend on the size of the loss.
        self.multiple = clocks.multiple if isinstance(optimizer, torch.optim.SGD) else 1

    def __call__(self, optimizer: torch.optim.Optimizer, args: object, kwargs: object) -> None:
        clocks, params = self.clocks, optimizer.param_groups
        if len(clocks.groups) < self.first + len(params):  # a group was added while training
            clocks.weigh([group["params"] for group in params], self.first)
        update = []
        for index, group in enumerate(params, start=self.first):
            momentum = 0.0 if self.inert else group.get("momentum", 0.0)
            penalty = decay_rate(clocks.penalty, group.get("weight_decay", 0.0))
            rate = self.multiple * float(group["lr"])
            update.append((clocks.groups[index], rate, momentum, penalty / self.multiple))
        leading = self.first == 0
        skipped = getattr(optimizer, "found_inf", None)  # fused steps in mixed precision: on the device
        if skipped is None:
            clocks.add(update, leading=leading)
        else:
            clocks.waiting.append(_Step(skipped.clone(), update, leading))


def _optimizers(given: Optimizers | None) -> list[torch.optim.Optimizer]:
    several = [] if given is None else list(given) if isinstance(given, Sequence) else [given]
    optimizers = []
    for one in several:
        # Wrappers of other libraries, and implementations of SAM, contain the optimizer that makes the steps.
        inner = (getattr(one, name, None) for name in ("optimizer", "base_optimizer"))
        real = next((other for other in inner if isinstance(other, torch.optim.Optimizer)), one)
        if not isinstance(real, torch.optim.Optimizer):
            raise ConfigError(
                f"optimizer: a {type(one).__name__} (allowed: torch.optim.Optimizer; else Tracker.step)"
            )
        optimizers.append(real)
    return optimizers


def _inverse(square: Tensor) -> float:
    return 1 / float(square) if float(square) else 0.0
