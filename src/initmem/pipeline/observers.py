"""What hooks on the optimizers and the model see of training: the clocks of every update, the norm of the
kernels, and the first batches."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from initmem.clocks import RateSums, decay_rate
from initmem.errors import ConfigError
from initmem.train.variables import Variable

Optimizers = torch.optim.Optimizer | Sequence[torch.optim.Optimizer]

# Updates between two samples of the kernel norm: well below 1% of a step, even where steps are short.
NORM_EVERY = 64
DIVIDED = ("sgd", "momentum")  # clocks that divide by the batch size
SUMS = ("rate", "eta", "eta2", "corrected", "decay")
WATCHED = 2  # batches
MOST_CLASSES = 100_000


class _Group(RateSums[float]):
    """Sums over the updates of one parameter group."""

    __slots__ = ("rate", "share", "size", "whole")

    def __init__(self) -> None:
        super().__init__(0.0, 0.0, 0.0, 0.0)
        self.size = self.whole = 0  # values of kernels in it, and values of any kind
        self.share = 0.0  # of the kernels' values of all groups
        self.rate = 0.0  # of the last update


class UpdateClocks:
    """Counts updates, and samples the norm of the kernels now and then."""

    def __init__(self) -> None:
        self.updates = 0
        self.kernels: list[Variable] = []
        self.groups: list[_Group] = []
        self.penalty = 0.0
        self._batch: int | None = None  # None: not given
        self._watched: list[str] | None = None  # types of the optimizers; None: nothing is attached
        self._every = NORM_EVERY
        self._hooks: list[Any] = []
        self._angular = 0.0  # the angular clock up to the last sample of the norm
        self._inverse = 0.0  # 1 / ||W||^2 at that sample
        self._since = 0.0  # sum of eta since then
        self._window = 0  # updates since then

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
        """Count the updates of these optimizers from now on; `batch` examples stand behind each.

        The rate of SGD counts `multiple` times: where a loss is a sum over the examples of an update.
        """
        self.detach()
        several = torch_optimizers(optimizers)
        self._watched = [type(one).__name__ for one in several]
        self.kernels, self._batch, self.penalty, self._every = list(kernels), batch, penalty, max(1, every)
        self._inverse = self._inverse_square()
        for group in self.groups:
            group.size = 0
        first = 0
        for one in several:
            # Other optimizers normalize their gradients: their steps do not depend on the size of the loss.
            by = multiple if isinstance(one, torch.optim.SGD) else 1
            # The momentum of Muon does not lengthen its steps.
            inert = "muon" in type(one).__name__.lower()
            self._hooks.append(one.register_step_post_hook(partial(self._after_step, first, by, inert)))
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
        self._sample_norm()
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
        return bool(self._watched) and not (self.updates or self.missed_steps(norm_init))

    def missed_steps(self, norm_init: float | None) -> bool:
        """Whether weights changed, though no update was counted."""
        return bool(self._watched) and not self.updates and norm_init is not None and self.norm() != norm_init

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
            row["updates"] = float(self.updates)
        if (norm := self.norm()) is not None:
            row["norm"] = norm
        return row

    def state_dict(self) -> dict[str, Any]:
        """Plain values from which `load_state_dict` resumes."""
        self._sample_norm()
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
        self._since, self._window, self._inverse = 0.0, 0, self._inverse_square()

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

    def add(self, group: _Group, rate: float, momentum: float, penalty: float) -> None:
        """Count the part of an update that belongs to a parameter group."""
        square = rate * rate
        group.rate = rate
        group.eta += rate
        group.eta2 += square
        group.corrected += square / (1.0 - momentum) ** 2 if momentum else square
        group.decay += rate * penalty
        self._since += group.share * rate

    def _after_step(
        self, first: int, multiple: int, inert: bool, optimizer: torch.optim.Optimizer, *unused: object
    ) -> None:
        """Runs after every real step of an optimizer, whose groups are counted from `first`; to be quick."""
        params = optimizer.param_groups
        skipped = getattr(optimizer, "found_inf", None)  # fused steps in mixed precision
        if skipped is not None and bool(skipped):
            return
        if len(self.groups) < first + len(params):  # a group was added while training
            self.weigh([group["params"] for group in params], first)
        for index, group in enumerate(params, start=first):
            momentum = 0.0 if inert else group.get("momentum", 0.0)
            penalty = decay_rate(self.penalty, group.get("weight_decay", 0.0))
            self.add(self.groups[index], multiple * float(group["lr"]), momentum, penalty / multiple)
        if first == 0:  # of several optimizers, the first one counts
            self.end_update()

    def end_update(self) -> None:
        """Count a whole update, and sample the norm: more often at first, when it moves most."""
        self.updates += 1
        self._window += 1
        k = self.updates
        if k % self._every == 0 or (k < self._every and k & (k - 1) == 0):
            self._sample_norm()

    def _sample_norm(self) -> None:
        """Advance the angular clock: the norm before each update counts, taken to change evenly meanwhile."""
        if not (self.kernels and self._window):
            return
        inverse = self._inverse_square()
        mean = self._inverse + (inverse - self._inverse) * (self._window - 1) / (2 * self._window)
        self._angular += self._since * mean
        self._inverse, self._since, self._window = inverse, 0.0, 0

    def _inverse_square(self) -> float:
        square = float(self._norm_squared()) if self.kernels else 0.0
        return 1 / square if square else 0.0

    @torch.no_grad()
    def _norm_squared(self) -> Tensor:
        """The squared Frobenius norm of all kernels."""
        values = [kernel.place.value().detach() for kernel in self.kernels]
        half = any(value.dtype in (torch.float16, torch.bfloat16) for value in values)
        norms = torch._foreach_norm(values, 2, torch.float32) if half else torch._foreach_norm(values, 2)
        device = norms[0].device
        return torch.stack([norm.to(device) for norm in norms]).square().sum()


def torch_optimizers(given: Optimizers | None) -> list[torch.optim.Optimizer]:
    """The optimizers that make the steps, of one or several that a user gives."""
    several = [] if given is None else list(given) if isinstance(given, Sequence) else [given]
    optimizers = []
    for one in several:
        # Wrappers of other libraries, and implementations of SAM, contain the optimizer that makes the steps.
        inner = (getattr(one, name, None) for name in ("optimizer", "base_optimizer"))
        real = next((other for other in inner if isinstance(other, torch.optim.Optimizer)), one)
        if not isinstance(real, torch.optim.Optimizer):
            raise ConfigError(
                f"optimizer: a {type(one).__name__} (allowed: optimizers of torch; others have Tracker.step "
                "and interventions that are functions)"
            )
        optimizers.append(real)
    return optimizers


class FirstBatches:
    """A forward hook for two training batches of a torch model: the order of the data, and the classes."""

    def __init__(self) -> None:
        self.order: list[str] = []  # a digest of each batch
        self.classes: int | None = None  # the width of the logits of a classifier, (example, class)
        self._handle: Any = None

    def watch(self, model: Any) -> None:
        """Look at the first batches of a torch module; other models are left alone."""
        self.remove()
        if isinstance(model, nn.Module) and len(self.order) < WATCHED:
            self._handle = model.register_forward_hook(self, with_kwargs=True)

    def remove(self) -> None:
        """Take the hook off the model."""
        if self._handle is not None:
            self._handle.remove()

    def __call__(self, model: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        """Passes without gradients, or in evaluation mode, are not training."""
        if torch.compiler.is_compiling() or not (model.training and torch.is_grad_enabled()):
            return
        digest, tensors = hashlib.blake2b(digest_size=8), list(_tensors([args, kwargs]))
        try:
            for tensor in tensors:
                plain = tensor.detach().cpu().contiguous().reshape(-1)
                digest.update(plain.view(torch.uint8).numpy().tobytes())
            self.order.append(digest.hexdigest())
        except (RuntimeError, TypeError, ValueError):  # tensors without values, as under vmap
            tensors = []
        if not tensors:  # batches of which nothing is seen are not the same
            self.order = []
            self.remove()
        logits = getattr(output, "logits", output)
        is_matrix = isinstance(logits, Tensor) and logits.ndim == 2
        self.classes = int(logits.shape[1]) if is_matrix and 2 <= logits.shape[1] <= MOST_CLASSES else None
        if len(self.order) >= WATCHED:
            self.remove()


def _tensors(value: Any) -> Iterator[Tensor]:
    """The tensors in nested mappings and sequences."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping | Sequence) and not isinstance(value, str | bytes):
        for one in value.values() if isinstance(value, Mapping) else value:
            yield from _tensors(one)
