"""Batches as tensors: the data is on the device once; batches are gathered from it and may be augmented."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from initmem.data.dataset import Examples, Sizes
from initmem.seeds import generator

PAD = 4
# Pixels (images x height x width, over all replicas) per evaluation batch. On a CPU the activations should
# stay in the cache: with 1000 images of 32x32 per batch, an image takes twice as long as with 100.
EVALUATION_PIXELS = {"cpu": 100_000, "cuda": 4_000_000}
TOKEN_PIXELS = 8  # pixels that a token counts as: so much more of a network's activations belong to it


def evaluation_batch(sizes: Sizes, replicas: int, device: str) -> int:
    """How many examples to evaluate at a time."""
    pixels = sizes.height * sizes.width * (TOKEN_PIXELS if sizes.vocabulary else 1)
    at_once = EVALUATION_PIXELS.get(device, EVALUATION_PIXELS["cuda"])
    return max(1, at_once // (pixels * replicas))


class Images:
    """One split of a dataset on a device. Bytes stay bytes until a batch is made."""

    def __init__(self, examples: Examples, *, device: torch.device, dtype: torch.dtype) -> None:
        self.x = torch.from_numpy(examples.x).to(device)  # (example, height, width, channel)
        self.y = torch.from_numpy(examples.y).to(device)  # (example,) or (example, token)
        self.dtype = dtype

    def __len__(self) -> int:
        return len(self.y)

    def packed(self, index: Tensor, draws: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Gather the examples at `index`, of shape (batch, replica).

        Inputs have shape (batch, replica * channel, h, w), labels (batch, replica), or
        (batch, replica, token) where every token has one. With `draws`, of shape (batch, replica, 3), the
        inputs are augmented.
        """
        batch, replicas = index.shape
        flat = index.flatten()
        x = self.x.index_select(0, flat)
        x = self._scale(x if draws is None else flip_crop(x, draws.flatten(0, 1)))
        _, height, width, channels = x.shape
        x = x.view(batch, replicas, height, width, channels).permute(0, 1, 4, 2, 3)
        # For a single replica this is a view, already in channels-last layout.
        x = x[:, 0] if replicas == 1 else x.reshape(batch, replicas * channels, height, width)
        return x, self.y.index_select(0, flat).view(batch, replicas, *self.y.shape[1:])

    def shared(self, size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Iterate over the split in order: inputs (batch, channel, h, w), labels (batch,)."""
        for start in range(0, len(self), size):
            x = self._scale(self.x[start : start + size])
            yield x.permute(0, 3, 1, 2), self.y[start : start + size]

    def _scale(self, x: Tensor) -> Tensor:
        if x.dtype == torch.int64:  # tokens
            return x
        return x.to(self.dtype) / 255 if x.dtype == torch.uint8 else x.to(self.dtype)


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
