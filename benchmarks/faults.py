"""The fault suite at length: the experiments of the tests, more of each. Prints a table of counts.

python benchmarks/faults.py [--times 5] [--seed 1]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).parents[1] / "tests"
sys.path.insert(0, str(TESTS))

from conftest import table  # noqa: E402

EXPERIMENTS = {"kills": 1, "refusals": 1, "storms": 10, "crowds": 10, "clocks": 3, "damages": 60, "disks": 40}
COLUMNS = ("kills", "faults", "runs", "lost", "doubled", "unequal")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--times", type=int, default=1, help="how often")
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    rows: dict[str, dict[str, object]] = {}
    problems: list[str] = []
    for number in range(asked.times):
        for name, times in EXPERIMENTS.items():
            what = (f"{name}={times}", f"--seed={asked.seed + number}")
            command = [sys.executable, TESTS / "faultlab.py", *what]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
            found = json.loads(done.stdout)[name]
            problems += found["problems"]
            row = rows.setdefault(name, dict.fromkeys(COLUMNS, 0))
            rows[name] = {column: row[column] + found[column] for column in COLUMNS}
    print("\n".join(table(rows)))
    print("\n".join(problems))
    sys.exit(bool(problems))


if __name__ == "__main__":
    main()
