"""PyTorch with `torch.func`: the replicas of one process are one stacked module under `vmap`.

The gradient of the sum of all replicas' losses holds the gradient of each, so that autograd and the
optimizers of torch.optim work on the stacked parameters as they are.
"""

from __future__ import annotations

import copy
import math
from typing import Any

from . import peer_torch as plain  # isort: skip  (sets the threads, before torch is loaded)
import torch
import torch.nn.functional as F
from torch import Tensor

from .peer import Laps, examples, start

TASK = plain.TASK


def main() -> None:
    """Train the replicas of one process and tell the times of its epochs."""
    recipe, sizes, replicas = TASK["recipe"], TASK["sizes"], TASK["replicas"]
    torch.set_num_threads(TASK["threads"] or 1)
    (x, y), val, test = (plain.dataset(*part).tensors for part in examples(sizes))
    start()
    laps = Laps()
    models = [plain.network(recipe, sizes) for _ in range(replicas)]
    weights, buffers = torch.func.stack_module_state(models)
    stacked = torch.nn.ParameterDict({name.replace(".", "/"): value for name, value in weights.items()})
    params = {name.replace("/", "."): value for name, value in stacked.items()}
    # A model without weights of its own: functional_call puts the stacked ones in.
    skeleton = copy.deepcopy(models[0]).to("meta")

    def one(weights: Any, moving: Any, batch: Tensor) -> Tensor:
        logits: Tensor = torch.func.functional_call(skeleton, (weights, moving), (batch,))
        return logits

    each, shared = torch.func.vmap(one), torch.func.vmap(one, in_dims=(0, 0, None))
    if TASK["compile"]:
        each, shared = torch.compile(each), torch.compile(shared)
    (rule,) = plain.optimizer(stacked, recipe)  # Muon's matrices would be stacked: not for this peer
    n, b = sizes["n_train"], recipe["batch_size"]
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(rule, recipe["epochs"] * math.ceil(n / b))

    def losses(logits: Tensor, labels: Tensor) -> Tensor:
        """The loss of every example, (replica, example, ...)."""
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten(0, 1), reduction="none")

    @torch.no_grad()
    def evaluate(part: Any) -> Tensor:
        """Mean loss of every replica."""
        skeleton.eval()
        total = torch.zeros(replicas)
        for images, labels in zip(part[0].split(256), part[1].split(256), strict=True):
            logits = shared(params, buffers, images)
            repeated = labels.expand(replicas, *labels.shape)
            total += losses(logits, repeated).view(replicas, -1).sum(1)
            (logits.argmax(2) == repeated).sum()
        return total / part[1].numel()

    best = torch.full((replicas,), math.inf)
    kept = {name: value.detach().clone() for name, value in (params | buffers).items()}
    for _ in range(TASK["epochs"]):
        skeleton.train()
        order = torch.stack([torch.randperm(n) for _ in range(replicas)])
        for batch in order.split(b, dim=1):
            labels = y[batch]
            logits = each(params, buffers, x[batch])
            loss = losses(logits, labels).view(replicas, -1).mean(1)
            rule.zero_grad()
            loss.sum().backward()
            rule.step()
            schedule.step()
            (logits.argmax(2) == labels).sum()
        measured = evaluate(val)
        better = measured < best
        best = torch.minimum(best, measured)
        for name, value in (params | buffers).items():
            kept[name][better] = value.detach()[better]
        laps.lap()
    for name, value in (params | buffers).items():
        value.data.copy_(kept[name])
    laps.tell(lambda: evaluate(test))


if __name__ == "__main__":
    main()
