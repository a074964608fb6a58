"""What a recipe needs: of its data and its network, checked before anything is trained, and of a processor.

Importing this module loads nothing heavy: `initmem --help` does.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from initmem.errors import ModelError

if TYPE_CHECKING:
    from initmem.data.dataset import Sizes
    from initmem.recipe import Recipe
    from initmem.study import Study

Shape = tuple[int, int, int]  # (channel, height, width)
LEAST_SIDE = {"resnet9": 8, "resnet9-avgpool": 8, "resnet56": 4, "resnet110": 4, "mlp": 1}


def check_input(model: str, shape: tuple[int, int, int], augment: str = "none", vocabulary: int = 0) -> None:
    """Raise if images are too small for the network or its augmentation; shape (channel, height, width).

    What else a plain module needs of its input its builder says.
    """
    if vocabulary and (model in LEAST_SIDE or augment != "none"):
        field = f"model = {model!r}" if model in LEAST_SIDE else f"augment = {augment!r}"
        raise ModelError(f"{field} cannot take tokens (allowed: gpt or a plugin's network, augment = 'none')")
    least, side = LEAST_SIDE.get(model, 1), min(shape[1:])
    if augment == "flip-crop" and side < 5:
        raise ModelError(
            f"augment = 'flip-crop' reflects 4 pixels and cannot take {shape[1]}x{shape[2]} images "
            "(allowed: at least 5x5)"
        )
    if side < least:
        raise ModelError(
            f"model = {model!r} cannot take {shape[1]}x{shape[2]} images "
            f"(allowed: at least {least}x{least}; mlp takes any size)"
        )


def check(study: Study) -> None:
    """Find a user's mistake before anything is written or started."""
    from initmem.data import sources

    for recipe in (recipe.network for recipe in study.recipes):
        sources.check(recipe)
        shape = sources.sizes(recipe)
        check_input(recipe.model, shape.shape, recipe.augment, shape.vocabulary)
        if recipe.is_module:
            from initmem.train.modules import check_module

            check_module(recipe, shape)
        else:
            _check_scaled(recipe, shape)
        if recipe.has_own_optimizer:
            from initmem.train.modules import check_optimizer

            check_optimizer(recipe, shape)
        if study.interventions:
            _check_interventions(study, recipe, shape)


def notes_of(recipe: Recipe, shape: Sizes) -> list[str]:
    """What a user should know before a plugin's code, or a plain module, is trained.

    Why there are no packs, and what the scale leaves alone.
    """
    if not recipe.is_module and not recipe.has_own_optimizer:
        return []
    from initmem.train.modules import check_module, obstacle

    reason = obstacle(recipe, shape)
    variables = check_module(recipe, shape) if recipe.is_module else []
    left = [variable.name for variable in variables if variable.role == "other"]
    alone = [f"trains alone: {reason}"] if reason else []
    return alone + ([f"as the builder made them: {', '.join(left)}"] if left else [])


def _check_scaled(recipe: Recipe, shape: Sizes) -> None:
    """Whether the layers that a recipe names are there; a network without memory is built to see."""
    if recipe.scaled == "kernels" and not recipe.layer_scales:
        return
    import torch

    from initmem.train.init import factors
    from initmem.train.networks import build

    with torch.device("meta"):
        network = build(recipe, shape)
    factors(recipe, 1.0, network.replica_variables())


def _check_interventions(study: Study, recipe: Recipe, shape: Sizes) -> None:
    """Apply every intervention to an untrained network: its layers and its file have to be there."""
    from initmem.intervention import Intervention
    from initmem.study import Run
    from initmem.train.init import initialized, intervene, replica_tensors

    network = initialized([Run(recipe, 1.0, 0)], shape)
    for text in study.interventions:
        run = Run(recipe, 1.0, 0, intervention=text)
        epoch = Intervention.parse(text).epoch
        intervene(run, epoch, network.replica_variables(), replica_tensors(network, 0))


class Flops(NamedTuple):
    """FLOPs per example in convolutions and dense layers; a multiply-add counts as two."""

    forward: int
    training: int  # forward pass plus the gradients of kernels and inputs
    layers: int  # with a kernel


def flops_per_image(recipe: Recipe, sizes: Sizes) -> Flops:
    """The FLOPs of one example through the network of a recipe; PyTorch counts those of a plain module."""
    if recipe.is_module:
        from initmem.train.modules import builder, forward_flops

        forward, kernels = forward_flops(recipe.model, recipe.options, recipe.width, sizes, builder(recipe))
        return Flops(forward, 3 * forward, kernels)
    layers = [2 * each for each in multiplications(recipe, sizes.shape, sizes.classes)]
    # In the backward pass every layer needs both gradients, except the first: its input is the image.
    return Flops(sum(layers), 3 * sum(layers) - layers[0], len(layers))


def multiplications(recipe: Recipe, shape: Shape, classes: int) -> list[int]:
    """Multiplications per image of every layer of a network that is not a plain module, first layer first."""
    if recipe.model.startswith("resnet9"):
        return _resnet9(recipe.width, shape, classes)
    if recipe.model == "mlp":
        sides = [math.prod(shape), recipe.width, recipe.width, classes]
        return [inputs * outputs for inputs, outputs in pairwise(sides)]
    return _deep(recipe.width, shape, classes, n={"resnet56": 9, "resnet110": 18}[recipe.model])


def _conv(inputs: int, outputs: int, side: tuple[int, int], size: int = 3, *, stride: int = 1) -> int:
    """A convolution with height x width outputs; on images of 2x2 pixels or fewer it is a dense map."""
    pixels = side[0] * side[1]
    taps = pixels if size == 3 and stride == 1 and max(side) <= 2 else size * size
    return inputs * outputs * taps * pixels


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
        8 * w * classes,
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
    return [*layers, 4 * w * classes]
