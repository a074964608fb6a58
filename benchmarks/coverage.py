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


def noise_sizes(scales: int, unequal: bool) -> np.ndarray:
    """The noise at every scale."""
    return np.linspace(1 / 3, 1, scales) if unequal else np.ones(scales)


def simulate(scales: int, seeds: int, unequal: bool, memory: float, shape: str, studies: int, rng) -> dict:
    """Rates over simulated studies of one kind."""
    sizes = noise_sizes(scales, unequal)
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
    sizes = noise_sizes(scales, unequal)
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
    designs = itertools.product(options.scales, options.seeds, (False, True))
    if options.differences:
        line = pair_line
        rows = [simulate_pair(*design, pair, options.studies, rng) for design in designs for pair in PAIRS]
    else:
        line = memory_line
        rows = [
            simulate(scales, seeds, unequal, memory, shape, options.studies, rng)
            for scales, seeds, unequal in designs
            for memory, shape in itertools.product(options.memories, SHAPES)
            if memory > 0 or shape == "line"
            if scales > 2 or shape == "line"  # with two scales the shapes are the same
        ]
    if options.json:
        print(json.dumps(rows, indent=1))
        return
    print("\n".join(map(line, rows)))
    print(f"{options.studies} studies per row, {time.perf_counter() - started:.0f} s")
    print("memory, bias, width and median upper limit in sigma")


def memory_line(r: dict) -> str:
    return (
        f"{_design(r)} memory {r['memory']:2.0f} {r['shape']}: coverage {100 * r['coverage']:5.1f}%, "
        f"remembers {100 * r['remembers']:5.1f}%, bias {r['bias']:+6.2f}, "
        f"width {r['width']:6.2f}, upper {r['upper']:6.2f}"
    )


def pair_line(r: dict) -> str:
    before, after = r["memories"]
    return (
        f"{_design(r)} memories {before:2.0f} and {after:2.0f}: "
        f"coverage {100 * r['coverage']:5.1f}%, sure {100 * r['sure']:5.1f}%"
    )


def _design(r: dict) -> str:
    return f"{r['scales']:2d} scales, {r['seeds']:2d} seeds, {r['noise']:7} noise,"


if __name__ == "__main__":
    main()
