"""Sharpness: the largest eigenvalue of the Hessian of the training objective, of all replicas at once.

The objective is the mean cross-entropy of a fixed subset of the training split plus the kernel penalty, with
the batch statistics of that subset and without augmentation: the loss whose gradient full-batch training
would follow. Replicas do not share variables, so one Hessian-vector product of the pack is one of each.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from initmem.train.layers import by_replica
from initmem.train.networks import Network, ResNet9
from initmem.train.pack import Images
from initmem.train.requirements import SHARPNESS_SUBSET

TOLERANCE = 1e-4  # of the residual, relative to the eigenvalue: a bound on the error of the eigenvalue
MOST_PRODUCTS = 300

Array = NDArray[np.float64]
Product = Callable[[Tensor], Tensor]  # of the Hessians with vectors, (replica, variable) to the same shape


def sharpness(network: Network, train: Images, l2: float) -> Array:
    """The sharpness of every replica, shape (replica,); NaN where it is not finite or was not found.

    It is computed in a copy of the network, which is left as it is.
    """
    product, size = hessian(plain_copy(network), train, l2)
    start = torch.from_numpy(np.random.default_rng(0).standard_normal(size))
    device = next(network.parameters()).device
    return largest_eigenvalues(product, start.to(device).expand(network.replicas, -1))


def plain_copy(network: Network) -> Network:
    """The network in float64 and in PyTorch's own operations: those written in C have one derivative only."""
    plain = deepcopy(network).double()
    if isinstance(plain, ResNet9):
        plain.lanes = None
    return plain


def hessian(network: Network, train: Images, l2: float) -> tuple[Product, int]:
    """The Hessian of the objective as a product with vectors, and the number of variables of a replica."""
    network.train()
    parameters, replicas = [p for p in network.parameters() if p.requires_grad], network.replicas
    count = min(len(train), SHARPNESS_SUBSET)  # evenly spaced: a split may be sorted
    index = torch.from_numpy(np.linspace(0, len(train) - 1, count).round().astype(np.int64))
    x, y = train.packed(index[:, None].to(train.y.device))
    labels = y.expand(-1, replicas, *y.shape[2:]).flatten()  # one per example, or one for each of its tokens
    logits = network(x.double() if x.is_floating_point() else x).reshape(len(labels), -1)
    loss = F.cross_entropy(logits, labels, reduction="sum") * replicas / len(labels)
    if l2:
        loss = loss + l2 * torch.stack([kernel.square().sum() for kernel in network.kernels()]).sum()
    gradients = torch.autograd.grad(loss, parameters, create_graph=True, materialize_grads=True)
    sizes = [parameter.numel() // replicas for parameter in parameters]

    def product(vectors: Tensor) -> Tensor:
        parts = vectors.split(sizes, 1)
        along = [part.reshape(p.shape) for part, p in zip(parts, parameters, strict=True)]
        # A parameter that the network does not use has a gradient of zero, without a graph.
        curved = [(g, v) for g, v in zip(gradients, along, strict=True) if g.requires_grad]
        outputs, directions = zip(*curved, strict=True)
        products = torch.autograd.grad(
            outputs, parameters, directions, retain_graph=True, materialize_grads=True
        )
        return torch.cat([by_replica(part, replicas).flatten(1) for part in products], 1)

    return product, sum(sizes)


@torch.no_grad()
def largest_eigenvalues(product: Product, start: Tensor) -> Array:
    """The largest eigenvalue of each of R symmetric operators, by one Lanczos iteration; shape (replica,).

    `start` has shape (replica, variable). Vectors are not orthogonalized again: that repeats eigenvalues that
    have been found, and leaves the largest one where it is (Paige 1980). An operator is done when the
    residual of its Ritz vector is small, whatever the others need; NaN after `MOST_PRODUCTS`.
    """
    eigenvalues = np.full(len(start), np.nan)
    running = np.ones(len(start), dtype=bool)
    vector, before = start / _norm(start), torch.zeros_like(start)
    beta = torch.zeros(len(start), 1, dtype=start.dtype, device=start.device)
    diagonal: list[Array] = []
    below: list[Array] = []
    while running.any() and len(diagonal) < MOST_PRODUCTS:
        with torch.enable_grad():
            after = product(vector) - beta * before
        alpha = (after * vector).sum(1, keepdim=True)
        after = after - alpha * vector
        beta = _norm(after)
        diagonal.append(alpha[:, 0].cpu().numpy())
        below.append(beta[:, 0].cpu().numpy())
        for r in np.flatnonzero(running):
            value, residual = _ritz([a[r] for a in diagonal], [b[r] for b in below])
            if not residual > TOLERANCE * abs(value):  # small enough, or not a number
                eigenvalues[r], running[r] = value, False
        before, vector = vector, after / beta.clamp_min(torch.finfo(beta.dtype).tiny)
    return eigenvalues


def _norm(vectors: Tensor) -> Tensor:
    norms: Tensor = torch.linalg.vector_norm(vectors, dim=1, keepdim=True)
    return norms


def _ritz(diagonal: list[float], below: list[float]) -> tuple[float, float]:
    """The largest eigenvalue of a tridiagonal matrix and the residual of its Ritz vector."""
    from scipy.linalg import eigh_tridiagonal

    if not np.isfinite([*diagonal, *below]).all():
        return np.nan, np.nan
    last = len(diagonal) - 1
    values, vectors = eigh_tridiagonal(diagonal, below[:-1], select="i", select_range=(last, last))
    return float(values[0]), below[-1] * abs(float(vectors[-1, 0]))
