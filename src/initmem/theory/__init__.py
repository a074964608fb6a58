"""The linear lab: why initialization is remembered, and what erases it.

The names below are the core. The experiments have modules of their own: `propositions`, `exponents`,
`figure9`, `diagonal`, `resetting`, `ensemble` and `lab`. Names load on first use, so that importing this
package loads neither scipy nor torch nor matplotlib.

    >>> from initmem.theory import GradientDescent, descend, network, square
    >>> path = descend(network([[6.0]], [[1.0]]), square([[1.0]]), GradientDescent(), 0.04, 20)
    >>> print(f"D = {-path.imbalances[0][-1].item():.2f}")
    D = -3.07
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from initmem.theory.descent import (
        Adam,
        GradientDescent,
        HeavyBall,
        Muon,
        Preconditioned,
        descend,
    )
    from initmem.theory.linear import (
        Path,
        gradient_flow,
        imbalance,
        imbalances,
        layer_gradients,
        network,
        product,
        random_network,
    )
    from initmem.theory.losses import (
        Loss,
        logistic,
        minibatch,
        regression,
        sampled_batches,
        shuffled_batches,
        square,
        torch_loss,
    )

__all__ = [
    "Adam",
    "GradientDescent",
    "HeavyBall",
    "Loss",
    "Muon",
    "Path",
    "Preconditioned",
    "descend",
    "gradient_flow",
    "imbalance",
    "imbalances",
    "layer_gradients",
    "logistic",
    "minibatch",
    "network",
    "product",
    "random_network",
    "regression",
    "sampled_batches",
    "shuffled_batches",
    "square",
    "torch_loss",
]


_CORE = ("linear", "losses", "descent")


def __getattr__(name: str) -> object:
    """Load a public name from the core module that holds it."""
    if name in __all__:
        modules = (import_module(f"{__name__}.{core}") for core in _CORE)
        return next(vars(module)[name] for module in modules if name in vars(module))
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
