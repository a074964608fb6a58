"""Requirements of the networks on their input, and numeric precisions, without loading torch."""

from __future__ import annotations

from typing import Literal

from initmem.errors import ModelError

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
