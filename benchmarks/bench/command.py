"""What `initmem bench` is asked, what it does and what it prints."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from initmem.data.sources import load
from initmem.engines.engine import cores
from initmem.errors import ConfigError, allowed
from initmem.table import Column, Key, Table, table_of

from .compare import PEERS, Tell, compare, gemm_limit, missing
from .workloads import CORE, WORKLOADS, Workload

PACKAGES = ("torch", "keras", "tensorflow", "tensorflow-cpu", "jax", "numpy")


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


def timed(
    workloads: Sequence[str],
    *,
    everything: bool,
    peers: str,
    rounds: int,
    output: Path | None,
    tell: Tell,
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Time workloads; a row each, and what is true of all of them. A file is written as rows come in."""
    chosen = asked_workloads(workloads, everything=everything)
    for workload in chosen:
        load(workload.recipe)  # a dataset that is missing is known before an hour is spent
    usable = []
    for peer in asked_peers(peers):
        if (reason := missing(peer)) is None:
            usable.append(peer)
        else:
            tell(reason)
    if output is not None:
        output.touch()  # a place that cannot be written is known before an hour is spent
    limit = gemm_limit()
    tell(f"GEMM limit: {limit / 1e9:.0f} GFLOP/s")
    summary = {"machine": machine(), "gemm_limit": limit}
    rows = []
    for workload in chosen:
        rows.append(compare(workload, usable, limit, tell, rounds).row())
        if output is not None:
            content = {"schema": "initmem.bench/1", "rows": rows, "summary": summary}
            output.write_text(json.dumps(content, indent=1) + "\n")
    return rows, summary


def ratio_table(rows: Sequence[dict[str, Any]], machine: dict[str, Any]) -> Table:
    """One line per workload: how many times longer each peer takes."""
    versions = ", ".join(f"{name} {machine[name]}" for name in PACKAGES if name in machine)
    title = (
        f"Time of each peer / time of initmem; {machine['cores']} cores {machine['processor']}, {versions}"
    )
    columns: dict[Key, Column] = {
        "workload": Column("workload", "text", "network, width, batch size and optimizer"),
        "seconds": Column("initmem", about="time of initmem for all runs", unit="s", form=".1f"),
        "pack": Column("pack", about="replicas trained together", priority=2),
        "gemm_share": Column(
            "of limit", about="share of the GEMM limit of this machine", form=".2f", priority=1
        ),
    }
    for peer in PEERS:
        columns[f"{peer}_as_is"] = Column(f"{peer} as is", about="with its default settings", form=".2f")
        columns[f"{peer}_best"] = Column(f"{peer} best", about="with its fastest settings", form=".2f")
    shown = [{key: row.get(key) for key in columns if key in row} for row in rows]
    return table_of(title, shown, columns)
