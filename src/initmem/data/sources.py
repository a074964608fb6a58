"""The sources of datasets: bundled ones by name, a user's .npz or text file, and what plugins registered."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from initmem import register
from initmem.data import cache, tokens
from initmem.data.bundled import BUNDLED
from initmem.data.dataset import Dataset, Examples, Sizes, read_file, split, split_three
from initmem.errors import DataError
from initmem.recipe import SPLIT_SIZES, AnyRecipe, Recipe, network_of

SYNTHETIC_SHAPE = (1200, 1, 8, 8)
SYNTHETIC_CLASSES = 10
LARGEST_SYNTHETIC = 1 << 30  # values
NPZ_KEYS = "x and y, or x_train, y_train, x_test and y_test"
NPZ_NAMES = (("x_train", "y_train", "x_test", "y_test"), ("x", "y"))
LARGEST_FILE = 1 << 35  # bytes
MOST_CLASSES = 100_000

Arrays = dict[str, NDArray[Any]]


def load(recipe: AnyRecipe) -> Dataset:
    """Load the dataset that a recipe trains on."""
    recipe = network_of(recipe)
    dataset = _named(recipe.dataset, recipe.data_sha256)
    _limited(dataset.sizes, recipe)
    return dataset.limited(recipe.train_size, recipe.val_size, recipe.test_size, recipe.test_unused)


def sizes(recipe: AnyRecipe) -> Sizes:
    """The sizes of a recipe's dataset; only the user's own data have to be read for them."""
    recipe = network_of(recipe)
    return _limited(_sizes(recipe.dataset, recipe.data_sha256), recipe)


def check(recipe: AnyRecipe) -> None:
    """Check cheaply that a recipe's dataset is available."""
    recipe = network_of(recipe)
    row = BUNDLED.get(recipe.dataset.split(":")[0])
    if row is not None and row.source != "download":
        return
    if recipe.dataset in BUNDLED:
        cache.cached(recipe.dataset)
    else:
        load(recipe)


def _named(name: str, sha256: str | None) -> Dataset:
    if name.endswith(".npz"):
        return _from_arrays(name, _read_npz(Path(name), sha256))
    match name.split(":")[0]:
        case "synthetic":
            return _synthetic(*synthetic_shape(name))
        case "modular-addition":
            return tokens.modular_addition(name)
        case "text":
            return tokens.characters(name, sha256)
    if name == "digits":
        return _digits()
    return cache.load_images(name) if name in BUNDLED else _registered(name)


def _sizes(name: str, sha256: str | None) -> Sizes:
    match name.split(":")[0]:
        case "synthetic":
            n, channels, height, width = synthetic_shape(name)
            return Sizes(*split_three(n), channels, height, width, SYNTHETIC_CLASSES)
        case "modular-addition":
            return tokens.modular_sizes(name)
        case "text":
            return tokens.text_sizes(name) or _named(name, sha256).sizes
    if name not in BUNDLED:
        return _named(name, sha256).sizes
    row = BUNDLED[name]
    return Sizes(*row.splits, *row.shape, row.classes)


def _limited(full: Sizes, recipe: Recipe) -> Sizes:
    """The sizes of the splits that a recipe uses, which are at most the full ones."""
    used = {field: getattr(recipe, field) or n for field, n in zip(SPLIT_SIZES, full, strict=False)}
    too_large = [
        f"{field} = {used[field]} (allowed: 1 to {n} for {recipe.dataset})"
        for field, n in zip(SPLIT_SIZES, full, strict=False)
        if used[field] > n
    ]
    if too_large:
        raise DataError("; ".join(too_large))
    unused = full.n_train - used["train_size"] if recipe.test_unused else 0
    return Sizes(used["train_size"], used["val_size"], used["test_size"] + unused, *full[len(used) :])


def _digits() -> Dataset:
    from sklearn.datasets import load_digits

    raw, row = load_digits(), BUNDLED["digits"]
    x = (raw.images / 16).astype(np.float32)[..., None]
    return split("digits", Examples(x, raw.target.astype(np.int64)), None, row.splits[1], row.classes)


def _synthetic(n: int, channels: int, height: int, width: int) -> Dataset:
    """Noisy copies of one random pattern per class: learnable, but not trivially."""
    rng = np.random.default_rng(0)
    patterns = rng.random((SYNTHETIC_CLASSES, height, width, channels), dtype=np.float32)
    y = np.arange(n) % SYNTHETIC_CLASSES
    noise = rng.random((n, height, width, channels), dtype=np.float32)
    x = 0.35 * patterns[y] + 0.65 * noise
    return split("synthetic", Examples(x, y), None, split_three(n)[1], SYNTHETIC_CLASSES)


def synthetic_shape(name: str) -> tuple[int, int, int, int]:
    """Parse `synthetic` or `synthetic:NxCxHxW`: (total examples, channels, height, width)."""
    _, _, text = name.partition(":")
    if not text:
        return SYNTHETIC_SHAPE
    sides = text.split("x")
    if len(sides) != 4 or not all(re.fullmatch("0*[1-9][0-9]{0,9}", side) for side in sides):
        raise DataError(f"dataset = {name!r} (allowed: synthetic:NxCxHxW, as in synthetic:1200x3x32x32)")
    n, channels, height, width = (int(side) for side in sides)
    if n < 20:
        raise DataError(f"dataset = {name!r} (allowed: at least 20 examples)")
    if n * channels * height * width > LARGEST_SYNTHETIC:
        raise DataError(f"dataset = {name!r} (allowed: up to {LARGEST_SYNTHETIC:,} values)")
    return n, channels, height, width


def _registered(name: str) -> Dataset:
    """A dataset of a plugin: arrays under the names of an .npz file."""
    function = register.find_dataset(name)
    if function is None:
        raise DataError(f"dataset = {name!r}: no plugin that registers it is loaded (--plugin MODULE)")
    try:
        arrays = {str(key): np.asarray(value) for key, value in dict(function()).items()}
    except (Exception, SystemExit) as error:  # a plugin may raise anything
        raise DataError(f"dataset = {name!r}: its function raised {register.in_a_line(error)}") from None
    return _from_arrays(name, _chosen(f"dataset = {name!r}", arrays))


def _read_npz(path: Path, sha256: str | None) -> Arrays:
    """Read the arrays of a dataset, and no others, from the very bytes that have this digest."""
    try:
        with np.load(io.BytesIO(read_file(path, LARGEST_FILE, sha256)), allow_pickle=False) as archive:
            return _chosen(str(path), archive)
    except FileNotFoundError:
        raise DataError(f"{path}: no such file") from None
    except DataError:
        raise
    except Exception as error:  # a damaged file can make zipfile and numpy raise anything
        raise DataError(f"{path}: not a readable .npz of plain arrays ({error})") from None


def _chosen(source: str, arrays: Mapping[str, NDArray[Any]]) -> Arrays:
    """The arrays with the expected names."""
    names = next((names for names in NPZ_NAMES if arrays.keys() >= set(names)), None)
    if names is None:
        content = ", ".join(sorted(arrays)) or "nothing"
        raise DataError(f"{source}: contains {content} (needed: {NPZ_KEYS})")
    return {name: arrays[name] for name in names}


def _from_arrays(name: str, arrays: Arrays) -> Dataset:
    """The dataset in x and y, or in x_train, y_train, x_test and y_test."""
    if "x_train" in arrays:
        whole, test = _examples(name, arrays, "_train"), _examples(name, arrays, "_test")
        n_val = len(whole) // 5
        if whole.x.shape[1:] != test.x.shape[1:]:
            raise DataError(f"{name}: x_train and x_test differ in shape")
    else:
        whole, test = _examples(name, arrays, ""), None
        n_val = split_three(len(whole))[1]
    if len(whole) < 20:
        raise DataError(f"{name}: {len(whole)} examples (allowed: at least 20)")
    whole, test = _scaled(whole, whole), test and _scaled(test, whole)
    labels = np.concatenate([whole.y, test.y]) if test is not None else whole.y
    if labels.min() < 0:
        raise DataError(f"{name}: label {labels.min()} (allowed: whole numbers from 0)")
    if labels.max() >= MOST_CLASSES:
        raise DataError(f"{name}: label {labels.max()} (allowed: below {MOST_CLASSES:,})")
    return split(Path(name).stem, whole, test, n_val, int(labels.max()) + 1)


def _examples(name: str, arrays: Arrays, suffix: str) -> Examples:
    """Inputs of shape (example, height, width, channel), as bytes or float32, and their labels."""
    x, y = arrays["x" + suffix], arrays["y" + suffix]
    y = y.reshape(-1) if y.ndim == 2 and y.shape[1] == 1 else y
    if y.ndim != 1 or y.dtype.kind not in "iu":
        raise DataError(f"{name}: y{suffix} is {y.dtype} {y.shape} (needed: whole numbers, one per example)")
    if x.ndim not in (2, 3, 4) or x.dtype.kind not in "uif" or not x.size:
        raise DataError(
            f"{name}: x{suffix} is {x.dtype} {x.shape} "
            "(needed: numbers of shape (n, features), (n, h, w) or (n, h, w, channels))"
        )
    if len(x) != len(y):
        raise DataError(f"{name}: x{suffix} has {len(x)} examples, y{suffix} has {len(y)}")
    if x.ndim == 2:
        x = x[:, None, None, :]
    elif x.ndim == 3:
        x = x[..., None]
    x = x if x.dtype == np.uint8 else x.astype(np.float32)
    if x.dtype == np.float32 and not np.isfinite(x).all():
        raise DataError(f"{name}: some inputs are not finite")
    return Examples(x, y.astype(np.int64))


def _scaled(examples: Examples, reference: Examples) -> Examples:
    """Scale inputs to [0, 1] by the range of the reference examples; bytes are scaled batch by batch."""
    low, high = float(reference.x.min()), float(reference.x.max())
    if examples.x.dtype == np.uint8 or (low >= 0 and high <= 1):
        return examples
    return Examples((examples.x - low) / max(high - low, 1e-12), examples.y)
