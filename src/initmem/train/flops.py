"""Floating-point operations of a network, counted layer by layer; torch is loaded only for plugins."""

from __future__ import annotations

from typing import NamedTuple

from initmem.data.dataset import Sizes
from initmem.recipe import Recipe
from initmem.register import BUNDLED
from initmem.shapes import Shape, kernels

SHARPNESS_SUBSET = 512  # training examples whose loss the sharpness is measured of
SHARPNESS_PASSES = 50  # forward and backward passes over them that a measurement costs, roughly


class Flops(NamedTuple):
    """FLOPs per example in convolutions and dense layers; a multiply-add counts as two."""

    forward: int
    training: int  # forward pass plus the gradients of kernels and inputs
    layers: int  # with a kernel


def flops_per_image(recipe: Recipe, shape: Shape, classes: int, vocabulary: int = 0) -> Flops:
    """The FLOPs of one example through the network of a recipe; tokens have a vocabulary."""
    if recipe.is_module and recipe.model not in BUNDLED:
        from initmem.train.modules import forward_flops

        forward = forward_flops(recipe, Sizes(1, 1, 1, *shape, classes, vocabulary))
        return Flops(forward, 3 * forward, 1)
    if recipe.is_module:
        layers = _transformer(recipe, shape, classes)
    else:
        layers = [2 * kernel.multiplications for kernel in kernels(recipe, shape, classes)]
    forward = sum(layers)
    # In the backward pass every layer needs both gradients, except the first: its input is the image.
    return Flops(forward, 3 * forward - layers[0], len(layers))


def _transformer(recipe: Recipe, shape: Shape, classes: int) -> list[int]:
    """Patches (vit alone), blocks of attention and an MLP of four times the width, head."""
    channels, height, columns = shape
    d, depth = recipe.width, recipe.get("depth")
    patch = recipe.get("patch") if recipe.model == "vit" else 1
    length = max(1, (height // patch) * (columns // patch))
    first = 2 * channels * patch * patch * d * length if recipe.model == "vit" else 0
    blocks = [length * (24 * d * d + 4 * length * d)] * depth
    return [first, *blocks, 2 * d * classes * (length if recipe.model == "gpt" else 1)]
