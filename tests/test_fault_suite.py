"""The study of the fault laboratory, disturbed in every way: nothing lost, nothing doubled, all equal."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

LAB = Path(__file__).with_name("faultlab.py")


@pytest.mark.parametrize(
    "experiments",
    [
        ["kills"],
        ["storms=4", "crowds=2", "clocks=1"],
        ["damages=30", "disks=8"],
        ["refusals=0.3"],
    ],
    ids=lambda experiments: "-".join(name.partition("=")[0] for name in experiments),
)
def test_nothing_is_lost(experiments: list[str], record_property) -> None:
    done = subprocess.run([sys.executable, LAB, *experiments], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    for name, counts in found.items():
        assert counts["problems"] == [], (name, done.stderr)
        assert (counts["lost"], counts["doubled"], counts["unequal"]) == (0, 0, 0)
        assert counts["runs"] > 0 or "may be mounted" in done.stderr
    if "kills" in experiments:
        assert found["kills"]["kills"] >= 200
    names = ("kills", "faults", "runs", "lost", "doubled", "unequal")
    record_property("faults", {key: {n: row[n] for n in names} for key, row in found.items()})
