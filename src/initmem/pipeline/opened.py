"""Files of the project that training code opens for reading: data and settings are a part of its version.

They are noted while the code runs, by Python's audit events: within a worker process for a function, by a
`sitecustomize` of ours for a program, which also works for Python behind a shell script. Of each file that
the run did not write itself, the record keeps a digest; when the study is started again, it is compared with
the file as it is then. What is opened by compiled code (HDF5, Polars) has no audit events, nor have programs
that are not Python.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from initmem.content import content_digest
from initmem.pipeline.hook import sitecustomize
from initmem.pipeline.source import in_project
from initmem.pipeline.workdir import CACHES, MOST_NAMED, Workdir, is_left_out

MOST_OPENED = 200  # files in a record
HOOK = Path(sitecustomize.__file__).parent
PACKAGE = HOOK.parents[1]

Opened = set[tuple[str, str]]  # (`read` or `written`, absolute path)

_opened: Opened = set()  # by the present run
_before: set[str] = set()  # by earlier runs of this process: a later one may use what they have read
_loaded: set[str] = set()  # files of modules from before: the fingerprint has what is used of them
_is_on = False


def _note(how: str, path: str) -> None:
    if _is_on:
        _opened.add((how, path))


@contextmanager
def noting(*, on: bool) -> Iterator[None]:
    """Note what a run opens in this process, or nothing: what a callback opens is no input of training."""
    global _is_on
    if on:
        _opened.clear()
    if not _loaded:  # the first time: a hook cannot be taken off again
        _loaded.update(str(getattr(module, "__file__", None)) for module in list(sys.modules.values()))
        sitecustomize.watch(_note)
    before, _is_on = _is_on, on
    try:
        yield
    finally:
        _is_on = before


def opened_here(workdir: Workdir | None, started: float) -> dict[str, Any]:
    """For the record of a run: what this process has opened, and the versions of what it imported."""
    about = _about({what for what in _opened if what[1] not in _loaded}, workdir, started, _before)
    _before.update(about["opened"])
    return about | {"versions": sitecustomize.versions()}


def environment_of(log: Path) -> dict[str, str]:
    """The environment of a program that notes what it opens."""
    path = os.pathsep.join(filter(None, [str(HOOK), os.environ.get("PYTHONPATH", "")]))
    return os.environ | {"PYTHONPATH": path, sitecustomize.LOG: str(log)}


def opened_by_program(log: Path, workdir: Workdir | None, started: float) -> dict[str, Any]:
    """For the record of a run: what its program has opened and imported, as far as it is known."""
    lines = log.read_bytes().decode("utf-8", "surrogateescape").splitlines() if log.exists() else []
    parts = [line.partition(" ")[::2] for line in lines]
    versions = dict(text.rsplit(" ", 1) for kind, text in parts if kind == "version")
    if not versions:
        return {"files_unknown": True}
    files = {(kind, text) for kind, text in parts if kind != "version"}
    return _about(files, workdir, started) | {"python": versions["python"], "versions": versions}


def _about(
    files: Opened, workdir: Workdir | None, started: float, before: Iterable[str] = ()
) -> dict[str, Any]:
    project = workdir.project if workdir else Path.cwd()
    roots = [workdir.path, project] if workdir else [project]
    written = set(_relative((path for how, path in files if how == "written"), roots))
    read = set(_relative((path for how, path in files if how == "read"), roots))
    digests, changed = {}, []
    for name in sorted(read | set(before)):
        path = next((root / name for root in roots if (root / name).is_file()), None)
        if path is None or not _counts(project / name, project):
            continue
        if name not in written and path.stat().st_mtime < started:
            digests[name] = content_digest(path)
        elif name in read:
            changed.append(name)
    about: dict[str, Any] = {"project": str(project), "opened": dict(list(digests.items())[:MOST_OPENED])}
    if len(digests) > MOST_OPENED:
        about["opened_more"] = len(digests) - MOST_OPENED
    if changed and workdir is None:  # another run may have written what this one read
        about["shared_files_changed"] = changed[:MOST_NAMED]
    return about


def _relative(paths: Iterable[str], roots: list[Path]) -> Iterator[str]:
    """Paths below one of the roots, relative to it; compiled Python by its source."""
    for path in paths:
        for root in map(str, roots):
            if path.startswith(root.rstrip("/") + "/"):
                file = Path(path)
                if file.parent.name == "__pycache__" and file.suffix == ".pyc":  # whatever tag it has
                    file = file.parents[1] / f"{file.name.partition('.')[0]}.py"
                yield os.path.relpath(file, root)
                break


def _counts(path: Path, project: Path) -> bool:
    """Caches, stores and installed packages do not, nor what the project does not have."""
    if path.is_relative_to(PACKAGE):
        return False
    parents = path.parents[: len(path.parents) - len(project.parents) - 1]
    left_out = any(parent.name in CACHES or is_left_out(parent) for parent in parents)
    return not left_out and path.is_file() and in_project(path)
