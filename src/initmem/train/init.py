"""Initialization: by default kernels ~ N(0, scale^2 / fan_in) and biases ~ N(0, bias_std^2).

A selector names the variables that the scale multiplies: `kernels`, `biases`, `output` (the kernel of the
last layer), or a pattern of variable or layer names (`head`, `residual*`). Several selectors are separated by
commas.
"""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from initmem.data.dataset import Sizes
from initmem.errors import ConfigError, allowed
from initmem.recipe import Distribution, Recipe, network_of, selectors
from initmem.seeds import generator
from initmem.study import Run
from initmem.train.layers import Layer, by_replica
from initmem.train.models import Grouped, Network, build

Array = NDArray[np.float64]
Names = tuple[str, ...]  # the names of one variable: a tied variable has several

TRUNCATION = 2.0  # in standard deviations


class Layout(NamedTuple):
    """The variables of a network by name; results are keyed by the first name of a variable."""

    fan_ins: Mapping[Names, float]  # of kernels
    biases: Sequence[Names]
    output: Names  # the kernel of the last layer


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


@torch.no_grad()
def initialize(network: Grouped, runs: Sequence[Run]) -> None:
    """Draw the variables of every replica. A seed draws the same standard normals at every scale."""
    for replica, run in enumerate(runs):
        rng, recipe = generator(run.seed_of("init"), "init"), network_of(run.recipe)
        stds = deviations(recipe, run.scale, layout(network))
        for path, layer in named_layers(network):
            kernel = by_replica(layer.kernel, network.replicas)[replica]
            bias = by_replica(layer.bias, network.replicas)[replica]
            _fill(kernel, draw(rng, kernel.shape, recipe.distribution), stds[f"{path}.kernel"])
            _fill(bias, draw(rng, bias.shape), stds[f"{path}.bias"])
        first = by_replica(network.layers()[0].kernel, network.replicas)[replica]
        first.view(-1)[0] *= run.perturbation


def named_layers(network: Grouped) -> list[tuple[str, Layer]]:
    """The layers with a kernel, by name, in the order in which initialization draws them."""
    return [(path, module) for path, module in network.named_modules() if isinstance(module, Layer)]


def layout(network: Grouped) -> Layout:
    """The variables of a network, for the selectors of `scaled` to choose from."""
    layers = named_layers(network)
    return Layout(
        fan_ins={(f"{path}.kernel",): float(layer.fan_in) for path, layer in layers},
        biases=[(f"{path}.bias",) for path, _ in layers],
        output=(f"{layers[-1][0]}.kernel",),
    )


def _fill(target: Tensor, normals: NDArray[np.float64], std: float) -> None:
    target.copy_(torch.from_numpy(normals * std))


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
            known = [names[0] for names in (*layout.fan_ins, *layout.biases)]
            raise ConfigError(
                f"{field} = {text!r}: nothing here is named {selector!r} "
                f"({allowed(['kernels', 'biases', 'output', *known])})"
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
