"""The sources of datasets: bundled ones by name, a user's .npz or text file, and what plugins registered."""

from __future__ import annotations

import math
import re
from pathlib import Path

import numpy as np

from initmem import register
from initmem.catalog import DATASETS
from initmem.data import cache
from initmem.data.dataset import (
    Arrays,
    Dataset,
    Examples,
    Sizes,
    chosen,
    hold_out,
    read_file,
    read_npz,
    split,
    split_three,
)
from initmem.errors import DataError
from initmem.files import reason
from initmem.recipe import SPLIT_SIZES, AnyRecipe, Recipe

SYNTHETIC_SHAPE = (1200, 1, 8, 8)
SYNTHETIC_CLASSES = 10
LARGEST_SYNTHETIC = 1 << 30  # values
MOST_CLASSES = 100_000
PIXEL = 100.0  # inputs of at least this are no fractions
MODULUS, FRACTION = 97, 0.5
LARGEST_MODULUS = 1000
LENGTH = 64  # characters of an example
LARGEST_TEXT = 1 << 28  # bytes
CORPUS_LENGTH, CORPUS_VOCABULARY = 5_057_239, 84  # characters of the bundled corpus, and how many differ
HELD_OUT = 0.1  # of a text, for validation, and as much for testing


def load(recipe: AnyRecipe) -> Dataset:
    """Load the dataset that a recipe trains on."""
    recipe = recipe.network
    dataset = _named(recipe.dataset, recipe.data_sha256)
    _limited(dataset.sizes, recipe)
    return dataset.limited(recipe.train_size, recipe.val_size, recipe.test_size, recipe.test_unused)


def sizes(recipe: AnyRecipe) -> Sizes:
    """The sizes of a recipe's dataset; only the user's own data have to be read for them."""
    recipe = recipe.network
    full = _named_sizes(recipe.dataset) or _named(recipe.dataset, recipe.data_sha256).sizes
    return _limited(full, recipe)


def sizes_by_name(recipe: Recipe) -> Sizes | None:
    """The same, where the name of the dataset tells them: nothing is read."""
    full = _named_sizes(recipe.dataset)
    return full and _limited(full, recipe)


def check(recipe: AnyRecipe) -> None:
    """Check that a bundled dataset has been downloaded; the user's own data are read for their `sizes`."""
    name = recipe.network.dataset
    kind = name.split(":")[0]
    if kind in DATASETS and DATASETS[kind].source == "download" and name.count(":") < 2:
        cache.cached(kind)


def _named(name: str, sha256: str | None) -> Dataset:
    if name.endswith(".npz"):
        return _from_arrays(name, read_npz(Path(name), sha256))
    match name.split(":")[0]:
        case "synthetic":
            return _synthetic(*synthetic_shape(name))
        case "modular-addition":
            return _modular_addition(name)
        case "text":
            return _characters(name, sha256)
    if name == "digits":
        return _digits()
    return cache.load_images(name) if name in DATASETS else _registered(name)


def _named_sizes(name: str) -> Sizes | None:
    """None: the user's own data would have to be read."""
    match name.split(":")[0]:
        case "synthetic":
            n, channels, height, width = synthetic_shape(name)
            return Sizes(*split_three(n), channels, height, width, SYNTHETIC_CLASSES)
        case "modular-addition":
            return _modular_addition(name).sizes
        case "text":
            length, path = _text_source(name)
            windows = (CORPUS_LENGTH - 1) // length
            out, tokens = round(HELD_OUT * windows), (CORPUS_VOCABULARY, CORPUS_VOCABULARY, length)
            return None if path else Sizes(windows - 2 * out, out, out, 1, 1, length, *tokens)
    row = DATASETS.get(name)
    return Sizes(*row.splits, *row.shape, row.classes) if row else None


def _limited(full: Sizes, recipe: Recipe) -> Sizes:
    """The sizes of the splits that a recipe uses, which are at most the full ones."""
    used = {field: getattr(recipe, field) or n for field, n in zip(SPLIT_SIZES, full, strict=False)}
    for field, n in zip(SPLIT_SIZES, full, strict=False):
        if used[field] > n:
            raise DataError(f"{field} = {used[field]} (allowed: 1 to {n} for {recipe.dataset})")
    unused = full.n_train - used["train_size"] if recipe.test_unused else 0
    return Sizes(used["train_size"], used["val_size"], used["test_size"] + unused, *full[len(used) :])


def _digits() -> Dataset:
    from sklearn.datasets import load_digits

    raw, row = load_digits(), DATASETS["digits"]
    x = (raw.images / 16).astype(np.float32)[..., None]
    return split(Examples(x, raw.target.astype(np.int64)), None, row.splits[1], row.classes)


def _synthetic(n: int, channels: int, height: int, width: int) -> Dataset:
    """Noisy copies of one random pattern per class: learnable, but not trivially."""
    rng = np.random.default_rng(0)
    patterns = rng.random((SYNTHETIC_CLASSES, height, width, channels), dtype=np.float32)
    y = np.arange(n) % SYNTHETIC_CLASSES
    noise = rng.random((n, height, width, channels), dtype=np.float32)
    x = 0.35 * patterns[y] + 0.65 * noise
    return split(Examples(x, y), None, split_three(n)[1], SYNTHETIC_CLASSES)


def synthetic_shape(name: str) -> tuple[int, int, int, int]:
    """Parse `synthetic` or `synthetic:NxCxHxW`: (total examples, channels, height, width)."""
    _, _, text = name.partition(":")
    if not text:
        return SYNTHETIC_SHAPE
    parts = text.split("x")
    sides = [int(part) for part in parts if re.fullmatch("0*[1-9][0-9]{0,9}", part)]
    if not len(parts) == len(sides) == 4 or sides[0] < 20 or math.prod(sides) > LARGEST_SYNTHETIC:
        raise DataError(
            f"dataset = {name!r} (allowed: synthetic:NxCxHxW, as in synthetic:1200x3x32x32; "
            f"at least 20 examples, up to {LARGEST_SYNTHETIC:,} values)"
        )
    n, channels, height, width = sides
    return n, channels, height, width


def _registered(name: str) -> Dataset:
    """A dataset of a plugin: arrays under the names of an .npz file."""
    function = register.datasets.find(name)
    if function is None:
        raise DataError(f"dataset = {name!r}: no plugin that registers it is loaded (--plugin MODULE)")
    try:
        arrays = {str(key): np.asarray(value) for key, value in dict(function()).items()}
    except (Exception, SystemExit) as error:  # a plugin may raise anything
        raise DataError(f"dataset = {name!r}: its function raised {register.in_a_line(error)}") from None
    return _from_arrays(name, chosen(f"dataset = {name!r}", arrays))


def _from_arrays(name: str, arrays: Arrays) -> Dataset:
    """The dataset in x and y, or in x_train, y_train, x_test and y_test."""
    suffixes = ("_train", "_test") if "x_train" in arrays else ("",)
    parts = [_examples(name, arrays, suffix) for suffix in suffixes]
    if len({part.x.shape[1:] for part in parts}) > 1:
        raise DataError(f"{name}: x_train and x_test differ in shape")
    if len(parts[0]) < 20:
        raise DataError(f"{name}: {len(parts[0])} examples (allowed: at least 20)")
    parts = _in_one_unit(name, parts)
    labels = np.concatenate([part.y for part in parts])
    if not 0 <= labels.min() <= labels.max() < MOST_CLASSES:
        raise DataError(
            f"{name}: labels from {labels.min()} to {labels.max()} (allowed: 0 to {MOST_CLASSES - 1:,})"
        )
    whole, *test = parts
    return split(whole, test[0] if test else None, len(whole) // 5, int(labels.max()) + 1)


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


def _in_one_unit(name: str, parts: list[Examples]) -> list[Examples]:
    """Inputs in [0, 1], by the range of the training part; bytes stay bytes and are scaled batch by batch.

    Masks of 0 and 1 stay what they are. Bytes next to other numbers, and pixels next to fractions, are
    refused.
    """
    lowest, highest = zip(*((float(part.x.min()), float(part.x.max())) for part in parts), strict=True)
    kinds = {part.x.dtype == np.uint8 for part in parts}
    if kinds == {True} and max(highest) > 1:
        return parts
    if len(kinds) > 1 or (min(lowest) >= 0 and min(highest) <= 1 and max(highest) >= PIXEL):
        about = " and ".join(f"{p.x.dtype} from {p.x.min():g} to {p.x.max():g}" for p in parts)
        raise DataError(f"{name}: x_train and x_test are {about} (needed: the same type and unit)")
    low, high = lowest[0], highest[0]
    if low >= 0 and high <= 1:
        return [Examples(part.x.astype(np.float32), part.y) for part in parts]
    return [Examples((part.x - low) / max(high - low, 1e-12), part.y) for part in parts]


# -- tokens: sums modulo a number, and the characters of a text -------------------------------------------


def _modular_addition(name: str) -> Dataset:
    """All pairs a, b: tokens `a b =`, label (a + b) mod p. A fixed random fraction is for training."""
    options = name.split(":")[1:]
    try:
        p = int(options[0]) if options else MODULUS
        fraction = float(options[1]) if len(options) > 1 else FRACTION
    except ValueError:
        p = 0
    if len(options) > 2 or not 3 <= p <= LARGEST_MODULUS or not 0 < fraction < 1:
        raise DataError(
            f"dataset = {name!r} (allowed: modular-addition:MODULUS:FRACTION, as in modular-addition:97:0.5; "
            f"modulus 3 to {LARGEST_MODULUS}, fraction of the pairs for training between 0 and 1)"
        )
    a, b = np.divmod(np.arange(p * p), p)
    x = np.stack([a, b, np.full_like(a, p)], axis=1)[:, None, :, None]
    whole = Examples(x, (a + b) % p)
    n_train = round(fraction * p * p)
    rest, train = hold_out(p * p, n_train)
    val, test = np.split(rest, [len(rest) // 2])
    return Dataset(whole.take(train), whole.take(val), whole.take(test), p, p + 1)


def _characters(name: str, sha256: str | None = None) -> Dataset:
    """Windows of a text, side by side; the label of a character is the one that follows it.

    The last tenth is for testing and the tenth before it for validation, so that no two parts overlap.
    """
    length, path = _text_source(name)
    text = _read_text(path, sha256) if path else bytes(cache.cached("text")["text"]).decode("utf-8")
    alphabet, tokens = np.unique(np.frombuffer(text.encode("utf-32-le"), np.uint32), return_inverse=True)
    windows = (len(tokens) - 1) // length
    if windows < 20:
        raise DataError(f"dataset = {name!r}: {len(text):,} characters (allowed: at least {20 * length + 1})")
    x, y = (tokens[at : at + windows * length].astype(np.int64).reshape(-1, length) for at in (0, 1))
    out = round(HELD_OUT * windows)
    ends = [windows - 2 * out, windows - out]
    train, val, test = map(Examples, np.split(x[:, None, :, None], ends), np.split(y, ends))
    return Dataset(train, val, test, classes=len(alphabet), vocabulary=len(alphabet))


def _text_source(name: str) -> tuple[int, Path | None]:
    """Parse `text[:LENGTH[:FILE]]`: characters per example, and the file; None: the bundled corpus."""
    options = name.split(":", 2)[1:]
    length = options[0] if options else str(LENGTH)
    if not length.isdecimal() or not 2 <= int(length) <= 4096:
        raise DataError(f"dataset = {name!r} (allowed: text:LENGTH or text:LENGTH:FILE, length 2 to 4096)")
    return int(length), Path(options[1]) if len(options) > 1 else None


def _read_text(path: Path, sha256: str | None) -> str:
    """The user's text file, which must have this digest unless it is None."""
    try:
        return read_file(path, LARGEST_TEXT, sha256).decode("utf-8")
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: not readable as UTF-8 text ({reason(error)})") from None
