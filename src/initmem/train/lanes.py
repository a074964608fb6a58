"""Train a single network, or a pack in SIMD lanes: many batches in one call of the C code."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from initmem.train import compiled
from initmem.train.layers import NORM_EPSILON, BatchNorm, block
from initmem.train.native import FFI, SINGLE, InLanes, as_structs, call, network_parts, pointers
from initmem.train.networks import ResNet9
from initmem.train.optimizers import SGD, Adam, Momentum, Optimizer, Rule

RULES: dict[type[Optimizer], int] = {SGD: 0, Momentum: 1, Adam: 2}  # as train.c numbers them
BATCHES_AT_ONCE = 16
MULTIPLICATIONS_AT_ONCE = 1e10  # in forward passes: a call takes a fraction of a second


class LaneTraining:
    """Training of a network whose blocks are one call, `at_once` batches in a call.

    `has_rule`: the rule is in C as well; otherwise `train` must not be called.

    Variables, state of the rule and moving statistics are copied into lanes for each call, and back.
    """

    def __init__(
        self,
        network: ResNet9,
        optimizer: Optimizer,
        kernels: Sequence[int],
        batch: int,
        height: int,
        width: int,
    ) -> None:
        assert network.lanes is not None
        lanes, layers = network.lanes, network.chain()
        norms = [layer.norm for layer in layers if isinstance(layer.norm, BatchNorm)]
        self.replicas, self.optimizer = network.replicas, optimizer
        self.layout = torch.channels_last if lanes == SINGLE else torch.contiguous_format
        self.has_rule = type(optimizer) in RULES
        slots = optimizer.slots if isinstance(optimizer, Rule) and self.has_rule else {}
        decayed = optimizer.decayed if isinstance(optimizer, Rule) else ()

        *inner, head_kernel, head_bias = [parameter.detach() for parameter in network.parameters()]
        head = [head_kernel, head_bias]
        self.variables = InLanes(inner, lanes)
        self.moving = InLanes([t for norm in norms for t in (norm.moving_mean, norm.moving_variance)], lanes)
        self.slots = [InLanes(tensors[:-2], lanes) for tensors in slots.values()]
        batch_statistics = list(map(torch.zeros_like, self.moving.tensors))
        variables = [*self.variables.tensors, *head]
        gradients = list(map(torch.zeros_like, variables))
        states = [[*copy.tensors, *own[-2:]] for copy, own in zip(self.slots, slots.values(), strict=True)]
        work, pixels = 0, batch * height * width
        for layer in layers:
            work += layer.conv.kernel.numel() * pixels
            pixels //= 4 if layer.pool else 1
        self.at_once = max(1, min(BATCHES_AT_ONCE, int(MULTIPLICATIONS_AT_ONCE / work)))
        self.kept: list[Any] = [  # C has addresses only
            batch_statistics, gradients,
            *network_parts(
                [block(layer, None, residual=layer in network.ends()) for layer in layers],
                self.variables.tensors, batch_statistics, lanes,
            ),
            as_structs("block_gradients", gradients[:-2]),
            pointers(self.moving.tensors) if norms else FFI.NULL,
            FFI.new("num[]", [variable.numel() for variable in variables]),
            FFI.new("num[]", [i in kernels for i in range(len(variables))]),
            FFI.new("num[]", [i in decayed for i in range(len(variables))]),
            pointers(variables), pointers(gradients), *map(pointers, states),
        ]  # fmt: skip
        _, _, sizes, fields, of_blocks, moving, *of_variables = self.kept
        widest = compiled.library().widest
        network_fields = [
            len(layers), batch, height, width, lanes.lanes, widest, NORM_EPSILON, sizes, fields,
        ]  # fmt: skip
        classes = len(head_bias) // network.replicas
        shape = layers[0].conv.inputs, network.replicas, classes, network.pool == "max"
        self.pack = FFI.new(
            "struct pack *", [network_fields, *shape, of_blocks, moving, len(variables), *of_variables]
        )

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
        recipe = self.optimizer.recipe  # type: ignore[attr-defined]
        rule = FFI.new("struct rule *", [
            RULES[type(self.optimizer)], first_update, recipe.momentum, recipe.beta1, recipe.beta2,
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
        if not call("train", self.pack, rule, len(x), x, labels, *doubles, *totals):
            raise MemoryError
