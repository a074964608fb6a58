"""The studies that were asked of a store: one file each, with a digest."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from initmem.errors import InitmemError, StoreError
from initmem.store.files import move_aside, read_bounded, write_atomic, writes
from initmem.store.paths import Paths
from initmem.study import Study

LARGEST_STUDY = 64 << 20  # bytes


class Studies:
    """The study files of a store."""

    def __init__(self, paths: Paths) -> None:
        self.paths = paths

    @writes
    def add(self, study: Study) -> None:
        """Note what was asked for."""
        name = f"{_plain(study.name)}.{_plain(study.effort)}.json"
        write_atomic(self.paths.studies / name, encode(study), self.paths.mode)

    def all(self) -> list[Study]:
        """What was asked for, in the order of the file names."""
        return [self._read(path) for path in self._files()]

    @writes
    def move_damaged_aside(self) -> None:
        """Move studies that cannot be read out of the way."""
        for path in self._files():
            try:
                self._read(path)
            except StoreError:
                move_aside(path, self.paths, f"study-{path.stem}")

    def _files(self) -> list[Path]:
        return sorted(self.paths.studies.glob("*.json"))

    def _read(self, path: Path) -> Study:
        try:
            return decode(read_bounded(path, LARGEST_STUDY))
        except (OSError, InitmemError) as error:
            raise StoreError(
                f"{path}: unreadable study ({error}); initmem run of any study moves it aside"
            ) from None


def encode(study: Study) -> bytes:
    """A study as a file of a store."""
    content = study.to_json()
    return json.dumps({"sha256": _digest(content)} | content, indent=1).encode() + b"\n"


def decode(data: bytes) -> Study:
    """Read a study file back; anything that is not exactly what was written is an error."""
    try:
        content = json.loads(data)
        said = content.pop("sha256", None)  # the first stores were written without
        if said is not None and said != _digest(content):
            raise StoreError("checksum does not match")
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise StoreError(f"{type(error).__name__}: {error}") from None
    return Study.from_json(content)


def _digest(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _plain(name: str) -> str:
    """A study name as a file name: nothing that could leave the directory."""
    return "".join(c if c.isalnum() or c in "-_" else "_" for c in name) or "_"
