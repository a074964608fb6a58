"""The bundled networks, and the interface that every pack of R replicas has.

ResNets and MLP are written for packs. The transformers, `vit` for images and `gpt` for tokens, are plain
modules: pre-norm, with learned positions. They initialize themselves as GPT-2 does: deviation 0.02, zero
biases, projections into the residual stream smaller by the root of their number. In a recipe that is
`init_mode = "rescale"`; the default redraws them by fan-in.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from initmem.data.dataset import Sizes
from initmem.errors import ModelError
from initmem.recipe import Norm, Recipe
from initmem.register import Tokens
from initmem.train import native
from initmem.train.layers import Conv, ConvNormRelu, Dense, Layer, by_replica, in_one_call, norm_layer
from initmem.train.requirements import Shape, check_input
from initmem.train.variables import Role, Share, Variable

GPT2_STD = 0.02


class Network(nn.Module, ABC):
    """A pack of R replicas that maps inputs to logits of shape (batch, replica * class).

    Every parameter and persistent buffer has shape (replica * n, ...), replica-major, so that `by_replica`
    splits it. Replicas do not influence each other. There are two kinds: `Grouped`, written for packs, and
    `ModulePack`, which makes a pack of any `torch.nn.Module`.
    """

    def __init__(self, replicas: int) -> None:
        super().__init__()
        self.replicas = replicas
        self.update = 0  # that comes next: its random numbers depend on it, and on nothing before it

    @abstractmethod
    def kernel_names(self) -> list[str]:
        """The kernels: what the initialization scale multiplies, l2 penalizes and the weight norm counts."""

    def kernels(self) -> list[nn.Parameter]:
        """The kernels themselves."""
        return [self.get_parameter(name) for name in self.kernel_names()]

    @abstractmethod
    def replica_variables(self, replica: int = 0) -> list[Variable]:
        """The variables of one replica, in the order in which they are drawn."""

    @abstractmethod
    def hidden(self, x: Tensor) -> Tensor | None:
        """The inputs of the last layer, (batch, replica * feature); None: the module does not tell."""


class Grouped(Network):
    """A network whose layers hold all replicas: R groups of channels."""

    def named_layers(self) -> dict[str, Layer]:
        """The layers with a kernel, in the order in which initialization draws them."""
        return {path: module for path, module in self.named_modules() if isinstance(module, Layer)}

    def kernel_names(self) -> list[str]:
        """The kernels of all layers."""
        return [f"{path}.kernel" for path in self.named_layers()]

    def replica_variables(self, replica: int = 0) -> list[Variable]:
        """The kernels and biases of one replica, in the order in which they are drawn."""
        layers = self.named_layers()
        variables = []
        for path, layer in layers.items():
            roles: tuple[tuple[Role, float | None], ...] = (("kernel", float(layer.fan_in)), ("bias", None))
            for role, fan_in in roles:
                share = by_replica(getattr(layer, role).detach(), self.replicas)[replica]
                is_output = role == "kernel" and path == list(layers)[-1]
                name, shape = f"{path}.{role}", tuple(share.shape)
                variables.append(Variable(name, shape, role, fan_in, "", Share(share), is_output=is_output))
        return variables


class ResNet9(Grouped):
    """Nine layers: eight 3x3 convolutions, four of them in two residual pairs, and a dense head."""

    def __init__(
        self, replicas: int, shape: Shape, classes: int, width: int, norm: Norm, *, pool: str
    ) -> None:
        super().__init__(replicas)
        channels = shape[0]
        block, w = partial(ConvNormRelu, replicas, norm=norm), width
        self.stem = block(channels, w)
        self.down1 = block(w, 2 * w, pool=True)
        self.residual1 = nn.Sequential(block(2 * w, 2 * w), block(2 * w, 2 * w, residual=True))
        self.down2 = block(2 * w, 4 * w, pool=True)
        self.down3 = block(4 * w, 8 * w, pool=True)
        self.residual2 = nn.Sequential(block(8 * w, 8 * w), block(8 * w, 8 * w, residual=True))
        self.head = Dense(replicas, 8 * w, classes)
        self.pool = pool
        # If set, the blocks are one call of C, for float32 on one core; replicas occupy SIMD lanes.
        self.lanes: native.Lanes | None = None
        # Height and width are halved three times. In lanes, outputs come in multiples of 4; without, C takes
        # whole vectors of channels and tiles of 4x4 pixels.
        channel, side = (4, 8) if replicas > 1 else (8, 32)
        fewer = replicas > 1 or channels < native.LANES or channels % native.LANES == 0
        self.fits_lanes = w % channel == 0 and shape[1] % side == shape[2] % side == 0 and fewer

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, replica * channel, h, w) to logits (batch, replica * class)."""
        x = self._features(x)
        kernel, bias, largest = self.head.kernel, self.head.bias, self.pool == "max"
        if self.lanes is not None or native.can_head(x, kernel):
            return native.head(x, kernel, bias, self.lanes or native.SINGLE, largest=largest)
        logits: Tensor = self.head(self._pooled(x))
        return logits

    def hidden(self, x: Tensor) -> Tensor:
        """The pooled output of the last convolution block, (batch, replica * channel)."""
        return self._pooled(self._features(x, in_lanes=self.replicas == 1))

    def _pooled(self, x: Tensor) -> Tensor:
        return x.amax((2, 3)) if self.pool == "max" else x.mean((2, 3))

    def chain(self) -> list[ConvNormRelu]:
        """All convolution blocks, in order."""
        return [block for block in self.modules() if isinstance(block, ConvNormRelu)]

    def _features(self, x: Tensor, *, in_lanes: bool = True) -> Tensor:
        """The output of the last convolution block, in lanes if the network is."""
        if in_lanes and self.lanes is not None:
            x = native.into_lanes(x, self.stem.conv.inputs, self.lanes)
            return in_one_call(x, self.chain(), self.lanes)
        x = self.down1(self.stem(x))
        x = x + self.residual1(x)
        x = self.down3(self.down2(x))
        last: Tensor = x + self.residual2(x)
        return last


class ResidualBlock(nn.Module):
    """Two convolutions with a skip connection: the identity, or a 1x1 convolution where the shape changes."""

    def __init__(self, replicas: int, inputs: int, outputs: int, stride: int, norm: Norm) -> None:
        super().__init__()
        self.conv1 = Conv(replicas, inputs, outputs, stride=stride)
        self.norm1 = norm_layer(norm, replicas, outputs)
        self.conv2 = Conv(replicas, outputs, outputs)
        self.norm2 = norm_layer(norm, replicas, outputs)
        same = stride == 1 and inputs == outputs
        self.skip = nn.Identity() if same else Conv(replicas, inputs, outputs, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, replica * in, h, w) to (batch, replica * out, h', w')."""
        y = self.norm1.then_relu(self.conv1(x))
        return self.norm2.then_relu(self.conv2(y), skip=self.skip(x))


class DeepResNet(Grouped):
    """The CIFAR ResNet with 6n + 2 layers: three stages of n blocks, of widths w, 2w and 4w."""

    def __init__(self, replicas: int, shape: Shape, classes: int, width: int, norm: Norm, *, n: int) -> None:
        super().__init__(replicas)
        self.stem = ConvNormRelu(replicas, shape[0], width, norm)
        blocks, inputs = [], width
        for stage in range(3):
            outputs = width * 2**stage
            for i in range(n):
                stride = 2 if stage > 0 and i == 0 else 1
                blocks.append(ResidualBlock(replicas, inputs, outputs, stride, norm))
                inputs = outputs
        self.blocks = nn.Sequential(*blocks)
        self.head = Dense(replicas, inputs, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, replica * channel, h, w) to logits (batch, replica * class)."""
        logits: Tensor = self.head(self.hidden(x))
        return logits

    def hidden(self, x: Tensor) -> Tensor:
        """The mean over pixels of the last block, (batch, replica * channel)."""
        last: Tensor = self.blocks(self.stem(x))
        return last.mean((2, 3))


class MLP(Grouped):
    """Two hidden layers, each dense-norm-relu, and a dense head; for images and tabular data."""

    def __init__(self, replicas: int, shape: Shape, classes: int, width: int, norm: Norm) -> None:
        super().__init__(replicas)
        channels, height, columns = shape
        self.channels = channels
        self.hidden1 = Dense(replicas, channels * height * columns, width)
        self.norm1 = norm_layer(norm, replicas, width)
        self.hidden2 = Dense(replicas, width, width)
        self.norm2 = norm_layer(norm, replicas, width)
        self.head = Dense(replicas, width, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, replica * channel, h, w) to logits (batch, replica * class)."""
        logits: Tensor = self.head(self.hidden(x))
        return logits

    def hidden(self, x: Tensor) -> Tensor:
        """The output of the second hidden layer, (batch, replica * width)."""
        x = F.relu(self.norm1(self.hidden1(x.flatten(1))))
        return F.relu(self.norm2(self.hidden2(x)))


class Attention(nn.Module):
    """Multi-head self-attention; `mask` marks the positions that each position sees."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query_key_value = nn.Linear(width, 3 * width)
        self.project = nn.Linear(width, width)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """Map (batch, position, width) to the same shape."""
        batch, length, width = x.shape
        split = self.query_key_value(x).view(batch, length, 3, self.heads, -1)
        query, key, value = split.permute(2, 0, 3, 1, 4)  # each (batch, head, position, feature)
        weights = query @ key.mT / math.sqrt(width // self.heads)
        if mask is not None:
            weights = weights.masked_fill(~mask, -math.inf)
        mixed = (weights.softmax(-1) @ value).transpose(1, 2).reshape(batch, length, width)
        out: Tensor = self.project(mixed)
        return out


class Block(nn.Module):
    """Attention, then an MLP of four times the width, each behind a norm and beside a skip connection."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.expand, self.project = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """Map (batch, position, width) to the same shape."""
        x = x + self.attention(self.norm1(x), mask)
        out: Tensor = x + self.project(F.gelu(self.expand(self.norm2(x))))
        return out


def encoded(x: Tensor, blocks: nn.ModuleList, heads: int, norm: nn.LayerNorm, mask: Tensor | None) -> Tensor:
    """The norm of what blocks make of (batch, position, width)."""
    if native.can_transform(x):
        settings = heads, mask is not None, norm.eps, torch.is_grad_enabled()
        out: Tensor = native.Transformer.apply(x, *settings, *blocks.parameters(), *norm.parameters())[0]
    else:
        for block in blocks:
            x = block(x, mask)
        out = norm(x)
    return out


class ViT(nn.Module):
    """A vision transformer: patches, learned positions, blocks, the mean over positions, a linear head.

    `input` is the shape of the images, (channel, height, width).
    """

    def __init__(
        self,
        input: Shape | Tokens,
        outputs: int,
        width: int,
        *,
        patch: int = 4,
        depth: int = 4,
        heads: int = 4,
    ) -> None:
        super().__init__()
        if isinstance(input, Tokens):
            raise ModelError("model = 'vit' reads images, not tokens (allowed: gpt)")
        _check_sizes("vit", width, depth, heads)
        channels, height, columns = input
        if patch < 1 or height % patch or columns % patch:
            raise ModelError(f"patch = {patch} (allowed: a divisor of {height} and {columns})")
        self.patches = nn.Conv2d(channels, width, patch, stride=patch)
        self.positions = nn.Embedding((height // patch) * (columns // patch), width)
        self.blocks, self.heads = nn.ModuleList(Block(width, heads) for _ in range(depth)), heads
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, outputs)
        initialize_as_gpt2(self)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, channel, height, width) to logits (batch, class)."""
        x = self.patches(x).flatten(2).mT + self.positions.weight
        logits: Tensor = self.head(encoded(x, self.blocks, self.heads, self.norm, None).mean(1))
        return logits


class GPT(nn.Module):
    """A causal transformer that predicts, at every position, what comes after the tokens up to there.

    With `tied`, the head shares the embedding of the tokens.
    """

    mask: Tensor

    def __init__(
        self,
        input: Shape | Tokens,
        outputs: int,
        width: int,
        *,
        depth: int = 4,
        heads: int = 4,
        tied: bool = False,
    ) -> None:
        super().__init__()
        if not isinstance(input, Tokens):
            raise ModelError("model = 'gpt' reads tokens, not images (allowed: vit)")
        _check_sizes("gpt", width, depth, heads)
        length, vocabulary = input.length, input.vocabulary
        if tied and outputs != vocabulary:
            raise ModelError(f"tied = true with {outputs} classes and {vocabulary} tokens (allowed: false)")
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks, self.heads = nn.ModuleList(Block(width, heads) for _ in range(depth)), heads
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, outputs, bias=False)
        if tied:
            self.head.weight = self.tokens.weight
        seen = torch.ones(length, length, dtype=torch.bool).tril()
        self.register_buffer("mask", seen, persistent=False)
        initialize_as_gpt2(self)

    def forward(self, x: Tensor) -> Tensor:
        """Map tokens (batch, length) to logits (batch, length, output)."""
        x = self.tokens(x) + self.positions.weight
        logits: Tensor = self.head(encoded(x, self.blocks, self.heads, self.norm, self.mask))
        return logits


@torch.no_grad()
def initialize_as_gpt2(module: nn.Module) -> None:
    """Deviation 0.02; where a block adds to the residual stream, smaller by the root of how many do."""
    residual = sum(name.endswith("project") for name, _ in module.named_modules())
    for name, layer in module.named_modules():
        if isinstance(layer, nn.Linear | nn.Conv2d | nn.Embedding):
            share = math.sqrt(residual) if name.endswith("project") else 1
            nn.init.normal_(layer.weight, std=GPT2_STD / share)
        if isinstance(layer, nn.Linear | nn.Conv2d) and layer.bias is not None:
            nn.init.zeros_(layer.bias)


def _check_sizes(model: str, width: int, depth: int, heads: int) -> None:
    if depth < 1 or heads < 1 or width % heads:
        raise ModelError(
            f"model = {model!r} with width = {width}, depth = {depth}, heads = {heads} "
            "(allowed: depth from 1, heads that divide the width)"
        )


# Every bundled network by name: those that are written for packs, and plain modules.
BUILDERS: dict[str, Callable[..., Grouped]] = {
    "resnet9": partial(ResNet9, pool="max"),
    "resnet9-avgpool": partial(ResNet9, pool="mean"),
    "resnet56": partial(DeepResNet, n=9),
    "resnet110": partial(DeepResNet, n=18),
    "mlp": MLP,
}
MODULES: dict[str, Callable[..., nn.Module]] = {"vit": ViT, "gpt": GPT}


def build(recipe: Recipe, sizes: Sizes, replicas: int = 1) -> Grouped:
    """Build a pack of networks; until they are initialized, all variables are zero or one."""
    check_input(recipe.model, sizes.shape)
    return BUILDERS[recipe.model](replicas, sizes.shape, sizes.classes, recipe.width, recipe.norm)


def choose_layout(network: Network, device: torch.device, dtype: torch.dtype) -> None:
    """Choose the memory layout of images; for a plain module it is its author's choice."""
    if not isinstance(network, Grouped):
        return
    if network.replicas == 1:  # grouped convolutions are faster in the default layout
        network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    lanes = native.lanes_for(network.replicas)
    half_used = 2 * network.replicas >= lanes.lanes
    if isinstance(network, ResNet9) and network.fits_lanes and half_used and native.ready(device, dtype):
        network.lanes = lanes


def count(network: nn.Module) -> tuple[int, int]:
    """Number of variables: (trainable, total). Moving statistics and frozen parameters are the difference."""
    trainable = sum(parameter.numel() for parameter in network.parameters() if parameter.requires_grad)
    variables = {id(value): value.numel() for value in network.state_dict(keep_vars=True).values()}
    return trainable, sum(variables.values())
