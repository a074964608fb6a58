"""The sources of datasets: bundled ones by name, a user's .npz or text file, and what plugins registered.

And the folder in which downloaded files are kept.
"""

from __future__ import annotations

import io
import math
import os
import re
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.lib.format as npy
from numpy.typing import NDArray

from initmem import register
from initmem.data.dataset import Dataset, Examples, Sizes, read_file, split, split_three
from initmem.errors import DataError
from initmem.recipe import SPLIT_SIZES, AnyRecipe, Recipe, network_of

SYNTHETIC_SHAPE = (1200, 1, 8, 8)
SYNTHETIC_CLASSES = 10
DIGITS = Sizes(1078, 359, 360, 1, 8, 8, 10)
KNOWN = {
    "digits": DIGITS,
    "cifar10": Sizes(40_000, 10_000, 10_000, 3, 32, 32, 10),
    "mnist": Sizes(50_000, 10_000, 10_000, 1, 28, 28, 10),
    "fashion-mnist": Sizes(50_000, 10_000, 10_000, 1, 28, 28, 10),
}
NPZ_KEYS = "x and y, or x_train, y_train, x_test and y_test"
NPZ_NAMES = (("x_train", "y_train", "x_test", "y_test"), ("x", "y"))
LARGEST_FILE = 1 << 35  # bytes
# Arrays of more bytes than this may have so many times the bytes of their file: images have 2 to 10 times as
# many, and a file made to fill the memory 1,000 times.
FREELY_UNPACKED, MOST_UNPACKED = 1 << 30, 20
LARGEST_SYNTHETIC = 1 << 30  # values
MOST_CLASSES = 100_000


def load(recipe: AnyRecipe) -> Dataset:
    """Load the dataset that a recipe trains on."""
    recipe = network_of(recipe)
    dataset = _named(recipe.dataset, recipe.data_sha256)
    _limited(dataset.sizes, recipe)
    return dataset.limited(recipe.train_size, recipe.val_size, recipe.test_size, recipe.test_unused)


def _limited(known: Sizes, recipe: Recipe) -> Sizes:
    """The sizes of the splits that a recipe uses, which are not larger than those there are."""
    asked = {name: getattr(recipe, name) or n for name, n in zip(SPLIT_SIZES, known, strict=False)}
    wrong = [
        f"{name} = {asked[name]} (allowed: 1 to {n} for {recipe.dataset})"
        for name, n in zip(SPLIT_SIZES, known, strict=False)
        if asked[name] > n
    ]
    if wrong:
        raise DataError("; ".join(wrong))
    unused = known.n_train - asked["train_size"] if recipe.test_unused else 0
    return Sizes(asked["train_size"], asked["val_size"], asked["test_size"] + unused, *known[len(asked) :])


def _named(name: str, sha256: str | None) -> Dataset:
    kind = name.split(":")[0]
    if name.endswith(".npz"):
        return _npz(Path(name), sha256)
    match kind:
        case "digits":
            return _digits()
        case "synthetic":
            return _synthetic(*synthetic_shape(name))
        case "modular-addition" | "text":
            return _tokens(name, sha256)
        case "mnist" | "fashion-mnist":
            from initmem.data.packages import load_images

            return load_images(name)
        case "cifar10":
            from initmem.data.cifar10 import load_cifar10

            return load_cifar10()
    return _registered(name)


def sizes(recipe: AnyRecipe) -> Sizes:
    """The sizes of a recipe's dataset; only the user's own data have to be read for them."""
    recipe = network_of(recipe)
    return _limited(_sizes(recipe.dataset, recipe.data_sha256), recipe)


def _sizes(name: str, sha256: str | None) -> Sizes:
    match name.split(":")[0]:
        case "synthetic":
            n, channels, height, width = synthetic_shape(name)
            return Sizes(*split_three(n), channels, height, width, SYNTHETIC_CLASSES)
        case "modular-addition" | "text":
            from initmem.data.tokens import token_sizes

            return token_sizes(name) or _tokens(name, sha256).sizes
    return KNOWN[name] if name in KNOWN else _named(name, sha256).sizes


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


def check(recipe: AnyRecipe) -> None:
    """Check cheaply that a recipe's dataset is available."""
    recipe = network_of(recipe)
    kind = recipe.dataset.split(":")[0]
    if recipe.dataset == "cifar10":
        from initmem.data.cifar10 import is_cached, load_cifar10

        if not is_cached():
            load_cifar10()  # raises, naming the command to run
    elif kind not in ("digits", "synthetic", "modular-addition"):
        load(recipe)


def _tokens(name: str, sha256: str | None) -> Dataset:
    from initmem.data import tokens

    if not name.startswith("text"):
        return tokens.modular_addition(name)
    _, path = tokens.text_source(name)
    if path is not None:
        return tokens.characters(name, tokens.read_text(path, sha256))
    from initmem.data.packages import load_corpus

    return tokens.characters(name, load_corpus())


def _registered(name: str) -> Dataset:
    """A dataset of a plugin: arrays under the names of an .npz file."""
    function = register.find_dataset(name)
    if function is None:
        raise DataError(f"dataset = {name!r}: no plugin that registers it is loaded (--plugin MODULE)")
    try:
        arrays = {str(key): np.asarray(value) for key, value in dict(function()).items()}
    except (Exception, SystemExit) as error:  # a plugin may raise anything
        raise DataError(f"dataset = {name!r}: its function raised {register.in_a_line(error)}") from None
    wanted = next((names for names in NPZ_NAMES if arrays.keys() >= set(names)), None)
    if wanted is None:
        raise DataError(f"dataset = {name!r}: it returned {', '.join(arrays)} (needed: {NPZ_KEYS})")
    return _from_arrays(name, {key: arrays[key] for key in wanted})


def _digits() -> Dataset:
    from sklearn.datasets import load_digits

    raw = load_digits()
    x = (raw.images / 16).astype(np.float32)[..., None]
    return split("digits", Examples(x, raw.target.astype(np.int64)), None, DIGITS.n_val, 10)


def _synthetic(n: int, channels: int, height: int, width: int) -> Dataset:
    """Noisy copies of one random pattern per class: learnable, but not trivially."""
    rng = np.random.default_rng(0)
    patterns = rng.random((SYNTHETIC_CLASSES, height, width, channels), dtype=np.float32)
    y = np.arange(n) % SYNTHETIC_CLASSES
    noise = rng.random((n, height, width, channels), dtype=np.float32)
    x = 0.35 * patterns[y] + 0.65 * noise
    return split("synthetic", Examples(x, y), None, split_three(n)[1], SYNTHETIC_CLASSES)


def _npz(path: Path, sha256: str | None) -> Dataset:
    return _from_arrays(path, _read_npz(path, sha256))


def _from_arrays(path: Path | str, arrays: dict[str, NDArray[Any]]) -> Dataset:
    """A dataset of arrays; `path` is what messages call it."""
    if "x_train" in arrays:
        whole, test = _examples(path, arrays, "_train"), _examples(path, arrays, "_test")
        n_val = len(whole) // 5
        if whole.x.shape[1:] != test.x.shape[1:]:
            raise DataError(f"{path}: x_train and x_test differ in shape")
    else:
        whole, test = _examples(path, arrays, ""), None
        n_val = split_three(len(whole))[1]
    if len(whole) < 20:
        raise DataError(f"{path}: {len(whole)} examples (allowed: at least 20)")
    whole, test = _scaled(whole, whole), test and _scaled(test, whole)
    labels = np.concatenate([whole.y, test.y]) if test is not None else whole.y
    if labels.min() < 0:
        raise DataError(f"{path}: label {labels.min()} (allowed: whole numbers from 0)")
    if labels.max() >= MOST_CLASSES:
        raise DataError(f"{path}: label {labels.max()} (allowed: below {MOST_CLASSES:,})")
    return split(Path(path).stem, whole, test, n_val, int(labels.max()) + 1)


def _read_npz(path: Path, sha256: str | None) -> dict[str, NDArray[Any]]:
    """Read the arrays with known names, and nothing else, from the very bytes that have this digest."""
    try:
        _check_zip(path)
        content = read_file(path, LARGEST_FILE, sha256)
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
            wanted = next((names for names in NPZ_NAMES if members.keys() >= set(names)), None)
            if wanted is None:
                held = ", ".join(sorted(members)) or "nothing"
                raise DataError(f"{path}: contains {held} (needed: {NPZ_KEYS})")
            unpacked = sum(members[name].file_size for name in wanted)
            if unpacked > (limit := max(FREELY_UNPACKED, MOST_UNPACKED * len(content))):
                raise DataError(
                    f"{path}: {len(content):,} bytes that unpack to {unpacked:,} "
                    f"(allowed: up to {limit:,}; save it with np.savez, uncompressed)"
                )
            return {name: _read_array(archive, members[name]) for name in wanted}
    except FileNotFoundError:
        raise DataError(f"{path}: no such file") from None
    except DataError:
        raise
    except Exception as error:  # a damaged file can make zipfile and numpy raise anything
        raise DataError(f"{path}: not a readable .npz of plain arrays ({error})") from None


def _check_zip(path: Path) -> None:
    """Refuse what is no zip file by its end, before it is read whole."""
    zipfile.ZipFile(path).close()


def _read_array(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> NDArray[Any]:
    """Read an array, unless its header disagrees with the size of its file."""
    with archive.open(member) as stream:
        version = npy.read_magic(stream)
        headers = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
        if version not in headers:
            raise ValueError(f"{member.filename} has format version {version}")
        shape, _, dtype = headers[version](stream)
        declared, actual = math.prod(shape) * dtype.itemsize, member.file_size - stream.tell()
        consistent = declared == actual and min(shape, default=0) >= 0
        if dtype.hasobject or not consistent:
            raise ValueError(f"{member.filename} is {dtype} {shape} in {actual:,} bytes")
        stream.seek(0)
        return np.asarray(npy.read_array(stream, allow_pickle=False))


def _examples(path: Path | str, arrays: dict[str, NDArray[Any]], suffix: str) -> Examples:
    x, y = arrays["x" + suffix], arrays["y" + suffix]
    y = y.reshape(-1) if y.ndim == 2 and y.shape[1] == 1 else y
    if y.ndim != 1 or y.dtype.kind not in "iu":
        raise DataError(f"{path}: y{suffix} is {y.dtype} {y.shape} (needed: whole numbers, one per example)")
    if len(x) != len(y):
        raise DataError(f"{path}: x{suffix} has {len(x)} examples, y{suffix} has {len(y)}")
    if x.ndim not in (2, 3, 4) or x.dtype.kind not in "uif" or not x.size:
        raise DataError(
            f"{path}: x{suffix} is {x.dtype} {x.shape} "
            "(needed: numbers of shape (n, features), (n, h, w) or (n, h, w, channels))"
        )
    return Examples(_images(path, x), y.astype(np.int64))


def _images(path: Path | str, x: NDArray[Any]) -> NDArray[Any]:
    """Reshape inputs to (example, height, width, channel), as bytes or float32."""
    x = {2: lambda: x[:, None, None, :], 3: lambda: x[..., None], 4: lambda: x}[x.ndim]()
    if x.dtype == np.uint8:
        return x
    x = x.astype(np.float32)
    if not np.isfinite(x).all():
        raise DataError(f"{path}: some inputs are not finite")
    return x


def _scaled(examples: Examples, reference: Examples) -> Examples:
    """Scale inputs to [0, 1] by the range of the reference examples; bytes are scaled batch by batch."""
    low, high = float(reference.x.min()), float(reference.x.max())
    if examples.x.dtype == np.uint8 or (low >= 0 and high <= 1):
        return examples
    return Examples((examples.x - low) / max(high - low, 1e-12), examples.y)


def cache_dir(data_dir: Path | None = None) -> Path:
    """Where datasets are kept: the argument, $INITMEM_DATA, $XDG_CACHE_HOME/initmem or ~/.cache/initmem."""
    own = data_dir or os.environ.get("INITMEM_DATA")
    shared = Path(os.environ.get("XDG_CACHE_HOME", ""))
    try:
        if own:
            return Path(own).expanduser()
        # A relative XDG_CACHE_HOME is to be ignored, by the standard that defines it.
        return (shared if shared.is_absolute() else Path.home() / ".cache") / "initmem"
    except RuntimeError:
        raise DataError("no home directory to keep files in (set INITMEM_DATA to a folder)") from None
