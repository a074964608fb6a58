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
LEAST_CHANNELS = 64
LEAST_TILES = 64  # in a batch: fewer do not make up for the kernel's way there and back
LARGEST_SIDE = 16

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
        padded = F.pad(x.permute(0, 2, 3, 1), (0, 0, 1, 1, 1, 1))
        tiles = padded.unfold(1, 6, 4).unfold(2, 6, 4).permute(4, 5, 0, 1, 2, 3)
        image = (to_image @ tiles.reshape(36, -1)).view(36, -1, inputs)
        basis = (to_kernel @ kernel.permute(2, 3, 1, 0).reshape(9, -1)).view(36, inputs, outputs)
        found = (to_output @ torch.bmm(image, basis).view(36, -1)).view(4, 4, n, rows, columns, outputs)
        ctx.save_for_backward(image, basis)
        ctx.size = n, inputs, height, width
        y = x.new_empty(n, rows, 4, columns, 4, outputs)
        torch.add(found.permute(2, 3, 0, 4, 1, 5), bias, out=y)
        return y.view(n, height, width, outputs).permute(0, 3, 1, 2)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, Tensor, Tensor]:
        image, basis = ctx.saved_tensors
        to_image, to_kernel, to_output = _matrices(slope.dtype)
        n, inputs, height, width = ctx.size
        outputs, rows, columns = basis.shape[2], height // 4, width // 4
        places = slope.permute(0, 2, 3, 1).reshape(n, rows, 4, columns, 4, outputs)
        for_output = places.permute(2, 4, 0, 1, 3, 5).reshape(16, -1)
        for_product = (to_output.T @ for_output).view(36, -1, outputs)
        for_basis = torch.bmm(image.mT, for_product).view(36, -1)
        for_kernel = (to_kernel.T @ for_basis).view(3, 3, inputs, outputs).permute(3, 2, 0, 1)
        for_bias = places.view(-1, outputs).sum(0)
        if not ctx.needs_input_grad[0]:
            return None, for_kernel, for_bias
        for_image = torch.bmm(for_product, basis.mT).view(36, -1)
        tiles = (to_image.T @ for_image).view(6, 6, n, rows, columns, inputs).permute(2, 3, 0, 4, 1, 5)
        padded = slope.new_zeros(n, height + 2, width + 2, inputs)
        for i in range(rows):
            for j in range(columns):  # tiles overlap
                padded[:, 4 * i : 4 * i + 6, 4 * j : 4 * j + 6] += tiles[:, i, :, j]
        # Contiguous, as what follows would copy it anyway.
        return padded[:, 1:-1, 1:-1].contiguous().permute(0, 3, 1, 2), for_kernel, for_bias
