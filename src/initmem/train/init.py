"""Initialization: by default kernels ~ N(0, scale^2 / fan_in) and biases ~ N(0, bias_std^2).

A selector names the variables that the scale multiplies: `kernels`, `biases`, `output` (the kernel of the
last layer), or a pattern of variable or layer names (`head`, `residual*`). Several selectors are separated by
commas.
"""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from initmem.data.dataset import Sizes
from initmem.errors import ConfigError, allowed
from initmem.recipe import Distribution, Recipe, network_of, selectors
from initmem.seeds import generator
from initmem.study import Run
from initmem.train.layers import by_replica
from initmem.train.models import Grouped, Network, build
from initmem.train.variables import Layout, Names, Role, TorchPlace, Variable, layout_of

Array = NDArray[np.float64]

TRUNCATION = 2.0  # in standard deviations


def initialized(runs: Sequence[Run], sizes: Sizes, *, device: torch.device, dtype: torch.dtype) -> Network:
    """The network of a pack of runs, with the initial variables of every run."""
    recipe = network_of(runs[0].recipe)
    if recipe.is_module:
        from initmem.train.modules import module_pack

        return module_pack(runs, sizes, device=device, dtype=dtype)
    network = build(
        recipe.model,
        replicas=len(runs),
        shape=sizes.shape,
        classes=sizes.classes,
        width=recipe.width,
        norm=recipe.norm,
    ).to(device, dtype)
    initialize(network, runs)
    return network


def initialize(network: Grouped, runs: Sequence[Run]) -> None:
    """Initialize every replica of a network for its run."""
    for replica, run in enumerate(runs):
        initialize_replica(replica_variables(network, replica), run)


def replica_variables(network: Grouped, replica: int = 0) -> list[Variable]:
    """The kernels and biases of one replica, in the order in which they are drawn."""
    layers = network.named_layers()
    variables = []
    for path, layer in layers.items():
        roles: tuple[tuple[Role, float | None], ...] = (("kernel", float(layer.fan_in)), ("bias", None))
        for role, fan_in in roles:
            name = f"{path}.{role}"
            share = by_replica(getattr(layer, role), network.replicas)[replica]
            place = TorchPlace(name, layer, role, (share,))
            is_output = role == "kernel" and path == list(layers)[-1]
            variables.append(Variable(name, tuple(share.shape), role, fan_in, "", place, is_output=is_output))
    return variables


@torch.no_grad()
def initialize_replica(variables: Sequence[Variable], run: Run) -> None:
    """Initialize one network for the scale and seed of a run."""
    recipe, rng = network_of(run.recipe), generator(run.seed_of("init"), "init")
    size_of = deviations if recipe.init_mode == "redraw" else factors
    by_name = size_of(recipe, run.scale, layout_of(variables))
    sizes = [by_name.get(variable.name) for variable in variables]
    draw_kernel = partial(draw, rng, distribution=recipe.distribution)
    fill(variables, sizes, recipe.init_mode, draw_kernel, rng.standard_normal)
    first = next(variable for variable in variables if variable.role == "kernel")
    first.place.parameters[0].view(-1)[0] *= run.perturbation


def fill(
    variables: Sequence[Variable],
    sizes: Sequence[float | None],
    mode: Literal["redraw", "rescale"],
    draw_kernel: Callable[[tuple[int, ...]], Array],
    draw_bias: Callable[[tuple[int, ...]], Array],
) -> None:
    """Set every variable that has a size: to random numbers of that deviation, or to a multiple of itself.

    The random numbers of a seed are the same at every scale.
    """
    for variable, size in zip(variables, sizes, strict=True):
        if size is None:
            continue
        if mode == "rescale":
            variable.place.rescale(size)
        else:
            drawn = (draw_kernel if variable.role == "kernel" else draw_bias)(variable.shape)
            variable.place.set(drawn * size)


def deviations(recipe: Recipe, scale: float, layout: Layout) -> dict[str, float]:
    """The initial standard deviation of every variable."""
    factor = factors(recipe, scale, layout)
    kernels = {names[0]: factor[names[0]] / math.sqrt(fan_in) for names, fan_in in layout.fan_ins.items()}
    if recipe.width_scaling == "mup":  # the initial output then vanishes as the width grows
        kernels[layout.output[0]] /= math.sqrt(layout.fan_ins[layout.output])
    return kernels | {names[0]: factor[names[0]] * recipe.bias_std for names in layout.biases}


def factors(recipe: Recipe, scale: float, layout: Layout) -> dict[str, float]:
    """The factor of every variable: the run's scale if the recipe scales it, times its `layer_scales`."""
    scaled = _chosen(recipe.scaled, "scaled", layout)
    factors = {names[0]: scale if names in scaled else 1.0 for names in (*layout.fan_ins, *layout.biases)}
    for selector, fixed in recipe.fixed_scales.items():
        for names in _chosen(selector, "layer_scales", layout):
            factors[names[0]] *= fixed
    return factors


def _chosen(text: str, field: str, layout: Layout) -> set[Names]:
    chosen: set[Names] = set()
    for selector in selectors(text):
        match selector:
            case "kernels":
                matching = set(layout.fan_ins)
            case "biases":
                matching = set(layout.biases)
            case "output":
                matching = {layout.output}
            case _:
                matching = {names for names in layout.fan_ins if _matches(names, selector, of_layers=True)}
                matching |= {names for names in layout.biases if _matches(names, selector, of_layers=False)}
        if not matching:
            variables = [names[0] for names in (*layout.fan_ins, *layout.biases)]
            raise ConfigError(
                f"{field} = {text!r}: nothing here is named {selector!r} "
                f"({allowed(['kernels', 'biases', 'output', *variables])})"
            )
        chosen |= matching
    return chosen


def _matches(names: Names, pattern: str, *, of_layers: bool) -> bool:
    """Match variable names; with `of_layers` also layer names, which stand for the layer's kernel."""
    every = [*names, *(name.rpartition(".")[0] for name in names if of_layers)]
    return any(fnmatch.fnmatchcase(name, pattern) for name in every)


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
