"""The names of all files of a store, in one place.

STORE/store.json                 format of the store
STORE/studies/NAME.PRESET.json   the studies that were requested
STORE/runs/ID/claim.json         while a worker trains the run
STORE/runs/ID/history.jsonl      while it trains: one line per epoch, for the board and the progress bar
STORE/runs/ID/checkpoint-UPDATE.safetensors  to resume from
STORE/runs/ID/faults.jsonl       what went wrong so far: one line per fault
STORE/runs/ID/hang.txt           with a time limit: where the worker was when it was ended
STORE/runs/ID/record.json        when the run is done; then it is the only file of the run
STORE/pending/*.json             records of a pack that are decided, but not all of them visible yet
STORE/aside/                     files moved out of the way: damaged, or of crashed runs tried again
"""

from __future__ import annotations

import hashlib
import re
import string
import uuid
from contextlib import suppress
from pathlib import Path

from initmem.errors import StoreError
from initmem.files import make_folder, names

PLAIN = frozenset(string.ascii_letters + string.digits + "-_")
LONGEST_NAME = 60
RUN_ID = re.compile("[0-9a-f]{16}")
_CHECKPOINT = re.compile(r"checkpoint-([0-9]{1,12})\.safetensors")


def file_name(name: str) -> str:
    """Any name as a file name: different names stay different, and none leaves its folder."""
    if name and len(name) <= LONGEST_NAME and PLAIN.issuperset(name):
        return name
    digest = hashlib.sha256(name.encode(errors="surrogatepass")).hexdigest()[:8]
    return "".join(c if c in PLAIN else "_" for c in name[:LONGEST_NAME]) + f"~{digest}"


def default_store(name: str) -> Path:
    """The store of a study or pipeline, unless the user names another one."""
    return Path("runs") / file_name(name)


class Paths:
    """Where everything in a store is. No name in a file of the store becomes a path."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.format = root / "store.json"
        self.lock = root / ".lock"
        self.studies = root / "studies"
        self.runs = root / "runs"
        self.pending = root / "pending"
        self.aside = root / "aside"

    def study(self, name: str, preset: str) -> Path:
        """The file of a study at one preset."""
        return self.studies / f"{file_name(name)}.{file_name(preset)}.json"

    def stop_sign(self, session: str) -> Path:
        """A file that asks the workers of one session to stop."""
        return self.root / f".stop-{session}"

    def run(self, run_id: str) -> Path:
        """The folder of a run."""
        if not RUN_ID.fullmatch(run_id):
            raise StoreError(f"run id {run_id!r} (allowed: 16 hexadecimal digits)")
        return self.runs / run_id

    def run_ids(self) -> list[str]:
        """The ids of all runs that have a folder, in order."""
        return list(filter(RUN_ID.fullmatch, names(self.runs)))

    def record(self, run_id: str) -> Path:
        """The record of a run."""
        return self.run(run_id) / "record.json"

    def claim(self, run_id: str) -> Path:
        """The claim on a run."""
        return self.run(run_id) / "claim.json"

    def history(self, run_id: str) -> Path:
        """The epochs of a run in training."""
        return self.run(run_id) / "history.jsonl"

    def faults(self, run_id: str) -> Path:
        """What went wrong with a run so far."""
        return self.run(run_id) / "faults.jsonl"

    def hang(self, run_id: str) -> Path:
        """Where the worker of a run was when a time limit ended it."""
        return self.run(run_id) / "hang.txt"

    def checkpoint(self, run_id: str, update: int) -> Path:
        """The checkpoint of a run after so many updates."""
        return self.run(run_id) / f"checkpoint-{update}.safetensors"

    def checkpoints(self, run_id: str) -> set[int]:
        """The updates after which a run has a checkpoint."""
        files = names(self.run(run_id))
        return {int(match[1]) for name in files if (match := _CHECKPOINT.fullmatch(name))}

    def make_run(self, run_id: str) -> Path:
        """The folder of a run, made if need be."""
        folder = self.run(run_id)
        make_folder(folder)
        return folder

    def move_aside(self, path: Path, name: str) -> Path:
        """Move a file out of the way, under a unique name; where it is now."""
        make_folder(self.aside)
        target = self.aside / f"{name}-{uuid.uuid4().hex[:8]}.json"
        with suppress(FileNotFoundError):  # another process may have done it
            path.replace(target)
        return target
