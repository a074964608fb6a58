"""Initialization: by default kernels ~ N(0, scale^2 / fan_in) and biases ~ N(0, bias_std^2).

A selector names the variables that the scale multiplies: `kernels`, `biases`, `output` (the kernel of the
last layer), or a pattern of variable or layer names (`head`, `residual*`). Several selectors are separated by
commas.
"""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from initmem.data.dataset import Sizes
from initmem.errors import ConfigError, ModelError, allowed
from initmem.recipe import Distribution, Recipe, selectors
from initmem.seeds import generator
from initmem.study import Run
from initmem.train.layers import by_replica
from initmem.train.networks import Grouped, Network, build
from initmem.train.variables import Variable

Array = NDArray[np.float64]

TRUNCATION = 2.0  # in standard deviations


def initialized(runs: Sequence[Run], sizes: Sizes, *, device: torch.device, dtype: torch.dtype) -> Network:
    """The network of a pack of runs, with the initial variables of every run."""
    recipe = runs[0].recipe.network
    if recipe.is_module:
        from initmem.train.modules import module_pack

        return module_pack(runs, sizes, device=device, dtype=dtype)
    network = build(recipe, sizes, len(runs)).to(device, dtype)
    initialize(network, runs)
    return network


def initialize(network: Grouped, runs: Sequence[Run]) -> None:
    """Initialize every replica of a network for its run."""
    for replica, run in enumerate(runs):
        initialize_replica(network.replica_variables(replica), run, replica_tensors(network, replica))


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
        draw_kernel = partial(draw, rng, distribution=recipe.distribution)
        redraw(variables, deviations(recipe, run.scale, variables), draw_kernel, rng.standard_normal)
    if run.intervention:
        from initmem.train.interventions import intervene

        intervene(run, 0, variables, tensors)
    first = next(variable for variable in variables if variable.role == "kernel")
    first.place.parameters[0].view(-1)[0] *= run.perturbation


def redraw(
    variables: Sequence[Variable],
    deviations: Mapping[str, float],
    draw_kernel: Callable[[tuple[int, ...]], Array],
    draw_bias: Callable[[tuple[int, ...]], Array],
) -> None:
    """Draw every variable that has a deviation; the random numbers of a seed are the same at every scale."""
    for variable in variables:
        if variable.name in deviations:
            drawn = (draw_kernel if variable.role == "kernel" else draw_bias)(variable.shape)
            variable.place.set(drawn * deviations[variable.name])


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
            if variable.is_output and recipe.width_scaling == "mup":
                sizes[variable.name] /= root  # the initial output then vanishes as the width grows
    return sizes


def factors(recipe: Recipe, scale: float, variables: Sequence[Variable]) -> dict[str, float]:
    """The factor of every kernel and bias: the scale if the recipe scales it, times its `layer_scales`."""
    drawn = _kernels_and_biases(variables)
    scaled = scaled_names(recipe, variables)
    factors = {variable.name: scale if variable.name in scaled else 1.0 for variable in drawn}
    for selector, fixed in recipe.fixed_scales.items():
        for name in chosen_names(selector, "layer_scales", drawn):
            factors[name] *= fixed
    return factors


def scaled_names(recipe: Recipe, variables: Sequence[Variable]) -> set[str]:
    """The names of what the scale multiplies."""
    return chosen_names(recipe.scaled, "scaled", _kernels_and_biases(variables))


def _kernels_and_biases(variables: Sequence[Variable]) -> list[Variable]:
    return [variable for variable in variables if variable.role in ("kernel", "bias")]


def chosen_names(text: str, field: str, variables: Sequence[Variable]) -> set[str]:
    """The names of the variables that selectors name; `field` is where a user wrote them."""
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
    match distribution:
        case "normal":
            return rng.standard_normal(tuple(shape))
        case "uniform":
            return rng.uniform(-math.sqrt(3), math.sqrt(3), tuple(shape))
        case "truncated":
            return _truncated(rng.random(tuple(shape)))
        case "orthogonal":
            return _orthogonal(rng.standard_normal((shape[0], math.prod(shape[1:])))).reshape(tuple(shape))


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
