"""The Ray engine on a real cluster of several nodes: machines and drivers may die, others may come."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from clusters import STUDY, STUDY_FILE, RayCluster, assert_same, environment, wait_for
from faultlab import residue
from initmem.record import RunRecord
from initmem.store.store import Store


def start(folder: Path, cluster: RayCluster, *options: str) -> subprocess.Popen[str]:
    file = folder / "study.toml"
    file.write_text(STUDY_FILE)
    command = [sys.executable, "-m", "initmem", "run", file, "--store", folder / "store", "--json"]
    command += ["--pack", "2", "--checkpoint-every", "0.2", "--engine", "ray"]
    command += ["--engine-option", f"address={cluster.address}"]
    return subprocess.Popen(
        [*command, *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment()
    )


def finished(driver: subprocess.Popen[str]) -> dict[str, object]:
    out, err = driver.communicate(timeout=3600)
    assert driver.returncode == 0, err
    return dict(json.loads(out)["summary"])


def records(folder: Path) -> int:
    return len(list(folder.glob("store/runs/*/record.json")))


def test_a_study_survives_its_driver_and_a_node_and_uses_a_late_one(
    ray_cluster: RayCluster, tmp_path: Path, undisturbed: dict[str, RunRecord]
) -> None:
    ray_cluster.order("nodes", "one", "two")
    first = start(tmp_path, ray_cluster)
    wait_for(lambda: records(tmp_path) >= 2)
    first.send_signal(signal.SIGKILL)
    first.communicate()
    so_far = records(tmp_path)
    assert so_far < len(STUDY.all_runs())

    ray_cluster.order("nodes", "one", "two", "late")
    second = start(tmp_path, ray_cluster)
    wait_for(lambda: records(tmp_path) > so_far)
    assert records(tmp_path) < len(STUDY.all_runs())
    ray_cluster.order("kill", "two")
    assert finished(second)["missing"] == 0

    assert_same(tmp_path / "store", undisturbed)
    assert list(residue(tmp_path / "store")) == []


def test_where_the_store_is_not_seen_records_travel(
    ray_cluster: RayCluster, tmp_path: Path, undisturbed: dict[str, RunRecord]
) -> None:
    """All work is left to a node for which the folder of the store is empty."""
    store = tmp_path / "store"
    Store.create(store)
    if ray_cluster.order("hide", store) != "hidden":
        pytest.skip("no disk may be mounted here")
    ray_cluster.order("nodes", "apart")
    assert finished(start(tmp_path, ray_cluster))["missing"] == 0
    assert_same(store, undisturbed)
    assert list(residue(store)) == []
