"""A working directory for every run, so that parallel runs never read each other's files.

Training code writes `best_model.pt` to a relative path, and reads it back at the end. In a directory that
runs share, each would load whatever run wrote last. So every run gets a temporary directory that mirrors the
one in which the study was started:

files           copied, the smallest first; beyond `MOST_COPIED` bytes, symbolic links to the originals
folders         mirrored; those with many files (datasets, environments) are links
stores          left out, and the directories of other runs
around it       links, so that `../data` works

Relative paths to inputs work as before, new files stay with the run that wrote them. The directory is removed
after the run, or kept and named in the record if the run crashes or its worker is lost. What changed behind
links in it, and which files were removed with it, is in the record, and the result of the study repeats it.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import chdir, contextmanager, suppress
from itertools import chain, islice
from pathlib import Path

from initmem.engines.provenance import WORKDIR, kept_workdir, workdir_prefix
from initmem.engines.worker import is_for_engine
from initmem.errors import ConfigError, allowed
from initmem.files import sweep, temporary_folder

MOST_COPIED = 64 * 2**20  # bytes of all copies; beyond that files are links
MOST_FILES = 1000  # of a folder that is mirrored, and of all mirrored folders
MOST_CHECKED = 5000  # files behind links that are checked for changes
MOST_NAMED = 10  # files in a record
CACHES = ("__pycache__", ".git", ".venv", ".mypy_cache", ".ruff_cache", ".pytest_cache", "wandb")  # or logs
CHOICES = ("own", "shared")
CHANGED, REMOVED = "shared_files_changed", "files_removed"  # in a record: behind links, and in copies


def project_of(workdir: str) -> Path | None:
    """The directory that runs mirror: the present one; None where they share it."""
    if workdir not in CHOICES:
        raise ConfigError(f"workdir = {workdir!r} ({allowed(CHOICES)})")
    sweep(Path(tempfile.gettempdir()))  # what killed workers of earlier studies left
    return Path.cwd() if workdir == "own" else None


@contextmanager
def own_workdir(project: Path | None, run_id: str) -> Iterator[Workdir | None]:
    """A working directory for one run; what user code raises carries its path into the crashed record."""
    if project is None:
        yield None
        return
    sweep(Path(tempfile.gettempdir()), workdir_prefix(run_id))  # what a killed worker left of this run
    with temporary_folder(workdir_prefix(run_id)) as root:
        workdir = Workdir(root, project)
        try:
            yield workdir
        except BaseException as error:
            if not is_for_engine(error):
                about: dict[str, object] = {}
                with suppress(OSError):  # the disk is full: nothing is kept, the user's error tells more
                    workdir.root = kept_workdir(root, run_id)
                    about["workdir"] = str(workdir.path)
                about |= {kind: names for kind, names in workdir.changes().items() if kind == CHANGED}
                error.provenance = about  # type: ignore[attr-defined]
            raise


class Workdir:
    """A directory below a root that mirrors another one; empty where this machine does not have that."""

    def __init__(self, root: Path, project: Path) -> None:
        self.root, self.project = root, project
        self._files, self._bytes = MOST_FILES, MOST_COPIED  # that may still be mirrored
        self._links: list[Path] = []  # originals
        self.path.mkdir(parents=True, exist_ok=True)
        if project.is_dir():
            self._mirror(project, self.path)
            self._link_surroundings()
        self._before = self._stamps()

    @property
    def path(self) -> Path:
        """The directory itself; around it are links to what is around the project."""
        return self.root.joinpath(*self.project.parts[1:])

    def changes(self) -> dict[str, list[str]]:
        """Files behind links that have changed since the directory was made, and its own that are new."""
        changed = {what for what, _ in self._before.items() ^ self._stamps().items()}
        by_kind = {kind: sorted(name for one, name in changed if one == kind) for kind in (CHANGED, REMOVED)}
        return {kind: names[:MOST_NAMED] for kind, names in by_kind.items() if names}

    def _mirror(self, source: Path, target: Path) -> None:
        """Files before folders, so that what is near the top is copied if not everything can be."""
        folders = []
        with os.scandir(source) as listed:
            entries = sorted(listed, key=_size)
        for entry in entries:
            copy, size = target / entry.name, _size(entry)
            is_within = size <= self._bytes and self._files > 0
            if entry.is_file() and not entry.is_symlink() and is_within:
                self._bytes -= size
                self._files -= 1
                try:
                    shutil.copy2(entry.path, copy)
                except OSError:  # it went meanwhile, or may not be read
                    copy.unlink(missing_ok=True)
                    self._link(Path(entry.path), copy)
            elif not entry.is_dir() or entry.is_symlink() or entry.name in CACHES:
                self._link(Path(entry.path), copy)
            elif not is_left_out(Path(entry.path)):
                folders.append((Path(entry.path), copy))
        for folder, copy in folders:
            names = (name for _, inner, files in _walk(folder) for name in (*inner, *files))
            is_large = next(islice(names, self._files, None), None) is not None
            if is_large or not os.access(folder, os.R_OK | os.X_OK):
                self._link(folder, copy)
            else:
                copy.mkdir()
                with suppress(FileNotFoundError):  # it went meanwhile
                    self._mirror(folder, copy)

    def _link(self, source: Path, target: Path) -> None:
        target.symlink_to(source.resolve(), target_is_directory=source.is_dir())
        if source.name not in CACHES:
            self._links.append(source)

    def _link_surroundings(self) -> None:
        """Link what is next to the project and to the folders that hold it."""
        for folder in self.project.parents:
            copy = self.root.joinpath(*folder.parts[1:])
            with suppress(OSError), os.scandir(folder) as entries:  # it may not be listed
                for entry in islice(entries, MOST_FILES):
                    if not (copy / entry.name).is_symlink() and not (copy / entry.name).exists():
                        (copy / entry.name).symlink_to(entry.path)

    def _stamps(self) -> dict[tuple[str, str], tuple[int, int]]:
        """Size and time of the last change of files, by kind and name."""
        linked = islice(chain.from_iterable(map(_files, self._links)), MOST_CHECKED)
        files = [(CHANGED, self.project, path) for path in linked]
        files += [(REMOVED, self.path, path) for path in _files(self.path) if not path.is_symlink()]
        stamps = {}
        for kind, root, path in files:
            with suppress(OSError):  # it went meanwhile
                status = path.stat()
                stamps[kind, os.path.relpath(path, root)] = (status.st_size, status.st_mtime_ns)
        return stamps


@contextmanager
def working_in(workdir: Workdir | None) -> Iterator[None]:
    """Make a directory the current one; modules are still imported from the project."""
    if workdir is None:
        yield
        return
    search = list(sys.path)
    sys.path[:] = [str(workdir.project / entry) for entry in search]  # an absolute entry stays as it is
    try:
        with chdir(workdir.path):
            yield
    finally:
        sys.path[:] = search


def _size(entry: os.DirEntry[str]) -> int:
    try:
        return entry.stat().st_size
    except OSError:
        return 0  # a link that leads nowhere


def _files(path: Path) -> Iterator[Path]:
    """The files of a folder and of those in it, except for caches and stores; a file is its own."""
    if not path.is_dir():
        yield path
    for folder, _, names in _walk(path):
        yield from (Path(folder, name) for name in names)


def _walk(path: Path) -> Iterator[tuple[str, list[str], list[str]]]:
    for folder, folders, names in os.walk(path):
        inner = [name for name in folders if name not in CACHES and not is_left_out(Path(folder, name))]
        folders[:] = sorted(inner)
        yield folder, folders, names


def is_left_out(folder: Path) -> bool:
    """Whether a folder is a store or belongs to another run."""
    is_store = os.path.exists(folder / "store.json")  # noqa: PTH110 - it never raises
    return is_store or folder.name.startswith((WORKDIR, f".{WORKDIR}"))
