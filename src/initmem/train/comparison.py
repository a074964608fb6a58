"""What the selected models have in common with their initialization: predictions, layers, hidden features.

All of it is measured once, after training, except the norms and cosines of kernels: once per epoch.
"""

from __future__ import annotations

import math
from itertools import islice
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from initmem.record import MOST_EPOCHS, MOST_INITIAL, MOST_PREDICTIONS, Arrays
from initmem.train.pack import Pack

MOST_CLASSES = 1 << 16  # whose predictions are kept
ALIGNED = 128  # validation examples behind the alignment


@torch.no_grad()
def compared(pack: Pack, predicted: Tensor) -> list[Arrays]:
    """The arrays of every replica; the network holds the selected models, before and after.

    `predicted`: classes that they predict for the test examples, (example, replica, ...).
    """
    x, _ = next(pack.val.shared(ALIGNED))
    pack.network.eval()
    features = pack.network.hidden(x)
    pack.load(pack.initial)
    _estimate_statistics(pack)
    pack.network.eval()
    initial_features = pack.network.hidden(x)
    initial = _initial_predictions(pack)
    pack.load(pack.best)
    rows: list[Arrays] = []
    for r in range(pack.replicas):
        arrays: dict[str, NDArray[Any]] = {}
        if pack.classes <= MOST_CLASSES:
            arrays["predictions"] = _kept(predicted[:, r], MOST_PREDICTIONS)
            arrays["initial_predictions"] = _kept(initial[:, r], MOST_INITIAL)
        if features is not None and initial_features is not None:
            value = alignment(*(_of_replica(one, r, pack.replicas) for one in (features, initial_features)))
            if value is not None:
                arrays["alignment"] = np.array(round(value, 5))
        rows.append(arrays | layer_arrays(pack, r))
    return rows


def _estimate_statistics(pack: Pack) -> None:
    """Give batch norm the statistics of a few training examples: before training it has none."""
    if pack.statistics.norms:
        index = torch.arange(min(ALIGNED, len(pack.train)), device=pack.device)
        pack.network.train()
        pack.logits(pack.train.packed(index[:, None].expand(-1, pack.replicas))[0])
        pack.statistics.absorb(1.0)


def _initial_predictions(pack: Pack) -> Tensor:
    size = pack.evaluated_at_once
    batches = islice(pack.test.shared(size), math.ceil(MOST_INITIAL / size))
    return torch.cat([pack.logits(x).argmax(-1) for x, _ in batches])


def _kept(classes: Tensor, most: int) -> NDArray[np.uint16]:
    """The first predictions, shape (example, ...), of whole examples."""
    examples = max(most // math.prod(classes.shape[1:]), 1)
    return classes[:examples].cpu().numpy().astype(np.uint16)


def _of_replica(features: Tensor, replica: int, replicas: int) -> NDArray[np.float64]:
    split = features.unflatten(1, (replicas, -1))[:, replica]
    return np.asarray(split.double().cpu())


def alignment(x: NDArray[np.float64], y: NDArray[np.float64]) -> float | None:
    """Debiased linear centered kernel alignment of features, (example, feature) each; None: undefined.

    1: the same kernel up to scale, as in lazy training; around 0: unrelated. The plain estimate tends to 1
    with more features than examples, whatever they are; without the diagonals (Song et al. 2012) it does not.
    """
    with np.errstate(over="ignore", invalid="ignore"):  # features of a network that diverged
        k, m = x @ x.T, y @ y.T
        squares = _hsic(k, k) * _hsic(m, m)
        defined = len(x) > 3 and 0 < squares < math.inf
        return _hsic(k, m) / math.sqrt(squares) if defined else None


def _hsic(k: NDArray[np.float64], m: NDArray[np.float64]) -> float:
    """The unbiased estimate of the Hilbert-Schmidt independence criterion, up to a factor."""
    n = len(k)
    k, m = k - np.diag(np.diag(k)), m - np.diag(np.diag(m))
    total = k.sum() * m.sum() / max((n - 1) * (n - 2), 1)
    return float((k * m).sum() + total - 2 / max(n - 2, 1) * (k.sum(0) @ m.sum(0)))


def layer_arrays(pack: Pack, replica: int) -> dict[str, NDArray[np.float64]]:
    """Norm and cosine of every kernel, shape (epoch,): at initialization, at the selected epoch, in between.

    A cosine that is not defined, since the kernel is or was zero, is left out.
    """
    rows, history = np.array(pack.layers[replica]), pack.history[replica][pack.recipe.selecting_loss]
    last = len(history)
    best = int(np.argmin(history)) + 1 if last else 0
    step = math.ceil(pack.recipe.epochs / MOST_EPOCHS)  # the same for all runs of a recipe
    epochs = sorted({*range(0, last, step), best, last})
    names = [name.removeprefix("net.").removesuffix(".kernel") for name in pack.network.kernel_names()]
    arrays: dict[str, NDArray[np.float64]] = {"layer_epochs": np.array(epochs)}
    for i, name in enumerate(names):
        for what, column in (("norm", rows[epochs, 0, i]), ("cosine", rows[epochs, 1, i])):
            if np.isfinite(column).all():
                arrays[f"{what}:{name}"] = np.array([float(f"{value:.5g}") for value in column])
    return arrays
