"""Array types and small helpers shared by the modules of the linear lab."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from initmem.errors import ConfigError

Array = NDArray[np.float64]
Integers = NDArray[np.int64]
Flags = NDArray[np.bool_]
Factors = tuple[Array, ...]


def require(holds: bool, message: str) -> None:
    """Raise a `ConfigError` with this message unless the condition holds."""
    if not holds:
        raise ConfigError(message)


def matrix_sum(matrices: Array) -> Array:
    """Sum over the last two axes: (..., rows, columns) to (...)."""
    total: Array = np.sum(matrices, axis=(-2, -1))
    return total


def frobenius(matrices: Array) -> Array:
    """The Frobenius norm over the last two axes: (..., rows, columns) to (...)."""
    return np.sqrt(matrix_sum(matrices * matrices))
