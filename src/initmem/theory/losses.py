"""Losses as functions of the product W, and minibatch estimates of their gradient.

A loss maps a product of shape (..., d_out, d_in) to one value per trajectory, (...). The layers do not appear
here: their gradients follow from that of the product by the chain rule, which is why the first-order terms in
the change of the imbalance cancel.

The array types and helpers of the linear lab are here as well.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from initmem.errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor

Array = NDArray[np.float64]
Integers = NDArray[np.int64]
Flags = NDArray[np.bool_]
Factors = tuple[Array, ...]
# A gradient with respect to the product, exact or estimated, at update k.
Estimate = Callable[[int, Array], Array]


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


@dataclass(frozen=True)
class Loss:
    """A differentiable function of the product.

    `value` maps (..., d_out, d_in) to (...); `gradient` maps it to an array of the same shape.
    """

    value: Callable[[Array], Array]
    gradient: Callable[[Array], Array]

    def __call__(self, k: int, product: Array) -> Array:
        """The gradient at update k: a loss is an estimate without noise."""
        return self.gradient(product)


def square(target: ArrayLike) -> Loss:
    """The squared Frobenius distance between the product and `target`, (..., d_out, d_in)."""
    goal = np.asarray(target, dtype=np.float64)
    return Loss(
        lambda product: matrix_sum((product - goal) ** 2),
        lambda product: 2.0 * (product - goal),
    )


def regression(inputs: ArrayLike, outputs: ArrayLike) -> Loss:
    """Half the mean squared error of W x against y.

    `inputs` is (..., sample, d_in) and `outputs` (..., sample, d_out).
    """
    x, y = _samples(inputs, outputs)
    count: int = x.shape[-2]

    def residual(product: Array) -> Array:
        return _predicted(product, x, y) - y

    return Loss(
        lambda product: matrix_sum(residual(product) ** 2) / (2 * count),
        lambda product: residual(product).mT @ x / count,
    )


def logistic(inputs: ArrayLike, labels: ArrayLike) -> Loss:
    """Mean logistic loss of W x for labels -1 and +1, summed over the outputs.

    `inputs` is (..., sample, d_in) and `labels` (..., sample, d_out).
    """
    x, y = _samples(inputs, labels)
    require(bool(np.all(np.abs(y) == 1)), "labels: allowed: -1 and +1")
    count: int = x.shape[-2]

    def value(product: Array) -> Array:
        return matrix_sum(np.logaddexp(0.0, -y * _predicted(product, x, y))) / count

    def gradient(product: Array) -> Array:
        # The sigmoid by way of tanh, which does not overflow at large margins.
        wrong: Array = 0.5 * (1.0 - np.tanh(y * _predicted(product, x, y) / 2))
        return -(y * wrong).mT @ x / count

    return Loss(value, gradient)


def torch_loss(value: Callable[[Tensor], Tensor]) -> Loss:
    """A loss written in torch operations; autograd supplies its gradient.

    `value` maps a float64 tensor (..., d_out, d_in) to (...).
    """
    import torch

    def evaluate(product: Array) -> tuple[Tensor, Tensor]:
        leaf = torch.tensor(product, dtype=torch.float64, requires_grad=True)
        result = value(leaf)
        require(
            result.shape == product.shape[:-2],
            f"loss: value returns shape {tuple(result.shape)} for a product of shape {product.shape}; "
            f"allowed: {product.shape[:-2]}, one value per trajectory",
        )
        return leaf, result

    def gradient(product: Array) -> Array:
        leaf, result = evaluate(product)
        # Trajectories are independent, so the gradient of the sum contains the gradient of each.
        (grad,) = torch.autograd.grad(result.sum(), leaf)
        return np.asarray(grad.numpy(), dtype=np.float64)

    return Loss(lambda product: np.asarray(evaluate(product)[1].detach().numpy(), np.float64), gradient)


def minibatch(loss_of: Callable[[Integers], Loss], batches: Sequence[Integers] | Integers) -> Estimate:
    """A gradient estimate that uses only the samples `batches[k]` at update k.

    Each entry of `batches` is (..., sample), as in `rng.integers(n, size=(steps, b))`: leading axes give
    every trajectory its own batch.
    """

    def estimate(k: int, product: Array) -> Array:
        require(k < len(batches), f"steps: update {k} has no minibatch; {len(batches)} were given")
        return loss_of(batches[k]).gradient(product)

    return estimate


def _samples(inputs: ArrayLike, outputs: ArrayLike) -> tuple[Array, Array]:
    x, y = np.asarray(inputs, dtype=np.float64), np.asarray(outputs, dtype=np.float64)
    require(
        x.ndim >= 2 and y.ndim >= 2 and x.shape[-2] == y.shape[-2] > 0,
        f"loss: inputs {x.shape} and outputs {y.shape}; "
        "allowed: (..., sample, d_in) and (..., sample, d_out) with equal numbers of samples",
    )
    return x, y


def _predicted(product: Array, x: Array, y: Array) -> Array:
    """W x for every sample, (..., sample, d_out)."""
    shape = (y.shape[-1], x.shape[-1])
    require(
        product.shape[-2:] == shape,
        f"product: shape {product.shape}; allowed: (..., {shape[0]}, {shape[1]}) for these data",
    )
    return x @ product.mT
