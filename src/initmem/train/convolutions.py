"""How the convolutions of a pack are computed on a GPU: whichever way is faster on it, by measurement.

Libraries differ in how well they compute convolutions in groups, between GPUs and between shapes, so nothing
is assumed. Only devices other than the CPU come here.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from statistics import median

import torch
from torch import Tensor

from initmem.train.layers import Conv
from initmem.train.models import Network

ROUNDS = 7  # of which the medians count, after one to warm up

# Seconds that a function takes on a device. The tests plant them.
Clock = Callable[[torch.device, Callable[[], object]], float]


def seconds(device: torch.device, function: Callable[[], object]) -> float:
    """The time until the device is done."""
    torch.accelerator.synchronize(device)
    started = time.perf_counter()
    function()
    torch.accelerator.synchronize(device)
    return time.perf_counter() - started


def choose(network: Network, x: Tensor, clock: Clock = seconds) -> dict[str, str]:
    """Let every convolution of a network be computed the faster way; returns the way by layer shape."""
    inputs: dict[Conv, Tensor] = {}
    with ExitStack() as stack, torch.no_grad():
        for layer in network.modules():
            if isinstance(layer, Conv):
                stack.callback(layer.register_forward_pre_hook(_note(inputs)).remove)
        network(x)
    chosen: dict[str, str] = {}
    for layer, given in inputs.items():
        if layer.is_dense(given):
            continue
        shape = layer.described(given)
        if shape not in chosen:
            chosen[shape] = _faster(layer, given, clock)
        layer.unfolds = chosen[shape] == "unfolded"
    return chosen


def _note(inputs: dict[Conv, Tensor]) -> Callable[[Conv, tuple[Tensor]], None]:
    def hook(layer: Conv, given: tuple[Tensor]) -> None:
        inputs[layer] = given[0]

    return hook


def _faster(layer: Conv, x: Tensor, clock: Clock) -> str:
    """The way with the smaller median; the two take turns, so that a change of the load meets both."""
    x = x.detach().requires_grad_()
    times: dict[str, list[float]] = {"grouped": [], "unfolded": []}
    for _ in range(1 + ROUNDS):
        for way in times:
            layer.unfolds = way == "unfolded"
            times[way].append(clock(x.device, lambda: _both_directions(layer, x)))
    return min(times, key=lambda way: median(times[way][1:]))


def _both_directions(layer: Conv, x: Tensor) -> None:
    with torch.enable_grad():
        y = layer(x)
        torch.autograd.grad(y, [x, layer.kernel, layer.bias], torch.ones_like(y))
