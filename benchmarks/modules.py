"""Which modules of initmem a run and a report pass through: the path that a newcomer walks.

    python benchmarks/modules.py

Python itself reports every import, in the command and in its worker processes (PYTHONPROFILEIMPORTTIME).
Packages that hold nothing but their docstring are not counted.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

LINE = re.compile(r"^import time:.*\|\s+(initmem[\w.]*)$", re.M)


def imported(*arguments: str) -> set[str]:
    """The modules of initmem that one command imports, workers included."""
    environment = os.environ | {"PYTHONPROFILEIMPORTTIME": "1"}
    command = [sys.executable, "-m", "initmem", *arguments]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True)
    if ended.returncode:
        raise SystemExit(ended.stderr[-2000:])
    own = f"initmem.cli.{arguments[0]}"  # loaded by name, which Python does not report
    return {name for name in [own, *LINE.findall(ended.stderr)] if has_code(name)}


def has_code(name: str) -> bool:
    """Whether a module is more than a docstring."""
    spec = find_spec(name)
    return spec is not None and bool(spec.origin) and len(Path(str(spec.origin)).read_text().splitlines()) > 3


def of_quickstart() -> tuple[set[str], set[str]]:
    """What `initmem run quickstart --preset smoke` imports, and what `initmem report` imports."""
    with tempfile.TemporaryDirectory() as folder:
        store = str(Path(folder) / "store")
        run = imported("run", "quickstart", "--preset", "smoke", "--workers", "1", "--store", store)
        return run, imported("report", store)


def by_room(modules: set[str]) -> dict[str, list[str]]:
    """Modules by the folder they are in; those of the package itself come first."""
    rooms: dict[str, list[str]] = {}
    for name in sorted(modules, key=lambda name: (name.count(".") > 1, name)):
        room, _, module = name.partition(".")[2].rpartition(".")
        rooms.setdefault(room or "initmem", []).append(module or "__init__")
    return rooms


def main() -> None:
    run, report = of_quickstart()
    for title, modules in (("run", run), ("report", report), ("both", run | report)):
        print(f"{title}: {len(modules)} modules")
    for room, names in by_room(run).items():
        print(f"{room:10} {', '.join(names)}")


if __name__ == "__main__":
    main()
