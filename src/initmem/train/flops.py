"""Floating-point operations of a network, counted layer by layer; torch is loaded only for plugins."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import NamedTuple

from initmem.data import Sizes
from initmem.recipe import Recipe
from initmem.register import BUNDLED

Shape = tuple[int, int, int]  # (channel, height, width)


class Flops(NamedTuple):
    """FLOPs per image in convolutions and dense layers; a multiply-add counts as two."""

    forward: int
    training: int  # forward pass plus the gradients of kernels and inputs


def flops_per_image(recipe: Recipe, shape: Shape, classes: int, vocabulary: int = 0) -> Flops:
    """The FLOPs of one example through the network of a recipe; tokens have a vocabulary."""
    if recipe.is_module and recipe.model not in BUNDLED:
        from initmem.train.modules import forward_flops

        forward = forward_flops(recipe, Sizes(1, 1, 1, *shape, classes, vocabulary))
        return Flops(forward, 3 * forward)
    if recipe.is_module:
        layers = _transformer(recipe, shape, classes)
    elif recipe.model.startswith("resnet9"):
        layers = _resnet9(recipe.width, shape, classes)
    elif recipe.model == "mlp":
        layers = [2 * a * b for a, b in pairwise([math.prod(shape), recipe.width, recipe.width, classes])]
    else:
        layers = _deep(recipe.width, shape, classes, n={"resnet56": 9, "resnet110": 18}[recipe.model])
    forward = sum(layers)
    # In the backward pass every layer needs both gradients, except the first: its input is the image.
    return Flops(forward, 3 * forward - layers[0])


def _transformer(recipe: Recipe, shape: Shape, classes: int) -> list[int]:
    """Patches (vit alone), blocks of attention and an MLP of four times the width, head."""
    channels, height, columns = shape
    d, depth = recipe.width, recipe.get("depth")
    patch = recipe.get("patch") if recipe.model == "vit" else 1
    length = max(1, (height // patch) * (columns // patch))
    first = 2 * channels * patch * patch * d * length if recipe.model == "vit" else 0
    blocks = [length * (24 * d * d + 4 * length * d)] * depth
    return [first, *blocks, 2 * d * classes * (length if recipe.model == "gpt" else 1)]


def _conv(inputs: int, outputs: int, side: tuple[int, int], size: int = 3, *, stride: int = 1) -> int:
    """A convolution with height x width outputs; on images of 2x2 pixels or fewer it is a dense map."""
    pixels = side[0] * side[1]
    taps = pixels if size == 3 and stride == 1 and max(side) <= 2 else size * size
    return 2 * inputs * outputs * taps * pixels


def _resnet9(w: int, shape: Shape, classes: int) -> list[int]:
    channels, height, width = shape
    at = [(height >> k, width >> k) for k in range(4)]  # height and width after k pooling layers
    return [
        _conv(channels, w, at[0]),
        _conv(w, 2 * w, at[0]),
        *[_conv(2 * w, 2 * w, at[1])] * 2,
        _conv(2 * w, 4 * w, at[1]),
        _conv(4 * w, 8 * w, at[2]),
        *[_conv(8 * w, 8 * w, at[3])] * 2,
        2 * 8 * w * classes,
    ]


def _deep(w: int, shape: Shape, classes: int, *, n: int) -> list[int]:
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
    return [*layers, 2 * 4 * w * classes]
