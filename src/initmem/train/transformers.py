"""Transformers as plain modules: `vit` for images and `gpt` for tokens. Neither knows of packs.

Both are pre-norm with learned positions. They initialize themselves as GPT-2 does: deviation 0.02, no biases,
projections into the residual stream smaller by the root of their number. In a recipe that is
`init_mode = "rescale"`; the default redraws them by fan-in, and `width_scaling = "mup"` by the rule of muP.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from initmem.errors import ModelError
from initmem.register import Tokens

GPT2_STD = 0.02

Shape = tuple[int, int, int]  # (channel, height, width)


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


class ViT(nn.Module):
    """A vision transformer: patches, learned positions, blocks, the mean over positions, a linear head."""

    def __init__(self, shape: Shape, classes: int, width: int, patch: int, depth: int, heads: int) -> None:
        super().__init__()
        channels, height, columns = shape
        self.patches = nn.Conv2d(channels, width, patch, stride=patch)
        self.positions = nn.Embedding((height // patch) * (columns // patch), width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes)
        initialize_as_gpt2(self)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, channel, height, width) to logits (batch, class)."""
        x = self.patches(x).flatten(2).mT + self.positions.weight
        for block in self.blocks:
            x = block(x, None)
        logits: Tensor = self.head(self.norm(x).mean(1))
        return logits


class GPT(nn.Module):
    """A causal transformer that predicts, at every position, what comes after the tokens up to there."""

    mask: Tensor

    def __init__(self, tokens: Tokens, outputs: int, width: int, depth: int, heads: int, tied: bool) -> None:
        super().__init__()
        self.tokens = nn.Embedding(tokens.vocabulary, width)
        self.positions = nn.Embedding(tokens.length, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, outputs, bias=False)
        if tied:
            self.head.weight = self.tokens.weight
        seen = torch.ones(tokens.length, tokens.length, dtype=torch.bool).tril()
        self.register_buffer("mask", seen, persistent=False)
        initialize_as_gpt2(self)

    def forward(self, x: Tensor) -> Tensor:
        """Map tokens (batch, length) to logits (batch, length, output)."""
        x = self.tokens(x) + self.positions.weight
        for block in self.blocks:
            x = block(x, self.mask)
        logits: Tensor = self.head(self.norm(x))
        return logits


@torch.no_grad()
def initialize_as_gpt2(module: nn.Module) -> None:
    """Deviation 0.02; where a block adds to the residual stream, smaller by the root of how many do."""
    layers = [layer for layer in module.named_modules() if isinstance(layer[1], nn.Linear)]
    residual = sum(name.endswith("project") for name, _ in layers)
    for name, layer in module.named_modules():
        if isinstance(layer, nn.Linear | nn.Conv2d | nn.Embedding):
            nn.init.normal_(
                layer.weight, std=GPT2_STD / (math.sqrt(residual) if name.endswith("project") else 1)
            )
        if isinstance(layer, nn.Linear | nn.Conv2d) and layer.bias is not None:
            nn.init.zeros_(layer.bias)


def vit(
    input: Shape | Tokens, outputs: int, width: int, *, patch: int = 4, depth: int = 4, heads: int = 4
) -> nn.Module:
    """A vision transformer for images of `input` = (channel, height, width)."""
    if isinstance(input, Tokens):
        raise ModelError("model = 'vit' reads images, not tokens (allowed: gpt)")
    _check_sizes("vit", width, depth, heads)
    if patch < 1 or input[1] % patch or input[2] % patch:
        raise ModelError(f"patch = {patch} (allowed: a divisor of {input[1]} and {input[2]})")
    return ViT(input, outputs, width, patch, depth, heads)


def gpt(
    input: Shape | Tokens, outputs: int, width: int, *, depth: int = 4, heads: int = 4, tied: bool = False
) -> nn.Module:
    """A causal transformer for token data; `tied` makes the head share the embedding of the tokens."""
    if not isinstance(input, Tokens):
        raise ModelError("model = 'gpt' reads tokens, not images (allowed: vit)")
    _check_sizes("gpt", width, depth, heads)
    if tied and outputs != input.vocabulary:
        raise ModelError(f"tied = true with {outputs} classes and {input.vocabulary} tokens (allowed: false)")
    return GPT(input, outputs, width, depth, heads, tied)


def _check_sizes(model: str, width: int, depth: int, heads: int) -> None:
    if depth < 1 or heads < 1 or width % heads:
        raise ModelError(
            f"model = {model!r} with width = {width}, depth = {depth}, heads = {heads} "
            "(allowed: depth from 1, heads that divide the width)"
        )


BUILDERS: dict[str, Callable[..., nn.Module]] = {"vit": vit, "gpt": gpt}
