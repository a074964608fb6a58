"""Where a record comes from: the one place where its provenance is put together.

A trainer notes what only it knows (seconds, precision, device, what user code did); the engine adds the
machine, the versions, and how the run came to its record.
"""

from __future__ import annotations

import platform
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from initmem import __version__
from initmem.machine import processor_lines
from initmem.recipe import content_id
from initmem.record import RunRecord
from initmem.store.faults import Fault, counted
from initmem.store.store import Store
from initmem.study import Run


def with_provenance(record: RunRecord, store: Store, pack: Sequence[Run]) -> RunRecord:
    """The record with where, with what and in which pack it was trained; what it says already is kept."""
    faults = {"diverged": [Fault("divergence")], "crashed": [Fault("exception")]}.get(record.status, [])
    where = environment(str(record.provenance.get("device", "cpu")))
    how = history(store, record.run, pack, *faults)
    return replace(record, provenance={**where, **record.provenance, **how})


def environment(device: str) -> dict[str, Any]:
    """Machine and versions. PyTorch counts only where it was loaded: not every pipeline uses it."""
    torch = sys.modules.get("torch")
    return {
        "initmem": __version__,
        "torch": "not used" if torch is None else str(torch.__version__),
        "python": platform.python_version(),
        "device": device,
        "hardware": hardware(device),
        "threads": 1 if torch is None else torch.get_num_threads(),
    }


def history(store: Store, run: Run, pack: Sequence[Run], *more: Fault) -> dict[str, Any]:
    """How a run came to its record: with which runs, in how many attempts, after which faults."""
    return {
        "pack": len(pack),
        "pack_id": pack_id(pack),
        "attempts": store.faults.attempt(run.id),
        "faults": counted([*store.faults.of(run.id), *more]),
    }


def pack_id(pack: Sequence[Run]) -> str:
    """An id for runs that are trained together, in this order."""
    return content_id({"runs": [run.id for run in pack]})


def hardware(device: str) -> str:
    """The name of the processor that a device is."""
    if device.startswith("cuda"):
        import torch

        return torch.cuda.get_device_name(device)
    if device == "mps":
        return f"Apple GPU ({platform.machine()})"
    names = [line.partition(":")[2].strip() for line in processor_lines("model name")]
    return names[0] if names else platform.processor() or platform.machine()
