"""Layers of a pack: R replicas of a network are ONE network with R groups.

Activations have shape (batch, replica * channel, height, width). Every variable has shape
(replica * channel, ...), replica-major, so `by_replica` splits any of them by replica. No layer mixes
replicas, so each replica follows the trajectory it would follow alone. R = 1 is not a special case.

In evaluation all replicas see the same input, which is passed once, as (batch, channel, ...). A layer
recognizes it by its number of channels and shares it among the replicas instead of copying it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from initmem.train import native

# The defaults of Keras 3, which differ from PyTorch's.
NORM_EPSILON = 1e-3
MOVING_AVERAGE = 0.99


def by_replica(variable: Tensor, replicas: int) -> Tensor:
    """View a variable as (replica, ...)."""
    return variable.view(replicas, -1, *variable.shape[1:])


class Layer(nn.Module):
    """A layer with a kernel and a bias. Kernels are what initialization scales and the weight norm counts."""

    def __init__(self, replicas: int, *kernel: int) -> None:
        super().__init__()
        self.replicas, self.fan_in = replicas, math.prod(kernel[1:])
        self.kernel = nn.Parameter(torch.zeros(replicas * kernel[0], *kernel[1:]))
        self.bias = nn.Parameter(torch.zeros(replicas * kernel[0]))


def grouped_product(x: Tensor, kernel: Tensor, replicas: int) -> Tensor:
    """Multiply (batch, replica * in), or shared (batch, in), with (replica * out, in)."""
    if x.shape[1] == kernel.shape[1]:
        return F.linear(x, kernel)
    grouped = x.unflatten(1, (replicas, -1)).transpose(0, 1)
    return torch.bmm(grouped, by_replica(kernel, replicas).mT).transpose(0, 1).flatten(1)


class Conv(Layer):
    """A convolution with 'same' padding; kernel (replica * out, in, size, size)."""

    def __init__(self, replicas: int, inputs: int, outputs: int, size: int = 3, stride: int = 1) -> None:
        super().__init__(replicas, outputs, inputs, size, size)
        self.inputs, self.size, self.stride = inputs, size, stride

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, replica * in, h, w), or shared (batch, in, h, w), to (batch, replica * out, h', w')."""
        if self.size == 3 and self.stride == 1:
            if max(x.shape[2:]) <= 2:
                return self._dense(x)
            if native.can_convolve(x, self.kernel):
                return native.convolve(x, self.kernel, self.bias)
        padding = self.size // 2
        if self.stride > 1:
            # Keras 3 pads as little as possible, at the far edge first; PyTorch does not.
            x, padding = F.pad(x, [*self._edges(x.shape[3]), *self._edges(x.shape[2])]), 0
        return F.conv2d(x, self.kernel, self.bias, self.stride, padding, groups=x.shape[1] // self.inputs)

    def _dense(self, x: Tensor) -> Tensor:
        """On images of at most 2x2 pixels every output sees every input: one matrix product per replica."""
        n, _, height, width = x.shape
        taps = [  # of the output pixel (i, j): those that fall inside the image
            self.kernel[:, :, 1 - i : 1 - i + height, 1 - j : 1 - j + width]
            for i in range(height)
            for j in range(width)
        ]
        kernel = torch.stack(taps, 1).flatten(2).flatten(0, 1)  # (replica * out * pixel, in * pixel)
        y = grouped_product(x.flatten(1), kernel, self.replicas).view(n, -1, len(taps))
        return (y + self.bias[:, None]).view(n, -1, height, width)

    def _edges(self, side: int) -> tuple[int, int]:
        """Padding before and after an axis, so that it gives ceil(side / stride) outputs."""
        outputs = math.ceil(side / self.stride)
        total = max((outputs - 1) * self.stride + self.size - side, 0)
        return total // 2, total - total // 2


class Dense(Layer):
    """A fully connected layer; kernel (replica * out, in)."""

    def __init__(self, replicas: int, inputs: int, outputs: int) -> None:
        super().__init__(replicas, outputs, inputs)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, replica * in), or shared (batch, in), to (batch, replica * out)."""
        return grouped_product(x, self.kernel, self.replicas) + self.bias


class Norm(nn.Module):
    """A normalization layer with a learned scale (gamma) and shift (beta) per channel.

    `by_channel`: one channel after the other, whatever replica it belongs to. Otherwise C takes one replica,
    without a skip connection.
    """

    by_channel: ClassVar[bool]

    def __init__(self, replicas: int, channels: int) -> None:
        super().__init__()
        self.replicas = replicas
        n = replicas * channels
        self.gamma, self.beta = nn.Parameter(torch.ones(n)), nn.Parameter(torch.zeros(n))

    def then_relu(self, x: Tensor, *, pool: bool = False, skip: Tensor | None = None) -> Tensor:
        """Normalize (batch, replica * channel, h, w), max-pool 2x2 if `pool`, add `skip`, then ReLU."""
        fits = self.by_channel or (self.replicas == 1 and skip is None)
        if fits and native.can_normalize(x, pool=pool, skip=skip):
            variables = self.gamma, self.beta, self.statistics(x.numel() // x.shape[1]), skip
            y: Tensor = native.Normalize.apply(x, *variables, NORM_EPSILON, pool, self.training)
            return y
        x = self(x)
        if pool:  # before ReLU: they commute, and ReLU then sees a quarter of the pixels
            x = F.max_pool2d(x, 2)
        return F.relu(x if skip is None else x + skip)

    def statistics(self, count: int) -> tuple[Tensor, Tensor] | None:
        """Mean and variance for a batch with this many values per channel: to write in training, else to use.

        None if they do not outlast the batch.
        """
        return None


class BatchNorm(Norm):
    """Batch normalization whose moving variance averages the biased batch variance, as in Keras 3."""

    by_channel = True
    moving_mean: Tensor
    moving_variance: Tensor
    batch_mean: Tensor
    batch_variance: Tensor

    def __init__(self, replicas: int, channels: int) -> None:
        super().__init__(replicas, channels)
        n = replicas * channels
        self.count = 0  # values per channel in the last training batch
        self.register_buffer("moving_mean", torch.zeros(n))
        self.register_buffer("moving_variance", torch.ones(n))
        self.register_buffer("batch_mean", torch.zeros(n), persistent=False)
        self.register_buffer("batch_variance", torch.ones(n), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Normalize (batch, replica * channel, ...) over batch and space."""
        mean, variance = self.statistics(x.numel() // x.shape[1])
        # With momentum 1, PyTorch leaves the statistics of a training batch in its two buffers. They belong
        # to the graph until the gradients are taken; `MovingStatistics.absorb` comes after that.
        return torch.batch_norm(
            x, self.gamma, self.beta, mean, variance, self.training, 1.0, NORM_EPSILON, False
        )

    def statistics(self, count: int) -> tuple[Tensor, Tensor]:
        """Those of the batch in training, else the moving ones."""
        if not self.training:
            return self.moving_mean, self.moving_variance
        self.count = count
        return self.batch_mean, self.batch_variance


class MovingStatistics:
    """The moving statistics of several layers."""

    def __init__(self, norms: Sequence[BatchNorm]) -> None:
        self.norms = list(norms)
        self.means, self.batch_means = [n.moving_mean for n in norms], [n.batch_mean for n in norms]
        self.variances = [n.moving_variance for n in norms]
        self.batch_variances = [n.batch_variance for n in norms]
        self.together = native.Together(self.batch_means, self.batch_variances, self.means, self.variances)

    @torch.no_grad()
    def absorb(self, rate: float | None = None) -> None:
        """Move them towards the statistics of the last batch, whose variances are made biased.

        Those of PyTorch are unbiased, Keras 3 uses the biased ones.
        """
        if not self.norms:
            return
        rate = 1 - MOVING_AVERAGE if rate is None else rate
        for norm in self.norms:
            if norm.count == 1:  # the unbiased variance of one value is undefined, the biased one zero
                norm.batch_variance.zero_()
        if self.together.ready:
            self.together.absorb(self._biased(), rate)
            return
        torch._foreach_mul_(self.batch_variances, self._biased())
        torch._foreach_lerp_(self.means, self.batch_means, rate)
        torch._foreach_lerp_(self.variances, self.batch_variances, rate)

    def _biased(self) -> list[float]:
        return [1 - 1 / max(norm.count, 1) for norm in self.norms]


class LayerNorm(Norm):
    """Layer normalization over the channels of each replica, separately at every pixel."""

    by_channel = False

    def forward(self, x: Tensor) -> Tensor:
        """Normalize (batch, replica * channel, ...) over channel."""
        y = x.movedim(1, -1)  # PyTorch's fused kernel normalizes trailing axes
        if self.replicas == 1:
            y = F.layer_norm(y, y.shape[-1:], self.gamma, self.beta, NORM_EPSILON)
        else:
            y = y.unflatten(-1, (self.replicas, -1))
            y = F.layer_norm(y, y.shape[-1:], eps=NORM_EPSILON).flatten(-2)
            y = torch.addcmul(self.beta, y, self.gamma)
        return y.movedim(-1, 1)


def norm_layer(kind: Literal["batch", "layer"], replicas: int, channels: int) -> Norm:
    """The normalization layer of a recipe."""
    return (BatchNorm if kind == "batch" else LayerNorm)(replicas, channels)


class ConvNormRelu(nn.Module):
    """The building block of ResNet-9: convolution, normalization, optional 2x2 max pooling, ReLU.

    `residual`: the network adds the input of the block before to the output.
    """

    def __init__(
        self,
        replicas: int,
        inputs: int,
        outputs: int,
        norm: Literal["batch", "layer"],
        *,
        pool: bool = False,
        residual: bool = False,
    ) -> None:
        super().__init__()
        self.conv = Conv(replicas, inputs, outputs)
        self.norm = norm_layer(norm, replicas, outputs)
        self.pool = pool
        self.block: native.Block = inputs, outputs, pool, residual

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, replica * in, h, w) to (batch, replica * out, h', w')."""
        return self.norm.then_relu(self.conv(x), pool=self.pool)


def in_one_call(x: Tensor, layers: Sequence[ConvNormRelu], lanes: native.Lanes) -> Tensor:
    """Layers one after another, in C."""
    variables: list[Tensor] = []
    statistics: list[Tensor] = []
    count = x.numel() // x.shape[1]
    for layer in layers:
        variables += [layer.conv.kernel, layer.conv.bias, layer.norm.gamma, layer.norm.beta]
        statistics += layer.norm.statistics(count) or ()
        count = count // 4 if layer.pool else count
    blocks, training = [layer.block for layer in layers], layers[0].training
    y: Tensor = native.Chain.apply(x, blocks, statistics, NORM_EPSILON, lanes, training, *variables)
    return y
