"""Bad input at length: what the tests do, with more inputs and other seeds. Prints a table of counts.

python benchmarks/fuzz.py [--inputs 200000] [--seed 100]
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from conftest import table
from fuzzing import fuzz


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--inputs", type=int, default=200_000)
    parser.add_argument("--seed", type=int, default=100)
    asked = parser.parse_args()
    found = fuzz(asked.inputs, asked.seed)
    breaches = found.pop("breaches")
    problems = [problem for row in found.values() for problem in row["problems"]]
    names = ("inputs", "read", "refused")
    rows = {reader: {name: row.get(name, 0) for name in names} for reader, row in found.items()}
    print("\n".join(table(rows)))
    print(f"tracebacks {len(problems)}, breaches {breaches}")
    print("\n".join(problems[:20]))
    sys.exit(bool(problems or breaches))


if __name__ == "__main__":
    main()
