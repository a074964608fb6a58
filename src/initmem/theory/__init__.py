"""The linear lab: why initialization is remembered, and what erases it.

The names below are the core. The experiments have modules of their own: `propositions`, `exponents`,
`figure9`, `diagonal`, `resetting` and `lab`. Importing this package loads neither scipy nor torch nor
matplotlib.

    >>> from initmem.theory import descend, network, optimizer, square
    >>> path = descend(network([[6.0]], [[1.0]]), square([[1.0]]), optimizer("sgd"), 0.04, 20)
    >>> print(f"D = {-path.imbalances[0][-1].item():.2f}")
    D = -3.07
"""

from __future__ import annotations

from initmem.theory.linear import (
    Loss,
    Path,
    descend,
    gradient_flow,
    imbalance,
    imbalances,
    layer_gradients,
    logistic,
    minibatch,
    network,
    optimizer,
    preconditioned,
    product,
    random_network,
    regression,
    square,
)

__all__ = [
    "Loss",
    "Path",
    "descend",
    "gradient_flow",
    "imbalance",
    "imbalances",
    "layer_gradients",
    "logistic",
    "minibatch",
    "network",
    "optimizer",
    "preconditioned",
    "product",
    "random_network",
    "regression",
    "square",
]
