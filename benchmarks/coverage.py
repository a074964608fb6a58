"""How often intervals cover the truth and verdicts are right, over simulated studies with a planted memory.

    python benchmarks/coverage.py              # the memory, by family of noise
    python benchmarks/coverage.py --all        # and differences, many recipes, curves and so on
    python benchmarks/coverage.py --studies 8000 --families normal smooth --seeds 3 5

A sigma is the standard deviation of one run at the noisiest scale. Every rate comes from `--studies` studies
per cell: with 2,000 of them a rate of 5% has a standard error of half a point. False alarms are rated on five
times as many.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator

import numpy as np

from initmem.measures import statistics
from initmem.measures.beta import half_life, half_life_limits
from initmem.measures.collapse import fading, regress
from initmem.measures.design import levels, schedule
from initmem.measures.difference import compared_ranges
from initmem.measures.memory import Memory, judged
from initmem.measures.scales import equal_rates_p, rate_limits
from initmem.measures.statistics import critical, equivalence_p, seeds_needed, spread, spreads, student

Array = np.ndarray
Rng = np.random.Generator
MEMORIES = (0.0, 1.0, 2.0, 5.0, 15.0)
SHAPES = (
    "line",
    "step",
    "clusters",
)  # spread evenly over scales; at one scale alone; two groups of equal scales
PAIRS = ((0.0, 0.0), (1.0, 1.0), (5.0, 5.0), (15.0, 15.0), (0.0, 5.0), (5.0, 10.0), (15.0, 30.0))


# -- families of noise: draws of shape (study, seed, scale) around a profile of shape (scale,) -------------


def normal(profile: Array, shape: tuple[int, int, int], rng: Rng) -> Array:
    return profile + rng.standard_normal(shape)


def growing(profile: Array, shape: tuple[int, int, int], rng: Rng) -> Array:
    return profile + rng.standard_normal(shape) * np.linspace(1 / 3, 1, shape[2])


def tenfold(profile: Array, shape: tuple[int, int, int], rng: Rng) -> Array:
    return profile + rng.standard_normal(shape) * np.geomspace(0.1, 1, shape[2])


def one_noisy(profile: Array, shape: tuple[int, int, int], rng: Rng) -> Array:
    sizes = np.where(np.arange(shape[2]) == shape[2] - 1, 1.0, 0.1)
    return profile + rng.standard_normal(shape) * sizes


def skewed(profile: Array, shape: tuple[int, int, int], rng: Rng) -> Array:
    return profile + 1 - rng.exponential(size=shape)


def skewed_tenfold(profile: Array, shape: tuple[int, int, int], rng: Rng) -> Array:
    return profile + (1 - rng.exponential(size=shape)) * np.geomspace(0.1, 1, shape[2])


def heavy(profile: Array, shape: tuple[int, int, int], rng: Rng) -> Array:
    return profile + rng.standard_t(3, size=shape) / np.sqrt(3)


def shared(profile: Array, shape: tuple[int, int, int], rng: Rng) -> Array:
    levels_ = 3 * rng.standard_normal((*shape[:2], 1))
    return profile + rng.standard_normal(shape) + levels_


def opposed(profile: Array, shape: tuple[int, int, int], rng: Rng) -> Array:
    """Neighbouring scales at correlation -0.5."""
    noise = rng.standard_normal((*shape[:2], shape[2] + 1))
    return profile + (noise[..., 1:] - noise[..., :-1]) / np.sqrt(2)


def slopes(profile: Array, shape: tuple[int, int, int], rng: Rng) -> Array:
    """Every seed has a slope of its own over the scales."""
    own = rng.standard_normal((*shape[:2], 1)) * np.linspace(-1, 1, shape[2])
    return profile + 0.3 * rng.standard_normal(shape) + own


def smooth(profile: Array, shape: tuple[int, int, int], rng: Rng) -> Array:
    x = np.linspace(-1, 1, shape[2])
    covariance = np.exp(-np.abs(x[:, None] - x) / 1.0)
    return profile + rng.standard_normal(shape) @ np.linalg.cholesky(covariance).T


def binomial(profile: Array, shape: tuple[int, int, int], rng: Rng, images: int = 500) -> Array:
    """Accuracies on a small test set, in units of their own standard error at 90%."""
    sigma = np.sqrt(0.9 * 0.1 / images)
    return rng.binomial(images, 0.9 - sigma * (profile.max() - profile), size=shape) / images / sigma


def ties(profile: Array, shape: tuple[int, int, int], rng: Rng) -> Array:
    return np.round(profile + rng.standard_normal(shape))


Family = Callable[[Array, tuple[int, int, int], Rng], Array]
FAMILIES: dict[str, Family] = {
    "normal": normal,
    "growing threefold": growing,
    "growing tenfold": tenfold,
    "one noisy scale": one_noisy,
    "skewed": skewed,
    "skewed, tenfold": skewed_tenfold,
    "heavy-tailed": heavy,
    "correlated seeds": shared,
    "opposed scales": opposed,
    "seed slopes": slopes,
    "smooth": smooth,
    "binomial": binomial,
    "ties": ties,
}
EXCEPTION = "skewed, tenfold"  # Student's test itself fails here with two scales


def profile_of(shape: str, memory: float, scales: int) -> Array:
    """The planted means."""
    at = np.arange(scales)
    relative = {
        "line": at / (scales - 1),
        "step": (at == scales - 1).astype(float),
        "clusters": (at >= scales / 2).astype(float),
    }
    return memory * relative[shape]


def simulate(
    family: Family, scales: int, seeds: int, memory: float, shape: str, studies: int, rng: Rng
) -> dict:
    """Rates over simulated studies of one kind."""
    found = spreads(family(profile_of(shape, memory, scales), (studies, seeds, scales), rng))
    contradictions = ((found.low > 0) != (found.p <= 0.05)) | (found.low > found.high)
    contradictions |= (found.debiased < found.low) | (found.debiased > found.high)
    return {
        "scales": scales,
        "seeds": seeds,
        "memory": memory,
        "shape": shape,
        "coverage": float(((found.low <= memory) & (memory <= found.high)).mean()),
        "significant": float((found.p <= 0.05).mean()),
        "contradictions": int(contradictions.sum()),
        "bias": float((found.debiased.mean() - memory) * np.sqrt(seeds)),
        "as_observed": float((found.spread.mean() - memory) * np.sqrt(seeds)),
        "upper": float(np.median(found.high)),
    }


def memory_rows(options: argparse.Namespace, rng: Rng) -> Iterator[dict]:
    """One row per family and number of seeds: the worst over scales, memories and shapes."""
    for name in options.families:
        for seeds in options.seeds:
            cells = [
                simulate(FAMILIES[name], scales, seeds, memory, shape, studies, rng)
                for scales in options.scales
                for memory in MEMORIES
                for studies in [options.studies * (1 if memory else 5)]  # the worst of few would mislead
                for shape in SHAPES
                if shape == "line" or (memory > 0 and scales > 2)
            ]
            power = simulate(FAMILIES[name], 5, seeds, 3.0, "line", options.studies, rng)
            null = [cell for cell in cells if cell["memory"] == 0]
            worst = min(cells, key=lambda cell: cell["coverage"])
            yield {
                "family": name,
                "seeds": seeds,
                "coverage": worst["coverage"],
                "at": f"{worst['scales']} scales, {worst['memory']:g} {worst['shape']}",
                "false_alarms": max(cell["significant"] for cell in null),
                "power": power["significant"],
                "bias": max((cell["bias"] for cell in cells), key=abs),
                "as_observed": max((cell["as_observed"] for cell in cells), key=abs),
                "contradictions": sum(cell["contradictions"] for cell in cells),
            }


def power_rows(options: argparse.Namespace, rng: Rng) -> Iterator[dict]:
    """How often a memory is found, and where the upper limit lies without one, in sigma."""
    for scales in (2, 5, 25):
        for seeds in (3, 4, 5, 10, 20):
            found = {
                f"memory_{memory:g}": simulate(normal, scales, seeds, memory, "line", options.studies, rng)
                for memory in (1.0, 2.0, 3.0, 5.0)
            }
            null = simulate(normal, scales, seeds, 0.0, "line", options.studies, rng)
            row = {"scales": scales, "seeds": seeds}
            row |= {name: cell["significant"] for name, cell in found.items()}
            yield row | {"upper_limit_without_memory": null["upper"]}


def plug_in(plugged: Array, n: int, k: int) -> Array:
    """Greenhouse and Geisser's degrees of freedom as they are."""
    return np.clip(plugged, 1.0, None)


def huynh_feldt(plugged: Array, n: int, k: int) -> Array:
    """Huynh and Feldt's."""
    return np.clip((n * plugged - 2) / np.maximum(n - 1 - plugged, 1e-9), np.clip(plugged, 1, None), k - 1)


def freedom_rows(options: argparse.Namespace, rng: Rng) -> Iterator[dict]:
    """Three choices of the degrees of freedom: the worst false alarms over families, and power at 3 sigma."""
    used = statistics.degrees_of_freedom
    names = [name for name in FAMILIES if name != EXCEPTION]
    for scales in (5, 25):
        for seeds in (3, 4, 5):
            row = {"scales": scales, "seeds": seeds}
            for label, choice in (("plug_in", plug_in), ("used", used), ("huynh_feldt", huynh_feldt)):
                statistics.degrees_of_freedom = choice
                null = [
                    simulate(FAMILIES[f], scales, seeds, 0.0, "line", options.studies, rng) for f in names
                ]
                power = simulate(normal, scales, seeds, 3.0, "line", options.studies, rng)
                row[f"{label}_false_alarms"] = max(cell["significant"] for cell in null)
                row[f"{label}_power"] = power["significant"]
            statistics.degrees_of_freedom = used
            yield row


# -- two recipes -------------------------------------------------------------------------------------------


def simulate_pair(
    family: Family,
    scales: int,
    seeds: int,
    memories: tuple[float, float],
    studies: int,
    rng: Rng,
    *,
    louder: float = 2.0,
) -> dict:
    """Rates over pairs of recipes; the second is twice as noisy, and both share a level of each seed."""
    level = 0.5 * rng.standard_normal((studies, seeds, 1))
    one, other = (
        size * family(profile_of("line", memory, scales) / size, (studies, seeds, scales), rng) + level
        for memory, size in zip(memories, (1.0, louder), strict=True)
    )
    found = compared_ranges(one, other)
    truth = memories[1] - memories[0]
    return {
        "scales": scales,
        "seeds": seeds,
        "memories": memories,
        "coverage": float(((found.low <= truth) & (truth <= found.high)).mean()),
        "significant": float(((found.low > 0) | (found.high < 0)).mean()),
    }


def difference_rows(options: argparse.Namespace, rng: Rng) -> Iterator[dict]:
    """One row per design: worst coverage and false alarms over families, and power for 5 against 10 sigma."""
    for scales in (2, 5, 25):
        for seeds in (3, 5, 10):
            cells = [
                simulate_pair(FAMILIES[name], scales, seeds, pair, options.studies, rng)
                for name in ("normal", "growing threefold", "seed slopes")
                for pair in PAIRS
            ]
            same = [cell["significant"] for cell in cells if cell["memories"][0] == cell["memories"][1]]
            apart = [
                simulate_pair(normal, scales, seeds, (5.0, 10.0), options.studies, rng, louder=louder)
                for louder in (1.0, 2.0)
            ]
            yield {
                "scales": scales,
                "seeds": seeds,
                "coverage": min(cell["coverage"] for cell in cells),
                "false_alarms": max(same),
                "found_5_vs_10": apart[0]["significant"],
                "found_if_twice_as_noisy": apart[1]["significant"],
            }


# -- interim analyses --------------------------------------------------------------------------------------


def interim_rows(options: argparse.Namespace, rng: Rng) -> Iterator[dict]:
    """Stopping at the first analysis that settles it: without memory, and with one of the tolerance."""
    planned = schedule(5, 30)
    for name in ("normal", "growing threefold", "seed slopes", "smooth"):
        for scales in (2, 5):
            remembers, forgets, careless = (np.zeros(options.studies, dtype=bool) for _ in range(3))
            null = FAMILIES[name](np.zeros(scales), (options.studies, 30, scales), rng)
            edge = FAMILIES[name](profile_of("line", 3.0, scales), (options.studies, 30, scales), rng)
            for n, alpha in zip(planned, levels(planned), strict=True):
                remembers |= spreads(null[:, :n], alpha=alpha).p <= alpha
                forgets |= spreads(edge[:, :n], alpha=alpha).high < 3.0
            for n in range(5, 31):
                careless |= spreads(null[:, :n]).p <= 0.05
            yield {
                "family": name,
                "scales": scales,
                "seeds": " ".join(map(str, planned)),
                "remembers": float(remembers.mean()),
                "forgets": float(forgets.mean()),
                "remembers_without_plan": float(careless.mean()),
            }


# -- many recipes, sizes, seeds that settle it -------------------------------------------------------------


# Memory and noise of a recipe in points, where 2 are tolerated.
KINDS = {
    "none": (0.0, 1.5),
    "edge": (2.0, 0.3),
    "within": (1.0, 0.2),
    "weak": (2.5, 1.5),
    "strong": (6.0, 1.0),
}
MIXTURES: tuple[dict[str, int], ...] = (
    {"none": 24},
    {"none": 18, "strong": 2},
    {"none": 18, "within": 2},
    {"none": 15, "within": 5},
    {"edge": 18, "within": 2},
    {"none": 9, "edge": 9, "weak": 3, "strong": 3},
    {"none": 4},
)
TOLERANCE = 2.0


def simulate_tables(mixture: dict[str, int], scales: int, seeds: int, studies: int, rng: Rng) -> dict:
    """The share of false verdicts among those of a table, adjusted and not, and the share of verdicts."""
    kinds = [KINDS[kind] for kind, n in mixture.items() for _ in range(n)]
    false, given = {"bh": 0.0, "none": 0.0}, {"bh": 0.0, "none": 0.0}
    memories, noises = (np.array(column)[:, None, None] for column in zip(*kinds, strict=True))
    noise = noises * rng.standard_normal((studies, len(kinds), seeds, scales))
    values = noise + memories * profile_of("line", 1.0, scales)
    found, equivalence = np.stack(spreads(values)), equivalence_p(values, TOLERANCE)
    for study in range(studies):
        rows = [
            Memory(
                str(i),
                "m",
                scales,
                seeds,
                *found[:, study, i].tolist(),
                "inconclusive",
                "pp",
                "",
                tolerance=TOLERANCE,
                p_equivalence=float(equivalence[study, i]),
            )
            for i in range(len(kinds))
        ]
        for adjust in false:
            verdicts = [row.verdict for row in judged(rows, adjust)]
            wrong = sum(
                (verdict == "remembers" and memory == 0) or (verdict == "forgets" and memory >= TOLERANCE)
                for verdict, (memory, _) in zip(verdicts, kinds, strict=True)
            )
            settled = sum(verdict != "inconclusive" for verdict in verdicts)
            false[adjust] += wrong / max(settled, 1) / studies
            given[adjust] += settled / len(kinds) / studies
    return {
        "recipes": ", ".join(f"{n} {kind}" for kind, n in mixture.items()),
        "scales": scales,
        "seeds": seeds,
        "false_share": false["bh"],
        "unadjusted_false_share": false["none"],
        "verdicts": given["bh"],
        "unadjusted_verdicts": given["none"],
    }


def family_rows(options: argparse.Namespace, rng: Rng) -> Iterator[dict]:
    """Tables of recipes of several kinds."""
    for scales in (2, 5):
        for mixture in MIXTURES:
            yield simulate_tables(mixture, scales, 5, max(options.studies // 4, 1), rng)


def size_rows(options: argparse.Namespace, rng: Rng) -> Iterator[dict]:
    """How often a memory of 9.5 points is called large (10 or more), by its interval and by its estimate."""
    for scales in (2, 5):
        for seeds in (3, 5, 10):
            for noise in (0.5, 2.0):
                shape = (options.studies, seeds, scales)
                found = spreads(profile_of("line", 9.5, scales) + noise * rng.standard_normal(shape))
                significant = found.p <= 0.05
                yield {
                    "scales": scales,
                    "seeds": seeds,
                    "noise": f"{noise:g} points",
                    "large": float((significant & (found.low >= 10)).mean()),
                    "large_by_estimate": float((significant & (found.debiased >= 10)).mean()),
                }


def simulate_needed(scales: int, seeds: int, memory: float, noise: float, studies: int, rng: Rng) -> dict:
    """Inconclusive studies that are continued to the number of seeds that should settle 80% of them."""
    profile = profile_of("line", memory, scales)
    settled, numbers, beyond = 0, [], 0
    while len(numbers) + beyond < studies:
        values = profile + noise * rng.standard_normal((seeds, scales))
        first = spread(values)
        if first.p <= 0.05 or first.high <= TOLERANCE:
            continue
        needed = seeds_needed(values, TOLERANCE)
        if needed is None:
            beyond += 1
            continue
        more = profile + noise * rng.standard_normal((needed - seeds, scales))
        last = spread(np.concatenate([values, more]))
        settled += last.p <= 0.05 or last.high <= TOLERANCE
        numbers.append(needed)
    return {
        "scales": scales,
        "seeds": seeds,
        "memory": f"{memory:g} points",
        "noise": f"{noise:g} points",
        "settled": settled / max(len(numbers), 1),
        "median": f"{np.median(numbers) if numbers else np.nan:g} seeds",
        "beyond_reach": beyond / studies,
    }


def needed_rows(options: argparse.Namespace, rng: Rng) -> Iterator[dict]:
    """The promise of `seeds_needed`, for a tolerance of 2 points."""
    for scales in (2, 5):
        for seeds in (3, 5):
            for memory, noise in ((0.0, 1.5), (0.0, 3.0), (1.0, 1.5), (2.0, 2.5), (3.0, 3.0)):
                yield simulate_needed(scales, seeds, memory, noise, max(options.studies // 10, 1), rng)


def johnson(values: Array) -> Array:
    """The upper limit with Johnson's correction of Student's t for skewness."""
    n = values.shape[-2]
    pairs = values[..., :, None] - values[..., None, :]
    means, residuals = pairs.mean(axis=-3), pairs - pairs.mean(axis=-3, keepdims=True)
    variance = (residuals**2).sum(axis=-3) / (n - 1)
    third = (residuals**3).sum(axis=-3) * n / ((n - 1) * (n - 2))
    shift = np.divide(third, 6 * n * variance, out=np.zeros_like(third), where=variance > 0)
    return (means + shift + student(n - 1) * np.sqrt(variance / n)).max(axis=(-2, -1))


def bootstrap_t(values: Array, draws: int = 200) -> Array:
    """The upper limit with the bootstrap's own quantiles of Student's t, pair by pair."""
    n = values.shape[-2]
    chosen = np.random.default_rng(0).integers(0, n, (draws, n))
    centred = values - values.mean(axis=-2, keepdims=True)
    t = []
    for rows in chosen:
        drawn = centred[..., rows, :]
        difference, error = statistics.paired(drawn.mean(axis=-2), statistics.noise_of(drawn).covariance, n)
        t.append(np.divide(difference, error, out=np.zeros_like(error), where=error > 1e-12))
    difference, error = statistics.paired(values.mean(axis=-2), statistics.noise_of(values).covariance, n)
    return (difference - np.quantile(t, 0.025, axis=0) * error).max(axis=(-2, -1))


LIMITS: dict[str, Callable[[Array], Array]] = {
    "used": lambda values: spreads(values).high,
    "stricter": lambda values: spreads(values, alpha=0.025).high,  # 1.25% instead of 2.5%
    "johnson": johnson,
    "bootstrap_t": bootstrap_t,
}


def skew_rows(options: argparse.Namespace, rng: Rng) -> Iterator[dict]:
    """False `forgets` of memories of the tolerance under skewed noise, and what other limits would cost."""
    studies = max(options.studies // 4, 1)
    for seeds in (5, 10):
        for name, sign in (("skewed", 1), ("skewed, tenfold", 1), ("skewed, tenfold", -1)):
            row = {"seeds": seeds, "noise": f"{name}, tail {'below' if sign > 0 else 'above'}"}
            profiles = [profile_of(shape, memory, 5) for shape in SHAPES for memory in (1.0, 2.0, 3.0, 5.0)]
            drawn = [sign * FAMILIES[name](sign * one, (studies, seeds, 5), rng) for one in profiles]
            for label, limit in LIMITS.items():
                rates = [(limit(v) < np.ptp(one)).mean() for one, v in zip(profiles, drawn, strict=True)]
                row[label] = float(max(rates))
            yield row
        null = rng.standard_normal((studies, seeds, 5))
        row = {"seeds": seeds, "noise": "normal, no memory, 3 sigma tolerated: forgets"}
        yield row | {label: float((limit(null) <= 3).mean()) for label, limit in LIMITS.items()}


# -- untrained runs -------------------------------------------------------------------------------------


def failure_rows(options: argparse.Namespace, rng: Rng) -> Iterator[dict]:
    """Runs at chance at one of five scales; accuracies in points with a noise of 0.3, tolerance 2."""
    for seeds in (3, 5, 10, 20):
        for rate in (0.0, 0.2, 0.5):
            values = 0.3 * rng.standard_normal((options.studies, seeds, 5))
            failed = rng.random((options.studies, seeds)) < rate
            values[:, :, 4] -= 70 * failed
            high = spreads(values).high
            counts = failed.sum(axis=1)
            tested = np.array(
                [equal_rates_p([0] * 4 + [f], [seeds] * 5) if f else 1.0 for f in range(seeds + 1)]
            )
            means_alone = high <= 2
            yield {
                "seeds": seeds,
                "rate": rate,
                "rate_depends_on_scale": float((tested[counts] <= 0.05).mean()),
                "forgets_by_means": float(means_alone.mean()),
                "forgets": float((means_alone & (counts == 0)).mean()),
                "no_failure_seen": float((counts == 0).mean()),
                "excluded_rate": rate_limits(0, seeds)[1],
            }


# -- curves ------------------------------------------------------------------------------------------------


def curve_noise(kind: str, shape: tuple[int, int], rng: Rng) -> Array:
    """Noise of the seeds' curves, (seed, epoch): new at every epoch, smooth over eight, or shared by all."""
    if kind == "white":
        return rng.standard_normal(shape)
    if kind == "shared":
        return np.repeat(rng.standard_normal((shape[0], 1)), shape[1], axis=1)
    t = np.arange(shape[1])
    covariance = np.exp(-((t[:, None] - t) ** 2) / (2 * 8**2)) + 1e-9 * np.eye(shape[1])
    return rng.standard_normal(shape) @ np.linalg.cholesky(covariance).T


def band_rows(options: argparse.Namespace, rng: Rng) -> Iterator[dict]:
    """Whole curves of 60 epochs inside their limits; half-lives inside their intervals.

    These are of exp(-t / 15) and of a plateau, whose peak may be observed at any of its epochs.
    """
    axis = np.arange(1.0, 61)
    shapes = [np.exp(-axis / 15), 1 / (1 + np.exp((axis - 25) / 5))]
    truths = [half_life(shape, axis) or 0.0 for shape in shapes]
    studies = min(options.studies, 1000)
    for kind in ("white", "smooth", "shared"):
        for n in (3, 5, 10):
            within = np.zeros(4)
            for _ in range(studies):
                noise = curve_noise(kind, (n, 60), rng)
                t = np.abs(noise.mean(axis=0)) / (noise.std(axis=0, ddof=1) / np.sqrt(n))
                covered = []
                for shape, truth in zip(shapes, truths, strict=True):
                    own = shape + 0.05 * noise
                    low, high = half_life_limits(own.mean(axis=0), own, axis)
                    covered.append(low is not None and low <= truth and (high is None or truth <= high))
                within += t.max() <= student(n - 1), t.max() <= critical(noise), *covered
            pointwise, simultaneous, covers, plateau = (within / studies).tolist()
            yield {
                "noise": kind,
                "seeds": n,
                "pointwise": pointwise,
                "simultaneous": simultaneous,
                "half_life_covers": covers,
                "plateau_covers": plateau,
            }


def simulate_collapse(
    alpha: float,
    batches: tuple[int, ...],
    seeds: int,
    studies: int,
    rng: Rng,
    *,
    kind: str = "smooth",
    claimed: float | None = None,
) -> dict:
    """|beta| = 0.15 / (1 + x) on the clock x of a planted alpha, 60 epochs at each batch size."""
    truth = alpha if claimed is None else claimed
    told = covered = 0
    estimates = []
    for _ in range(studies):
        curves = []
        for b in batches:
            clock = 64 / b * np.arange(1.0, 61)
            slopes_ = 0.15 / (1 + clock / 30 * (b / 64) ** -(alpha - 1))
            noise = 0.003 * curve_noise(kind, (seeds, 60), rng)
            curves.append(fading(np.log(clock), slopes_ + noise))
        fitted, _ = regress(curves, np.log(np.array(batches, dtype=float)))
        if fitted is not None:
            value, low, high = fitted
            told += 1
            covered += low + 1 <= truth <= high + 1
            estimates.append(value + 1)
    return {
        "alpha": alpha,
        "batch_sizes": " ".join(map(str, batches)),
        "noise": kind,
        "seeds": seeds,
        "studies": studies,
        "cannot_tell": 1 - told / studies,
        "covers": covered / told if told else float("nan"),
        "estimate": float(np.mean(estimates)) if told else float("nan"),
    }


def collapse_rows(options: argparse.Namespace, rng: Rng) -> Iterator[dict]:
    """Planted exponents, with batch sizes whose curves share levels of |beta| and with others."""
    studies = max(options.studies // 10, 1)  # slower than the rest
    for batches in ((16, 32, 64, 128, 256), (16, 128), (4, 1024)):
        for seeds in (3, 5):
            for kind in ("white", "smooth"):
                for alpha in (0.0, 0.5, 1.0, 2.0):
                    yield simulate_collapse(alpha, batches, seeds, studies, rng, kind=kind)


TABLES: dict[str, tuple[str, Callable[[argparse.Namespace, Rng], Iterator[dict]]]] = {
    "memory": ("Memory: the worst over scales, memories of 0 to 15 sigma and shapes", memory_rows),
    "power": ("Power: memories of 1 to 5 sigma, spread evenly over the scales, normal noise", power_rows),
    "freedom": ("Degrees of freedom: the worst false alarms over families, power at 3 sigma", freedom_rows),
    "differences": ("Difference of two memories", difference_rows),
    "interim": ("Interim analyses, stopping at the first that settles it", interim_rows),
    "family": (
        "Tables of many recipes: the mean share of false verdicts, over a quarter of the studies",
        family_rows,
    ),
    "sizes": ("A memory of 9.5 points that is called large, 10 or more", size_rows),
    "needed": (
        "Continued to the number of seeds that should settle 80% of studies, over a tenth of them",
        needed_rows,
    ),
    "skew": (
        "False `forgets` under skewed noise at five scales, over a quarter of the studies",
        skew_rows,
    ),
    "failures": ("Untrained runs at one scale of five", failure_rows),
    "curves": ("Whole curves inside pointwise and simultaneous limits; half-lives", band_rows),
    "collapse": ("Exponent of the batch size", collapse_rows),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--studies", type=int, default=2000, help="simulated studies per cell")
    parser.add_argument("--scales", type=int, nargs="+", default=[2, 5, 25])
    parser.add_argument("--seeds", type=int, nargs="+", default=[3, 5, 10, 30])
    parser.add_argument("--families", nargs="+", choices=FAMILIES, default=list(FAMILIES))
    parser.add_argument("--tables", nargs="+", choices=TABLES, default=["memory"])
    parser.add_argument("--all", action="store_true", help="every table")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    started = time.perf_counter()
    results = {}
    for name in TABLES if options.all else options.tables:
        title, rows = TABLES[name]
        results[name] = list(rows(options, np.random.default_rng(0)))
        if not options.json:
            print(f"\n{title} ({options.studies} studies per cell)\n")
            print("\n".join(table(results[name])), flush=True)
    if options.json:
        print(json.dumps(results, indent=1))
    else:
        print(f"\n{time.perf_counter() - started:.0f} s")


SIGNED = ("bias", "as_observed")
PLAIN = ("alpha", "estimate", "upper_limit_without_memory")  # every other number is a rate


def table(rows: list[dict]) -> list[str]:
    """Lines of a Markdown table."""
    names = list(rows[0])
    lines = ["| " + " | ".join(name.replace("_", " ") for name in names) + " |", "|" + "---|" * len(names)]
    return lines + ["| " + " | ".join(_cell(name, row[name]) for name in names) + " |" for row in rows]


def _cell(name: str, value: object) -> str:
    if not isinstance(value, float):
        return str(value)
    if np.isnan(value):
        return "-"
    if name in SIGNED:
        return f"{value:+.2f}"
    return f"{value:.2f}" if name in PLAIN else f"{100 * value:.1f}%"


if __name__ == "__main__":
    main()
