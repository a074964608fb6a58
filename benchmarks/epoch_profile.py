"""Where the time of an epoch goes, by kind of operation, for the workloads of `benchmarks.bench`.

    python benchmarks/epoch_profile.py [WORKLOAD...]

One worker, one thread, the pack that a study would use; the second epoch counts. Prints Markdown.
"""

from __future__ import annotations

import sys
import time

from bench.command import asked_workloads
from bench.workloads import Workload
from torch.profiler import ProfilerActivity, profile

from initmem.data.sources import load
from initmem.engines.local import make_ready
from initmem.engines.packs import pack_size
from initmem.study import Run
from initmem.train.loop import train_epoch
from initmem.train.pack import Pack

KINDS = {
    "gradients of blocks": ("ChainBackward", "TransformerBackward"),  # many layers in one call
    "blocks": ("Chain", "Transformer"),
    "gradients of convolutions": ("convolution_backward", "ConvolutionBackward"),  # first: part of the name
    "convolutions": ("mkldnn_convolution", "_Convolution"),
    "matrix products": ("aten::mm", "aten::bmm", "aten::addmm", "_Head"),
    "normalization": ("batch_norm", "layer_norm", "Normalize"),  # in C: with pooling and ReLU
    "ReLU": ("clamp_min", "threshold_backward", "relu"),
    "pooling": ("max_pool2d", "mean"),
    "copies and fills": ("aten::copy_", "aten::fill_", "aten::index", "aten::empty"),
}


def kind_of(operation: str) -> str:
    for kind, parts in KINDS.items():
        if any(part in operation for part in parts) and "autograd::" not in operation:
            return kind
    return "all else"


def profiled(workload: Workload) -> tuple[int, float, dict[str, float]]:
    """The pack, seconds of an epoch without the profiler, and the share of each kind."""
    size = pack_size(workload.recipe, workload.sizes)
    pack = Pack([Run(workload.recipe, 1.0, seed) for seed in range(size)], load(workload.recipe))
    train_epoch(pack)
    started = time.perf_counter()
    train_epoch(pack)
    seconds = time.perf_counter() - started
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        train_epoch(pack)
    spent = dict.fromkeys([*KINDS, "all else"], 0.0)
    for row in seen.key_averages():
        spent[kind_of(row.key)] += row.self_cpu_time_total
    return size, seconds, {kind: time / sum(spent.values()) for kind, time in spent.items()}


def main() -> None:
    make_ready()
    workloads = asked_workloads(sys.argv[1:], everything=not sys.argv[1:])
    columns = ["workload", "pack", "µs per image", *KINDS, "all else"]
    print(f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}")
    for workload in workloads:
        size, seconds, shares = profiled(workload)
        each = 1e6 * seconds / size / workload.sizes.n_train
        cells = [workload.name, str(size), f"{each:.0f}", *(f"{share:.0%}" for share in shares.values())]
        print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
