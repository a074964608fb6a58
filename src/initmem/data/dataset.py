"""The type of every dataset, and the fixed split that holds out its validation examples."""

from __future__ import annotations

import hashlib
import io
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from initmem.errors import DataError
from initmem.files import read_bounded, reason
from initmem.register import Tokens

SPLIT_SEED = 42
LARGEST_FILE = 1 << 35  # bytes
NPZ_NAMES = (("x_train", "y_train", "x_test", "y_test"), ("x", "y"))

Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True, slots=True)
class Examples:
    """Inputs `x` of shape (example, height, width, channel) and labels `y` of shape (example,).

    Inputs are bytes (0..255, divided by 255 when a batch is made) or float32 in [0, 1]. Bytes stay bytes, so
    that all worker processes can share one memory map. Tokens are int64 of shape (example, 1, length, 1);
    their labels may have shape (example, length): one for each token.
    """

    x: NDArray[Any]
    y: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.y)

    def take(self, index: NDArray[np.int64] | slice) -> Examples:
        """The examples at these indices."""
        return Examples(self.x[index], self.y[index])


@dataclass(frozen=True, slots=True)
class Dataset:
    """Training, validation and test examples."""

    train: Examples
    val: Examples
    test: Examples
    classes: int
    vocabulary: int = 0  # of tokens; 0: the inputs are numbers

    @property
    def sizes(self) -> Sizes:
        """Its sizes."""
        splits = (len(self.train), len(self.val), len(self.test))
        height, width, channels = self.train.x.shape[1:]
        labels = math.prod(self.train.y.shape[1:])
        return Sizes(*splits, channels, height, width, self.classes, self.vocabulary, labels)

    def limited(
        self, train_size: int | None, val_size: int | None, test_size: int | None, test_unused: bool = False
    ) -> Dataset:
        """The same dataset with only the first so many examples of each split; None: all of them.

        With `test_unused` the training examples that are left over join the test examples.
        """
        train, val = self.train.take(slice(train_size)), self.val.take(slice(val_size))
        test = self.test.take(slice(test_size))
        if test_unused:
            unused = self.train.take(slice(len(train), None))
            test = Examples(np.concatenate([test.x, unused.x]), np.concatenate([test.y, unused.y]))
        return replace(self, train=train, val=val, test=test)


class Sizes(NamedTuple):
    """The sizes of a dataset, for whoever has not loaded it."""

    n_train: int
    n_val: int
    n_test: int
    channels: int
    height: int
    width: int
    classes: int
    vocabulary: int = 0  # of tokens; 0: the inputs are numbers
    labels: int = 1  # per example: 1, or one for each token

    @property
    def input(self) -> tuple[int, int, int] | Tokens:
        """What the builder of a network is told about its input."""
        return Tokens(self.vocabulary, self.width) if self.vocabulary else self.shape

    @property
    def shape(self) -> tuple[int, int, int]:
        """Input shape as (channel, height, width)."""
        return self.channels, self.height, self.width


def hold_out(n: int, n_out: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Split range(n) by a fixed permutation: (kept, held out), each in permuted order."""
    order = np.random.RandomState(SPLIT_SEED).permutation(n)
    return order[n_out:], order[:n_out]


def split_three(n: int) -> tuple[int, int, int]:
    """Numbers of training, validation and test examples for data without a split of its own: 60/20/20."""
    n_test = -(-n // 5)
    n_val = n // 5
    return n - n_val - n_test, n_val, n_test


def split(whole: Examples, test: Examples | None, n_val: int, classes: int) -> Dataset:
    """Hold out validation examples, and test examples if there are none, by the fixed permutation."""
    if test is None:
        kept, out = hold_out(len(whole), split_three(len(whole))[2])
        whole, test = whole.take(kept), whole.take(out)
    kept, out = hold_out(len(whole), n_val)
    return Dataset(whole.take(kept), whole.take(out), test, classes)


def read_file(path: Path, limit: int, sha256: str | None) -> bytes:
    """The content of the user's file, if it is still what the study was read with."""
    content = read_bounded(path, limit)
    if sha256 not in (None, hashlib.sha256(content).hexdigest()):
        raise DataError(
            f"{path}: changed since the study was read (to train on the file as it is now, "
            "give the study's command again: it makes new runs)"
        )
    return content


def read_npz(path: Path, sha256: str | None = None) -> Arrays:
    """Read the arrays of a dataset, and no others, from the very bytes that have this digest."""
    try:
        with np.load(io.BytesIO(read_file(path, LARGEST_FILE, sha256)), allow_pickle=False) as archive:
            return chosen(str(path), archive)
    except DataError:
        raise
    except Exception as error:  # a damaged file can make zipfile and numpy raise anything
        raise DataError(f"{path}: not a readable .npz of plain arrays ({reason(error)})") from None


def chosen(source: str, arrays: Mapping[str, NDArray[Any]]) -> Arrays:
    """The arrays with the expected names."""
    names = next((names for names in NPZ_NAMES if arrays.keys() >= set(names)), None)
    if names is None:
        content = ", ".join(sorted(arrays)) or "nothing"
        raise DataError(
            f"{source}: contains {content} (needed: x and y, or x_train, y_train, x_test and y_test)"
        )
    return {name: arrays[name] for name in names}


def noise(sizes: Sizes, *, n_train: int, n_val: int, n_test: int = 1) -> Dataset:
    """Random inputs and labels of the shape of a dataset."""
    rng = np.random.default_rng(0)

    def examples(n: int) -> Examples:
        shape = (n, sizes.height, sizes.width, sizes.channels)
        labels = n if sizes.labels == 1 else (n, sizes.labels)
        tokens = sizes.vocabulary > 0
        x: Any = rng.integers(0, sizes.vocabulary, shape) if tokens else rng.random(shape, dtype=np.float32)
        return Examples(x, rng.integers(0, sizes.classes, labels))

    train, val, test = (examples(n) for n in (n_train, n_val, n_test))
    return Dataset(train, val, test, sizes.classes, sizes.vocabulary)
