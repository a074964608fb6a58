"""What a recipe needs of its data and its network, checked before anything is trained.

Importing this module loads nothing heavy: `initmem --help` does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from initmem.errors import ModelError

if TYPE_CHECKING:
    from initmem.data.dataset import Sizes
    from initmem.recipe import Recipe
    from initmem.study import Study

Precision = Literal["float32", "tf32", "amp"]  # amp: layers in bfloat16

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
    from initmem.data.sources import check as check_data
    from initmem.data.sources import sizes
    from initmem.recipe import network_of

    for recipe in map(network_of, study.recipes):
        check_data(recipe)
        shape = sizes(recipe)
        check_input(recipe.model, shape.shape, recipe.augment, shape.vocabulary)
        if recipe.is_module:
            from initmem.train.modules import check_module

            check_module(recipe, shape)
        else:
            _check_scaled(recipe, shape)
        if recipe.has_own_optimizer:
            from initmem.train.packable import check_optimizer

            check_optimizer(recipe, shape)


def notes_of(recipe: Recipe, shape: Sizes) -> list[str]:
    """What a user should know before a plugin's code, or a plain module, is trained."""
    if not recipe.is_module and not recipe.has_own_optimizer:
        return []
    from initmem.train.packable import notes

    return notes(recipe, shape)


def _check_scaled(recipe: Recipe, shape: Sizes) -> None:
    """Whether the layers that a recipe names are there; a network without memory is built to see."""
    if recipe.scaled == "kernels" and not recipe.layer_scales:
        return
    import torch

    from initmem.train.init import factors, replica_variables
    from initmem.train.models import build
    from initmem.train.variables import layout_of

    with torch.device("meta"):
        network = build(
            recipe.model,
            replicas=1,
            shape=shape.shape,
            classes=shape.classes,
            width=recipe.width,
            norm=recipe.norm,
        )
    factors(recipe, 1.0, layout_of(replica_variables(network)))
