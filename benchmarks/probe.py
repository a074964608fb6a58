"""Do two runs predict the memory of a whole sweep? Recipes are left out one at a time.

    python benchmarks/probe.py STORE...          # stores or archives; trains nothing

The probe of a recipe is one seed at its smallest and its largest scale. It shows the norm elasticity
(d log selected norm / d log initial norm) and the difference of the two test accuracies. What is predicted is
the memory over all scales, from all other seeds: no run is on both sides. A line through the other recipes
predicts the recipe that is left out; the mean of their memories is what it has to beat. Every seed is the
probe once; errors are averaged over them. Recipes need three scales and five seeds. Batch norm with moving
averages is left out: in short runs these still contain their starting values.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.stats import t as student

from initmem.measures.design import by_recipe, plain
from initmem.measures.fit import has_moving_averages
from initmem.measures.measure import measure
from initmem.record import RunRecord
from initmem.store.results import collected

Array = NDArray[np.float64]
SCALES, SEEDS = 3, 5  # the fewest of a recipe
PROBES = ("elasticity of the norm", "difference of accuracies")


def main() -> None:
    """Print the errors for the recipes of every dataset that has six or more, and for all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("stores", nargs="+", type=Path)
    records = collected(parser.parse_args().stores).records
    of_dataset: dict[str, list[tuple[Array, Array]]] = {}
    for recipe, group in by_recipe(records).items():
        one = None if recipe.is_pipeline or has_moving_averages(recipe) else probed(plain(group))
        if one is not None:
            of_dataset.setdefault(str(recipe.get("dataset")).partition(":")[0], []).append(one)
    everything = [one for found in of_dataset.values() for one in found]
    for name, found in [*of_dataset.items(), ("all", everything)]:
        if len(found) > SEEDS:
            report(name, found)


def probed(records: Sequence[RunRecord]) -> tuple[Array, Array] | None:
    """Probes of shape (seed, kind), and the memories of the other seeds, (seed,); None: too few runs."""
    runs = {(r.run.seed, r.run.scale): r for r in records if r.metric("test_accuracy") is not None}
    scales = sorted({scale for _, scale in runs})
    seeds = [s for s in sorted({seed for seed, _ in runs}) if all((s, scale) in runs for scale in scales)]
    if len(scales) < SCALES or len(seeds) < SEEDS:
        return None
    probes, memories = [], []
    for seed in seeds:
        low, high = runs[seed, scales[0]], runs[seed, scales[-1]]
        before, after = (
            math.log(value(high, name) / value(low, name)) for name in ("norm_init", "norm_best")
        )
        gap = 100 * abs(value(high, "test_accuracy") - value(low, "test_accuracy"))
        probes.append((after / before, gap))
        others = [run for (other, _), run in runs.items() if other != seed and other in seeds]
        (row,) = measure(others, "memory", metric="test_accuracy")
        memories.append(float(row["debiased"]))
    return np.array(probes), np.array(memories)


def value(record: RunRecord, name: str) -> float:
    """A metric that every record here has."""
    number = record.metric(name)
    assert number is not None, name
    return number


def report(name: str, found: Sequence[tuple[Array, Array]]) -> None:
    """Print root mean square errors in points, and whether the probe's are smaller than those of the mean."""
    mean, *others = np.array([(errors(found, i) ** 2).mean(axis=0) for i in range(len(found))]).T
    memories = [memory.mean() for _, memory in found]
    print(f"{name}: {len(found)} recipes, memories {min(memories):.1f} to {max(memories):.1f} pp")
    print(f"  the mean of the others: error {math.sqrt(mean.mean()):.1f} pp")
    for kind, own in zip(PROBES, others, strict=True):
        gain = mean - own
        half = student.ppf(0.975, len(gain) - 1) * gain.std(ddof=1) / math.sqrt(len(gain))
        low, high = gain.mean() - half, gain.mean() + half
        verdict = "better" if low > 0 else "worse" if high < 0 else "not significantly different"
        print(
            f"  {kind}: error {math.sqrt(own.mean()):.1f} pp, {verdict} "
            f"(mean square smaller by {gain.mean():.1f} [{low:.1f}, {high:.1f}])"
        )


def errors(found: Sequence[tuple[Array, Array]], left_out: int) -> Array:
    """Errors of the mean and of a line through each kind of probe, (seed, predictor)."""
    rest = [one for i, one in enumerate(found) if i != left_out]
    probes, memories = found[left_out]
    x, y = np.concatenate([one[0] for one in rest]), np.concatenate([one[1] for one in rest])
    columns = [np.full(len(memories), np.mean([memory.mean() for _, memory in rest]))]
    for kind in range(len(PROBES)):
        line = np.polyfit(x[:, kind], y, 1)
        columns.append(np.maximum(np.polyval(line, probes[:, kind]), 0.0))
    return np.stack(columns, axis=1) - memories[:, None]


if __name__ == "__main__":
    main()
