"""Training-time augmentation of batches, from random draws that depend only on (seed, epoch)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from initmem.seeds import generator

PAD = 4


def flip_crop_draws(seeds: Sequence[int], epoch: int, n: int) -> Tensor:
    """The flip, top and left of every example of an epoch, in training order: shape (example, replica, 3)."""
    draws = []
    for seed in seeds:
        rng = generator(seed, "augment", epoch)
        draws.append(np.column_stack([rng.integers(0, 2, n), rng.integers(0, 2 * PAD + 1, (n, 2))]))
    return torch.from_numpy(np.stack(draws, axis=1))


def flip_crop(x: Tensor, draws: Tensor) -> Tensor:
    """Flip horizontally, pad by reflection, crop: x (image, h, w, channel), draws (image, 3).

    Nothing is actually padded or flipped: every output pixel is gathered from where it comes from.
    """
    n, height, width, _ = x.shape
    flip, top, left = draws[:, :, None].unbind(1)
    rows = _reflect(top + torch.arange(height, device=x.device) - PAD, height)
    columns = _reflect(left + torch.arange(width, device=x.device) - PAD, width)
    columns = torch.where(flip == 1, width - 1 - columns, columns)
    index = torch.arange(n, device=x.device)[:, None, None]
    return x[index, rows[:, :, None], columns[:, None, :]]


def _reflect(position: Tensor, side: int) -> Tensor:
    """Reflect positions outside the image back inside, without repeating the edge."""
    position = position.abs()
    return torch.where(position >= side, 2 * (side - 1) - position, position)
