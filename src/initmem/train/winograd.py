"""3x3 convolutions with a quarter of the multiplications: Winograd's F(4x4, 3x3), as matrix products.

The image is cut into tiles of 6x6 places that overlap by two. In the basis of polynomials at the points 0, 1,
-1, 2, -2 and infinity, convolving a tile with a kernel is a product place by place: 36 multiplications for
4x4 outputs instead of 144. Going there and back costs additions, so it pays where there are many channels.
Rounding is a few times that of the plain sum: 3e-6 instead of 6e-7 of the norm in float32.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

# Where it was seen to be quicker than the library: docs/speed.md.
LEAST_CHANNELS, LEAST_PAIRS = 32, 32 * 64  # of an input and an output channel
LEAST_TILES = 128  # in a batch: fewer do not make up for the kernel's way there and back
LARGEST_SIDE = 16
CACHE = 4 << 20  # bytes

IMAGE = [
    [4, 0, -5, 0, 1, 0],
    [0, -4, -4, 1, 1, 0],
    [0, 4, -4, -1, 1, 0],
    [0, -2, -1, 2, 1, 0],
    [0, 2, -1, -2, 1, 0],
    [0, 4, 0, -5, 0, 1],
]
KERNEL = [
    [1 / 4, 0, 0],
    [-1 / 6, -1 / 6, -1 / 6],
    [-1 / 6, 1 / 6, -1 / 6],
    [1 / 24, 1 / 12, 1 / 6],
    [1 / 24, -1 / 12, 1 / 6],
    [0, 0, 1],
]
OUTPUT = [
    [1, 1, 1, 1, 1, 0],
    [0, 1, -1, 2, -2, 0],
    [0, 1, 1, 4, 4, 0],
    [0, 1, -1, 8, -8, 1],
]


def pays(x: Tensor, kernel: Tensor) -> bool:
    """Whether a convolution of one replica is quicker this way.

    On a GPU the library has its own; in bfloat16 the detour would cost too many digits.
    """
    n, _, height, width = x.shape
    return (
        x.device.type == "cpu"
        and not torch.is_autocast_enabled("cpu")
        and min(kernel.shape[:2]) >= LEAST_CHANNELS
        and kernel.shape[0] * kernel.shape[1] >= LEAST_PAIRS
        and kernel.shape[1] == x.shape[1]
        and height % 4 == width % 4 == 0
        and max(height, width) <= LARGEST_SIDE
        and n * height * width >= 16 * LEAST_TILES
        and x.is_contiguous(memory_format=torch.channels_last)
    )


def convolve(x: Tensor, kernel: Tensor, bias: Tensor) -> Tensor:
    """Map (batch, in, h, w) to (batch, out, h, w), both channels last; h and w are multiples of 4."""
    found: Tensor = _Convolution.apply(x, kernel, bias)
    return found


@lru_cache(maxsize=8)
def _matrices(dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """The three changes of basis, for both axes at once: (36, 36), (36, 9) and (16, 36)."""
    axes = (torch.tensor(rows, dtype=torch.float64) for rows in (IMAGE, KERNEL, OUTPUT))
    image, kernel, output = (torch.kron(axis, axis).to(dtype) for axis in axes)
    return image, kernel, output


class _Convolution(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, kernel: Tensor, bias: Tensor) -> Tensor:
        to_image, to_kernel, to_output = _matrices(x.dtype)
        n, inputs, height, width = x.shape
        outputs, rows, columns = kernel.shape[0], height // 4, width // 4
        basis = (to_kernel @ kernel.permute(2, 3, 1, 0).reshape(9, -1)).view(36, inputs, outputs)
        padded = F.pad(x.permute(0, 2, 3, 1), (0, 0, 1, 1, 1, 1))
        y = x.new_empty(n, rows, 4, columns, 4, outputs)
        images = []
        size = _images_at_once(x, kernel)
        for part, place in zip(padded.split(size), y.split(size), strict=True):
            tiles = part.unfold(1, 6, 4).unfold(2, 6, 4).permute(4, 5, 0, 1, 2, 3)
            image = (to_image @ tiles.reshape(36, -1)).view(36, -1, inputs)
            found = (to_output @ torch.bmm(image, basis).view(36, -1)).view(4, 4, -1, rows, columns, outputs)
            torch.add(found.permute(2, 3, 0, 4, 1, 5), bias, out=place)
            images.append(image)
        ctx.save_for_backward(basis, *images)
        ctx.size = height, width, size
        return y.view(n, height, width, outputs).permute(0, 3, 1, 2)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, Tensor, Tensor]:
        basis, *images = ctx.saved_tensors
        to_image, to_kernel, to_output = _matrices(slope.dtype)
        height, width, size = ctx.size
        inputs, outputs = basis.shape[1:]
        rows, columns = height // 4, width // 4
        slope = slope.permute(0, 2, 3, 1).contiguous()
        for_x = slope.new_empty(*slope.shape[:3], inputs) if ctx.needs_input_grad[0] else None
        for_basis = torch.zeros_like(basis)
        for start, image, part in zip(range(0, len(slope), size), images, slope.split(size), strict=True):
            places = part.view(-1, rows, 4, columns, 4, outputs).permute(2, 4, 0, 1, 3, 5)
            for_product = (to_output.T @ places.reshape(16, -1)).view(36, -1, outputs)
            for_basis.baddbmm_(image.mT, for_product)
            if for_x is None:
                continue
            for_image = torch.bmm(for_product, basis.mT).view(36, -1)
            tiles = (to_image.T @ for_image).view(6, 6, len(part), rows, columns, inputs)
            tiles = tiles.permute(2, 3, 0, 4, 1, 5)
            padded = slope.new_zeros(len(part), height + 2, width + 2, inputs)
            for i in range(rows):
                for j in range(columns):  # tiles overlap
                    padded[:, 4 * i : 4 * i + 6, 4 * j : 4 * j + 6] += tiles[:, i, :, j]
            for_x[start : start + size] = padded[:, 1:-1, 1:-1]
        for_kernel = (to_kernel.T @ for_basis.view(36, -1)).view(3, 3, inputs, outputs).permute(3, 2, 0, 1)
        for_bias = slope.view(-1, outputs).sum(0)
        return None if for_x is None else for_x.permute(0, 3, 1, 2), for_kernel, for_bias


def _images_at_once(x: Tensor, kernel: Tensor) -> int:
    """So few that what is between the steps stays in the cache."""
    each = 36 * x.shape[2] * x.shape[3] // 16 * max(kernel.shape[:2]) * x.element_size()
    return max(1, -(-CACHE // each))
