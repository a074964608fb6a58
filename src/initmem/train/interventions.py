"""What interventions do to one network: a function each, under the words of `initmem.catalog`.

They are applied to one replica of a pack, between epochs, so that a run that is resumed there is the same.
All random numbers depend on the seed of the run and the epoch alone.
"""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from initmem.errors import ConfigError
from initmem.intervention import Intervention
from initmem.recipe import Distribution
from initmem.register import interventions
from initmem.seeds import generator
from initmem.study import Run
from initmem.train.init import chosen_names, deviations, draw
from initmem.train.variables import Variable

Array = NDArray[np.float64]

REDRAWN = 1 << 42  # index of the streams for new draws, plus the epoch: no other stream has it
# The last kernels of residual branches that end without a nonlinearity: behind one, a branch of zeros has
# no gradient and never learns.
RESIDUAL_ENDS = ("blocks.*.conv2.kernel", "*.project.weight")


@dataclass(frozen=True, slots=True)
class State:
    """One network in training, as an intervention finds it: everything is changed in place."""

    run: Run
    intervention: Intervention
    variables: Sequence[Variable]  # kernels and biases; of plain modules all parameters
    tensors: Mapping[str, Tensor]  # every parameter and buffer by name, as checkpoints hold them
    optimizer: Iterable[Tensor] | None = ()  # moments and velocities; None: it was not given

    def chosen(self, usual: str = "kernels") -> list[Variable]:
        """The variables that the target names, else the usual ones."""
        text = self.intervention.target or usual
        named = [v for v in self.variables if v.role in ("kernel", "bias")]
        names = chosen_names(text, f"intervention {str(self.intervention)!r}", named)
        return [variable for variable in named if variable.name in names]

    def rng(self) -> np.random.Generator:
        """A stream of the run that nothing else draws from."""
        return generator(self.run.seed_of("init"), "init", REDRAWN + self.intervention.epoch)


def intervene(
    run: Run,
    epoch: int,
    variables: Sequence[Variable],
    tensors: Mapping[str, Tensor],
    optimizer: Iterable[Tensor] | None = (),
) -> None:
    """Apply the intervention of a run, if it is due after this epoch."""
    one = Intervention.parse(run.intervention)
    if one.epoch != epoch:
        return
    own = interventions.find(one.word)
    apply = own.apply if own else APPLY.get(one.word)
    if apply is None:
        raise ConfigError(f"intervention {run.intervention!r}: no plugin that registers it is loaded")
    with torch.no_grad():
        apply(State(run, one, variables, tensors, optimizer))


def scale(state: State) -> None:
    """Multiply kernels, or what the target names."""
    for variable in state.chosen():
        variable.place.rescale(state.intervention.number)


def redraw(state: State) -> None:
    """Draw weights again, from the distribution of the recipe."""
    for variable, drawn in _drawn(state, state.chosen("kernels, biases"), state.rng()):
        variable.place.set(drawn)


def shrink_perturb(state: State) -> None:
    """A share of the weights, and the rest of a new draw: Ash and Adams 2020, as an interpolation."""
    kept = state.intervention.number
    for variable, drawn in _drawn(state, state.chosen("kernels, biases"), state.rng()):
        variable.place.set(kept * _array(variable) + (1 - kept) * drawn)


def reset_optimizer(state: State) -> None:
    """Set moments and velocities to zero; the count of updates, which a pack shares, continues."""
    if state.optimizer is None:
        raise ConfigError(
            "intervention 'reset-optimizer': no optimizer (needed: intervene(model, optimizer))"
        )
    for tensor in state.optimizer:
        tensor.zero_()


def mix(state: State) -> None:
    """Move all parameters and statistics a share of the way to those of a checkpoint."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    one = state.intervention
    if not state.tensors:
        raise ConfigError(f"intervention {str(one)!r} (allowed: models of torch)")
    try:
        saved = load_file(one.path)
    except (OSError, SafetensorError) as error:
        raise ConfigError(f"intervention {str(one)!r}: not a safetensors file ({error})") from None
    for name, tensor in state.tensors.items():
        keys = [name, f"best/{name}", f"best/net.{name}"]  # those of a store are checkpoints of one run
        other = next((saved[key] for key in keys if key in saved), None)
        if other is None or other.numel() != tensor.numel():
            shape = "missing" if other is None else f"of shape {tuple(other.shape)}"
            raise ConfigError(
                f"intervention {str(one)!r}: {name} is {shape} (needed: shape {tuple(tensor.shape)})"
            )
        if tensor.is_floating_point():
            tensor.lerp_(other.to(tensor).view(tensor.shape), one.number)


def orthogonal(state: State) -> None:
    """Orthogonal kernels, from the random numbers that the recipe draws."""
    for variable, drawn in _drawn(state, state.chosen(), _initial(state), "orthogonal"):
        variable.place.set(drawn)


def kaiming_uniform(state: State) -> None:
    """Kernels uniform with variance 2 / fan-in."""
    for variable, drawn in _drawn(state, state.chosen(), _initial(state), "uniform"):
        variable.place.set(math.sqrt(2) * drawn)


def zero_residual(state: State) -> None:
    """Let every residual branch begin at zero: its last kernel is."""
    names = [v.name for v in state.variables if v.role == "kernel"]
    ends = [pattern for pattern in RESIDUAL_ENDS if fnmatch.filter(names, pattern)]
    if not ends and not state.intervention.target:
        raise ConfigError(
            "intervention 'zero-residual': no residual branch that ends without a nonlinearity is known here "
            "(allowed: zero-residual=PATTERN)"
        )
    for variable in state.chosen(", ".join(ends)):
        variable.place.rescale(0.0)


def exact_norm(state: State) -> None:
    """Give every kernel exactly the norm that the recipe gives it on average."""
    sizes = deviations(state.run.recipe.initialization(), state.run.scale, state.variables)
    for variable in state.chosen():
        values = _array(variable)
        norm = float(np.linalg.norm(values))
        if norm > 0:
            variable.place.set(values * (sizes[variable.name] * math.sqrt(values.size) / norm))


def none(state: State) -> None:
    """Nothing: the run that others are compared with."""


APPLY: dict[str, Callable[[State], None]] = {
    function.__name__.replace("_", "-"): function
    for function in (
        none,
        scale,
        redraw,
        shrink_perturb,
        reset_optimizer,
        mix,
        orthogonal,
        kaiming_uniform,
        zero_residual,
        exact_norm,
    )
}


def _initial(state: State) -> np.random.Generator:
    """The stream that initialization draws from, from its start."""
    return generator(state.run.seed_of("init"), "init")


def _drawn(
    state: State,
    chosen: Sequence[Variable],
    rng: np.random.Generator,
    distribution: Distribution | None = None,
) -> list[tuple[Variable, Array]]:
    """New values of the chosen variables; every variable is drawn, so that a choice changes no numbers."""
    recipe = state.run.recipe.initialization()
    sizes = deviations(recipe, state.run.scale, state.variables)
    names = {variable.name for variable in chosen}
    pairs = []
    for variable in state.variables:
        if variable.name not in sizes:
            continue
        is_kernel = variable.role == "kernel"
        values = (
            draw(rng, variable.shape, distribution or recipe.distribution)
            if is_kernel
            else rng.standard_normal(variable.shape)
        )
        if variable.name in names:
            pairs.append((variable, values * sizes[variable.name]))
    return pairs


def _array(variable: Variable) -> Array:
    return np.asarray(variable.place.value().detach().double().cpu().numpy())
