"""Which parameters of a torch model are kernels, which are biases, and which are neither.

A kernel is what the initialization scale multiplies and the recorded norm counts. Every parameter of a
model gets a role, so that nothing is skipped in silence.
"""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.nn.utils import parametrize

from initmem.errors import ModelError, allowed

Role = Literal["kernel", "bias", "norm", "frozen", "other", "stuck"]

# A function of (name, parameter, its module): the fan-in of a kernel, True for the usual fan-in, or False.
Chooser = Callable[[str, Tensor, nn.Module], float | None]
Kernels = Chooser | type | str | Iterable[type | str] | None


@dataclass(frozen=True, slots=True)
class Variable:
    """One parameter of a model, and what initialization makes of it."""

    name: str
    shape: tuple[int, ...]
    role: Role
    fan_in: float | None  # of a kernel
    note: str  # why it is left alone, or what else there is to know
    module: nn.Module = field(repr=False)
    attribute: str  # where the module has it
    tensors: tuple[Tensor, ...] = field(repr=False)  # the parameters behind it; several if parametrised
    also: tuple[str, ...] = ()  # its other names, if it is tied
    is_output: bool = False  # the kernel of the last layer

    @property
    def parametrised(self) -> bool:
        """Whether it is computed from other parameters by `torch.nn.utils.parametrize`."""
        return parametrize.is_parametrized(self.module, self.attribute)

    def value(self) -> Tensor:
        """The tensor that the module computes with."""
        found: Tensor = getattr(self.module, self.attribute)
        return found


class _Slot(NamedTuple):
    name: str
    module: nn.Module
    attribute: str
    tensors: tuple[Tensor, ...]


def variables(model: nn.Module, kernels: Kernels = None) -> list[Variable]:
    """Every parameter of a model once, in the order in which initialization draws them.

    `kernels` says which parameters count as kernels: module types and patterns of parameter names in any
    mixture (`[nn.Linear, "blocks.*.mixing"]`), or a function. Without it: the kernels of the layers that
    torch has, as far as they are trained.
    """
    choose, patterns = _chooser(kernels)
    found: dict[int, Variable] = {}
    last = None
    names: list[str] = []
    for module, slots in _slots(model):
        names += [slot.name for slot in slots]
        for variable in _roles(module, slots, choose, explicit=kernels is not None):
            key = id(variable.tensors[0])
            found[key] = _tied(found[key], variable) if key in found else variable
            last = key if variable.role == "kernel" else last
    for pattern in patterns:
        if not fnmatch.filter(names, pattern):
            raise ModelError(f"kernels: no parameter is named {pattern!r} ({allowed(names)})")
    return [replace(v, is_output=key == last) for key, v in found.items()]


def kernel_variables(model: nn.Module, kernels: Kernels = None) -> list[Variable]:
    """The kernels of a model alone."""
    return [variable for variable in variables(model, kernels) if variable.role == "kernel"]


def _slots(model: nn.Module) -> Iterator[tuple[nn.Module, list[_Slot]]]:
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
        yield module, [_Slot(prefix + name, module, name, tensors) for name, tensors in slots if tensors]


def _roles(module: nn.Module, slots: Sequence[_Slot], choose: Chooser, *, explicit: bool) -> list[Variable]:
    """Give the parameters of one module their roles."""
    fan_ins = {slot.attribute: _fan_in(slot, choose) for slot in slots}
    has_kernel = any(fan_in is not None for fan_in in fan_ins.values())
    found = []
    for slot in slots:
        fan_in = fan_ins[slot.attribute]
        role, note = _role(slot, fan_in, has_kernel=has_kernel, explicit=explicit)
        shape = tuple(getattr(module, slot.attribute).shape)
        kept = fan_in if role == "kernel" else None
        found.append(Variable(slot.name, shape, role, kept, note, module, slot.attribute, slot.tensors))
    return found


def _role(slot: _Slot, fan_in: float | None, *, has_kernel: bool, explicit: bool) -> tuple[Role, str]:
    kind = type(slot.module).__name__
    tensor = slot.tensors[0]
    if fan_in is not None:
        if not tensor.is_floating_point():
            return "stuck", f"a kernel of {tensor.dtype}, which cannot be drawn"
        if not (tensor.requires_grad or explicit):
            return "frozen", "left as it is: not trained (name it in `kernels` to redraw it)"
        return "kernel", ""
    if _is_norm(slot.module):
        return "norm", "left as it is"
    if has_kernel and "bias" in slot.attribute:
        return ("bias", "") if tensor.requires_grad else ("frozen", "left as it is: not trained")
    if _expected(slot.module) and not has_kernel and slot.attribute.startswith("weight_"):
        return "stuck", "an old-style weight_norm or spectral_norm (allowed: torch.nn.utils.parametrizations)"
    if explicit:
        return "other", "left as it is: not chosen as a kernel"
    return "other", f"left as it is: no rule for {kind}.{slot.attribute} (name it in `kernels` to redraw it)"


def _fan_in(slot: _Slot, choose: Chooser) -> float | None:
    if any(is_lazy(tensor) for tensor in slot.tensors):
        raise ModelError(f"{slot.name} has no shape yet (allowed: pass one batch through the model first)")
    value: Tensor = getattr(slot.module, slot.attribute)
    chosen = choose(slot.name, value, slot.module)
    if chosen is None or chosen is False:
        return None
    if chosen is not True:
        return float(chosen)
    usual = usual_fan_in(slot.module, slot.attribute, tuple(value.shape))
    return math.prod(value.shape[1:]) if usual is None else usual


def _tied(first: Variable, again: Variable) -> Variable:
    """One tensor in two places is drawn once, by the rule that makes it smaller.

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
    return replace(both, fan_in=max(first.fan_in or 0.0, again.fan_in or 0.0))


# -- the layers that torch has --------------------------------------------------------------------------

_DENSE = (nn.Linear, nn.Bilinear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
_TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
_LOOKUP = (nn.Embedding, nn.EmbeddingBag)
_SEVERAL = (nn.MultiheadAttention, nn.RNNBase, nn.RNNCellBase)  # more than one kernel each


def usual_fan_in(module: nn.Module, attribute: str, shape: tuple[int, ...]) -> float | None:
    """How many inputs feed one output through a kernel; None: this is no kernel of a known layer."""
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
    known = (*_DENSE, *_TRANSPOSED, *_LOOKUP, *_SEVERAL)
    return isinstance(module, known) or _is_transformers_conv1d(module)


def _is_transformers_conv1d(module: nn.Module) -> bool:
    kind = type(module)
    return kind.__name__ == "Conv1D" and kind.__module__.startswith("transformers.")


def _is_norm(module: nn.Module) -> bool:
    """By name, since many models bring a normalization layer of their own."""
    return "norm" in type(module).__name__.lower()


def _chooser(kernels: Kernels) -> tuple[Chooser, list[str]]:
    """How to tell kernels, and the patterns of names that must match something."""
    if kernels is None:
        return _usual, []
    if callable(kernels) and not isinstance(kernels, type):
        return kernels, []
    chosen = [kernels] if isinstance(kernels, str | type) else list(kernels)
    types = tuple(item for item in chosen if isinstance(item, type))
    patterns = [item for item in chosen if isinstance(item, str)]

    def choose(name: str, value: Tensor, module: nn.Module) -> bool:
        if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns):
            return True
        if not isinstance(module, types):
            return False
        attribute = name.rpartition(".")[2]
        if _expected(module):
            return usual_fan_in(module, attribute, tuple(value.shape)) is not None
        return value.ndim >= 2 and "bias" not in attribute

    return choose, patterns


def _usual(name: str, value: Tensor, module: nn.Module) -> float | None:
    return usual_fan_in(module, name.rpartition(".")[2], tuple(value.shape))
