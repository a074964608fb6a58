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
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.nn.utils import parametrize

from initmem.errors import ModelError, allowed

SAME = 0.02  # relative error within which a parametrised weight counts as set; half precision needs as much

Role = Literal["kernel", "bias", "norm", "frozen", "other", "stuck"]

# A function of (name, parameter, its layer): the fan-in of a kernel, True for the usual fan-in, or False.
Chooser = Callable[[str, Any, Any], float | bool | None]
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

    def follow(self, model: Any) -> None:  # noqa: B027
        """Look at a newer version of the model; nothing to do where a framework changes models in place."""


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


class Parameter(NamedTuple):
    """A parameter as a framework has it, from which `classified` makes a variable."""

    name: str
    value: Any
    layer: Any  # that it is part of
    label: str  # what messages call it
    is_norm: bool
    is_bias: bool  # if its layer has a kernel
    is_frozen: bool
    place: Place


def classified(parameters: Iterable[Parameter], kernels: Kernels, usual: Chooser) -> list[Variable]:
    """Each parameter once, with its role, the last kernel marked as that of the output.

    `kernels` is the argument of a user; `usual` knows the fan-ins in the layers that a framework has.
    """
    kernels = _checked_kernels(kernels)
    fan_ins = [(p, _fan_in(p, kernels, usual)) for p in parameters]
    with_kernel = {id(p.layer) for p, fan_in in fan_ins if fan_in is not None}
    by_id: dict[int, Variable] = {}
    output = None
    for p, fan_in in fan_ins:
        has_kernel = id(p.layer) in with_kernel
        role, note = _role(p, fan_in, has_kernel=has_kernel, explicit=kernels is not None)
        known = None if role != "kernel" or fan_in is None or math.isnan(fan_in) else fan_in
        variable = Variable(p.name, tuple(p.value.shape), role, known, note, p.place)
        key = id(p.place.parameters[0])
        by_id[key] = _tied(by_id[key], variable) if key in by_id else variable
        output = key if role == "kernel" else output
    names = [name for v in by_id.values() for name in (v.name, *v.also)]
    for pattern in kernels if isinstance(kernels, list | dict) else ():
        if isinstance(pattern, str) and not fnmatch.filter(names, pattern):
            raise ModelError(f"kernels: no parameter is named {pattern!r} ({allowed(names)})")
    return [replace(variable, is_output=key == output) for key, variable in by_id.items()]


def _checked_kernels(kernels: Kernels) -> Chooser | list[type | str] | dict[str, float] | None:
    """The argument `kernels` of a user: None, a function, fan-ins by pattern, or types and patterns."""
    if isinstance(kernels, Mapping):
        for pattern, fan_in in kernels.items():
            if not isinstance(fan_in, int | float) or not 0 < fan_in < math.inf:
                raise ModelError(
                    f"kernels: {pattern!r} has a fan-in of {fan_in!r} (allowed: numbers above 0)"
                )
        return dict(kernels)
    if isinstance(kernels, str | type):
        return [kernels]
    return kernels if kernels is None or callable(kernels) else list(kernels)


def _fan_in(p: Parameter, kernels: Any, usual: Chooser) -> float | None:
    """The fan-in of a kernel, perhaps unknown; None: it is none."""
    known = usual(p.name, p.value, p.layer)
    chosen: float | bool | None = known is not None
    if isinstance(kernels, dict):
        chosen = next((n for pattern, n in kernels.items() if fnmatch.fnmatchcase(p.name, pattern)), None)
    elif isinstance(kernels, list):
        of_type = isinstance(p.layer, tuple(item for item in kernels if isinstance(item, type)))
        may_be_kernel = len(p.value.shape) >= 2 and "bias" not in p.name.rpartition(".")[2]
        named = any(fnmatch.fnmatchcase(p.name, item) for item in kernels if isinstance(item, str))
        chosen = named or (of_type and (known is not None or may_be_kernel))
    elif kernels is not None:
        chosen = kernels(p.name, p.value, p.layer)
    if chosen is None or chosen is False:
        return None
    if chosen is not True:
        return float(chosen)
    return UNKNOWN if known is None else float(known)


def _role(p: Parameter, fan_in: float | None, *, has_kernel: bool, explicit: bool) -> tuple[Role, str]:
    """The role of a parameter, and what there is to know about it; `explicit`: the user named the kernels."""
    if fan_in is not None and (explicit or not p.is_frozen):
        return "kernel", ""
    if fan_in is not None:
        return "frozen", "left as it is: not trained (name it in `kernels` to scale it)"
    if p.is_norm:
        return "norm", "left as it is"
    if p.is_bias and has_kernel:
        return ("frozen", "left as it is: not trained") if p.is_frozen else ("bias", "")
    if explicit:
        return "other", "left as it is: not chosen as a kernel"
    return "other", f"left as it is: no rule for {p.label} (name it in `kernels` to scale it)"


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


def torch_variables(model: nn.Module, kernels: Kernels = None) -> list[Variable]:
    """Every parameter of a torch model once."""
    variables = classified(_torch_parameters(model), kernels, _usual_fan_in)
    stuck = {v.name: _why_stuck(v) for v in variables}
    return [replace(v, role="stuck", note=stuck[v.name]) if stuck[v.name] else v for v in variables]


def _torch_parameters(model: nn.Module) -> Iterator[Parameter]:
    """The parameters of every module: parametrised ones under the name by which they are used."""
    inner: set[int] = set()
    for path, module in model.named_modules():
        if id(module) in inner:
            continue
        tensors: dict[str, tuple[Tensor, ...]] = {}
        if parametrize.is_parametrized(module):
            parametrizations: Any = module.parametrizations
            inner |= {id(part) for part in parametrizations.modules()}
            for attribute, originals in parametrizations.items():
                own = tuple(p for name, p in originals.named_parameters() if name.startswith("original"))
                tensors |= {attribute: own} if own else {}
        tensors |= {name: (p,) for name, p in module._parameters.items() if p is not None}
        for attribute, own in tensors.items():
            name = f"{path}.{attribute}" if path else attribute
            if any(is_lazy(tensor) for tensor in own):
                raise ModelError(f"{name} has no shape yet (allowed: pass one batch through the model first)")
            place = TorchPlace(name, module, attribute, own)
            frozen = own[0].is_floating_point() and not own[0].requires_grad
            label = f"{type(module).__name__}.{attribute}"
            is_bias = "bias" in attribute
            yield Parameter(name, place.value(), module, label, is_norm(module), is_bias, frozen, place)


def _why_stuck(variable: Variable) -> str:
    """Why a kernel has no scale, tried on a copy of its module; empty if it has one."""
    place = variable.place
    assert isinstance(place, TorchPlace)
    if variable.role == "other" and place.attribute in OLD_STYLE and isinstance(place.module, _KNOWN):
        return "an old-style weight_norm or spectral_norm (allowed: torch.nn.utils.parametrizations)"
    if variable.role != "kernel":
        return ""
    if not place.tensors[0].is_floating_point():
        return f"a kernel of {place.tensors[0].dtype}, which has no scale"
    if not parametrize.is_parametrized(place.module, place.attribute):
        return ""
    try:
        replace(place, module=copy.deepcopy(place.module)).rescale(2.0)
    except ModelError as error:
        return str(error).removeprefix(f"{place.name}: ")
    return ""


# -- the layers that torch has --------------------------------------------------------------------------

_DENSE = (nn.Linear, nn.Bilinear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
_TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
_LOOKUP = (nn.Embedding, nn.EmbeddingBag)
_SEVERAL = (nn.MultiheadAttention, nn.RNNBase, nn.RNNCellBase)  # more than one kernel each
_KNOWN = (*_DENSE, *_TRANSPOSED, *_LOOKUP, *_SEVERAL)
OLD_STYLE = ("weight_g", "weight_v", "weight_orig")


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
    kind = type(module)
    is_conv1d = kind.__name__ == "Conv1D" and kind.__module__.startswith("transformers.")
    return float(shape[0]) if is_conv1d else None  # (in, out)


_NORMS = (nn.modules.batchnorm._NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)


def is_norm(module: nn.Module) -> bool:
    """Whether a module is a norm layer: one of torch, or one that a model brings itself."""
    own = [tuple(parameter.shape) for parameter in module.parameters(recurse=False)]
    return isinstance(module, _NORMS) or looks_like_norm(type(module), own)


def looks_like_norm(kind: type, shapes: Iterable[tuple[int, ...]]) -> bool:
    """Whether a class of user code is a norm layer: by its name, and parameters that only scale or shift."""
    vectors = all(len(shape) <= 1 for shape in shapes)
    return vectors and re.search(r"Norm(alization)?(\d+[dD])?$", kind.__name__) is not None
