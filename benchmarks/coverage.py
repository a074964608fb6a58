"""How often the interval of a memory covers the truth, and how often verdicts are right.

Simulated studies with a planted memory: 2, 5 and 25 scales; 3, 5 and 10 seeds; noise equal at all scales,
or growing threefold from the smallest to the largest; a level of half a noise sigma shared by all scales of
a seed. A sigma is the noise of one run at the noisiest scale.

    python benchmarks/coverage.py [--studies N] [--scales N ...] [--seeds N ...] [--memories SIGMAS ...]
    python benchmarks/coverage.py --differences      # the same for two recipes compared
"""

from __future__ import annotations

import argparse
import itertools
import json
import time

import numpy as np

from initmem.measures import statistics
from initmem.measures.difference import compare
from initmem.measures.memory import judge

MEMORIES = (0.0, 1.0, 2.0, 5.0, 15.0)
PAIRS = ((0.0, 0.0), (1.0, 1.0), (5.0, 5.0), (15.0, 15.0), (0.0, 5.0), (5.0, 10.0), (15.0, 30.0), (30.0, 0.0))
SHAPES = ("line", "step")  # memory spread evenly over scales, or at one scale alone


def simulate(scales: int, seeds: int, unequal: bool, memory: float, shape: str, studies: int, rng) -> dict:
    """Rates over simulated studies of one kind."""
    sizes = np.linspace(1 / 3, 1, scales) if unequal else np.ones(scales)
    if shape == "line":
        profile = np.linspace(0, memory, scales)
    else:
        profile = np.where(np.arange(scales) == scales - 1, memory, 0.0)
    above = below = remembered = 0
    estimates, widths, highs = [], [], []
    for _ in range(studies):
        noise = sizes * rng.standard_normal((seeds, scales)) + 0.5 * rng.standard_normal((seeds, 1))
        found = statistics.spread(profile + noise, rng=rng)
        below += found.high < memory
        above += found.low > memory
        remembered += judge(found.p, found.high, None) == "remembers"
        estimates.append(found.corrected)
        widths.append(found.high - found.low)
        highs.append(found.high)
    return {
        "scales": scales,
        "seeds": seeds,
        "noise": "growing" if unequal else "equal",
        "memory": memory,
        "shape": shape,
        "coverage": 1 - (above + below) / studies,
        "too_high": above / studies,
        "too_low": below / studies,
        "remembers": remembered / studies,
        "bias": float(np.mean(estimates)) - memory,
        "width": float(np.mean(widths)),
        "upper": float(np.median(highs)),
    }


def simulate_pair(
    scales: int, seeds: int, unequal: bool, memories: tuple[float, float], studies: int, rng
) -> dict:
    """Rates over simulated pairs of recipes; with unequal noise the second recipe is twice as noisy, too."""
    sizes = np.linspace(1 / 3, 1, scales) if unequal else np.ones(scales)
    louder = 2.0 if unequal else 1.0
    covered = sure = 0
    for _ in range(studies):
        shared = 0.5 * rng.standard_normal((seeds, 1))
        before, after = (
            np.linspace(0, memory, scales) + factor * sizes * rng.standard_normal((seeds, scales)) + shared
            for memory, factor in zip(memories, (1.0, louder), strict=True)
        )
        found = compare(before, after, rng=rng)
        covered += found.low <= memories[1] - memories[0] <= found.high
        sure += found.sure
    return {
        "scales": scales,
        "seeds": seeds,
        "noise": "growing" if unequal else "equal",
        "memories": memories,
        "coverage": covered / studies,
        "sure": sure / studies,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--studies", type=int, default=500, help="simulated studies per row")
    parser.add_argument("--scales", type=int, nargs="+", default=[2, 5, 25])
    parser.add_argument("--seeds", type=int, nargs="+", default=[3, 5, 10])
    parser.add_argument("--memories", type=float, nargs="+", default=MEMORIES, help="in sigmas")
    parser.add_argument("--differences", action="store_true", help="of the memories of two recipes")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    statistics.DRAWS = 1000  # enough for rates; the product draws 4000
    started = time.perf_counter()
    rng = np.random.default_rng(0)
    if options.differences:
        rows = [
            simulate_pair(scales, seeds, unequal, pair, options.studies, rng)
            for scales, seeds, unequal in itertools.product(options.scales, options.seeds, (False, True))
            for pair in PAIRS
        ]
        print("\n".join(map(json.dumps, rows)))
        print(f"{options.studies} studies per row, {time.perf_counter() - started:.0f} s")
        return
    rows = [
        simulate(scales, seeds, unequal, memory, shape, options.studies, rng)
        for scales, seeds, unequal in itertools.product(options.scales, options.seeds, (False, True))
        for memory, shape in itertools.product(options.memories, SHAPES)
        if memory > 0 or shape == "line"
        if scales > 2 or shape == "line"  # with two scales the shapes are the same
    ]
    if options.json:
        print(json.dumps(rows, indent=1))
        return
    print("scales seeds noise   memory shape coverage remembers   bias  width  upper")
    for r in rows:
        print(
            f"{r['scales']:6d} {r['seeds']:5d} {r['noise']:8} {r['memory']:6.0f} {r['shape']:5} "
            f"{100 * r['coverage']:7.1f}% {100 * r['remembers']:8.1f}% {r['bias']:+6.2f} "
            f"{r['width']:6.2f} {r['upper']:6.2f}"
        )
    print(f"{options.studies} studies per row, {time.perf_counter() - started:.0f} s")
    print("memory, bias, width and median upper limit in sigma")


if __name__ == "__main__":
    main()
