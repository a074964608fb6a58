"""Which devices there are, and how many packs they train at the same time."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator

from initmem.errors import ConfigError

DEVICES = "allowed: cpu, cuda, cuda:N, mps"


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def check_device(device: str, slots: int = 1) -> None:
    """Refuse what is no device anywhere."""
    if not re.fullmatch(r"cpu|mps|cuda(:[0-9]+)?", device):
        raise ConfigError(f"device = {device!r} ({DEVICES})")
    if slots < 1 or (device == "cpu" and slots > 1):
        raise ConfigError(f"slots = {slots} with device = {device!r} (allowed: 1; more on a GPU)")


def check_cluster_device(device: str, slots: int = 1) -> None:
    """Refuse what no node of a cluster has: clusters count GPUs of NVIDIA's kind only."""
    check_device(device, slots)
    if device == "mps":
        raise ConfigError("device = 'mps' on a cluster (allowed: cpu, cuda, cuda:N; or engine = 'local')")


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
    """All GPUs that `cuda` stands for, or the one that is named; `mps` is the one GPU of a Mac."""
    import torch

    if device == "mps":
        return ["mps"] if torch.backends.mps.is_available() else []
    found = [f"cuda:{i}" for i in range(torch.cuda.device_count())]
    return found if device == "cuda" else [name for name in found if name == device]


@contextlib.contextmanager
def operations_of(device: str) -> Iterator[None]:
    """Say in one line what PyTorch cannot do on an Apple GPU, rather than train nothing run by run."""
    try:
        yield
    except (NotImplementedError, TypeError) as error:
        if device != "mps" or "MPS" not in str(error):
            raise
        missing = re.search(r"aten::[\w.]+|float64", str(error))
        raise ConfigError(
            f"device = 'mps': PyTorch has no {missing[0] if missing else 'such operation'} on Apple GPUs "
            "(allowed: --device cpu; or the variable PYTORCH_ENABLE_MPS_FALLBACK=1: the CPU then does it)"
        ) from error
