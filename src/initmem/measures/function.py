"""Function memory: do networks that are equally accurate predict the same?

Two classifiers disagree on the share of test examples for which they predict different classes. Here it is
averaged over pairs of runs: of one seed at two scales, of two seeds at one scale, and of a run and its
perturbed replicate, which is what chaos alone does. The effect of the scale is the disagreement of two seeds
at two scales minus the disagreement of two seeds at one scale. It is half the squared distance between the
distributions of predictions over seeds, averaged over examples, and 0 where these are the same. Then the runs
of a seed are exchangeable: the p-value comes from permutations of the scales within seeds.

A network is matched to its initialization if its predictions agree best with those of its own untrained
network, among the untrained networks of all seeds at the same scale. If nothing of the initialization is
left, every assignment of seeds is equally likely. The agreement is summed over scales; they share their
random numbers, so that seeds are permuted for all scales at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import permutations
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from initmem.measures.chaos import replicates
from initmem.measures.design import Measure, Row, complete, plain, unrecorded
from initmem.measures.statistics import ALPHA, Array, Limits, jackknife, mean_over_seeds
from initmem.record import RunRecord
from initmem.table import Column, Columns, number

EXACT = 7  # seeds up to which all their permutations are tried
DRAWS = 9_999  # permutations for more seeds
SCALE_DRAWS = 1_999  # permutations of scales


class Identified(NamedTuple):
    """How many networks are matched to their own initialization."""

    share: float
    chance: float
    p: float  # of no more agreement with the own initialization than with others


def function_memory(records: Sequence[RunRecord]) -> Row | None:
    """Compare the predictions of one recipe; None: not recorded, or of different numbers of examples.

    All shares are in percent.
    """
    runs = _with_predictions(records)
    if isinstance(runs, str):
        return None
    apart = 100 * disagreements(_stacked(runs, "predictions"))
    pairs = [
        (record.run.seed, 100 * float(np.mean(record.arrays["predictions"] != parent.arrays["predictions"])))
        for record, parent in replicates(records)
        if _shape(record) == _shape(parent) == _shape(runs[0][0])
    ]
    accuracies = np.array([[r.metric("test_accuracy") for r in row] for row in runs], dtype=float)
    gaps = 100 * np.abs(accuracies[:, :, None, None] - accuracies)  # as those of `disagreements`
    matched = _identified(runs)
    return {
        "accuracy": between_scales(gaps),
        **_over_seeds(apart, between_scales).named("scales"),
        **_over_seeds(apart, between_seeds).named("seeds"),
        **mean_over_seeds(pairs).named("replicates"),
        **_over_seeds(apart, lambda kept: across(kept) - between_seeds(kept)).named("effect"),
        "p": effect_p(apart),
        "identified": matched and 100 * matched.share,
        "chance": matched and 100 * matched.chance,
        "p_identified": matched and matched.p,
        "n_scales": apart.shape[1],
        "n_seeds": apart.shape[0],
        "n_pairs": len(pairs),
        "n_predictions": runs[0][0].arrays["predictions"].size,
    }


def _with_predictions(records: Sequence[RunRecord]) -> list[list[RunRecord]] | str:
    """The runs that have predictions: a row per seed that has them at every level; else why there is none."""
    runs = [record for record in plain(records) if "predictions" in record.arrays]
    if len(set(map(_shape, runs))) > 1:
        return "its runs have different numbers of predictions"
    return complete(runs) or ("no seed has all scales" if runs else "")


def _stacked(runs: Sequence[Sequence[RunRecord]], name: str) -> NDArray[np.uint16]:
    """An array of shape (seed, scale, prediction)."""
    return np.array([[record.arrays[name].ravel() for record in row] for row in runs])


def _shape(record: RunRecord, name: str = "predictions") -> tuple[int, ...] | None:
    return record.arrays[name].shape if name in record.arrays else None


# -- disagreement -----------------------------------------------------------------------------------------


def disagreements(classes: NDArray[np.uint16]) -> Array:
    """The disagreement of all pairs of runs, (seed, scale, seed, scale), from (seed, scale, prediction)."""
    n, k, _ = classes.shape
    flat = classes.reshape(n * k, -1)
    return np.array([(row != flat).mean(axis=1) for row in flat]).reshape(n, k, n, k)


def between_scales(apart: Array) -> float:
    """The mean over pairs of scales of one seed."""
    n, k = apart.shape[:2]
    return float(np.einsum("iaib->", apart)) / (n * k * (k - 1)) if k > 1 else math.nan


def between_seeds(apart: Array) -> float:
    """The mean over pairs of seeds at one scale."""
    n, k = apart.shape[:2]
    return float(np.einsum("iaja->", apart)) / (n * (n - 1) * k) if n > 1 else math.nan


def across(apart: Array) -> float:
    """The mean over pairs that differ in both."""
    n, k = apart.shape[:2]
    if n < 2 or k < 2:
        return math.nan
    within = np.einsum("iaib->", apart) + np.einsum("iaja->", apart)
    return float((apart.sum() - within) / (n * (n - 1) * k * (k - 1)))


def effect_p(apart: Array, draws: int = SCALE_DRAWS) -> float:
    """The permutation p-value of no effect of the scale: seeds agree no better at one scale than across."""
    n, k = apart.shape[:2]
    if n < 2 or k < 2:
        return math.nan
    order = np.random.default_rng(0).permuted(np.tile(np.arange(k), (draws, n, 1)), axis=2)
    total = np.zeros(draws)
    for i in range(n):
        for j in range(i):
            total += apart[i, order[:, i], j, order[:, j]].sum(axis=1)
    observed = between_seeds(apart) * n * (n - 1) * k / 2
    return (1 + int(np.count_nonzero(total <= observed + 1e-9))) / (draws + 1)


def _over_seeds(apart: Array, estimate: Callable[[Array], float]) -> Limits:
    return jackknife(lambda kept: estimate(apart[kept][:, :, kept]), len(apart))


# -- identification ---------------------------------------------------------------------------------------


def _identified(runs: Sequence[Sequence[RunRecord]]) -> Identified | None:
    shapes = {_shape(record, "initial_predictions") for row in runs for record in row}
    if len(runs) < 2 or len(shapes) > 1 or None in shapes:
        return None
    initial = _stacked(runs, "initial_predictions")
    return identification(_stacked(runs, "predictions")[:, :, : initial.shape[2]], initial)


def identification(classes: NDArray[np.uint16], initial: NDArray[np.uint16]) -> Identified:
    """Match networks to initializations; predictions of both have shape (seed, scale, prediction)."""
    n, k, _ = classes.shape
    agreement = np.array(  # (scale, trained network, untrained network)
        [[(classes[i, a] == initial[:, a]).mean(axis=1) for i in range(n)] for a in range(k)]
    )
    # Some networks predict a frequent class more often: such networks agree better with all others.
    centered = agreement - agreement.mean(axis=1, keepdims=True) - agreement.mean(axis=2, keepdims=True)
    share = float((centered.argmax(axis=2) == np.arange(n)).mean())
    total = centered.sum(axis=0)
    if n <= EXACT:
        orders = np.array(list(permutations(range(n))))
    else:
        orders = np.random.default_rng(0).permuted(np.tile(np.arange(n), (DRAWS, 1)), axis=1)
        orders = np.vstack([np.arange(n), orders])
    sums = total[np.arange(n), orders].sum(axis=1)
    return Identified(share, 1 / n, float((sums >= np.trace(total) - 1e-9).mean()))


# -- tables -----------------------------------------------------------------------------------------------


def _function_rows(records: Sequence[RunRecord], metric: str | None) -> list[Row]:
    row = function_memory(records)
    return [] if row is None else [row | {"reading": reading(row)}]


def reading(row: Row) -> str | None:
    """Whether the scale changes the function; None with one seed or one scale."""
    if row["p"] is None:
        return None
    # The p-value if runs agree best at their own scales: no other order of scales does as well.
    if math.factorial(row["n_scales"]) ** (1.0 - row["n_seeds"]) > ALPHA:
        return "too few runs to tell"
    return "changes the function" if row["p"] <= ALPHA else "not significant"


def _left_out(records: Sequence[RunRecord]) -> list[str]:
    """How many runs have no predictions, and why those of others cannot be compared."""
    runs, missing = _with_predictions(records), unrecorded(records, "predictions", "predictions")
    return [*missing, f"left out, since {runs}"] if isinstance(runs, str) and runs else missing


def _percent(name: str, about: str, priority: int = 0) -> Columns:
    limits = number(f"{name}: 95% interval", "over seeds", ".1f", priority=priority + 3)
    return {
        name: number(name, about, ".1f", unit="%", priority=priority),
        (f"{name}_low", f"{name}_high"): limits,
    }


MEASURES = {
    "function": Measure(
        "Disagreement: test examples (%) for which two networks predict different classes",
        _function_rows,
        {
            "accuracy": number("accuracy", "mean difference between scales, same seed", ".1f", unit="pp"),
            **_percent("scales", "disagreement between scales, same seed"),
            **_percent("seeds", "disagreement between seeds, same scale"),
            **_percent("replicates", "disagreement between a run and its perturbed replicate", 1),
            "effect": number("effect", "what another scale adds to another seed", ".2f", unit="%"),
            ("effect_low", "effect_high"): number("effect: 95% interval", "over seeds", ".2f", priority=2),
            "reading": Column("reading", "text", "whether the scale changes the function"),
            "p": number("p", "of no effect of the scale (permutations; unadjusted)", ".2g"),
            "identified": number("identified", "matched to their own initialization", ".0f", unit="%"),
            "chance": number("chance", "the same by guessing", ".0f", unit="%", priority=5),
            "p_identified": number("identified: p", "of a match by chance (permutations)", ".2g"),
            "n_seeds": number("n seeds", "number of seeds that have all scales", priority=6),
            "n_scales": number("n scales", "number of scales", priority=7),
            "n_pairs": number("pairs", "number of runs with a perturbed replicate", priority=8),
        },
        remarks=_left_out,
    ),
}
