"""Initialization and interventions. By default kernels ~ N(0, scale^2 / fan_in), biases ~ N(0, bias_std^2).

A selector names the variables that the scale multiplies: `kernels`, `biases`, `output` (the kernel of the
last layer), or a pattern of variable or layer names (`head`, `residual*`). Several selectors are separated by
commas.

An intervention is a function under a word of `initmem.catalog`. It is applied to one replica of a pack,
between epochs, so that a run that is resumed there is the same. Its random numbers depend on the seed of the
run and the epoch alone.
"""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from initmem.data.dataset import Sizes
from initmem.errors import ConfigError, ModelError, allowed
from initmem.intervention import Intervention
from initmem.recipe import Distribution, Recipe, factors_of, selectors
from initmem.register import interventions
from initmem.seeds import generator
from initmem.study import Run
from initmem.train.layers import by_replica
from initmem.train.networks import Network, build
from initmem.train.variables import Variable

Array = NDArray[np.float64]

CPU = torch.device("cpu")
TRUNCATION = 2.0  # in standard deviations
REDRAWN = 1 << 42  # index of the streams for new draws, plus the epoch: no other stream has it
# The last kernels of residual branches that end without a nonlinearity: behind one, a branch of zeros has
# no gradient and never learns.
RESIDUAL_ENDS = ("blocks.*.conv2.kernel", "*.project.weight")


def initialized(
    runs: Sequence[Run],
    sizes: Sizes,
    *,
    device: torch.device = CPU,
    dtype: torch.dtype = torch.float32,
) -> Network:
    """The network of a pack of runs, with the initial variables of every run."""
    recipe = runs[0].recipe.network
    if recipe.is_module:
        from initmem.train.modules import module_pack

        return module_pack(runs, sizes, device=device, dtype=dtype)
    network = build(recipe, sizes, len(runs)).to(device, dtype)
    for replica, run in enumerate(runs):
        initialize_replica(network.replica_variables(replica), run, replica_tensors(network, replica))
    return network


def replica_tensors(network: Network, replica: int) -> dict[str, Tensor]:
    """Every parameter and buffer of one replica that checkpoints hold, by name."""
    return {
        name: by_replica(value, network.replicas)[replica] for name, value in network.state_dict().items()
    }


@torch.no_grad()
def initialize_replica(variables: Sequence[Variable], run: Run, tensors: Mapping[str, Tensor]) -> None:
    """Initialize one network for the scale, the seed and the intervention of a run."""
    recipe, rng = run.recipe.network, generator(run.seed_of("init"), "init")
    if recipe.init_mode == "rescale":
        rescale(variables, factors(recipe, run.scale, variables))
    else:
        sizes = deviations(recipe, run.scale, variables)
        for variable, drawn in draws(rng, variables, sizes, recipe.distribution):
            variable.place.set(drawn)
    if run.intervention:
        intervene(run, 0, variables, tensors)
    first = next(variable for variable in variables if variable.role == "kernel")
    first.place.parameters[0].view(-1)[0] *= run.perturbation


def draws(
    rng: np.random.Generator,
    variables: Sequence[Variable],
    deviations: Mapping[str, float],
    distribution: Distribution,
) -> Iterator[tuple[Variable, Array]]:
    """New values of all that have a deviation; the random numbers of a seed are the same at every scale."""
    for variable in variables:
        if variable.name in deviations:
            of_role: Distribution = distribution if variable.role == "kernel" else "normal"
            yield variable, draw(rng, variable.shape, of_role) * deviations[variable.name]


def rescale(variables: Sequence[Variable], factors: Mapping[str, float]) -> None:
    """Multiply every variable by its factor; a factor of 1 leaves all bits as they are."""
    for variable in variables:
        if factors.get(variable.name, 1.0) != 1.0:
            variable.place.rescale(factors[variable.name])


def deviations(recipe: Recipe, scale: float, variables: Sequence[Variable]) -> dict[str, float]:
    """The initial standard deviation of every kernel and bias, by name."""
    sizes = factors(recipe, scale, variables)
    for variable in variables:
        if variable.role == "bias":
            sizes[variable.name] *= recipe.bias_std
        if variable.role == "kernel":
            if variable.fan_in is None:
                raise ModelError(
                    f"{variable.name}: its fan-in is not known (allowed: "
                    f"kernels={{{variable.name!r}: FAN_IN}}, or a function that returns it)"
                )
            root = math.sqrt(variable.fan_in)
            sizes[variable.name] /= root
            if variable.is_output and recipe.mup_base:  # the initial output vanishes as the width grows
                sizes[variable.name] /= math.sqrt(recipe.width / recipe.mup_base)
    return sizes


def mup_factors(network: Network, recipe: Recipe, sizes: Sizes) -> list[float]:
    """Learning rates under muP, relative to the recipe's, of all that is trained: 1 at the base width.

    Yang and Hu 2021 (table 3 of Tensor Programs V), with n = width / base:

                    input, biases, norms   hidden   output
        sgd         n                      1        1 / n
        adam        1                      1 / n    1 / n

    Which fans grow is read off a network of the base width. Decoupled decay is the same in every layer.
    """
    base = build(recipe.replace(width=recipe.mup_base), sizes, 1)
    fans, base_fans = ({v.name: v.fan_in or 1.0 for v in one.replica_variables()} for one in (network, base))
    factors = []
    for name, parameter in network.named_parameters():
        if not parameter.requires_grad:
            continue
        inputs = fans.get(name, 1.0) / base_fans.get(name, 1.0)
        outputs = parameter.numel() / network.replicas / base.get_parameter(name).numel() / inputs
        factors.append((outputs if recipe.optimizer == "sgd" else 1.0) / inputs)
    return factors


def factors(recipe: Recipe, scale: float, variables: Sequence[Variable]) -> dict[str, float]:
    """The factor of every kernel and bias: the scale if the recipe scales it, times its `layer_scales`."""
    drawn = [variable.name for variable in variables if variable.role in ("kernel", "bias")]
    scaled = chosen_names(recipe.scaled, "scaled", variables)
    factors = {name: scale if name in scaled else 1.0 for name in drawn}
    for selector, fixed in factors_of(recipe.layer_scales).items():
        for name in chosen_names(selector, "layer_scales", variables):
            factors[name] *= fixed
    return factors


def chosen_names(text: str, field: str, variables: Sequence[Variable]) -> set[str]:
    """The names of the kernels and biases that selectors name; `field` is where a user wrote them."""
    variables = [variable for variable in variables if variable.role in ("kernel", "bias")]
    chosen: set[str] = set()
    for selector in selectors(text):
        matching = {variable.name for variable in variables if _matches(variable, selector)}
        if not matching:
            names = [variable.name for variable in variables]
            raise ConfigError(
                f"{field} = {text!r}: nothing here is named {selector!r} "
                f"({allowed(['kernels', 'biases', 'output', *names])})"
            )
        chosen |= matching
    return chosen


def _matches(variable: Variable, selector: str) -> bool:
    match selector:
        case "kernels":
            return variable.role == "kernel"
        case "biases":
            return variable.role == "bias"
        case "output":
            return variable.is_output
    names = [variable.name, *variable.also]
    if variable.role == "kernel":  # the name of a layer stands for its kernel
        names += [name.rpartition(".")[0] for name in names]
    return any(fnmatch.fnmatchcase(name, selector) for name in names)


def draw(rng: np.random.Generator, shape: Sequence[int], distribution: Distribution = "normal") -> Array:
    """Draw a kernel whose entries have mean 0 and variance 1."""
    shape = tuple(shape)
    match distribution:
        case "normal":
            return rng.standard_normal(shape)
        case "uniform":
            return rng.uniform(-math.sqrt(3), math.sqrt(3), shape)
        case "truncated":
            return _truncated(rng.random(shape))
        case "orthogonal":
            return _orthogonal(rng.standard_normal((shape[0], math.prod(shape[1:])))).reshape(shape)


def _truncated(uniform: Array) -> Array:
    from scipy.special import ndtr, ndtri

    mass = 2 * ndtr(TRUNCATION) - 1
    density = math.exp(-(TRUNCATION**2) / 2) / math.sqrt(2 * math.pi)
    variance = 1 - 2 * TRUNCATION * density / mass
    return np.asarray(ndtri(ndtr(-TRUNCATION) + mass * uniform) / math.sqrt(variance))


def _orthogonal(normal: Array) -> Array:
    """A uniformly random matrix with orthogonal rows (columns if there are more rows than columns)."""
    rows, columns = normal.shape
    q, r = np.linalg.qr(normal if rows >= columns else normal.T)
    q = q * np.sign(np.diag(r))
    return np.asarray((q if rows >= columns else q.T) * math.sqrt(max(rows, columns)))


# -- interventions ----------------------------------------------------------------------------------------


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
        names = chosen_names(text, f"intervention {str(self.intervention)!r}", self.variables)
        return [variable for variable in self.variables if variable.name in names]

    def drawn(
        self, usual: str, stream: int, distribution: Distribution | None = None
    ) -> list[tuple[Variable, Array]]:
        """The chosen variables and new values of them, from a stream of the run.

        Every variable is drawn, so that a choice changes no numbers.
        """
        recipe, rng = self.run.recipe.initialization(), generator(self.run.seed_of("init"), "init", stream)
        chosen = {variable.name for variable in self.chosen(usual)}
        pairs = draws(rng, self.variables, self.deviations(), distribution or recipe.distribution)
        return [(variable, values) for variable, values in pairs if variable.name in chosen]

    def deviations(self) -> dict[str, float]:
        """The initial standard deviation of every kernel and bias, by name."""
        return deviations(self.run.recipe.initialization(), self.run.scale, self.variables)


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


def _scale(state: State) -> None:
    """Multiply kernels, or what the target names."""
    for variable in state.chosen():
        variable.place.rescale(state.intervention.number)


def _redraw(state: State) -> None:
    """Draw weights again, from the distribution of the recipe."""
    for variable, drawn in state.drawn("kernels, biases", REDRAWN + state.intervention.epoch):
        variable.place.set(drawn)


def _shrink_perturb(state: State) -> None:
    """A share of the weights, and the rest of a new draw: Ash and Adams 2020, as an interpolation."""
    kept = state.intervention.number
    for variable, drawn in state.drawn("kernels, biases", REDRAWN + state.intervention.epoch):
        variable.place.set(kept * _array(variable) + (1 - kept) * drawn)


def _reset_optimizer(state: State) -> None:
    """Set moments and velocities to zero; the count of updates, which a pack shares, continues."""
    if state.optimizer is None:
        raise ConfigError(
            "intervention 'reset-optimizer': no optimizer (needed: intervene(model, optimizer))"
        )
    for tensor in state.optimizer:
        tensor.zero_()


def _mix(state: State) -> None:
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
        _move(tensor, other, one.number)


def _move(tensor: Tensor, other: Tensor, share: float) -> None:
    if tensor.is_floating_point():
        tensor.lerp_(other.to(tensor).view(tensor.shape), share)


@torch.no_grad()
def start_warm(run: Run, tensors: Mapping[str, Tensor], parent: Mapping[str, Tensor]) -> None:
    """Move all parameters and statistics of one replica a share of the way to those of its parent."""
    for name, tensor in tensors.items():
        _move(tensor, parent[name], Intervention.parse(run.intervention).number)


def _draw_kernels(state: State, distribution: Distribution, size: float = 1.0) -> None:
    """Kernels from another distribution, by the random numbers that the recipe draws."""
    for variable, drawn in state.drawn("kernels", 0, distribution):
        variable.place.set(size * drawn)


def _zero_residual(state: State) -> None:
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


def _exact_norm(state: State) -> None:
    """Give every kernel exactly the norm that the recipe gives it on average."""
    sizes = state.deviations()
    for variable in state.chosen():
        values = _array(variable)
        norm = float(np.linalg.norm(values))
        if norm > 0:
            variable.place.set(values * (sizes[variable.name] * math.sqrt(values.size) / norm))


def _array(variable: Variable) -> Array:
    return np.asarray(variable.place.value().detach().double().cpu().numpy())


APPLY: dict[str, Callable[[State], None]] = {
    "none": lambda state: None,  # the run that others are compared with
    "scale": _scale,
    "redraw": _redraw,
    "shrink-perturb": _shrink_perturb,
    "reset-optimizer": _reset_optimizer,
    "mix": _mix,
    "warm": lambda state: None,  # the pack does it, which is given the parents: see `start_warm`
    "orthogonal": partial(_draw_kernels, distribution="orthogonal"),
    "kaiming-uniform": partial(_draw_kernels, distribution="uniform", size=math.sqrt(2)),
    "zero-residual": _zero_residual,
    "exact-norm": _exact_norm,
}
