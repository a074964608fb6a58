"""The layers of the bundled networks as plain numbers, without loading torch: weights and operations."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import NamedTuple

from initmem.recipe import Recipe

Shape = tuple[int, int, int]  # (channel, height, width)

SHARPNESS_SUBSET = 512  # training examples whose loss the sharpness is measured of
SHARPNESS_PASSES = 50  # forward and backward passes over them that a measurement costs, roughly


class Kernel(NamedTuple):
    """The kernel of one layer: its weights, and the multiplications it makes per image."""

    weights: int
    multiplications: int


def kernels(recipe: Recipe, shape: Shape, classes: int) -> list[Kernel]:
    """The kernels of a network that is not a plain module, first layer first."""
    if recipe.model.startswith("resnet9"):
        return _resnet9(recipe.width, shape, classes)
    if recipe.model == "mlp":
        sides = [math.prod(shape), recipe.width, recipe.width, classes]
        return [_dense(inputs, outputs) for inputs, outputs in pairwise(sides)]
    return _deep(recipe.width, shape, classes, n={"resnet56": 9, "resnet110": 18}[recipe.model])


def _dense(inputs: int, outputs: int) -> Kernel:
    return Kernel(inputs * outputs, inputs * outputs)


def _conv(inputs: int, outputs: int, side: tuple[int, int], size: int = 3, *, stride: int = 1) -> Kernel:
    """A convolution with height x width outputs; on images of 2x2 pixels or fewer it is a dense map."""
    pixels = side[0] * side[1]
    taps = pixels if size == 3 and stride == 1 and max(side) <= 2 else size * size
    return Kernel(inputs * outputs * size * size, inputs * outputs * taps * pixels)


def _resnet9(w: int, shape: Shape, classes: int) -> list[Kernel]:
    channels, height, width = shape
    at = [(height >> k, width >> k) for k in range(4)]  # height and width after k pooling layers
    return [
        _conv(channels, w, at[0]),
        _conv(w, 2 * w, at[0]),
        *[_conv(2 * w, 2 * w, at[1])] * 2,
        _conv(2 * w, 4 * w, at[1]),
        _conv(4 * w, 8 * w, at[2]),
        *[_conv(8 * w, 8 * w, at[3])] * 2,
        _dense(8 * w, classes),
    ]


def _deep(w: int, shape: Shape, classes: int, *, n: int) -> list[Kernel]:
    channels, height, width = shape
    layers = [_conv(channels, w, (height, width))]
    for stage in range(3):
        outputs = w * 2**stage
        at = math.ceil(height / 2**stage), math.ceil(width / 2**stage)
        inputs, stride = (outputs, 1) if stage == 0 else (outputs // 2, 2)
        layers += [_conv(inputs, outputs, at, stride=stride)]
        layers += [_conv(outputs, outputs, at)] * (2 * n - 1)
        if stage > 0:
            layers.append(_conv(inputs, outputs, at, size=1))
    return [*layers, _dense(4 * w, classes)]
