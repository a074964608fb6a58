"""Where a record comes from: the one place where its provenance is put together.

A trainer notes what only it knows (seconds, precision, device, what user code did). The engine adds the
machine, the versions, the code of the user, and how the run came to its record.
"""

from __future__ import annotations

import platform
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from initmem import __version__
from initmem.engines.engine import Settings
from initmem.machine import processor_lines
from initmem.recipe import content_id
from initmem.record import RunRecord, crashed
from initmem.store.faults import Fault, counted
from initmem.store.store import Store
from initmem.study import Run


def with_provenance(
    record: RunRecord, store: Store, settings: Settings, pack: Sequence[Run], *more: Fault
) -> RunRecord:
    """The record with where, with what and in which pack it was trained, after which faults.

    What a trainer has noted about the machine and the code is kept.
    """
    run, noted = record.run, record.provenance
    code = settings.fingerprint(run.recipe)
    provenance = {
        **environment(str(noted.get("device", settings.device))),
        **({"fingerprint": code} if code else {}),
        **noted,
        "pack": len(pack),
        "pack_id": pack_id(pack),
        "attempts": store.faults.attempt(run.id),
        "faults": counted([*store.faults.of(run.id), *more]),
    }
    return replace(record, provenance=provenance)


def failure(run: Run, error: str, store: Store, settings: Settings) -> RunRecord:
    """The record of a run that raised, exited or was lost alone; its faults are noted in the store."""
    return with_provenance(crashed(run, error, {}), store, settings, [run])


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
