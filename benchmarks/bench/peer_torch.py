"""A plain PyTorch loop with DataLoader, torch.nn and torch.optim, as people write it."""

from __future__ import annotations

import copy
import math
from typing import Any

from .peer import Laps, examples, start, task

TASK = task()

import torch  # noqa: E402, after the threads are set
import torch.nn.functional as F  # noqa: E402
from torch import Tensor, nn  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402


class ChannelNorm(nn.LayerNorm):
    """Layer normalization over channels, as in ConvNeXt."""

    def forward(self, x: Tensor) -> Tensor:
        """Normalize every pixel."""
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


def norm(channels: int) -> nn.Module:
    """The recipe's normalization."""
    return (ChannelNorm if TASK["recipe"]["norm"] == "layer" else nn.BatchNorm2d)(channels)


def block(inputs: int, outputs: int, *, pool: bool = False) -> nn.Sequential:
    """Convolution, normalization, ReLU and, where asked, max pooling."""
    layers = [nn.Conv2d(inputs, outputs, 3, padding=1), norm(outputs), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers, *([nn.MaxPool2d(2)] if pool else []))


class ResNet9(nn.Module):
    """The nine-layer network."""

    def __init__(self, channels: int, w: int, classes: int) -> None:
        super().__init__()
        self.begin = nn.Sequential(block(channels, w), block(w, 2 * w, pool=True))
        self.residual1 = nn.Sequential(block(2 * w, 2 * w), block(2 * w, 2 * w))
        self.middle = nn.Sequential(block(2 * w, 4 * w, pool=True), block(4 * w, 8 * w, pool=True))
        self.residual2 = nn.Sequential(block(8 * w, 8 * w), block(8 * w, 8 * w))
        self.head = nn.Linear(8 * w, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Map images to logits."""
        x = self.begin(x)
        x = self.middle(x + self.residual1(x))
        x = x + self.residual2(x)
        return self.head(torch.flatten(F.adaptive_max_pool2d(x, 1), 1))


class Basic(nn.Module):
    """Two convolutions with a skip."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1)
        self.norm1 = norm(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1)
        self.norm2 = norm(outputs)
        self.skip = nn.Conv2d(inputs, outputs, 1, stride) if stride > 1 else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """Apply the block."""
        y = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(y)) + self.skip(x))


def resnet56(channels: int, w: int, classes: int) -> nn.Module:
    """The CIFAR ResNet of 56 layers."""
    blocks, inputs = [], w
    for stage in range(3):
        for i in range(9):
            blocks.append(Basic(inputs, w * 2**stage, 2 if stage > 0 and i == 0 else 1))
            inputs = w * 2**stage
    pool = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, classes)]
    return nn.Sequential(block(channels, w), *blocks, *pool)


class Transformer(nn.Module):
    """PyTorch's own encoder, pre-norm, with learned positions: of patches, or causal, of tokens."""

    def __init__(self, recipe: dict[str, Any], sizes: dict[str, int]) -> None:
        super().__init__()
        w, self.causal = recipe["width"], recipe["model"] == "gpt"
        if self.causal:
            length = sizes["width"]
            self.embed: nn.Module = nn.Embedding(sizes["vocabulary"], w)
        else:
            patch = recipe["patch"]
            length = (sizes["height"] // patch) * (sizes["width"] // patch)
            self.embed = nn.Conv2d(sizes["channels"], w, patch, stride=patch)
        self.positions = nn.Parameter(0.02 * torch.randn(length, w))
        layer = nn.TransformerEncoderLayer(
            w,
            recipe["heads"],
            4 * w,
            dropout=0.0,
            activation="gelu",
            batch_first=True,
            norm_first=True,
        )
        self.blocks = nn.TransformerEncoder(
            layer, recipe["depth"], nn.LayerNorm(w), enable_nested_tensor=False
        )
        self.head = nn.Linear(w, sizes["classes"], bias=not self.causal)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(length), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Map images to logits (batch, class), tokens to (batch, class, token)."""
        if self.causal:
            y = self.blocks(self.embed(x) + self.positions, mask=self.mask, is_causal=True)
            return self.head(y).transpose(1, 2)
        y = self.embed(x).flatten(2).transpose(1, 2) + self.positions
        return self.head(self.blocks(y).mean(1))


def network(recipe: dict[str, Any], sizes: dict[str, int]) -> nn.Module:
    """The recipe's network."""
    if recipe["model"] in ("vit", "gpt"):
        return Transformer(recipe, sizes)
    build = ResNet9 if recipe["model"] == "resnet9" else resnet56
    return build(sizes["channels"], recipe["width"], sizes["classes"])


def dataset(x: Any, y: Any) -> TensorDataset:
    """Images with their channels first, or tokens."""
    inputs = torch.from_numpy(x)
    inputs = inputs.permute(0, 3, 1, 2).contiguous() if inputs.ndim == 4 else inputs
    return TensorDataset(inputs, torch.from_numpy(y))


def laid_out(x: Tensor, layout: torch.memory_format) -> Tensor:
    """Images in a memory format; tokens have none."""
    return x.to(memory_format=layout) if x.ndim == 4 else x


def optimizer(model: nn.Module, recipe: dict[str, Any]) -> list[torch.optim.Optimizer]:
    """PyTorch's own rule of the recipe's name."""
    name, rate = recipe["optimizer"], recipe["learning_rate"]
    if name == "muon":  # PyTorch's Muon takes matrices; Adam has the rest, as in the original stack
        matrices = [p for p in model.parameters() if p.ndim == 2]
        others = [p for p in model.parameters() if p.ndim != 2]
        return [torch.optim.Muon(matrices, lr=rate), torch.optim.Adam(others, lr=rate)]
    if name in ("adam", "adamw"):
        return [torch.optim.Adam(model.parameters(), lr=rate)]
    momentum = recipe["momentum"] if name == "momentum" else 0.0
    return [torch.optim.SGD(model.parameters(), lr=rate, momentum=momentum)]


def evaluate(model: nn.Module, loader: DataLoader[Any], layout: torch.memory_format) -> tuple[float, float]:
    """Mean loss and accuracy."""
    model.eval()
    loss, correct, n = 0.0, 0, 0
    with torch.no_grad():
        for x, y in loader:
            logits = model(laid_out(x, layout))
            loss += F.cross_entropy(logits, y, reduction="sum").item()
            correct += int((logits.argmax(1) == y).sum())
            n += y.numel()
    return loss / n, correct / n


def main() -> None:
    """Train one run and tell the times of its epochs."""
    recipe, sizes = TASK["recipe"], TASK["sizes"]
    if TASK["threads"]:
        torch.set_num_threads(TASK["threads"])
    layout = torch.channels_last if TASK["channels_last"] else torch.contiguous_format
    parts = [dataset(x, y) for x, y in examples(sizes)]
    train = DataLoader(parts[0], batch_size=recipe["batch_size"], shuffle=True)
    val, test = (DataLoader(part, batch_size=256) for part in parts[1:])
    start()
    laps = Laps()
    model = network(recipe, sizes).to(memory_format=layout)
    rules = optimizer(model, recipe)
    updates = recipe["epochs"] * math.ceil(sizes["n_train"] / recipe["batch_size"])
    schedules = [torch.optim.lr_scheduler.CosineAnnealingLR(rule, updates) for rule in rules]
    called = torch.compile(model) if TASK["compile"] else model
    best, kept = math.inf, copy.deepcopy(model.state_dict())
    for _ in range(TASK["epochs"]):
        model.train()
        loss_sum, correct = 0.0, 0
        for x, y in train:
            logits = called(laid_out(x, layout))
            loss = F.cross_entropy(logits, y)
            for rule in rules:
                rule.zero_grad()
            loss.backward()
            for rule, schedule in zip(rules, schedules, strict=True):
                rule.step()
                schedule.step()
            loss_sum += loss.item() * len(y)
            correct += int((logits.argmax(1) == y).sum())
        val_loss, _ = evaluate(called, val, layout)
        if val_loss < best:
            best, kept = val_loss, copy.deepcopy(model.state_dict())
        laps.lap()
    model.load_state_dict(kept)
    laps.tell(lambda: evaluate(called, test, layout))


if __name__ == "__main__":
    main()
