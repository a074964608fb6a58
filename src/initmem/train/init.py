"""Initialization: by default kernels ~ N(0, scale^2 / fan_in) and biases ~ N(0, bias_std^2)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from initmem.data import Sizes
from initmem.recipe import network_of
from initmem.seeds import generator
from initmem.study import Run
from initmem.train.layers import Layer, by_replica
from initmem.train.models import Grouped, Network, build
from initmem.train.scaled import Layout, deviations, draw


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
