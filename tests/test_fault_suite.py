"""The study of the fault laboratory, disturbed in every way: nothing lost, nothing doubled, all equal.

It kills at one call of each kind, the same function on the same kind of file. Then ten stories of several
faults each; benchmarks/simulation.py tells more of them.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

LAB = Path(__file__).with_name("faultlab.py")
SIMULATION = LAB.parents[1] / "benchmarks" / "simulation.py"
EXPERIMENTS = ["kills=0", "storms=2", "crowds=1", "clocks=1", "damages=12", "disks=4", "refusals=0"]


def test_nothing_is_lost(record_property) -> None:
    done = subprocess.run([sys.executable, LAB, *EXPERIMENTS], capture_output=True, text=True, timeout=3600)
    assert done.returncode == 0, done.stderr
    counts = json.loads(done.stdout)
    for name, row in counts.items():
        assert row["problems"] == [], (name, done.stderr)
        assert (row["lost"], row["doubled"], row["unequal"]) == (0, 0, 0)
        assert row["runs"] > 0 or "may be mounted" in done.stderr
    assert counts["kills"]["kills"] >= 40
    names = ("kills", "faults", "runs", "lost", "doubled", "unequal")
    record_property("faults", {key: {n: row[n] for n in names} for key, row in counts.items()})


def test_ten_stories_end_well() -> None:
    command = [sys.executable, SIMULATION, "--stories", "10", "--first", "90", "--workers", "1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=3600)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 lost, 0 doubled, 0 unequal, 0 crashed, 0 broken" in done.stdout
