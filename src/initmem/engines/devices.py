"""Which devices there are, and how many packs they train at the same time."""

from __future__ import annotations

import os

from initmem.errors import ConfigError

DEVICES = "allowed: cpu, cuda, cuda:N"


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def check_device(device: str, slots: int = 1) -> None:
    """Refuse what is no device anywhere."""
    kind, colon, index = device.partition(":")
    if device != "cpu" and (kind != "cuda" or (colon and not index.isdecimal())):
        raise ConfigError(f"device = {device!r} ({DEVICES})")
    if slots < 1 or (device == "cpu" and slots > 1):
        raise ConfigError(f"slots = {slots} with device = {device!r} (allowed: 1; more on a GPU)")


def places(device: str, slots: int = 1) -> list[str]:
    """A device for each pack that this machine trains at the same time.

    A core is a place, a GPU has `slots` of them. The GPUs come in turn, so that a few packs share none.
    """
    check_device(device, slots)
    if device == "cpu":
        return ["cpu"] * cores()
    if not (found := _gpus(device)):
        raise ConfigError(f"device = {device!r} (PyTorch finds no such GPU on this machine; allowed: cpu)")
    return found * slots


def _gpus(device: str) -> list[str]:
    """All GPUs that `cuda` stands for, or the one that is named."""
    import torch

    found = [f"cuda:{i}" for i in range(torch.cuda.device_count())]
    return found if device == "cuda" else [name for name in found if name == device]
