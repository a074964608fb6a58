"""What `initmem bench` is asked and what it prints."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from importlib import metadata
from typing import Any

from rich.table import Table

from initmem.bench.compare import PEERS
from initmem.bench.workloads import CORE, WORKLOADS, Workload
from initmem.engines.devices import cores
from initmem.errors import ConfigError, allowed

PACKAGES = ("torch", "keras", "tensorflow", "tensorflow-cpu", "numpy")


def asked_workloads(names: Sequence[str], *, everything: bool) -> list[Workload]:
    """The workloads whose names hold one of the given words; without any, the core ones."""
    if everything:
        return list(WORKLOADS.values())
    for name in names:
        if not any(name in known for known in WORKLOADS):
            raise ConfigError(f"workload {name!r} ({allowed(WORKLOADS)})")
    return [
        workload for known, workload in WORKLOADS.items()
        if (any(name in known for name in names) if names else known in CORE)
    ]  # fmt: skip


def asked_peers(text: str) -> list[str]:
    """Peers by name."""
    names = [name.strip() for name in text.split(",") if name.strip() not in ("", "none")]
    for name in names:
        if name not in PEERS:
            raise ConfigError(f"peers: {name!r} ({allowed([*PEERS, 'none'])})")
    return names


def machine() -> dict[str, Any]:
    """Where and with what the times were taken."""

    from initmem.engines.provenance import hardware

    found: dict[str, Any] = {
        "cores": cores(),
        "processor": hardware("cpu"),
        "python": platform.python_version(),
        "load": round(os.getloadavg()[0], 2),  # others at work make every time here a rough one
    }
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def ratio_table(found: dict[str, Any]) -> Table:
    """One line per workload: how many times longer each peer takes."""
    about = found["machine"]
    versions = ", ".join(f"{name} {about[name]}" for name in PACKAGES if name in about)
    table = Table(
        title=f"time of each peer / time of initmem; {about['cores']} cores {about['processor']}, {versions}"
    )
    table.add_column("workload")
    for head in ("initmem s", "pack", "of GEMM limit"):
        table.add_column(head, justify="right")
    columns = [(peer, kind) for peer in PEERS for kind in ("as_is", "best")]
    for peer, kind in columns:
        table.add_column(f"{peer} {kind.replace('_', ' ')}", justify="right")
    for row in found["rows"]:
        ratios = [row.get(f"{peer}_{kind}") for peer, kind in columns]
        table.add_row(
            row["workload"], f"{row['seconds']:.1f}", str(row["pack"]), f"{row['gemm_share']:.2f}",
            *("" if ratio is None else f"{ratio:.2f}" for ratio in ratios),
        )  # fmt: skip
    return table
