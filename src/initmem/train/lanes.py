"""Train a single network, or a pack in SIMD lanes: many batches in one call of the C code."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from initmem.train.layers import NORM_EPSILON, BatchNorm
from initmem.train.native import FFI, SINGLE, InLanes, call, network_fields, pointers
from initmem.train.networks import ResNet9
from initmem.train.optimizers import SGD, Adam, Momentum, Optimizer

RULES = (SGD, Momentum, Adam)  # as train.c numbers them
BATCHES_AT_ONCE = 16
MULTIPLICATIONS_AT_ONCE = 1e10  # in forward passes: a call takes a fraction of a second


class LaneTraining:
    """Training of a network whose blocks are one call, `at_once` batches in a call.

    `images`: of a batch, their number, height and width. `kernels`: the indices of the kernels.
    `rule` is None if the rule of the optimizer is not in C; then `train` must not be called.

    Variables, state of the rule and moving statistics are copied into lanes for each call, and back.
    """

    def __init__(
        self, network: ResNet9, optimizer: Optimizer, kernels: Sequence[int], images: tuple[int, int, int]
    ) -> None:
        assert network.lanes is not None
        lanes, layers = network.lanes, network.chain()
        norms = [layer.norm for layer in layers if isinstance(layer.norm, BatchNorm)]
        self.replicas = network.replicas
        self.layout = torch.channels_last if lanes == SINGLE else torch.contiguous_format
        self.rule = optimizer if isinstance(optimizer, RULES) else None
        slots = self.rule.slots if self.rule else {}
        decayed = self.rule.decayed if self.rule else ()

        *inner, head_kernel, head_bias = [parameter.detach() for parameter in network.parameters()]
        self.variables = InLanes(inner, lanes)
        self.moving = InLanes([t for norm in norms for t in (norm.moving_mean, norm.moving_variance)], lanes)
        self.slots = [InLanes(tensors[:-2], lanes) for tensors in slots.values()]
        batch_statistics = list(map(torch.zeros_like, self.moving.tensors))
        variables = [*self.variables.tensors, head_kernel, head_bias]
        gradients = list(map(torch.zeros_like, variables))
        states = [[*copy.tensors, *own[-2:]] for copy, own in zip(self.slots, slots.values(), strict=True)]
        work, pixels = 0, math.prod(images)
        for layer in layers:
            work += layer.conv.kernel.numel() * pixels
            pixels //= 4 if layer.pool else 1
        self.at_once = max(1, min(BATCHES_AT_ONCE, int(MULTIPLICATIONS_AT_ONCE / work)))
        blocks = [layer.block for layer in layers]
        fields: list[Any] = [
            network_fields(blocks, images, self.variables.tensors, batch_statistics, NORM_EPSILON, lanes),
            layers[0].conv.inputs, self.replicas, len(head_bias) // self.replicas, network.pool == "max",
            pointers(gradients[:-2], "struct block_gradients[]"),
            pointers(self.moving.tensors) if norms else FFI.NULL,
            len(variables),
            FFI.new("num[]", [variable.numel() for variable in variables]),
            FFI.new("num[]", [i in kernels for i in range(len(variables))]),
            FFI.new("num[]", [i in decayed for i in range(len(variables))]),
            pointers(variables), pointers(gradients), *map(pointers, states),
        ]  # fmt: skip
        self.pack = FFI.new("struct pack *", fields)
        self.kept = fields, batch_statistics, gradients  # C has addresses only

    def train(
        self,
        x: Tensor,
        y: Tensor,
        rates: NDArray[np.float64],
        share: float,
        first_update: int,
        running: Mapping[str, Tensor],
    ) -> None:
        """Train on batches one after another: x (example, replica * channel, h, w), y (example, replica).

        Each moves the moving statistics by a share. `running` are sums per replica to add to.
        """
        assert self.rule is not None
        recipe = self.rule.recipe
        rule = FFI.new("struct rule *", [
            RULES.index(type(self.rule)), first_update, recipe.momentum, recipe.beta1, recipe.beta2,
            recipe.epsilon, recipe.l2, recipe.weight_decay,
        ])  # fmt: skip
        sums = torch.zeros(3, self.replicas, dtype=torch.float64)
        copies = [self.variables, self.moving, *self.slots]
        for copy in copies:
            copy.load()
        self._call(rule, x, y, rates.tolist(), [share] * len(rates), sums)
        for copy in copies:
            copy.store()
        for name, row in zip(("loss", "correct", "angular"), sums, strict=True):
            running[name] += row

    def estimate_statistics(self, x: Tensor, shares: Sequence[float]) -> None:
        """Move the moving statistics towards those of each batch by its share; nothing is trained."""
        self.variables.load()
        self.moving.load()
        self._call(FFI.NULL, x, torch.empty(0, dtype=torch.int64), [], list(shares), torch.empty(3, 0))
        self.moving.store()

    def _call(
        self, rule: Any, x: Tensor, y: Tensor, rates: list[float], shares: list[float], sums: Tensor
    ) -> None:
        doubles = FFI.new("double[]", rates), FFI.new("double[]", shares)
        labels = FFI.cast("long long *", y.data_ptr())
        totals = [FFI.cast("double *", row.data_ptr()) for row in sums]
        x = x.contiguous(memory_format=self.layout)
        call("train", self.pack, rule, len(x), x, labels, *doubles, *totals)
