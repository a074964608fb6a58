"""Which parameters of a model are kernels, which are biases, and which are neither.

A kernel is what the initialization scale multiplies and the recorded norm counts. Every parameter of a
model gets a role, so that nothing is skipped in silence.
"""

from __future__ import annotations

import copy
import fnmatch
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.nn.utils import parametrize

from initmem.errors import ModelError, allowed

SAME = 0.02  # relative error within which a parametrised weight counts as set; half precision needs as much

Role = Literal["kernel", "bias", "norm", "frozen", "other", "stuck"]

# A function of (name, parameter, its module): the fan-in of a kernel, True for the usual fan-in, or False.
Chooser = Callable[[str, Any, Any], float | bool | None]  # True: a kernel whose fan-in follows from its layer
Kernels = Chooser | type | str | Iterable[type | str] | Mapping[str, float] | None  # fan-ins by pattern
UNKNOWN = math.nan  # the fan-in of a kernel in a layer that only its user knows


class Place(ABC):
    """Where a parameter lives: how a framework has it read and written."""

    @property
    @abstractmethod
    def parameters(self) -> tuple[Any, ...]:
        """The objects that are trained, by which a parameter is known again."""

    @abstractmethod
    def value(self) -> Tensor:
        """What the model computes with."""

    @abstractmethod
    def set(self, values: NDArray[np.float64]) -> None:
        """Give it these values, in its own precision and on its own device."""

    @abstractmethod
    def rescale(self, factor: float | NDArray[np.float64]) -> None:
        """Multiply it by a number, or by an array of its shape."""

    @abstractmethod
    def follow(self, model: Any) -> None:
        """Look at a newer version of the model, where a framework does not change models in place."""


@dataclass(frozen=True, slots=True)
class Variable:
    """One parameter of a model, and what initialization makes of it."""

    name: str
    shape: tuple[int, ...]
    role: Role
    fan_in: float | None  # of a kernel
    note: str  # why it is left alone, or what else there is to know
    place: Place = field(repr=False)
    also: tuple[str, ...] = ()  # its other names, if it is tied
    is_output: bool = False  # the kernel of the last layer


@dataclass(frozen=True, slots=True)
class Choice:
    """Which parameters are kernels: called with (name, value, layer), it gives the fan-in, or None."""

    choose: Chooser
    usual: Chooser  # the fan-in in the layers that a framework has
    patterns: tuple[str, ...]

    def __call__(self, name: str, value: Any, layer: Any) -> float | None:
        """The fan-in of a kernel, perhaps unknown; None: it is none."""
        chosen = self.choose(name, value, layer)
        if chosen is None or chosen is False:
            return None
        if chosen is not True:
            return float(chosen)
        usual = self.usual(name, value, layer)
        return UNKNOWN if usual is None else float(usual)

    def check(self, names: Iterable[str]) -> None:
        """Refuse patterns that match nothing."""
        every = list(names)
        for pattern in self.patterns:
            if not fnmatch.filter(every, pattern):
                raise ModelError(f"kernels: no parameter is named {pattern!r} ({allowed(every)})")


def choice(kernels: Kernels, usual: Chooser) -> Choice:
    """Read the argument `kernels` of a user."""
    if kernels is None:
        return Choice(usual, usual, ())
    if isinstance(kernels, Mapping):
        return _with_fan_ins(kernels, usual)
    if callable(kernels) and not isinstance(kernels, type):
        return Choice(kernels, usual, ())
    items = [kernels] if isinstance(kernels, str | type) else list(kernels)
    types = tuple(item for item in items if isinstance(item, type))
    patterns = tuple(item for item in items if isinstance(item, str))

    def choose(name: str, value: Any, layer: Any) -> bool:
        if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns):
            return True
        if not isinstance(layer, types):
            return False
        unknown = len(value.shape) >= 2 and "bias" not in name.rpartition(".")[2]
        return usual(name, value, layer) is not None or unknown

    return Choice(choose, usual, patterns)


def _with_fan_ins(by_pattern: Mapping[str, Any], usual: Chooser) -> Choice:
    for pattern, fan_in in by_pattern.items():
        if not isinstance(fan_in, int | float) or not 0 < fan_in < math.inf:
            raise ModelError(f"kernels: {pattern!r} has a fan-in of {fan_in!r} (allowed: numbers above 0)")

    def choose(name: str, value: Any, layer: Any) -> float | None:
        return next((n for pattern, n in by_pattern.items() if fnmatch.fnmatchcase(name, pattern)), None)

    return Choice(choose, usual, tuple(by_pattern))


def kept_fan_in(role: Role, fan_in: float | None) -> float | None:
    """The fan-in of a variable: None where it is no kernel, or where nobody knows."""
    return None if role != "kernel" or fan_in is None or math.isnan(fan_in) else fan_in


# -- the parameters of a torch model ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TorchPlace(Place):
    """An attribute of a module, perhaps computed from other parameters by `torch.nn.utils.parametrize`."""

    name: str
    module: nn.Module
    attribute: str
    tensors: tuple[Tensor, ...]  # the parameters behind it; several if parametrised

    @property
    def parameters(self) -> tuple[Tensor, ...]:
        """The parameters behind it."""
        return self.tensors

    def value(self) -> Tensor:
        """The tensor that the module computes with; to look at it changes nothing, as in evaluation mode."""
        tensor: Tensor
        if not parametrize.is_parametrized(self.module, self.attribute):
            tensor = getattr(self.module, self.attribute)
            return tensor
        parametrization: Any = self.module.parametrizations
        was_training = parametrization.training
        parametrization.eval()  # spectral_norm improves its estimate whenever it is used in training
        try:
            tensor = getattr(self.module, self.attribute)
        finally:
            parametrization.train(was_training)
        return tensor

    def set(self, values: NDArray[np.float64]) -> None:
        """Draw it anew; the padding row of an embedding stays at zero."""
        now = self.value()
        # First the type, then the place: not every device knows float64.
        wanted = torch.from_numpy(values).to(now.dtype).to(now.device)
        padding = getattr(self.module, "padding_idx", None)
        if padding is not None and isinstance(self.module, _LOOKUP):
            wanted[padding] = 0.0
        self._assign(wanted)

    def rescale(self, factor: float | NDArray[np.float64]) -> None:
        """Multiply it."""
        now = self.value()
        by = factor if isinstance(factor, float) else torch.from_numpy(factor).to(now.dtype).to(now.device)
        self._assign(now * by)

    def follow(self, model: Any) -> None:
        """Nothing to do: parameters change in place."""

    def why_stuck(self) -> str:
        """Why a parametrised tensor cannot be set, tried on a copy of its module; empty if it can be."""
        if not parametrize.is_parametrized(self.module, self.attribute):
            return ""
        copied = replace(self, module=copy.deepcopy(self.module))
        try:
            copied.rescale(2.0)
        except ModelError as error:
            return str(error).removeprefix(f"{self.name}: ")
        return ""

    @torch.no_grad()
    def _assign(self, wanted: Tensor) -> None:
        if not parametrize.is_parametrized(self.module, self.attribute):
            self.tensors[0].copy_(wanted)
            return
        try:
            setattr(self.module, self.attribute, wanted)
        except (NotImplementedError, RuntimeError, ValueError) as error:
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise ModelError(f"{self.name}: its parametrization cannot be set ({reason})") from None
        missed = torch.linalg.vector_norm(self.value() - wanted)
        if missed > SAME * torch.linalg.vector_norm(wanted):
            raise ModelError(
                f"{self.name}: its parametrization undoes what is set, so that it has no scale "
                "(leave it out with `kernels`, or measure another part of the model)"
            )


@dataclass(frozen=True, slots=True)
class Share(Place):
    """The share of one replica in a variable of a pack."""

    tensor: Tensor

    @property
    def parameters(self) -> tuple[Tensor, ...]:
        """The share itself."""
        return (self.tensor,)

    def value(self) -> Tensor:
        """The share itself."""
        return self.tensor

    @torch.no_grad()
    def set(self, values: NDArray[np.float64]) -> None:
        """Copy the values into the pack."""
        # First the type, then the place: not every device knows float64.
        self.tensor.copy_(torch.from_numpy(values).to(self.tensor.dtype).to(self.tensor.device))

    @torch.no_grad()
    def rescale(self, factor: float | NDArray[np.float64]) -> None:
        """Multiply it."""
        self.tensor.mul_(factor if isinstance(factor, float) else torch.from_numpy(factor).to(self.tensor))

    def follow(self, model: Any) -> None:
        """Nothing to do: a pack changes in place."""


def torch_variables(model: nn.Module, kernels: Kernels = None) -> list[Variable]:
    """Every parameter of a torch model once."""
    choose = choice(kernels, _usual_fan_in)
    by_id: dict[int, Variable] = {}
    last = None
    for module, slots in _slots(model):
        for variable in _roles(module, slots, choose, explicit=kernels is not None):
            key = id(variable.place.parameters[0])
            by_id[key] = _tied(by_id[key], variable) if key in by_id else variable
            last = key if variable.role == "kernel" else last
    choose.check(name for v in by_id.values() for name in (v.name, *v.also))
    return [replace(v, is_output=key == last) for key, v in by_id.items()]


def _slots(model: nn.Module) -> Iterator[tuple[nn.Module, list[TorchPlace]]]:
    """The parameters of every module: parametrised ones under the name by which they are used."""
    inner: set[int] = set()
    for path, module in model.named_modules():
        if id(module) in inner:
            continue
        slots = []
        if parametrize.is_parametrized(module):
            parametrizations: Any = module.parametrizations
            inner |= {id(part) for part in parametrizations.modules()}
            for attribute, originals in parametrizations.items():
                own = tuple(p for name, p in originals.named_parameters() if name.startswith("original"))
                slots.append((attribute, own))
        slots += [(name, (p,)) for name, p in module._parameters.items() if p is not None]
        prefix = f"{path}." if path else ""
        yield module, [TorchPlace(prefix + name, module, name, tensors) for name, tensors in slots if tensors]


def _roles(
    module: nn.Module, slots: Sequence[TorchPlace], choose: Choice, *, explicit: bool
) -> list[Variable]:
    """Give the parameters of one module their roles."""
    fan_ins = {slot.attribute: _fan_in(slot, choose) for slot in slots}
    has_kernel = any(fan_in is not None for fan_in in fan_ins.values())
    variables = []
    for slot in slots:
        fan_in = fan_ins[slot.attribute]
        role, note = _role(slot, fan_in, has_kernel=has_kernel, explicit=explicit)
        shape = tuple(slot.value().shape)
        variables.append(Variable(slot.name, shape, role, kept_fan_in(role, fan_in), note, slot))
    return variables


def _role(slot: TorchPlace, fan_in: float | None, *, has_kernel: bool, explicit: bool) -> tuple[Role, str]:
    kind = type(slot.module).__name__
    tensor = slot.tensors[0]
    if fan_in is not None:
        if not tensor.is_floating_point():
            return "stuck", f"a kernel of {tensor.dtype}, which has no scale"
        if not (tensor.requires_grad or explicit):
            return "frozen", "left as it is: not trained (name it in `kernels` to scale it)"
        stuck = slot.why_stuck()
        return ("stuck", stuck) if stuck else ("kernel", "")
    if is_norm(slot.module):
        return "norm", "left as it is"
    if has_kernel and "bias" in slot.attribute:
        return ("bias", "") if tensor.requires_grad else ("frozen", "left as it is: not trained")
    if _expected(slot.module) and not has_kernel and slot.attribute.startswith("weight_"):
        return "stuck", "an old-style weight_norm or spectral_norm (allowed: torch.nn.utils.parametrizations)"
    if explicit:
        return "other", "left as it is: not chosen as a kernel"
    return "other", f"left as it is: no rule for {kind}.{slot.attribute} (name it in `kernels` to scale it)"


def _fan_in(slot: TorchPlace, choose: Choice) -> float | None:
    if any(is_lazy(tensor) for tensor in slot.tensors):
        raise ModelError(f"{slot.name} has no shape yet (allowed: pass one batch through the model first)")
    return choose(slot.name, slot.value(), slot.module)


def _tied(first: Variable, again: Variable) -> Variable:
    """A tensor that is used twice is drawn once, by the rule that makes it smaller.

    As an embedding alone a table would be drawn with a deviation of 1, and as an output layer it would then
    give logits as large as the root of its width.
    """
    both = replace(
        first,
        note="; ".join(part for part in (first.note, f"tied to {again.name}") if part),
        also=(*first.also, again.name),
    )
    if again.role != "kernel":
        return both
    if first.role != "kernel":
        return replace(both, role="kernel", note=f"tied to {again.name}", fan_in=again.fan_in)
    return replace(both, fan_in=max(first.fan_in or 0.0, again.fan_in or 0.0) or None)


# -- the layers that torch has --------------------------------------------------------------------------

_DENSE = (nn.Linear, nn.Bilinear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
_TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
_LOOKUP = (nn.Embedding, nn.EmbeddingBag)
_SEVERAL = (nn.MultiheadAttention, nn.RNNBase, nn.RNNCellBase)  # more than one kernel each


def _usual_fan_in(name: str, value: Tensor, module: nn.Module) -> float | None:
    """How many inputs feed one output through a kernel; None: this is no kernel of a known layer."""
    attribute, shape = name.rpartition(".")[2], tuple(value.shape)
    if isinstance(module, _SEVERAL):
        return float(shape[1]) if "weight" in attribute else None
    if attribute != "weight":
        return None
    if isinstance(module, _DENSE):
        return float(math.prod(shape[1:]))
    if isinstance(module, _TRANSPOSED):  # (in, out / groups, ...): a stride spreads the inputs thinner
        taps = math.prod(shape[2:]) / math.prod(module.stride)
        return shape[0] / module.groups * max(taps, 1.0)
    if isinstance(module, _LOOKUP):
        return 1.0  # one row is looked up, not a sum over rows
    if _is_transformers_conv1d(module):  # (in, out)
        return float(shape[0])
    return None


def _expected(module: nn.Module) -> bool:
    """Whether a module of this type has a kernel."""
    return isinstance(module, (*_DENSE, *_TRANSPOSED, *_LOOKUP, *_SEVERAL)) or _is_transformers_conv1d(module)


def _is_transformers_conv1d(module: nn.Module) -> bool:
    kind = type(module)
    return kind.__name__ == "Conv1D" and kind.__module__.startswith("transformers.")


_NORMS = (nn.modules.batchnorm._NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)


def is_norm(module: nn.Module) -> bool:
    """Whether a module is a norm layer: one of torch, or one that a model brings itself."""
    own = [tuple(parameter.shape) for parameter in module.parameters(recurse=False)]
    return isinstance(module, _NORMS) or looks_like_norm(type(module), own)


def looks_like_norm(kind: type, shapes: Iterable[tuple[int, ...]]) -> bool:
    """Whether a class of user code is a norm layer: by its name, and parameters that only scale or shift."""
    vectors = all(len(shape) <= 1 for shape in shapes)
    return vectors and re.search(r"Norm(alization)?(\d+[dD])?$", kind.__name__) is not None
