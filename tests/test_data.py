from __future__ import annotations

import pwd
from pathlib import Path

import numpy as np
import pytest

from initmem import study_file
from initmem.data.cache import cache_dir
from initmem.data.dataset import Dataset, Examples, hold_out
from initmem.data.sources import load, sizes
from initmem.errors import DataError
from initmem.recipe import Recipe


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("digits", (1078, 359, 360)),
        ("synthetic", (720, 240, 240)),
        ("synthetic:101x3x9x10", (60, 20, 21)),
    ],
)
def test_sizes_are_those_of_the_data(name: str, expected: tuple[int, int, int]) -> None:
    recipe = Recipe(dataset=name)
    data, expected_sizes = load(recipe), sizes(recipe)
    assert (len(data.train), len(data.val), len(data.test)) == expected == expected_sizes[:3]
    assert data.sizes.shape == expected_sizes.shape
    assert data.classes == expected_sizes.classes == len(np.unique(data.train.y))
    assert data.train.x.min() >= 0
    assert data.train.x.max() <= 1


def test_the_split_loses_and_doubles_nothing() -> None:
    from sklearn.datasets import load_digits

    data = load(Recipe(dataset="digits"))
    rows = np.concatenate([data.train.x, data.val.x, data.test.x]).reshape(1797, -1) * 16
    original = load_digits().data
    assert np.array_equal(np.sort(rows.round(), axis=0), np.sort(original, axis=0))
    labels = np.concatenate([data.train.y, data.val.y, data.test.y])
    assert np.array_equal(np.bincount(labels), np.bincount(load_digits().target))


def test_the_split_is_the_fixed_permutation() -> None:
    kept, out = hold_out(50_000, 10_000)
    expected = np.random.RandomState(42).permutation(50_000)
    assert np.array_equal(out, expected[:10_000])
    assert np.array_equal(kept, expected[10_000:])


@pytest.mark.parametrize(("split", "n"), [("val", 359), ("test", 360)])
def test_the_first_of_the_other_splits_too(split: str, n: int) -> None:
    whole, part = (
        load(Recipe(dataset="digits")),
        load(Recipe.parse({"dataset": "digits", f"{split}_size": 50})),
    )
    for name in ("train", "val", "test"):
        first = 50 if name == split else None
        assert np.array_equal(getattr(part, name).x, getattr(whole, name).x[:first])
        assert np.array_equal(getattr(part, name).y, getattr(whole, name).y[:first])
    for asked in (load, sizes):
        with pytest.raises(DataError, match=rf"^{split}_size = 500 .allowed: 1 to {n} for digits.$"):
            asked(Recipe.parse({"dataset": "digits", f"{split}_size": 500}))
    assert sizes(Recipe.parse({"dataset": "digits", f"{split}_size": 50})) == part.sizes


def test_train_size_takes_the_first_of_the_training_split() -> None:
    whole, part = load(Recipe(dataset="digits")), load(Recipe(dataset="digits", train_size=100))
    assert np.array_equal(part.train.x, whole.train.x[:100])
    assert len(part.val) == len(whole.val)
    assert sizes(Recipe(dataset="digits", train_size=100)).n_train == 100
    with pytest.raises(DataError, match=r"train_size = 5000 .allowed: 1 to 1078"):
        load(Recipe(dataset="digits", train_size=5000))


def test_npz_with_its_own_test_part(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    path = tmp_path / "mine.npz"
    x = rng.integers(0, 256, (50, 8, 8, 3), dtype=np.uint8)
    np.savez(path, x_train=x, y_train=np.arange(50) % 5, x_test=x[:10], y_test=np.arange(10) % 5)
    data = load(Recipe(dataset=str(path)))
    assert (len(data.train), len(data.val), len(data.test), data.classes) == (40, 10, 10, 5)
    assert data.train.x.dtype == np.uint8
    assert data.sizes.shape == (3, 8, 8)


def test_an_npz_that_changed_after_the_study_was_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "mine.npz"
    rng = np.random.default_rng(0)
    y = np.arange(40) % 2
    np.savez(path, x=rng.random((40, 4)), y=y)
    recipe = study_file.single([f"dataset={path}", "model=mlp"])
    assert len(load(recipe).train) == 24
    np.savez(path, x=rng.random((40, 4)), y=y)
    for read in (load, sizes):
        with pytest.raises(DataError, match=r"mine\.npz: changed since the study was read"):
            read(recipe)


def test_npz_floats_are_scaled_by_the_range_of_the_training_part(tmp_path: Path) -> None:
    path = tmp_path / "table.npz"
    x = np.linspace(-2, 2, 30 * 4).reshape(30, 4)
    np.savez(path, x_train=x, y_train=np.arange(30) % 2, x_test=2 * x, y_test=np.arange(30) % 2)
    data = load(Recipe(dataset=str(path), model="mlp"))
    assert data.sizes.shape == (4, 1, 1)
    assert np.isclose(max(data.train.x.max(), data.val.x.max()), 1)
    assert np.isclose(data.test.x.max(), 1.5)


BAD = {
    "no labels": ({"x": np.zeros((30, 4))}, "contains x .needed: x and y"),
    "lengths": ({"x": np.zeros((30, 4)), "y": np.zeros(29, int)}, "30 examples, y has 29"),
    "float labels": ({"x": np.zeros((30, 4)), "y": np.zeros(30)}, "y is float64"),
    "objects": ({"x": np.array([None] * 30), "y": np.zeros(30, int)}, "not a readable .npz"),
    "not finite": ({"x": np.full((30, 4), np.nan), "y": np.zeros(30, int)}, "not finite"),
    "few": ({"x": np.zeros((3, 4)), "y": np.zeros(3, int)}, "at least 20"),
    "shape": ({"x": np.zeros(30), "y": np.zeros(30, int)}, "needed: numbers of shape"),
    "negative": (
        {"x": np.zeros((30, 4)), "y": np.full(30, -1)},
        "labels from -1 to -1 .allowed: 0 to",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_npz_is_explained(tmp_path: Path, case: str) -> None:
    arrays, says = BAD[case]
    path = tmp_path / "bad.npz"
    np.savez(path, **arrays)
    with pytest.raises(DataError, match=says):
        load(Recipe(dataset=str(path)))


def test_a_broken_or_missing_npz_is_explained(tmp_path: Path) -> None:
    path = tmp_path / "broken.npz"
    path.write_bytes(b"PK\x03\x04 this is no archive")
    with pytest.raises(DataError, match="not a readable"):
        load(Recipe(dataset=str(path)))
    with pytest.raises(DataError, match="No such file"):
        load(Recipe(dataset=str(tmp_path / "none.npz")))


@pytest.mark.parametrize(
    "name",
    [
        "synthetic:10",
        "synthetic:0x1x8x8",
        "synthetic:ax1x8x8",
        "synthetic:5x1x8x8",
        "synthetic:99999999x3x32x32",
        f"synthetic:{'9' * 5000}x1x8x8",
    ],
)
def test_a_bad_synthetic_shape_is_explained(name: str) -> None:
    with pytest.raises(DataError, match="allowed"):
        load(Recipe(dataset=name))


def test_no_home_directory_is_one_line(monkeypatch) -> None:
    def nobody(uid: int) -> None:
        raise KeyError(uid)

    for name in ("HOME", "XDG_CACHE_HOME", "INITMEM_DATA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", nobody)
    with pytest.raises(DataError, match=r"no home directory .*INITMEM_DATA"):
        cache_dir()
    monkeypatch.setenv("INITMEM_DATA", "~/data")
    with pytest.raises(DataError, match="no home directory"):
        cache_dir()
    monkeypatch.setenv("INITMEM_DATA", "/data")
    assert cache_dir() == Path("/data")
    monkeypatch.delenv("INITMEM_DATA")
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert cache_dir() == Path("/xdg/initmem")


def own_arrays(path: Path, **inputs: np.ndarray) -> Dataset:
    labels = {name.replace("x", "y", 1): np.arange(len(x)) % 3 for name, x in inputs.items()}
    np.savez(path, **inputs, **labels)
    return load(Recipe(dataset=str(path)))


def unit(examples: Examples) -> np.ndarray:
    """Inputs as a batch has them."""
    return examples.x / 255 if examples.x.dtype == np.uint8 else examples.x


def test_masks_of_bytes_are_not_divided(tmp_path: Path) -> None:
    masks = np.random.default_rng(0).integers(0, 2, (30, 4, 4), dtype=np.uint8)
    data = own_arrays(tmp_path / "own.npz", x=masks)
    assert unit(data.train).max() == 1.0
    dark = np.random.default_rng(0).integers(0, 256, (30, 4, 4), dtype=np.uint8)
    for train, test in ((dark, masks), (masks, dark)):  # one of them shows that these are bytes
        kept = own_arrays(tmp_path / "two.npz", x_train=train, x_test=test)
        assert kept.train.x.dtype == kept.test.x.dtype == np.uint8


def test_parts_in_different_units_are_refused(tmp_path: Path) -> None:
    fractions = np.random.default_rng(0).random((30, 4, 4))
    pixels = (255 * fractions).astype(np.uint8)
    for train, test in ((fractions, 255 * fractions), (fractions, pixels), (pixels, fractions)):
        with pytest.raises(DataError, match=r"x_train and x_test are .*needed: the same type and unit"):
            own_arrays(tmp_path / "own.npz", x_train=train, x_test=test)
    data = own_arrays(tmp_path / "own.npz", x_train=4 * fractions, x_test=8 * fractions)
    assert data.train.x.max() <= 1 < data.test.x.max()  # by the range of the training part
