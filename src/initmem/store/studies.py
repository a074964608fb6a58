"""The studies that were asked of a store: one file each, with a digest."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from initmem.errors import ConfigError, Damaged, InitmemError, StoreError
from initmem.store.files import move_aside, read_bounded, reason, write_atomic, writes
from initmem.store.paths import Paths
from initmem.study import Study

LARGEST_STUDY = 64 << 20  # bytes


class Studies:
    """The study files of a store."""

    def __init__(self, paths: Paths) -> None:
        self.paths = paths

    @writes
    def add(self, study: Study) -> None:
        """Note what was asked for, in place of the study of the same name and effort."""
        self._rename_old_files()
        write_atomic(self._file(study), encode(study), self.paths.mode)

    def all(self) -> list[Study]:
        """What was asked for, in the order of the file names."""
        return [self._read(path) for path in self._files()]

    @writes
    def move_damaged_aside(self) -> list[str]:
        """Move studies that fail their checksum out of the way, and say which and why."""
        moved = []
        for path in self._files():
            try:
                self._read(path)
            except Damaged as error:
                target = move_aside(path, self.paths, f"study-{path.stem}")
                moved.append(f"{error}; moved to {target}")
        return moved

    def _rename_old_files(self) -> None:
        """Older versions gave studies of different names, as in "a b" and "a_b", the same file."""
        for path in self._files():
            with contextlib.suppress(StoreError, FileNotFoundError):
                proper = self._file(self._read(path))
                if proper.exists() and proper != path:
                    move_aside(path, self.paths, f"study-{path.stem}")
                elif proper != path:
                    path.replace(proper)

    def _file(self, study: Study) -> Path:
        return self.paths.study(study.name, study.effort)

    def _files(self) -> list[Path]:
        return sorted(self.paths.studies.glob("*.json"))

    def _read(self, path: Path) -> Study:
        try:
            return decode(read_bounded(path, LARGEST_STUDY))
        except Damaged as error:
            raise Damaged(f"{path}: damaged study ({error})") from None
        except (OSError, InitmemError) as error:
            raise StoreError(f"{path}: unreadable study ({reason(error)})") from None


def encode(study: Study) -> bytes:
    """A study as a file of a store."""
    content = study.to_json()
    return json.dumps({"sha256": _digest(content)} | content, indent=1).encode() + b"\n"


def decode(data: bytes) -> Study:
    """Read a study file back; anything that is not exactly what was written is an error."""
    try:
        content = json.loads(data)
        said = content.pop("sha256", None)
        fits = said == _digest(content)
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise Damaged(f"{type(error).__name__}: {error}") from None
    if said is not None and not fits:
        raise Damaged("checksum does not match")
    try:
        return Study.from_json(content)
    except ConfigError as error:
        # Only the first stores were written without a checksum: no newer version writes such a file.
        raise (StoreError if fits else Damaged)(str(error)) from None


def _digest(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
