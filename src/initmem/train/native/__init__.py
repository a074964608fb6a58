"""Layers in C for a single core: what PyTorch does in many passes over memory, done in a few.

The code is compiled for this CPU on first use (`initmem.train.compiled`), which takes a few seconds. Without
a C compiler, or with INITMEM_NATIVE=0, PyTorch does all the work.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from initmem.train import compiled

FFI = compiled.interface()
FLOATS, ADDRESSES = FFI.typeof("float *"), FFI.typeof("float *[]")
LANES = 8  # floats per SIMD vector: the number of channels, or of lanes, is a multiple of this


class Lanes(NamedTuple):
    """A pack whose replicas occupy the lanes of SIMD vectors; the last lanes may be empty.

    Images have shape (batch, channel * lane, h, w), stored as (batch, h, w, channel, lane). Variables are
    replica-major, as in any pack.
    """

    replicas: int
    lanes: int


SINGLE = Lanes(1, 1)


def library() -> Any:
    """The compiled code; None if it is not available."""
    return compiled.library().code


def layers(device: torch.device, dtype: torch.dtype) -> str:
    """What computes the layers of a pack, for its provenance: C and which build, or PyTorch and why."""
    if library() is None or ready(device, dtype):
        return str(compiled.library())
    threads = torch.get_num_threads()
    kind = str(dtype).removeprefix("torch.")
    return f"PyTorch (device {device.type}, {kind}, {threads} threads; C: cpu, float32, 1 thread)"


def ready(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether the compiled code is available and supports this device and dtype."""
    return (
        device.type == "cpu"
        and dtype == torch.float32
        and torch.get_num_threads() == 1  # the compiled code is single-threaded
        and library() is not None
    )


def suits(x: Tensor) -> bool:
    """Whether a batch is in the supported layout: (batch, channel, h, w), channels last."""
    return (
        x.is_contiguous(memory_format=torch.channels_last)
        and not torch.is_autocast_enabled("cpu")
        and ready(x.device, x.dtype)
    )


def can_normalize(x: Tensor, *, pool: bool, skip: Tensor | None = None) -> bool:
    """Whether `normalize` supports this batch, and the skip connection that is added to it."""
    _, channels, height, width = x.shape
    even = height % 2 == width % 2 == 0
    fits = skip is None or (skip.shape == x.shape and not pool and suits(skip))
    return channels % LANES == 0 and (even or not pool) and fits and suits(x)


class NormVariables(NamedTuple):
    """Per-channel tensors of a batch normalization, each of shape (replica * channel,).

    In training, `mean` and `variance` are outputs: the batch mean and unbiased variance. In evaluation they
    are inputs.
    """

    gamma: Tensor
    beta: Tensor
    mean: Tensor
    variance: Tensor


def normalize(
    x: Tensor,
    variables: NormVariables,
    epsilon: float,
    *,
    pool: bool,
    lanes: Lanes = SINGLE,
    skip: Tensor | None = None,
) -> Tensor:
    """Batch normalization with batch statistics, 2x2 max pooling if `pool`, + `skip` if given, and ReLU."""
    y: Tensor = _Normalize.apply(x, *variables, skip, epsilon, pool, lanes)
    return y


def normalize_fixed(
    x: Tensor,
    variables: NormVariables,
    epsilon: float,
    *,
    pool: bool,
    lanes: Lanes = SINGLE,
    skip: Tensor | None = None,
) -> Tensor:
    """The same with given statistics; not differentiable."""
    n, channels, height, width = x.shape
    gamma, beta, mean, variance = variables
    y = _output(x, pool=pool)
    call(
        "normalize_fixed", x, n, height, width, channels, *lanes, pool,
        skip, gamma, beta, epsilon, mean, variance, y,
    )  # fmt: skip
    return y


class _Normalize(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        gamma: Tensor,
        beta: Tensor,
        mean: Tensor,
        variance: Tensor,
        skip: Tensor | None,
        epsilon: float,
        pool: bool,
        lanes: Lanes,
    ) -> Tensor:
        n, channels, height, width = x.shape
        y, saved = _output(x, pool=pool), x.new_empty(4, channels)
        call(
            "normalize", x, n, height, width, channels, *lanes, pool,
            skip, gamma, beta, epsilon, mean, variance, saved, y,
        )  # fmt: skip
        ctx.save_for_backward(x, saved, None if skip is None else y)
        ctx.pool, ctx.lanes = pool, lanes
        return y

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, ...]:
        x, saved, y = ctx.saved_tensors
        n, channels, height, width = x.shape
        grad_output = grad_output.contiguous(memory_format=torch.channels_last)
        total = channels // ctx.lanes.lanes * ctx.lanes.replicas  # without the empty lanes
        grad_x, grad_gamma, grad_beta = torch.empty_like(x), x.new_empty(total), x.new_empty(total)
        grad_skip = None if y is None else torch.empty_like(x)
        call(
            "normalize_backward", x, grad_output, n, height, width, channels, *ctx.lanes, ctx.pool,
            y, saved, grad_x, grad_gamma, grad_beta, grad_skip,
        )  # fmt: skip
        return grad_x, grad_gamma, grad_beta, None, None, grad_skip, None, None, None


def layer_normalize(
    x: Tensor, gamma: Tensor, beta: Tensor, epsilon: float, *, pool: bool, lanes: Lanes = SINGLE
) -> Tensor:
    """Layer normalization over channels at each pixel, 2x2 max pooling if `pool`, and ReLU."""
    y: Tensor = _LayerNormalize.apply(x, gamma, beta, epsilon, pool, lanes)
    return y


class _LayerNormalize(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, gamma: Tensor, beta: Tensor, epsilon: float, pool: bool, lanes: Lanes
    ) -> Tensor:
        n, channels, height, width = x.shape
        y, saved = _output(x, pool=pool), x.new_empty(n * height * width, 2, lanes.lanes)
        call("layer_normalize", x, n, height, width, channels, *lanes, pool, gamma, beta, epsilon, saved, y)
        ctx.save_for_backward(x, gamma, beta, saved)
        ctx.pool, ctx.lanes = pool, lanes
        return y

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, ...]:
        x, gamma, beta, saved = ctx.saved_tensors
        n, channels, height, width = x.shape
        grad_output = grad_output.contiguous(memory_format=torch.channels_last)
        grad_x, grad_gamma, grad_beta = map(torch.empty_like, (x, gamma, beta))
        call(
            "layer_normalize_backward", x, grad_output, n, height, width, channels, *ctx.lanes, ctx.pool,
            gamma, beta, saved, grad_x, grad_gamma, grad_beta,
        )  # fmt: skip
        return grad_x, grad_gamma, grad_beta, None, None, None


def can_convolve(x: Tensor, kernel: Tensor) -> bool:
    """Whether `convolve` supports this layer; it was faster than PyTorch wherever it was measured."""
    _, channels, height, width = x.shape
    return channels == kernel.shape[1] and takes(kernel, height, width) and suits(x)


def takes(kernel: Tensor, height: int, width: int) -> bool:
    """Whether the code supports this kernel on images of this size."""
    outputs, inputs = kernel.shape[:2]
    return (
        inputs % LANES == outputs % LANES == 0
        and height % 4 == width % 4 == 0
        and kernel.is_contiguous(memory_format=torch.channels_last)
    )


def convolve(x: Tensor, kernel: Tensor, bias: Tensor, lanes: Lanes = SINGLE) -> Tensor:
    """A 3x3 convolution with 'same' padding: Winograd for a single network, direct for a pack in lanes.

    In lanes, the number of outputs must be a multiple of 4 and the kernel contiguous.
    """
    y: Tensor = _Convolution.apply(x, kernel, bias, lanes)
    return y


class _Convolution(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, kernel: Tensor, bias: Tensor, lanes: Lanes) -> Tensor:
        ctx.save_for_backward(x, kernel)
        ctx.lanes = lanes
        return _convolved(x, kernel, bias, len(kernel) // lanes.replicas, lanes, transposed=False)

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, Tensor, Tensor, None]:
        x, kernel = ctx.saved_tensors
        lanes = ctx.lanes
        inputs, outputs = kernel.shape[1], len(kernel) // lanes.replicas
        grad_output = grad_output.contiguous(memory_format=torch.channels_last)
        grad_x = None
        if ctx.needs_input_grad[0]:
            grad_x = _convolved(grad_output, kernel, None, inputs, lanes, transposed=True)
        grad_kernel, grad_bias = torch.empty_like(kernel), x.new_empty(len(kernel))
        n, _, height, width = x.shape
        images = x, grad_output, n, height, width, inputs, outputs
        _call("convolve_backward", lanes, images, (grad_kernel, grad_bias))
        return grad_x, grad_kernel, grad_bias, None


def _convolved(
    x: Tensor, kernel: Tensor, bias: Tensor | None, outputs: int, lanes: Lanes, *, transposed: bool
) -> Tensor:
    n, channels, height, width = x.shape
    y = x.new_empty(n, height, width, outputs * lanes.lanes).permute(0, 3, 1, 2)
    images = x, kernel, bias, n, height, width, channels // lanes.lanes, outputs
    _call("convolve", lanes, images, (transposed, y))
    return y


def _call(name: str, lanes: Lanes, images: tuple[Any, ...], rest: tuple[Any, ...]) -> None:
    """Call a convolution, or its variant for packs, which also takes the lanes.

    The widest vectors that the channels, or the lanes, fill are used.
    """
    *_, inputs, outputs = images
    across = (inputs, outputs) if lanes == SINGLE else (lanes.lanes,)
    widest = compiled.library().widest
    wide = widest > LANES and all(size % widest == 0 for size in across)
    variant = f"{'' if lanes == SINGLE else 'lanes_'}{name}{'_wide' if wide else ''}"
    pack = () if lanes == SINGLE else lanes
    if not call(variant, *images, *pack, *rest):
        raise MemoryError


def lanes_for(replicas: int) -> Lanes:
    """The smallest number of lanes that holds this many replicas."""
    return Lanes(replicas, -(-replicas // LANES) * LANES)


def into_lanes(x: Tensor, channels: int, lanes: Lanes) -> Tensor:
    """Rearrange (batch, replica * channel, h, w), or shared (batch, channel, h, w), into lanes."""
    if x.shape[1] == channels:
        y = x.permute(0, 2, 3, 1).unsqueeze(-1).expand(*x.shape[:1], *x.shape[2:], channels, lanes.lanes)
    else:
        y = x.unflatten(1, (lanes.replicas, channels)).permute(0, 3, 4, 2, 1)
        y = F.pad(y, (0, lanes.lanes - lanes.replicas))
    return y.contiguous().flatten(3).permute(0, 3, 1, 2)


class Together:
    """Lists of tensors that C works on in one call, element by element: variables, perhaps with their state.

    All lists are laid out like the first one. The memory of these tensors has to stay where it is; that of
    others, such as gradients, is looked up for every call.
    """

    def __init__(self, *lists: Sequence[Tensor]) -> None:
        self.lists = [list(tensors) for tensors in lists]
        self.first = self.lists[0]
        self.strides = [tensor.stride() for tensor in self.first]
        self.sizes = FFI.new("num[]", [tensor.numel() for tensor in self.first])
        self.pointers = [pointers(tensors) for tensors in self.lists]
        self.fits = bool(self.first) and all(
            tensor.stride() == stride and _is_block(tensor) and tensor.dtype == torch.float32
            for tensors in self.lists
            for tensor, stride in zip(tensors, self.strides, strict=True)
        )

    @property
    def ready(self) -> bool:
        """Whether these tensors are supported."""
        return self.fits and ready(self.first[0].device, self.first[0].dtype)

    def add_to(self, others: Sequence[Tensor], factor: float) -> bool:
        """Add a multiple of the first list to others, unless they are laid out in another way."""
        if not self.ready or [tensor.stride() for tensor in others] != self.strides:
            return False
        self._call("add_scaled", self.pointers[0], pointers(others), factor)
        return True

    def step(self, rule: str, gradients: Sequence[Tensor], *numbers: float) -> None:
        """Call an update rule with the gradients of the first list."""
        alike = [
            gradient if gradient.stride() == stride else torch.empty_like(variable).copy_(gradient)
            for gradient, variable, stride in zip(gradients, self.first, self.strides, strict=True)
        ]
        self._call(rule, pointers(alike), *self.pointers, *numbers)

    def scale(self, factor: float) -> None:
        """Multiply the first list."""
        self._call("scale", self.pointers[0], factor)

    def sum_of_squares(self, replicas: int) -> Tensor:
        """The sum of all squares of each replica's share, shape (replica,)."""
        sums = self.first[0].new_empty(replicas)
        self._call("sum_of_squares", self.pointers[0], replicas, sums)
        return sums

    def absorb(self, factors: Sequence[float], share: float) -> None:
        """Move the last two lists, moving means and variances, towards the first two, those of a batch.

        Each batch variance is multiplied by a factor first; one that is multiplied by zero counts as zero.
        """
        self._call("absorb", *self.pointers, FFI.new("double[]", list(factors)), share)

    def _call(self, name: str, *arguments: Any) -> None:
        call(name, len(self.first), self.sizes, *arguments)


def pointers(tensors: Sequence[Tensor]) -> Any:
    """The addresses of the tensors' elements, as an array for C."""
    return FFI.from_buffer(ADDRESSES, array("Q", [tensor.data_ptr() for tensor in tensors]))


def _is_block(tensor: Tensor) -> bool:
    """Whether the elements fill a block of memory, replica by replica."""
    return tensor.is_contiguous() or (
        tensor.ndim == 4 and tensor.is_contiguous(memory_format=torch.channels_last)
    )


def _output(x: Tensor, *, pool: bool) -> Tensor:
    n, channels, height, width = x.shape
    shape = (n, channels, height // 2, width // 2) if pool else x.shape
    return torch.empty(shape, dtype=x.dtype, memory_format=torch.channels_last)


def code() -> Any:
    """The functions of layers.h, where they are known to be available."""
    functions = library()
    assert functions is not None, "callers check that the code is available"
    return functions


def call(name: str, *arguments: Any) -> Any:
    """Call a function of layers.h; a tensor is passed as the address of its elements, None as NULL."""
    passed = [
        FFI.cast(FLOATS, argument.data_ptr())
        if isinstance(argument, Tensor)
        else FFI.NULL
        if argument is None
        else argument
        for argument in arguments
    ]
    return getattr(code(), name)(*passed)
