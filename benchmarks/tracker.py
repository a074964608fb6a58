"""What a tracker costs: the share of a training step that its hook takes, in the same run.

    python benchmarks/tracker.py [--steps 400] [--rounds 7]

Rounds with and without a tracker alternate, so that a busy machine slows both. A step is forward, backward
and update of a small network on one thread; the shorter the step, the larger the share.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from torch import nn

import initmem


def convolutional() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Conv2d(8, 16, 3), nn.ReLU(), nn.Flatten(), nn.Linear(256, 10)
    )


def transformer() -> nn.Module:
    layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)
    return nn.Sequential(nn.Linear(8, 64), nn.TransformerEncoder(layer, 2), nn.Flatten(), nn.Linear(512, 10))


CASES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "mlp 64-64-10, b 16": (lambda: nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)), (16, 64)),
    "mlp 784-256-256-10, b 128": (
        lambda: nn.Sequential(
            nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10)
        ),
        (128, 784),
    ),
    "convolutions 8x8, b 32": (convolutional, (32, 1, 8, 8)),
    "transformer of 2 layers, b 32": (transformer, (32, 8, 8)),
}


def seconds(build: Callable[[], nn.Module], shape: tuple[int, ...], steps: int, *, tracked: bool) -> float:
    """Seconds per step."""
    torch.manual_seed(0)
    model = build()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    x, y = torch.randn(shape), torch.arange(shape[0]) % 10
    tracker = initmem.Tracker()
    if tracked:
        tracker.attach(model, optimizer, batch_size=shape[0])
    for k in range(steps + 20):
        if k == 20:
            started = time.perf_counter()
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return (time.perf_counter() - started) / steps


def hook_seconds(build: Callable[[], nn.Module], steps: int) -> float:
    """Seconds per step in the hook alone: what the noise of whole steps hides."""
    model = build()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    tracker = initmem.Tracker()
    tracker.attach(model, optimizer, batch_size=16)
    (hook,) = optimizer._optimizer_step_post_hooks.values()
    steps = max(steps, 256) // 64 * 64  # whole periods between two looks at the kernels
    started = time.perf_counter()
    for _ in range(steps):
        hook(optimizer, (), {})
    return (time.perf_counter() - started) / steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--rounds", type=int, default=7)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    print(f"torch {torch.__version__}, 1 thread, median of {asked.rounds} rounds of {asked.steps} steps")
    for name, (build, shape) in CASES.items():
        plain, with_tracker, alone = [], [], []
        for _ in range(asked.rounds):
            plain.append(seconds(build, shape, asked.steps, tracked=False))
            with_tracker.append(seconds(build, shape, asked.steps, tracked=True))
            alone.append(hook_seconds(build, asked.steps))
        step, hook = statistics.median(plain), statistics.median(alone)
        whole = statistics.median(with_tracker) / step - 1
        print(
            f"{name:32} step {1e6 * step:7.0f} us, hook {1e6 * hook:5.2f} us = {100 * hook / step:.2f}% "
            f"(whole steps: {100 * whole:+.1f}%)"
        )


if __name__ == "__main__":
    main()
