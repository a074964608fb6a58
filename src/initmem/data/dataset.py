"""The form every dataset takes, and the fixed split that holds out its validation part."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

SPLIT_SEED = 42


@dataclass(frozen=True, slots=True)
class Part:
    """Inputs of shape (example, height, width, channel), labels of shape (example,).

    Inputs are bytes (0..255, divided by 255 when a batch is made) or float32 in [0, 1]: bytes stay bytes,
    so that all worker processes can share one memory map.
    """

    x: NDArray[Any]
    y: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.y)

    def take(self, index: NDArray[np.int64] | slice) -> Part:
        """The examples at these positions."""
        return Part(self.x[index], self.y[index])


@dataclass(frozen=True, slots=True)
class Dataset:
    """Training, validation and test parts."""

    name: str
    train: Part
    val: Part
    test: Part
    classes: int

    @property
    def shape(self) -> tuple[int, int, int]:
        """Input shape as (channel, height, width)."""
        height, width, channels = self.train.x.shape[1:]
        return channels, height, width

    def limited(self, train_size: int | None) -> Dataset:
        """Use only the first n of the training split."""
        if train_size is None:
            return self
        return replace(self, train=self.train.take(slice(0, train_size)))


class Sizes(NamedTuple):
    """What can be said of a dataset without loading it."""

    n_train: int
    n_val: int
    n_test: int
    channels: int
    height: int
    width: int
    classes: int

    @property
    def shape(self) -> tuple[int, int, int]:
        """Input shape as (channel, height, width)."""
        return self.channels, self.height, self.width


def hold_out(n: int, n_out: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Split range(n) by the fixed permutation: (kept, held out), each in permuted order."""
    order = np.random.RandomState(SPLIT_SEED).permutation(n)
    return order[n_out:], order[:n_out]


def split_three(n: int) -> tuple[int, int, int]:
    """Sizes of training, validation and test parts for data that has no split of its own: 60/20/20."""
    n_test = -(-n // 5)
    n_val = n // 5
    return n - n_val - n_test, n_val, n_test


def split(name: str, whole: Part, test: Part | None, n_val: int, classes: int) -> Dataset:
    """Hold out validation (and, where there is none, test) examples by the fixed permutation."""
    if test is None:
        kept, out = hold_out(len(whole), split_three(len(whole))[2])
        whole, test = whole.take(kept), whole.take(out)
    kept, out = hold_out(len(whole), n_val)
    return Dataset(name, whole.take(kept), whole.take(out), test, classes)
