"""A soak: real `initmem run` sessions share a store while signals rain on them and on their workers.

    python benchmarks/soak.py [--minutes 15] [--sessions 3] [--seed 0]

Sessions are killed, interrupted, terminated, stopped and continued at random; whichever ends is started
again. When a study is whole, every record is compared with one of an undisturbed run: the same numbers, bit
for bit, if it was trained in the same pack, and to rounding if losses had the pack halved. Then a fresh store
follows, until the time is up. Prints the counts, and exits with 1 if a record was lost, crashed or unequal.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import numpy as np

from initmem.record import RunRecord
from initmem.store.store import Store

STUDY = """
name = "soak"
scales = [0.1, 0.5, 1.0, 2.5]
seeds = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]
[recipe]
dataset = "synthetic:200x1x4x4"
model = "mlp"
width = 8
batch_size = 8
epochs = 12
[[grid]]
optimizer = ["sgd", "adam", "momentum", "muon"]
"""
SIGNALS = {"SIGKILL": 5, "SIGTERM": 2, "SIGINT": 2, "SIGSTOP": 3}  # how often each, relatively
ROUNDING = 1e-3


def start(study: Path, store: Path, *options: str) -> subprocess.Popen[bytes]:
    """A session in a process group of its own."""
    words = ["run", str(study), "--store", str(store), "--pack", "4", "--checkpoint-every", "0.2", *options]
    return subprocess.Popen(
        [sys.executable, "-m", "initmem", *words],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )


def processes(session: subprocess.Popen[bytes]) -> list[int]:
    """A session and its workers."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == session.pid and fields[0] != "Z":
            found.append(int(folder.name))
    return found


def disturb(sessions: list[subprocess.Popen[bytes]], rng: random.Random, counts: Counter[str]) -> None:
    """Send one random signal to one random process."""
    victims = [pid for session in sessions for pid in processes(session)]
    if not victims:
        return
    pid, (name,) = rng.choice(victims), rng.choices(list(SIGNALS), list(SIGNALS.values()))
    try:
        os.kill(pid, getattr(signal, name))
        counts[name] += 1
        if name == "SIGSTOP":
            time.sleep(rng.uniform(0.2, 2.0))
            os.kill(pid, signal.SIGCONT)
    except ProcessLookupError:
        pass


def compare(store: Path, reference: dict[str, RunRecord]) -> Counter[str]:
    """Every record of a finished study beside the undisturbed one."""
    counts: Counter[str] = Counter()
    found = {record.id: record for record in Store(store).records()}
    counts["records"] = len(found)
    counts["lost"] = len(reference.keys() - found.keys())
    counts["strange"] = len(found.keys() - reference.keys())
    for record in found.values():
        other = reference.get(record.id)
        if other is None:
            continue
        counts["crashed"] += record.status == "crashed"
        counts["taken over"] += record.provenance["attempts"] > 1
        if record.provenance["pack_id"] == other.provenance["pack_id"] and not record.provenance.get(
            "sessions"
        ):
            counts["unequal"] += not record.same_result(other)
        else:
            counts["in other packs"] += 1
            counts["unequal"] += not close(record, other)
    counts["damaged"] = len(Store(store).verify())
    return counts


def close(record: RunRecord, other: RunRecord) -> bool:
    """Whether two records agree to rounding."""
    ours, theirs = record.history["val_objective"], other.history["val_objective"]
    return ours.shape == theirs.shape and bool(np.allclose(ours, theirs, atol=ROUNDING, rtol=ROUNDING))


def one_round(
    study: Path, store: Path, sessions_wanted: int, rng: random.Random, deadline: float
) -> Counter[str]:
    """Disturb sessions on one store until the study is whole or time is up; then finish in peace."""
    counts: Counter[str] = Counter()
    sessions: list[subprocess.Popen[bytes]] = []
    while time.monotonic() < deadline:
        running = [session for session in sessions if session.poll() is None]
        if any(session.returncode == 0 for session in sessions if session not in running):
            break  # a session that ends with 0 saw the whole study
        for _ in range(sessions_wanted - len(running)):
            running.append(start(study, store, "--workers", "1"))
            counts["sessions"] += 1
        sessions = running
        time.sleep(rng.uniform(0.2, 1.5))
        disturb(sessions, rng, counts)
    for session in sessions:
        for pid in processes(session):
            os.kill(pid, signal.SIGKILL)
        session.wait()
    if start(study, store).wait():
        counts["not finished"] += 1
    return counts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=15.0)
    parser.add_argument("--sessions", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    rng = random.Random(asked.seed)
    counts: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        study = Path(folder) / "soak.toml"
        study.write_text(STUDY)
        if start(study, Path(folder) / "undisturbed").wait():
            raise SystemExit("the undisturbed study did not finish")
        reference = {record.id: record for record in Store(Path(folder) / "undisturbed").records()}
        begun = time.monotonic()
        while time.monotonic() < begun + 60 * asked.minutes:
            store = Path(folder) / f"store-{counts['stores']}"
            counts += one_round(study, store, asked.sessions, rng, begun + 60 * asked.minutes)
            counts += compare(store, reference)
            counts["stores"] += 1
        minutes = (time.monotonic() - begun) / 60
    print(f"{minutes:.1f} minutes, {sum(counts[name] for name in SIGNALS)} signals")
    for name, number in sorted(counts.items()):
        print(f"{number:8,} {name}")
    bad = ("lost", "strange", "crashed", "unequal", "damaged", "not finished")
    print("; ".join(f"{name}: {counts[name]}" for name in bad))
    sys.exit(any(counts[name] for name in bad))


if __name__ == "__main__":
    main()
