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
from torch.autograd.function import once_differentiable

from initmem.train import compiled

FFI = compiled.interface()
FLOATS = FFI.typeof("float *")
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
    return x.is_contiguous(memory_format=torch.channels_last) and ready(x.device, x.dtype)


def can_normalize(x: Tensor, *, pool: bool, skip: Tensor | None = None) -> bool:
    """Whether `Normalize` supports this batch, and the skip connection that is added to it."""
    _, channels, height, width = x.shape
    even = height % 2 == width % 2 == 0
    fits = skip is None or (skip.shape == x.shape and not pool and suits(skip))
    return channels % LANES == 0 and (even or not pool) and fits and suits(x)


class Normalize(torch.autograd.Function):
    """Batch normalization, 2x2 max pooling if `pool`, + `skip` if given, and ReLU.

    Gamma, beta, mean and variance have shape (channel,). In training, `statistics` are outputs: the mean and
    the unbiased variance of the batch. Else they are inputs, and the result is not differentiable. None:
    layer normalization over the channels of each pixel, without a skip connection.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        gamma: Tensor,
        beta: Tensor,
        statistics: tuple[Tensor, Tensor] | None,
        skip: Tensor | None,
        epsilon: float,
        pool: bool,
        training: bool,
    ) -> Tensor:
        """The normalized images, (batch, channel, h', w')."""
        n, channels, height, width = x.shape
        ctx.sizes = n, height, width, channels, *([SINGLE.lanes] if statistics is None else []), pool
        ctx.by_layer = statistics is None
        shape = (n, channels, height // 2, width // 2) if pool else x.shape
        y = torch.empty(shape, dtype=x.dtype, memory_format=torch.channels_last)
        if statistics is None:
            saved = x.new_empty(n * height * width, 2)
            call("layer_normalize", x, *ctx.sizes, gamma, beta, epsilon, saved, y)
        elif training:
            saved = x.new_empty(4, channels)
            call("normalize", x, *ctx.sizes, skip, gamma, beta, epsilon, *statistics, saved, y)
        else:
            call("normalize_fixed", x, *ctx.sizes, skip, gamma, beta, epsilon, *statistics, y)
            ctx.mark_non_differentiable(y)
            return y
        ctx.save_for_backward(x, gamma, beta, saved, None if skip is None else y)
        return y

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, ...]:
        """The gradients of the images, gamma, beta and the skip connection."""
        x, gamma, beta, saved, y = ctx.saved_tensors
        grad_output = grad_output.contiguous(memory_format=torch.channels_last)
        gradients = tuple(map(torch.empty_like, (x, gamma, beta)))
        grad_skip = None if y is None else torch.empty_like(x)
        if ctx.by_layer:
            call("layer_normalize_backward", x, grad_output, *ctx.sizes, gamma, beta, saved, *gradients)
        else:
            call("normalize_backward", x, grad_output, *ctx.sizes, y, saved, *gradients, grad_skip)
        return *gradients, None, grad_skip, None, None, None


def can_convolve(x: Tensor, kernel: Tensor) -> bool:
    """Whether `convolve` supports this layer; it was faster than PyTorch wherever it was measured."""
    _, channels, height, width = x.shape
    outputs, inputs = kernel.shape[:2]
    few = inputs < LANES and not x.requires_grad  # there is no gradient of images with few channels
    return (
        channels == inputs
        and (inputs % LANES == 0 or few)
        and outputs % LANES == 0
        and height % 4 == width % 4 == 0
        and kernel.is_contiguous(memory_format=torch.channels_last)
        and suits(x)
    )


def convolve(x: Tensor, kernel: Tensor, bias: Tensor) -> Tensor:
    """A 3x3 convolution with 'same' padding: by Winograd, or directly for few channels."""
    y: Tensor = _Convolution.apply(x, kernel, bias)
    return y


class _Convolution(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, kernel: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(x, kernel)
        return _convolved(x, kernel, bias, transposed=False)

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, Tensor, Tensor]:
        x, kernel = ctx.saved_tensors
        grad_output = grad_output.contiguous(memory_format=torch.channels_last)
        grad_x = _convolved(grad_output, kernel, None, transposed=True) if ctx.needs_input_grad[0] else None
        grad_kernel, grad_bias = torch.empty_like(kernel), x.new_empty(len(kernel))
        n, inputs, height, width = x.shape
        sizes = n, height, width, inputs, len(kernel)
        _call("convolve_backward", kernel, x, grad_output, *sizes, grad_kernel, grad_bias)
        return grad_x, grad_kernel, grad_bias


def _convolved(x: Tensor, kernel: Tensor, bias: Tensor | None, *, transposed: bool) -> Tensor:
    n, inputs, height, width = x.shape
    outputs = kernel.shape[1 if transposed else 0]
    y = x.new_empty(n, height, width, outputs).permute(0, 3, 1, 2)
    _call("convolve", kernel, x, kernel, bias, n, height, width, inputs, outputs, transposed, y)
    return y


def _call(name: str, kernel: Tensor, *arguments: Any) -> None:
    """Call a convolution with the widest vectors that the channels of its kernel fill."""
    widest = compiled.library().widest
    wide = widest > LANES and all(channels % widest == 0 for channels in kernel.shape[:2])
    call(f"{name}_wide" if wide else name, *arguments)


def lanes_for(replicas: int) -> Lanes:
    """The smallest number of lanes that holds this many replicas; a single one needs none."""
    return SINGLE if replicas == 1 else Lanes(replicas, -(-replicas // LANES) * LANES)


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


def pointers(tensors: Sequence[Tensor | None], kind: str = "float *[]") -> Any:
    """The addresses of the tensors' elements, as an array of pointers or of structs of them; None is NULL."""
    addresses = array("Q", [0 if tensor is None else tensor.data_ptr() for tensor in tensors])
    return FFI.from_buffer(kind, addresses)


def _is_block(tensor: Tensor) -> bool:
    """Whether the elements fill a block of memory, replica by replica."""
    channels_last = tensor.ndim == 4 and tensor.is_contiguous(memory_format=torch.channels_last)
    return tensor.is_contiguous() or channels_last


def call(name: str, *arguments: Any) -> Any:
    """Call a function of layers.h; a tensor is passed as the address of its elements, None as NULL."""
    function = getattr(library(), name)
    passed = [FFI.NULL if argument is None else argument for argument in arguments]
    passed = [FFI.cast(FLOATS, a.data_ptr()) if isinstance(a, Tensor) else a for a in passed]
    result = function(*passed)
    if result == 0 and FFI.typeof(function).result.cname == "int":  # not a number of floats
        raise MemoryError
    return result


# -- the convolution blocks of a network in one call per direction, and its end in another -----------------


# A 3x3 convolution, batch or layer normalization, 2x2 max pooling if asked for, and ReLU: its inputs and
# outputs, whether it pools, and whether the input of the block before is added to its output.
Block = tuple[int, int, bool, bool]


class Chain(torch.autograd.Function):
    """Blocks one after another, in one call. Only differentiable in training.

    The variables are kernel, bias, gamma and beta of every block. The statistics, as in `Normalize`, are mean
    and variance of every block; none: layer normalization.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        blocks: Sequence[Block],
        statistics: Sequence[Tensor],
        epsilon: float,
        lanes: Lanes,
        training: bool,
        *variables: Tensor,
    ) -> Tensor:
        """The output of the last block, (batch, channel * lane, h, w)."""
        n, _, height, width = x.shape
        weights, moments = InLanes(variables, lanes), InLanes(statistics, lanes)
        weights.load()
        if not training:
            moments.load()
        fields = network_fields(blocks, (n, height, width), weights.tensors, moments.tensors, epsilon, lanes)
        network = FFI.new("struct network *", fields)
        pools = sum(pool for _, _, pool, _ in blocks)
        y = x.new_empty(n, height >> pools, width >> pools, blocks[-1][1] * lanes.lanes).permute(0, 3, 1, 2)
        buffer = x.new_empty(call("chain_floats", network, training))
        call("chain", network, training, x, buffer, y)
        if training:
            moments.store()
            ctx.save_for_backward(x, buffer, *variables)
            ctx.network, ctx.lanes, ctx.kept = network, lanes, (fields, weights, moments)
        else:
            ctx.mark_non_differentiable(y)
        return y

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, ...]:
        """The gradients of the images, if they need any, and of all variables."""
        x, buffer, *variables = ctx.saved_tensors
        grad_output = grad_output.contiguous(memory_format=torch.channels_last)
        grad_x = torch.empty_like(x) if ctx.needs_input_grad[0] else None
        gradients = [torch.empty_like(variable) for variable in variables]
        written = InLanes(gradients, ctx.lanes)
        of_blocks = pointers(written.tensors, "struct block_gradients[]")
        work = x.new_empty(call("chain_floats", ctx.network, False))
        call("chain_backward", ctx.network, x, buffer, grad_output, of_blocks, work, grad_x)
        written.store()
        return grad_x, None, None, None, None, None, *gradients


def network_fields(
    blocks: Sequence[Block],
    images: tuple[int, int, int],
    variables: Sequence[Tensor],
    statistics: Sequence[Tensor],
    epsilon: float,
    lanes: Lanes,
) -> list[Any]:
    """A network for so many images of this height and width, as C reads it; the tensors are in lanes.

    C has addresses only: fields and tensors have to be kept while it is used.
    """
    fields: list[Tensor | None] = []
    for i in range(len(blocks)):
        fields += [*variables[4 * i : 4 * i + 4], *(statistics[2 * i : 2 * i + 2] or (None, None))]
    of_blocks = FFI.new("struct block_sizes[]", blocks), pointers(fields, "struct block_variables[]")
    return [len(blocks), *images, lanes.lanes, compiled.library().widest, epsilon, *of_blocks]


class InLanes:
    """Copies of a pack's tensors in lanes: (n, lane) of (replica * n, ...). In a single lane, the tensors."""

    def __init__(self, tensors: Sequence[Tensor], lanes: Lanes) -> None:
        self.lanes, self.originals = lanes, list(tensors)
        self.tensors = self.originals
        if lanes != SINGLE:
            sizes = [tensor.numel() // lanes.replicas * lanes.lanes for tensor in tensors]
            self.tensors = list(torch.zeros(sum(sizes)).split(sizes))
            self.arguments = (
                len(sizes), FFI.new("num[]", [tensor.numel() for tensor in tensors]), pointers(tensors),
                *lanes, pointers(self.tensors),
            )  # fmt: skip

    def load(self) -> None:
        """Copy the tensors into lanes."""
        if self.lanes != SINGLE:
            call("into_lanes", *self.arguments)

    def store(self) -> None:
        """Copy the lanes to the tensors."""
        if self.lanes != SINGLE:
            call("out_of_lanes", *self.arguments)


def can_head(x: Tensor, kernel: Tensor) -> bool:
    """Whether `head` supports this batch, which is not in lanes: one of a single network."""
    return x.shape[1] == kernel.shape[1] and x.shape[1] % LANES == 0 and suits(x)


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
        call("head", x, *ctx.sizes, kernel, bias, features, logits)
        ctx.save_for_backward(x, features, kernel)
        return logits

    @staticmethod
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, ...]:
        x, features, kernel = ctx.saved_tensors
        grad_output = grad_output.contiguous()
        gradients = torch.empty_like(x), torch.empty_like(kernel), x.new_empty(len(kernel))
        call("head_backward", x, features, grad_output, *ctx.sizes, kernel, *gradients)
        return *gradients, None, None


# -- the blocks of a transformer in one call per direction -------------------------------------------------


def can_transform(x: Tensor) -> bool:
    """Whether `Transformer` supports activations (sequence, position, channel)."""
    return x.shape[-1] % 4 == 0 and ready(x.device, x.dtype)


class Transformer(torch.autograd.Function):
    """Pre-norm blocks with GELU and the norm after the last one; in a pack, under `torch.func.vmap`.

    Each block has 12 variables, as `networks.Block` declares them: gamma and beta of both norms, then weight
    and bias of the product that gives query, key and value, of the projection, and of the two products of the
    MLP, which is 4 times as wide.
    """

    @staticmethod
    def forward(
        x: Tensor, heads: int, causal: bool, epsilon: float, keep: bool, *variables: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The output, and, to `keep`, what the backward pass needs; in a pack, all begin with the replica."""
        x, variables = x.contiguous(), tuple(variable.contiguous() for variable in variables)
        net, suffix = _net(x, variables, heads, causal, epsilon)
        buffer, y = x.new_empty(call(f"transformer_floats{suffix}", net, keep)), torch.empty_like(x)
        call(f"transformer{suffix}", net, keep, x, pointers(variables), buffer, y)
        return y, buffer

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        """Keep what the backward pass needs."""
        ctx.settings = inputs[1:4]
        ctx.mark_non_differentiable(output[1])
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(output[1], *inputs[5:])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_output: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        """The gradients of the activations and of all variables."""
        buffer, *variables = ctx.saved_tensors
        variables = [variable.contiguous() for variable in variables]
        grad_output = grad_output.contiguous()
        gradients, grad_x = list(map(torch.empty_like, variables)), torch.empty_like(grad_output)
        net, suffix = _net(grad_output, variables, *ctx.settings)
        arguments = pointers(variables), buffer, grad_output, pointers(gradients), grad_x
        call(f"transformer_backward{suffix}", net, *arguments)
        return grad_x, None, None, None, None, *gradients

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *inputs: Any) -> tuple[Any, Any]:
        """A pack: the same function of tensors that begin with the replica."""

        def by_replica(tensor: Tensor, axis: int | None) -> Tensor:
            return tensor.expand(info.batch_size, *tensor.shape) if axis is None else tensor.movedim(axis, 0)

        x, *variables = map(by_replica, (inputs[0], *inputs[5:]), (in_dims[0], *in_dims[5:]))
        return Transformer.apply(x, *inputs[1:5], *variables), (0, None)


def _net(x: Tensor, variables: Sequence[Tensor], heads: int, causal: bool, epsilon: float) -> tuple[Any, str]:
    """Blocks as C sees them, and the suffix of functions with the widest vectors that the sequences fill."""
    sequences, positions, width = x.shape[-3:]
    count, replicas = len(variables) // 12, x.numel() // (sequences * positions * width)
    sizes = count, replicas, sequences, positions, width, heads, causal, epsilon
    wide = compiled.library().widest > LANES and sequences > LANES
    return FFI.new("struct transformer *", sizes), "_wide" if wide else ""
