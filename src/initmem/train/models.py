"""The networks that are written for packs of R replicas, and the interface that every pack has."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from initmem.errors import ModelError, allowed
from initmem.recipe import DEFAULT_WIDTH, Norm
from initmem.train import native
from initmem.train.layers import Conv, ConvNormRelu, Dense, Layer, in_one_call, norm_layer
from initmem.train.native.blocks import can_head, head
from initmem.train.requirements import check_input

Shape = tuple[int, int, int]  # (channel, height, width)


class Network(nn.Module, ABC):
    """A pack of R replicas that maps inputs to logits of shape (batch, replica * class).

    Every parameter and persistent buffer has shape (replica * n, ...), replica-major, so that `by_replica`
    splits it. Replicas do not influence each other. There are two kinds: `Grouped`, written for packs, and
    `ModulePack`, which makes a pack of any `torch.nn.Module`.
    """

    def __init__(self, replicas: int) -> None:
        super().__init__()
        self.replicas = replicas

    @abstractmethod
    def kernel_names(self) -> list[str]:
        """The kernels: what the initialization scale multiplies, l2 penalizes and the weight norm counts."""

    def kernels(self) -> list[nn.Parameter]:
        """The kernels themselves."""
        return [self.get_parameter(name) for name in self.kernel_names()]

    @abstractmethod
    def begin_update(self, k: int) -> None:
        """Called before update k: random numbers of a network depend on k, and on nothing before it."""


class Grouped(Network):
    """A network whose layers hold all replicas: R groups of channels."""

    def named_layers(self) -> dict[str, Layer]:
        """The layers with a kernel, in the order in which initialization draws them."""
        return {path: module for path, module in self.named_modules() if isinstance(module, Layer)}

    def kernel_names(self) -> list[str]:
        """The kernels of all layers."""
        return [f"{path}.kernel" for path in self.named_layers()]

    def begin_update(self, k: int) -> None:
        """Nothing to do: these networks draw no random numbers."""


class ResNet9(Grouped):
    """Nine layers: eight 3x3 convolutions, four of them in two residual pairs, and a dense head."""

    def __init__(
        self, replicas: int, shape: Shape, classes: int, width: int, norm: Norm, *, pool: str
    ) -> None:
        super().__init__(replicas)
        channels = shape[0]

        def block(inputs: int, outputs: int, *, pool: bool = False) -> ConvNormRelu:
            return ConvNormRelu(replicas, inputs, outputs, norm, pool=pool)

        w = width
        self.stem = block(channels, w)
        self.down1 = block(w, 2 * w, pool=True)
        self.residual1 = nn.Sequential(block(2 * w, 2 * w), block(2 * w, 2 * w))
        self.down2 = block(2 * w, 4 * w, pool=True)
        self.down3 = block(4 * w, 8 * w, pool=True)
        self.residual2 = nn.Sequential(block(8 * w, 8 * w), block(8 * w, 8 * w))
        self.head = Dense(replicas, 8 * w, classes)
        self.pool = pool
        self.lanes: native.Lanes | None = None
        # Height and width are halved three times; in lanes, outputs come in multiples of 4.
        self.fits_lanes = w % 4 == 0 and shape[1] % 8 == shape[2] % 8 == 0

    def use_lanes(self, lanes: native.Lanes | None) -> None:
        """Let replicas occupy SIMD lanes in the C layers, for float32 on one core; None: no longer."""
        self.lanes = lanes

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, replica * channel, h, w) to logits (batch, replica * class)."""
        x = self._features(x)
        kernel, bias, largest = self.head.kernel, self.head.bias, self.pool == "max"
        if self.lanes is not None or can_head(x, kernel):
            return head(x, kernel, bias, self.lanes or native.SINGLE, largest=largest)
        logits: Tensor = self.head(x.amax((2, 3)) if largest else x.mean((2, 3)))
        return logits

    def _features(self, x: Tensor) -> Tensor:
        """The output of the last convolution block, in lanes if the network is."""
        residual1, residual2 = list(self.residual1), list(self.residual2)
        blocks = [self.down1, *residual1, self.down2, self.down3, *residual2]
        if self.lanes is not None:
            x = native.into_lanes(x, self.stem.conv.inputs, self.lanes)
            blocks.insert(0, self.stem)
        else:
            x = self.stem(x)  # its input has too few channels for the code in C
        y = in_one_call(x, blocks, (residual1[1], residual2[1]), self.lanes)
        if y is not None:
            return y
        x = self.down1(x)
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
        return self.norm2.then_add_relu(self.conv2(y), self.skip(x))


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
        logits: Tensor = self.head(self.blocks(self.stem(x)).mean((2, 3)))
        return logits


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
        x = F.relu(self.norm1(self.hidden1(x.flatten(1))))
        x = F.relu(self.norm2(self.hidden2(x)))
        logits: Tensor = self.head(x)
        return logits


Builder = Callable[[int, Shape, int, int, Norm], Grouped]

BUILDERS: dict[str, Builder] = {
    "resnet9": lambda *args: ResNet9(*args, pool="max"),
    "resnet9-avgpool": lambda *args: ResNet9(*args, pool="mean"),
    "resnet56": lambda *args: DeepResNet(*args, n=9),
    "resnet110": lambda *args: DeepResNet(*args, n=18),
    "mlp": MLP,
}


def build(model: str, *, replicas: int, shape: Shape, classes: int, width: int, norm: Norm) -> Grouped:
    """Build a pack of networks; until they are initialized, all variables are zero or one."""
    if model not in BUILDERS:
        raise ModelError(f"model = {model!r} ({allowed(BUILDERS)})")
    check_input(model, shape)
    return BUILDERS[model](replicas, shape, classes, width, norm)


def count(network: Network) -> tuple[int, int]:
    """Number of variables per replica: (trainable, total). The moving statistics are the difference."""
    trainable = sum(parameter.numel() for parameter in network.parameters())
    total = trainable + sum(buffer.numel() for buffer in _persistent_buffers(network))
    return trainable // network.replicas, total // network.replicas


def _persistent_buffers(network: Network) -> list[Tensor]:
    parameters = {name for name, _ in network.named_parameters()}
    return [value for name, value in network.state_dict().items() if name not in parameters]


def catalogue() -> list[dict[str, Any]]:
    """Every network at its default width, with its number of variables and its options."""
    rows: list[dict[str, Any]] = []
    for name in BUILDERS:
        width = DEFAULT_WIDTH[name]
        with torch.device("meta"):
            network = build(name, replicas=1, shape=(3, 32, 32), classes=10, width=width, norm="batch")
        trainable, total = count(network)
        rows.append({"name": name, "width": width, "trainable": trainable, "total": total, "options": ""})
    from initmem.train.modules import module_rows

    return rows + module_rows()
