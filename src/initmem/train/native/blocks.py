"""The convolution blocks of a network in one call per direction, and its end in another, both in C."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from initmem.train import compiled, native
from initmem.train.native import FFI, Lanes


class Block(NamedTuple):
    """A convolution, batch or layer normalization, 2x2 max pooling if `pool`, and ReLU.

    The input of the block before is added to the output if `residual`.
    """

    kernel: Tensor
    bias: Tensor
    gamma: Tensor
    beta: Tensor
    statistics: tuple[Tensor, Tensor] | None  # as in `NormVariables`; None: layer normalization
    pool: bool
    residual: bool


def can_chain(x: Tensor, blocks: Sequence[Block]) -> bool:
    """Whether `chain` supports these blocks of a single network."""
    _, channels, height, width = x.shape
    for block in blocks:
        if channels != block.kernel.shape[1] or not native.takes(block.kernel, height, width):
            return False
        channels = len(block.kernel)
        if block.pool:
            height, width = height // 2, width // 2
    return native.suits(x)


def chain(x: Tensor, blocks: Sequence[Block], epsilon: float, lanes: Lanes, *, training: bool) -> Tensor:
    """Blocks one after another, in one call. Only differentiable in training."""
    if not training:
        fixed, _ = _Plan(x, blocks, lanes).forward(x, epsilon, training=False)
        return fixed
    variables = [variable for block in blocks for variable in block[:4]]
    y: Tensor = _Chain.apply(x, blocks, epsilon, lanes, *variables)
    return y


class _Chain(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, blocks: Sequence[Block], epsilon: float, lanes: Lanes, *variables: Tensor
    ) -> Tensor:
        plan = _Plan(x, blocks, lanes)
        y, buffer = plan.forward(x, epsilon, training=True)
        ctx.save_for_backward(x, buffer, *variables)
        ctx.plan = plan
        return y

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, ...]:
        x, buffer, *variables = ctx.saved_tensors
        grad_output = grad_output.contiguous(memory_format=torch.channels_last)
        grad_x = torch.empty_like(x) if ctx.needs_input_grad[0] else None
        gradients = [torch.empty_like(variable) for variable in variables]
        ctx.plan.backward(x, buffer, grad_output, gradients, grad_x)
        return grad_x, None, None, None, *gradients


class _Plan:
    """What C must know of a chain of blocks. Their tensors have to be kept while it is used."""

    def __init__(self, x: Tensor, blocks: Sequence[Block], lanes: Lanes) -> None:
        n, _, height, width = x.shape
        pools = sum(block.pool for block in blocks)
        self.shape = (
            n,
            height >> pools,
            width >> pools,
            len(blocks[-1].kernel) // lanes.replicas * lanes.lanes,
        )
        sizes: list[tuple[int, ...]] = []
        addresses = array("Q")
        for block in blocks:
            outputs, inputs = block.kernel.shape[:2]
            sizes.append((inputs, outputs // lanes.replicas, block.pool, block.residual))
            addresses.extend([variable.data_ptr() for variable in block[:4]])
            addresses.extend([s.data_ptr() for s in block.statistics] if block.statistics else [0, 0])
        self.arguments = (
            len(blocks), FFI.new("struct block_sizes[]", sizes),
            FFI.from_buffer("struct block_variables[]", addresses),
            n, height, width, *lanes, compiled.library().widest,
        )  # fmt: skip

    def forward(self, x: Tensor, epsilon: float, *, training: bool) -> tuple[Tensor, Tensor]:
        """The output, and, in training, what the backward pass needs."""
        buffer, y = self._buffer(x, keep=training), x.new_empty(self.shape)
        if not native.call("chain", *self.arguments, training, x, epsilon, buffer, y):
            raise MemoryError
        return y.permute(0, 3, 1, 2), buffer

    def backward(
        self, x: Tensor, buffer: Tensor, grad_output: Tensor, gradients: list[Tensor], grad_x: Tensor | None
    ) -> None:
        """Write the gradients of kernel, bias, gamma and beta of each block, and of x."""
        work = self._buffer(x, keep=False)
        addresses = array("Q", [gradient.data_ptr() for gradient in gradients])
        of_blocks = FFI.from_buffer("struct block_gradients[]", addresses)
        if not native.call(
            "chain_backward", *self.arguments, x, buffer, grad_output, of_blocks, work, grad_x
        ):
            raise MemoryError

    def _buffer(self, x: Tensor, *, keep: bool) -> Tensor:
        return x.new_empty(native.call("chain_floats", *self.arguments, keep))


def can_head(x: Tensor, kernel: Tensor) -> bool:
    """Whether `head` supports this batch, which is not in lanes: one of a single network."""
    return x.shape[1] == kernel.shape[1] and x.shape[1] % native.LANES == 0 and native.suits(x)


def head(x: Tensor, kernel: Tensor, bias: Tensor, lanes: Lanes, *, largest: bool) -> Tensor:
    """A dense layer of the maximum over all pixels if `largest`, else of the mean."""
    logits: Tensor = _Head.apply(x, kernel, bias, lanes, largest)
    return logits


class _Head(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, kernel: Tensor, bias: Tensor, lanes: Lanes, largest: bool) -> Tensor:
        n, channels = len(x), kernel.shape[1]
        ctx.sizes = n, x.shape[2] * x.shape[3], channels, *lanes, len(kernel) // lanes.replicas, largest
        features, logits = x.new_empty(n, lanes.replicas * channels), x.new_empty(n, len(kernel))
        native.call("head", x, *ctx.sizes, kernel, bias, features, logits)
        ctx.save_for_backward(x, features, kernel)
        return logits

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, ...]:
        x, features, kernel = ctx.saved_tensors
        grad_output = grad_output.contiguous()
        gradients = torch.empty_like(x), torch.empty_like(kernel), x.new_empty(len(kernel))
        native.call("head_backward", x, features, grad_output, *ctx.sizes, kernel, *gradients)
        return *gradients, None, None
