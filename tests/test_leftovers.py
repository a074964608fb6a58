"""What a kill leaves next to reports, archives and pictures goes with the next file that is written there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import planted
from initmem.files import temporary
from initmem.store.store import Store

KILLED = """
import os, sys
from pathlib import Path
from initmem import files
os.fsync = lambda descriptor: os.kill(os.getpid(), 9)
files.write_atomic(Path(sys.argv[1]), b"half of it")
"""


@pytest.mark.parametrize(
    "words",
    [
        ("report", "STORE", "-o", "OUT/a.html"),
        ("archive", "STORE", "-o", "OUT/a.initmem"),
        ("figure", "scale", "STORE", "-o", "OUT/a.svg"),
        ("table", "1", "STORE", "-o", "OUT/a.md"),
        ("export", "STORE", "--to", "csv", "-o", "OUT"),
    ],
    ids=lambda words: words[0],
)
def test_a_file_for_the_user_takes_old_halves_away(words: tuple[str, ...], tmp_path: Path, command) -> None:
    study = planted.study("small", planted.grid(optimizer=["sgd"]))
    store = Store.create(tmp_path / "store")
    store.add_study(study)
    store.commit(planted.records(study))
    folder = tmp_path / "out"
    folder.mkdir()
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    killed = subprocess.run(
        [sys.executable, "-c", KILLED, str(folder / "a.html")], env=environment, check=False
    )
    (half,) = folder.iterdir()
    assert killed.returncode == -9 and half.read_bytes() == b"half of it"
    running = temporary(folder / "a.html")
    running.touch()
    mine = folder / ".notes.tmp"
    mine.touch()
    names = {"STORE": str(store.path), "OUT": str(folder)}
    code, _, complaint = command(
        *(word.replace("OUT", names["OUT"]).replace("STORE", names["STORE"]) for word in words)
    )
    assert (code, complaint) == (0, "")
    assert not half.exists()
    assert running.exists() and mine.exists()  # of a living process, and of the user
