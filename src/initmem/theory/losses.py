"""Losses as functions of the product W, and minibatch estimates of their gradient.

A loss maps a product of shape (..., d_out, d_in) to one value per trajectory, (...). The layers do not appear
here: their gradients follow from that of the product by the chain rule, which is why the first-order terms in
the change of the imbalance cancel.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from initmem.errors import ConfigError
from initmem.theory._arrays import Array, Integers, matrix_sum, require

if TYPE_CHECKING:
    from torch import Tensor

# A gradient with respect to the product, exact or estimated, at update k.
Estimate = Callable[[int, Array], Array]


@dataclass(frozen=True)
class Loss:
    """A differentiable function of the product.

    `value` maps (..., d_out, d_in) to (...); `gradient` maps it to an array of the same shape.
    """

    value: Callable[[Array], Array]
    gradient: Callable[[Array], Array]

    def __post_init__(self) -> None:
        for name in ("value", "gradient"):
            given = getattr(self, name)
            require(
                callable(given),
                f"loss: {name} is {given!r}; allowed: a function of the product "
                "(torch_loss derives the gradient of a value written in torch)",
            )


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
        _match(product, x, y)
        return x @ product.mT - y

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

    def margin(product: Array) -> Array:
        _match(product, x, y)
        return y * (x @ product.mT)

    def value(product: Array) -> Array:
        return matrix_sum(np.logaddexp(0.0, -margin(product))) / count

    def gradient(product: Array) -> Array:
        # The sigmoid by way of tanh, which does not overflow at large margins.
        wrong: Array = 0.5 * (1.0 - np.tanh(margin(product) / 2))
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
        shape = product.shape[:-2]
        if not isinstance(result, torch.Tensor) or tuple(result.shape) != shape:
            got = tuple(result.shape) if isinstance(result, torch.Tensor) else type(result).__name__
            raise ConfigError(
                f"loss: value returns {got} for a product of shape {product.shape}; "
                f"allowed: a tensor of shape {shape}, one value per trajectory"
            )
        return leaf, result

    def gradient(product: Array) -> Array:
        leaf, result = evaluate(product)
        if not result.requires_grad:
            raise ConfigError(
                "loss: value has no gradient with respect to the product; "
                "allowed: differentiable torch operations on the given tensor"
            )
        # Trajectories are independent, so the gradient of the sum contains the gradient of each.
        (grad,) = torch.autograd.grad(result.sum(), leaf)
        return np.asarray(grad.numpy(), dtype=np.float64)

    return Loss(lambda p: np.asarray(evaluate(p)[1].detach().numpy(), np.float64), gradient)


def shuffled_batches(
    n_samples: int, batch_size: int, epochs: int, *, rng: np.random.Generator
) -> list[Integers]:
    """Row indices of every minibatch of every epoch; each epoch is a fresh permutation.

    The last, smaller batch of an epoch is kept.
    """
    require(
        1 <= batch_size <= n_samples,
        f"batch_size: {batch_size}; allowed: 1 to {n_samples} (the number of samples)",
    )
    starts = range(batch_size, n_samples, batch_size)
    return [rows for _ in range(epochs) for rows in np.split(rng.permutation(n_samples), starts)]


def sampled_batches(
    n_samples: int, batch_size: int, steps: int, *, rng: np.random.Generator
) -> list[Integers]:
    """Row indices of every minibatch, drawn independently with replacement."""
    require(
        n_samples >= 1 and batch_size >= 1,
        f"batch_size: {batch_size}, n_samples: {n_samples}; allowed: 1 or more of each",
    )
    return list(rng.integers(n_samples, size=(steps, batch_size)))


def minibatch(loss_of: Callable[[Integers], Loss], batches: Sequence[Integers]) -> Estimate:
    """A gradient estimate that uses only the samples `batches[k]` at update k.

    Each entry of `batches` is (..., sample): leading axes give every trajectory its own batch.
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


def _match(product: Array, x: Array, y: Array) -> None:
    wanted = (y.shape[-1], x.shape[-1])
    require(
        product.shape[-2:] == wanted,
        f"product: shape {product.shape}; allowed: (..., {wanted[0]}, {wanted[1]}) for these data",
    )
