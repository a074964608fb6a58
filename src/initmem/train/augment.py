"""Training-time augmentation, on the batch tensor, from draws that belong to (seed, epoch)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from initmem.seeds import generator

PAD = 4


def flip_crop_draws(seeds: Sequence[int], epoch: int, n: int) -> Tensor:
    """What happens to each example of an epoch, in its order: (example, replica, 3) of flip, top, left."""
    draws = []
    for seed in seeds:
        rng = generator(seed, "augment", epoch)
        draws.append(np.column_stack([rng.integers(0, 2, n), rng.integers(0, 2 * PAD + 1, (n, 2))]))
    return torch.from_numpy(np.stack(draws, axis=1))


def flip_crop(x: Tensor, draws: Tensor) -> Tensor:
    """Flip horizontally, pad by reflection, crop: x (image, h, w, channel), draws (image, 3).

    Nothing is padded or flipped for real: every pixel of the result is looked up where it comes from.
    """
    n, height, width, _ = x.shape
    flip, top, left = draws[:, :, None].unbind(1)
    rows = _reflect(top + torch.arange(height, device=x.device) - PAD, height)
    columns = _reflect(left + torch.arange(width, device=x.device) - PAD, width)
    columns = torch.where(flip == 1, width - 1 - columns, columns)
    index = torch.arange(n, device=x.device)[:, None, None]
    return x[index, rows[:, :, None], columns[:, None, :]]


def _reflect(position: Tensor, side: int) -> Tensor:
    """Fold positions beyond an edge back inside, without repeating the edge itself."""
    position = position.abs()
    return torch.where(position >= side, 2 * (side - 1) - position, position)
