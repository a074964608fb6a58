"""Initialization: kernels ~ N(0, scale^2 / fan_in), biases ~ N(0, bias_std^2), never rescaled."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from initmem.seeds import generator
from initmem.study import Run
from initmem.train.layers import by_replica
from initmem.train.models import Network


@torch.no_grad()
def initialise(network: Network, runs: Sequence[Run]) -> None:
    """Draw the variables of every replica. One seed gives the same standard normals at every scale."""
    for replica, run in enumerate(runs):
        rng = generator(run.seed_of("init"), "init")
        for layer in network.layers():
            kernel = by_replica(layer.kernel, network.replicas)[replica]
            bias = by_replica(layer.bias, network.replicas)[replica]
            _fill(kernel, rng.standard_normal(kernel.shape), run.scale / math.sqrt(layer.fan_in))
            _fill(bias, rng.standard_normal(bias.shape), run.recipe.bias_std)
        first = by_replica(network.layers()[0].kernel, network.replicas)[replica]
        first.view(-1)[0] *= run.poke


def _fill(target: Tensor, normals: NDArray[np.float64], std: float) -> None:
    target.copy_(torch.from_numpy(normals * std))
