"""The layers in C beside PyTorch's: forward and backward, one thread, processor time.

    python benchmarks/layers.py [ROUNDS]

All take turns; the median of the rounds counts. Processor time leaves out the load of others, but not what
they displace from the caches.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from initmem.train import compiled, native
from initmem.train.layers import BatchNorm, Conv, LayerNorm, Norm

CONVOLUTIONS = (  # images, inputs, outputs, side: of resnet9 w8, w16 and w64 and of resnet56
    (16, 8, 16, 32), (16, 16, 16, 16), (16, 32, 64, 8), (128, 16, 32, 32), (128, 128, 128, 4),
    (128, 16, 16, 32), (128, 64, 64, 8), (16, 128, 256, 16), (16, 256, 512, 8), (16, 128, 128, 4),
    (16, 512, 512, 4),
)  # fmt: skip
NORMS = ((16, 8, 32), (16, 32, 16), (128, 16, 32))  # images, channels, side


def images(n: int, channels: int, side: int) -> Tensor:
    """Random images in channels-last layout."""
    return torch.randn(n, channels, side, side).to(memory_format=torch.channels_last).requires_grad_()


def step(layer: Callable[[], Tensor], *variables: Tensor) -> Callable[[], object]:
    """Forward and backward."""
    grad_output = torch.randn_like(layer())
    return lambda: torch.autograd.grad(layer(), variables, grad_output)


def show(name: str, ways: dict[str, Callable[[], object]], rounds: int) -> None:
    """Time all ways in turn and print them with their ratio to the first."""
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(rounds + 1):
        for way, work in ways.items():
            started = time.thread_time()
            work()
            seconds[way].append(time.thread_time() - started)
    times = {way: statistics.median(values[1:]) for way, values in seconds.items()}
    first = next(iter(times.values()))
    said = ", ".join(f"{way} {1e6 * t:.0f} us ({t / first:.2f})" for way, t in times.items())
    print(f"{name}: {said}", flush=True)


def with_vectors(width: int, work: Callable[[], object]) -> Callable[[], object]:
    """The same with vectors of at most this width."""
    known = compiled.library

    def limited() -> None:
        compiled.library = lambda: known()._replace(widest=width)  # type: ignore[assignment]
        work()
        compiled.library = known

    return limited


def main(rounds: int) -> None:
    """Print a line per layer."""
    torch.set_num_threads(1)
    load = os.getloadavg()[0]
    print(f"layers: {compiled.library()}; torch {torch.__version__}; {rounds} rounds; load {load:.1f}")
    for n, inputs, outputs, side in CONVOLUTIONS:
        x, conv = images(n, inputs, side), Conv(1, inputs, outputs).to(memory_format=torch.channels_last)
        torch.nn.init.normal_(conv.kernel)
        given = x, conv.kernel, conv.bias
        ours = step(lambda given=given: native.convolve(*given), *given)
        ways = {"C": ours}
        if compiled.library().widest > native.LANES:
            ways["vectors of 8"] = with_vectors(native.LANES, ours)
        ways["PyTorch"] = step(lambda given=given: F.conv2d(*given, padding=1), *given)
        show(f"convolution {inputs}-{outputs}, {n} images of {side}x{side}", ways, rounds)
    for n, channels, side in NORMS:
        x, skip = images(n, channels, side), images(n, channels, side)
        for norm in (BatchNorm(1, channels), LayerNorm(1, channels)):
            given = x, norm.gamma, norm.beta
            ways = {
                "C": step(lambda norm=norm, x=x: norm.then_relu(x), *given),
                "PyTorch": step(lambda norm=norm, x=x: F.relu(norm(x)), *given),
            }
            show(
                f"{type(norm).__name__} and ReLU, {channels} channels, {n} images of {side}x{side}",
                ways,
                rounds,
            )
        both: Norm = BatchNorm(1, channels)
        with_skip = x, both.gamma, both.beta, skip
        ways = {
            "C": step(lambda both=both, x=x, skip=skip: both.then_relu(x, skip=skip), *with_skip),
            "PyTorch": step(lambda both=both, x=x, skip=skip: F.relu(both(x) + skip), *with_skip),
        }
        show(f"BatchNorm, skip and ReLU, {channels} channels, {n} images of {side}x{side}", ways, rounds)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 9)
