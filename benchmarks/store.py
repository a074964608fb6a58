"""A large store as a user meets it: commands from a cold and a warm start, their memory, and start-up.

    python benchmarks/store.py [--store DIR] [--studies main-grid] [--repeats N] [--carry]

Without --store, the records of benchmarks/full_store.py are planted in a temporary one. Cold: the index is
deleted first (the files may still be in the machine's cache). Aim: 15 s cold, 2 s warm, 1 GB; half a second
for a small store and for --help, 0.2 s for the import.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from full_store import planted

from initmem.store.encoding import encode
from initmem.store.store import Store
from initmem.study import Study
from initmem.study_file import load_study


def plant(path: Path, studies: list[Study]) -> None:
    """A finished store. The records are written straight away: how quickly is another question."""
    store = Store.create(path)
    for study in studies:
        store.add_study(study)
    for record in planted(studies):
        folder = path / "runs" / record.id
        folder.mkdir(exist_ok=True)
        (folder / "record.json").write_bytes(encode(record))


def spent(*command: str) -> tuple[float, float, float]:
    """Seconds, seconds of processor time and peak memory in GB of one command."""
    start = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, *command], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    _, code, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - start
    process.returncode = os.waitstatus_to_exitcode(code)
    if process.returncode:
        sys.exit(f"{' '.join(command)}: exit code {process.returncode}")
    return seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 2**20


def show(label: str, *command: str, repeats: int) -> None:
    """Print the least and the most seconds of some repetitions."""
    found = []
    for _ in range(repeats):
        found.append(spent(*command))
    seconds, processor, memory = zip(*found, strict=True)
    least, most = min(seconds), max(seconds)
    print(
        f"  {label:<35} {least:5.2f} to {most:5.2f} s {min(processor):8.2f} s {max(memory):8.2f} GB",
        flush=True,
    )


def measure(store: Path, studies: list[str], repeats: int) -> None:
    size = sum(path.stat().st_size for path in store.glob("runs/*/record.json"))
    print(f"{len(list(store.glob('runs/*/record.json'))):,} runs, {size / 1e6:,.0f} MB of records")
    print(f"  {'':35} {'wall':>14} {'processor':>12} {'memory':>8}")
    cli = ("-m", "initmem")
    for command in ("status", "measure"):
        show(command, *cli, command, str(store), repeats=repeats)
    show("status --verify", *cli, "status", str(store), "--verify", repeats=repeats)
    show("measure --what beta (all curves)", *cli, "measure", str(store), "--what", "beta", repeats=repeats)
    for name in studies:
        finished = ["run", name, "--preset", "paper", "--store", str(store)]
        show(f"run {name}, finished", *cli, *finished, repeats=repeats)


def carry(store: Path, folder: Path) -> None:
    """Archive and export, once each, and what an archive then takes to read."""
    archive, cli = folder / "large.initmem", ("-m", "initmem")
    show("archive", *cli, "archive", str(store), "-o", str(archive), repeats=1)
    print(f"  archive {archive.stat().st_size / 1e6:.1f} MB")
    show("status of the archive", *cli, "status", str(archive), repeats=1)
    show("measure --what beta of the archive", *cli, "measure", str(archive), "--what", "beta", repeats=1)
    show("export --to csv", *cli, "export", str(store), "--to", "csv", "-o", str(folder / "csv"), repeats=1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--store", type=Path, help="an existing store of finished studies, preset paper")
    parser.add_argument("--studies", default="main-grid")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument(
        "--carry", action="store_true", help="also archive and export it, which takes minutes"
    )
    asked = parser.parse_args()
    names = asked.studies.split(",")
    with tempfile.TemporaryDirectory() as temporary:
        if asked.store is None:
            plant(Path(temporary) / "large", [load_study(name, "paper") for name in names])
        measure(asked.store or Path(temporary) / "large", names, asked.repeats)
        if asked.carry:
            carry(asked.store or Path(temporary) / "large", Path(temporary))
        small = Path(temporary) / "small"
        plant(small, [load_study("quickstart")])
        print("start-up")
        show("python -c pass", "-c", "pass", repeats=asked.repeats)
        show("import initmem", "-c", "import initmem", repeats=asked.repeats)
        show("initmem --help", "-m", "initmem", "--help", repeats=asked.repeats)
        show("initmem status, 60 runs", "-m", "initmem", "status", str(small), repeats=asked.repeats)
    print(f"load of the machine {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")


if __name__ == "__main__":
    main()
