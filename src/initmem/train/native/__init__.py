"""Layers in C, for one core: what PyTorch's library does in many passes, done in a few.

The code is compiled for this processor when it is first needed, which takes a second, and kept in the cache
directory. Where there is no C compiler, and with INITMEM_NATIVE=0, the library does all the work.
"""

from __future__ import annotations

import ctypes
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from initmem.train.native.build import library as library

LANES = 8  # channels, or replicas, come in vectors


class Lanes(NamedTuple):
    """Replicas side by side, each in a lane of vectors; the last lanes may be empty.

    Images are (batch, channel * lane, h, w) then, in memory (batch, h, w, channel, lane). Variables stay as
    they are in any pack, replica by replica.
    """

    replicas: int
    lanes: int


ALONE = Lanes(1, 1)


def ready(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether the code can be had, and is written for this."""
    return (
        device.type == "cpu"
        and dtype == torch.float32
        and torch.get_num_threads() == 1  # the library may have more
        and library() is not None
    )


def _suits(x: Tensor) -> bool:
    """Whether a batch is what the code is written for: (batch, channel, h, w), channels last."""
    return (
        x.is_contiguous(memory_format=torch.channels_last)
        and not torch.is_autocast_enabled("cpu")
        and ready(x.device, x.dtype)
    )


def normalises(x: Tensor, *, pool: bool) -> bool:
    """Whether `normalise` can be had."""
    _, channels, height, width = x.shape
    even = height % 2 == width % 2 == 0
    return channels % LANES == 0 and (even or not pool) and _suits(x)


class Line(NamedTuple):
    """What normalization needs to know of every channel. In training it leaves the batch's mean and unbiased
    variance in the last two; in evaluation it takes them as given."""

    gamma: Tensor
    beta: Tensor
    mean: Tensor
    variance: Tensor


def normalise(x: Tensor, line: Line, epsilon: float, *, pool: bool, lanes: Lanes = ALONE) -> Tensor:
    """Batch normalization, 2x2 max pooling where asked, ReLU."""
    found: Tensor = _Normalise.apply(x, *line, epsilon, pool, lanes)
    return found


def normalise_fixed(x: Tensor, line: Line, epsilon: float, *, pool: bool, lanes: Lanes = ALONE) -> Tensor:
    """The same with given statistics, without gradients."""
    n, channels, height, width = x.shape
    y = _output(x, pool=pool)
    _code().normalise_fixed(
        x.data_ptr(), n, height, width, channels, *lanes, pool, line.gamma.data_ptr(), line.beta.data_ptr(),
        epsilon, line.mean.data_ptr(), line.variance.data_ptr(), y.data_ptr(),
    )  # fmt: skip
    return y


class _Normalise(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        gamma: Tensor,
        beta: Tensor,
        mean: Tensor,
        variance: Tensor,
        epsilon: float,
        pool: bool,
        lanes: Lanes,
    ) -> Tensor:
        n, channels, height, width = x.shape
        y, saved = _output(x, pool=pool), x.new_empty(4, channels)
        _code().normalise(
            x.data_ptr(), n, height, width, channels, *lanes, pool, gamma.data_ptr(), beta.data_ptr(),
            epsilon, mean.data_ptr(), variance.data_ptr(), saved.data_ptr(), y.data_ptr(),
        )  # fmt: skip
        ctx.save_for_backward(x, saved)
        ctx.pool, ctx.lanes = pool, lanes
        return y

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        x, saved = ctx.saved_tensors
        n, channels, height, width = x.shape
        slope = slope.contiguous(memory_format=torch.channels_last)
        in_all = channels // ctx.lanes.lanes * ctx.lanes.replicas
        for_x, for_gamma, for_beta = torch.empty_like(x), x.new_empty(in_all), x.new_empty(in_all)
        _code().normalise_back(
            x.data_ptr(), slope.data_ptr(), n, height, width, channels, *ctx.lanes, ctx.pool,
            saved.data_ptr(), for_x.data_ptr(), for_gamma.data_ptr(), for_beta.data_ptr(),
        )  # fmt: skip
        return for_x, for_gamma, for_beta, None, None, None, None, None


def convolves(x: Tensor, kernel: Tensor) -> bool:
    """Whether `convolve` can be had. It is quicker than the library wherever it was measured."""
    outputs, inputs = kernel.shape[:2]
    return (
        inputs == x.shape[1]  # one replica
        and inputs % LANES == outputs % LANES == 0
        and x.shape[2] % 4 == x.shape[3] % 4 == 0
        and kernel.is_contiguous(memory_format=torch.channels_last)
        and _suits(x)
    )


def convolve(x: Tensor, kernel: Tensor, bias: Tensor, lanes: Lanes = ALONE) -> Tensor:
    """A 3x3 convolution with padding: of one network by Winograd's way, of many in lanes as the plain sum.

    In lanes outputs come in fours, and kernels are contiguous.
    """
    found: Tensor = _Convolution.apply(x, kernel, bias, lanes)
    return found


class _Convolution(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, kernel: Tensor, bias: Tensor, lanes: Lanes) -> Tensor:
        ctx.save_for_backward(x, kernel)
        ctx.lanes = lanes
        return _convolved(x, kernel, bias, len(kernel) // lanes.replicas, lanes, turn=False)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, Tensor, Tensor, None]:
        x, kernel = ctx.saved_tensors
        lanes = ctx.lanes
        inputs, outputs = kernel.shape[1], len(kernel) // lanes.replicas
        slope = slope.contiguous(memory_format=torch.channels_last)
        for_x = None
        if ctx.needs_input_grad[0]:
            for_x = _convolved(slope, kernel, None, inputs, lanes, turn=True)
        for_kernel, for_bias = torch.empty_like(kernel), x.new_empty(len(kernel))
        n, _, height, width = x.shape
        _in_room(
            "convolve_back", lanes, (x.data_ptr(), slope.data_ptr(), n, height, width, inputs, outputs),
            (for_kernel.data_ptr(), for_bias.data_ptr()),
        )  # fmt: skip
        return for_x, for_kernel, for_bias, None


def _convolved(
    x: Tensor, kernel: Tensor, bias: Tensor | None, outputs: int, lanes: Lanes, *, turn: bool
) -> Tensor:
    n, channels, height, width = x.shape
    y = x.new_empty(n, height, width, outputs * lanes.lanes).permute(0, 3, 1, 2)
    pointers = x.data_ptr(), kernel.data_ptr(), None if bias is None else bias.data_ptr()
    sizes = n, height, width, channels // lanes.lanes, outputs
    _in_room("convolve", lanes, (*pointers, *sizes), (turn, y.data_ptr()))
    return y


def _in_room(name: str, lanes: Lanes, before: tuple[Any, ...], after: tuple[Any, ...]) -> None:
    """Call what takes room of its own, of one network or, between its arguments, of a pack in lanes."""
    code = _code()
    if lanes == ALONE:
        done = getattr(code, name)(*before, *after)
    else:
        done = getattr(code, f"lanes_{name}")(*before, *lanes, *after)
    if not done:
        raise MemoryError


def lanes_for(replicas: int) -> Lanes:
    """As few lanes as hold so many replicas."""
    return Lanes(replicas, -(-replicas // LANES) * LANES)


def into_lanes(x: Tensor, channels: int, lanes: Lanes) -> Tensor:
    """Bring (batch, replica * channel, h, w), or shared (batch, channel, h, w), into lanes."""
    if x.shape[1] == channels:
        found = x.permute(0, 2, 3, 1).unsqueeze(-1).expand(*x.shape[:1], *x.shape[2:], channels, lanes.lanes)
    else:
        found = x.unflatten(1, (lanes.replicas, channels)).permute(0, 3, 4, 2, 1)
        found = F.pad(found, (0, lanes.lanes - lanes.replicas))
    return found.contiguous().flatten(3).permute(0, 3, 1, 2)


def out_of_lanes(x: Tensor, lanes: Lanes) -> Tensor:
    """Bring (batch, channel * lane) back to (batch, replica * channel)."""
    found: Tensor = x.unflatten(1, (-1, lanes.lanes))[..., : lanes.replicas]
    return found.transpose(1, 2).flatten(1)


def _output(x: Tensor, *, pool: bool) -> Tensor:
    n, channels, height, width = x.shape
    shape = (n, channels, height // 2, width // 2) if pool else x.shape
    return torch.empty(shape, dtype=x.dtype, memory_format=torch.channels_last)


def _code() -> ctypes.CDLL:
    found = library()
    assert found is not None, "asked whether it can be had before"
    return found
