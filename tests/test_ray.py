"""The Ray engine on a real cluster of several nodes: machines and drivers may die, others may come."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

from clusters import STUDY, STUDY_FILE, RayCluster, assert_same, check_contract, environment, wait_for
from faultlab import residue
from initmem.record import RunRecord


def start(folder: Path, cluster: RayCluster) -> subprocess.Popen[str]:
    file = folder / "study.toml"
    file.write_text(STUDY_FILE)
    command = [sys.executable, "-m", "initmem", "run", file, "--store", folder / "store", "--json"]
    command += ["--pack", "2", "--checkpoint-every", "0.2", "--engine", "ray"]
    command += ["--engine-option", f"address={cluster.address}"]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment()
    )


def records(folder: Path) -> int:
    return len(list(folder.glob("store/runs/*/record.json")))


def test_ray(tmp_path: Path, undisturbed: dict[str, RunRecord], long_epoch: list[RunRecord]) -> None:
    """One test: a cluster takes long to start, and every driver starts its own workers in it.

    First the contract of every engine. Then a driver and a node are killed, and a node that came late does
    the rest. Last, a node for which the folder of the store is empty is refused.
    """
    with RayCluster() as cluster:
        cluster.order("nodes", "one", "two")
        check_contract("ray", tmp_path, {"address": cluster.address}, undisturbed, long_epoch)

        first = start(tmp_path, cluster)
        wait_for(lambda: records(tmp_path) >= 2)
        first.send_signal(signal.SIGKILL)
        first.communicate()
        so_far = records(tmp_path)
        assert so_far < len(STUDY.all_runs())

        cluster.order("nodes", "one", "late")
        second = start(tmp_path, cluster)
        wait_for(lambda: records(tmp_path) > so_far)
        assert records(tmp_path) < len(STUDY.all_runs())
        cluster.order("kill", "one")
        out, err = second.communicate(timeout=3600)
        assert second.returncode == 0, err
        assert json.loads(out)["summary"]["missing"] == 0

        unseen = tmp_path / "unseen"
        unseen.mkdir()
        hidden = cluster.order("hide", unseen)  # needs the right to mount a disk
        assert hidden in ("hidden", "not permitted")
        if hidden == "hidden":
            cluster.order("nodes", "blind")
            third = start(unseen, cluster)
            _, err = third.communicate(timeout=3600)
            assert third.returncode == 2
            last = err.splitlines()[-1]
            assert f"does not see the store {unseen / 'store'} (allowed: a folder that all nodes" in last
            assert list(residue(unseen / "store")) == []
    assert_same(tmp_path / "store", undisturbed)
    assert list(residue(tmp_path / "store")) == []
