"""Norm elasticity: does the norm of the trained weights still depend on the norm they started with?

The norm elasticity d log ||W_selected|| / d log ||W_init|| of a recipe is 1 where training keeps the norm
that the initialization chose, and 0 where it forgets it. If a clock t governs forgetting, recipes that differ
in width, learning rate, batch size or dataset fall on one curve, here 1 / (1 + (t / t_half)^steepness).
In a normalized network a gradient step turns the weights by an angle proportional to eta / ||W||^2. L2 acts
there by making ||W|| smaller, so one clock, `angular`, could serve SGD with and without it.

With heavy-ball momentum all clocks count the effective learning rate eta / (1 - momentum).

Every candidate is rated by its error on recipes that were left out of the fit, next to that of their mean.
This describes records; it is not a forecast.

Layers have the same elasticity, and a cosine to their initial weights, kernel by kernel at the selected
epoch. The alignment of the last hidden layer tells lazy training (near 1: its features are those of the
initialization) from rich.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from initmem.clocks import CLOCKS, effective_clocks, family_of, is_adaptive
from initmem.measures.design import Analyses, Groups, Measure, Row, levels_of, of_scales, plain, unrecorded
from initmem.measures.statistics import ALPHA, Array, jackknife, mean_over_seeds
from initmem.recipe import AnyRecipe
from initmem.record import RunRecord
from initmem.table import Column, number

FEWEST = 4  # recipes of a family that a fit needs: a curve has two parameters
STEEPEST = 8.0
SAME = 1.001  # ratio of the norms of a seed up to which the scale does not act on a kernel
# The clocks that could govern the forgetting of a family of optimizers.
CANDIDATES = {
    "adaptive": ("adaptive",),
    "l2": ("l2", "adaptive", "angular"),
    "sgd": ("momentum", "adaptive", "angular"),
    "sgd+l2": ("momentum", "adaptive", "angular"),
}


class Elasticity(NamedTuple):
    """The elasticity of the selected norm in the initial norm: 1: fully retained, 0: forgotten."""

    elasticity: float
    low: float | None
    high: float | None
    n_runs: int
    n_seeds: int


def norm_elasticity(records: Sequence[RunRecord], *, alpha: float = ALPHA) -> Elasticity | None:
    """Slope of log ||W(tau_best)|| on log ||W(init)||; the interval, of level 1 - alpha, is a jackknife's."""
    rows = [
        (r.run.seed, r.summary.norm_init, r.summary.norm_best)
        for r in of_scales(plain(records))
        if r.summary.norm_init and r.summary.norm_best
    ]
    return elasticity_of(rows, alpha=alpha)


def elasticity_of(rows: Sequence[tuple[int, float, float]], *, alpha: float = ALPHA) -> Elasticity | None:
    """The elasticity from (seed, initial norm, selected norm) of each run."""
    if len({start for _, start, _ in rows}) < 2:
        return None
    seeds, logs = np.array([seed for seed, _, _ in rows]), np.log([norms for _, *norms in rows])
    distinct = np.unique(seeds)

    def slope(kept: NDArray[np.intp]) -> float:
        x, y = logs[np.isin(seeds, distinct[kept])].T
        centered = x - x.mean()
        return float(centered @ y / (centered @ centered)) if np.ptp(x) > 0 else math.nan

    estimate = jackknife(slope, len(distinct), alpha=alpha)
    return Elasticity(slope(np.arange(len(distinct))), *estimate[1:], len(rows), len(distinct))


# -- against clocks ---------------------------------------------------------------------------------------


class Observed(NamedTuple):
    """One recipe: its elasticity, and its clocks at the selected epoch."""

    families: tuple[str, ...]  # the narrowest first
    recipe: AnyRecipe
    elasticity: float
    clocks: Mapping[str, float]  # geometric means over runs
    n_runs: int


class ClockFit(NamedTuple):
    """The curve of one clock through the recipes of one family."""

    family: str
    clock: str
    half: float  # the clock at which half of the elasticity is left
    steepness: float
    residual: float  # root mean square, in units of the elasticity
    error: float  # the same for recipes that were left out of the fit, one at a time
    error_of_mean: float  # of the mean of the other recipes, without any clock
    n_recipes: int

    def at(self, clock: Array) -> Array:
        """The elasticity on the curve."""
        return curve(np.log(clock), math.log(self.half), self.steepness)


def observed(groups: Groups) -> list[Observed]:
    """The elasticity and the clocks of every recipe for which both were recorded."""
    recipes = []
    for records in groups.values():
        recipe, elasticity = records[0].run.recipe, norm_elasticity(records)
        family = family_of(recipe)
        if elasticity is not None and family is not None:
            families = (family,) if is_adaptive(str(recipe.get("optimizer"))) else (family, "sgd+l2")
            clocks = selected_clocks(records)
            recipes.append(Observed(families, recipe, elasticity.elasticity, clocks, elasticity.n_runs))
    return recipes


def selected_clocks(records: Sequence[RunRecord]) -> dict[str, float]:
    """The effective clocks at the selected epoch, geometric means over runs; only those that are positive."""
    rows = []
    for record in of_scales(plain(records)):
        ticks = {name: record.metric(f"clock_{name}") for name in CLOCKS}
        recorded = {name: value for name, value in ticks.items() if value is not None}
        rows.append(effective_clocks(record.run.recipe, recorded))
    columns = {name: [row[name] for row in rows if name in row] for name in CLOCKS}
    return {
        name: float(np.exp(np.mean(np.log(values))))
        for name, values in columns.items()
        if values and min(values) > 0
    }


def clock_fits(recipes: Sequence[Observed]) -> list[ClockFit]:
    """Fit every candidate clock of every family that has recipes enough, the best of a family first.

    A family that has the same members as one before it is not fitted again.
    """
    fits: list[ClockFit] = []
    fitted: list[list[Observed]] = []
    for family, names in CANDIDATES.items():
        members = [one for one in recipes if family in one.families]
        if len(members) < FEWEST or members in fitted:
            continue
        fitted.append(members)
        elasticities = np.array([one.elasticity for one in members])
        recorded = [name for name in names if all(name in one.clocks for one in members)]
        times = {name: np.log([one.clocks[name] for one in members]) for name in recorded}
        of_family = [_fit(family, name, t, elasticities) for name, t in times.items() if np.ptp(t) > 0]
        fits += sorted(of_family, key=lambda fit: fit.error)
    return fits


def curve(log_clock: Array, log_half: float, steepness: float) -> Array:
    """1 / (1 + (t / t_half)^steepness)."""
    from scipy.special import expit

    return np.asarray(expit(-steepness * (log_clock - log_half)))


def _fit(family: str, name: str, t: Array, elasticity: Array) -> ClockFit:
    log_half, steepness = _parameters(t, elasticity)
    n = len(t)
    others = ~np.eye(n, dtype=bool)
    predicted = [curve(t[i], *_parameters(t[others[i]], elasticity[others[i]])).item() for i in range(n)]
    means = [elasticity[others[i]].mean() for i in range(n)]
    residual, error = _rms(elasticity - curve(t, log_half, steepness)), _rms(elasticity - predicted)
    of_mean = _rms(elasticity - means)
    return ClockFit(family, name, math.exp(log_half), steepness, residual, error, of_mean, n)


def _parameters(t: Array, elasticity: Array) -> tuple[float, float]:
    """The least-squares curve: the logarithm of the half clock, and the steepness."""
    from scipy.optimize import least_squares

    margin = 5.0  # the half clock may lie a little outside what was observed
    start = (float(np.median(t)), 1.0)
    bounds = ((t.min() - margin, 0.0), (t.max() + margin, STEEPEST))
    log_half, steepness = least_squares(lambda p: curve(t, *p) - elasticity, start, bounds=bounds).x
    return float(log_half), float(steepness)


def _rms(residuals: Array) -> float:
    return float(np.sqrt(np.mean(np.square(residuals))))


# -- layers ----------------------------------------------------------------------------------------------


def kernels_of(records: Sequence[RunRecord]) -> list[str]:
    """The kernels whose norms were recorded, from the first layer to the last."""
    names = dict.fromkeys(name for record in records for name in record.arrays)
    return [name.removeprefix("norm:") for name in names if name.startswith("norm:")]


def at_selected(record: RunRecord, name: str) -> float | None:
    """The value of an array over `layer_epochs` at the selected epoch."""
    epochs, values = record.arrays.get("layer_epochs"), record.arrays.get(name)
    if epochs is None or values is None:
        return None
    (at,) = (epochs == record.summary.tau_best).nonzero()
    return float(values[at[0]]) if len(at) else None


def by_epoch(records: Sequence[RunRecord], name: str) -> dict[int, float]:
    """The mean over runs of an array over `layer_epochs`, at the epochs that most of them have."""
    values: dict[int, list[float]] = {}
    runs = [r.arrays for r in records if name in r.arrays and "layer_epochs" in r.arrays]
    for arrays in runs:
        for epoch, value in zip(arrays["layer_epochs"].tolist(), arrays[name].tolist(), strict=True):
            values.setdefault(epoch, []).append(value)
    return {epoch: float(np.mean(at)) for epoch, at in sorted(values.items()) if 2 * len(at) > len(runs)}


def layer_rows(records: Sequence[RunRecord], alpha: float) -> list[Row]:
    """A row per kernel of one recipe."""
    main = plain(records)
    alignments = [(r.run.seed, value) for r in main if (value := r.metric("alignment")) is not None]
    aligned = mean_over_seeds(alignments, alpha=alpha).named("alignment")
    rows = []
    for kernel in kernels_of(main):
        norms = [
            (r.run.seed, float(r.arrays[f"norm:{kernel}"][0]), end)
            for r in main
            if (end := at_selected(r, f"norm:{kernel}"))
        ]
        drawn = [row for row in norms if row[1] > 0]
        elasticity = elasticity_of(drawn, alpha=alpha) if _is_scaled(drawn) else None
        cosines = [(r, c) for r in main if (c := at_selected(r, f"cosine:{kernel}")) is not None]
        mean = mean_over_seeds([(r.run.seed, c) for r, c in cosines], alpha=alpha)
        levels = levels_of(r for r, _ in cosines)
        ends = [np.mean([c for r, c in cosines if r.run.level == at]) for at in (levels[:1] + levels[-1:])]
        smallest, largest = map(float, ends) if ends else (None, None)
        rows.append(
            {
                "layer": kernel,
                "elasticity": elasticity and elasticity.elasticity,
                "low": elasticity and elasticity.low,
                "high": elasticity and elasticity.high,
                **mean.named("cosine"),
                "cosine_smallest": smallest,
                "cosine_largest": largest,
                **aligned,
                "n_runs": len(norms),
                "n_seeds": len({seed for seed, _, _ in norms}),
            }
        )
    return rows


def _is_scaled(norms: Sequence[tuple[int, float, float]]) -> bool:
    """Whether the initial norm of a seed depends on the scale."""
    by_seed: dict[int, list[float]] = {}
    for seed, start, _ in norms:
        by_seed.setdefault(seed, []).append(start)
    return any(max(starts) > SAME * min(starts) for starts in by_seed.values())


# -- tables -----------------------------------------------------------------------------------------------


def _elasticity_rows(records: Sequence[RunRecord], metric: str | None, *, analyses: Analyses) -> list[Row]:
    elasticity = norm_elasticity(records, alpha=analyses[records[0].run.recipe].alpha)
    return [] if elasticity is None else [elasticity._asdict()]


def _clock_rows(groups: Groups, metric: str | None) -> list[Row]:
    """How well each clock explains the norm elasticity of all recipes of a family."""
    return [fit._asdict() for fit in clock_fits(observed(groups))]


def _layer_rows(records: Sequence[RunRecord], metric: str | None, *, analyses: Analyses) -> list[Row]:
    return layer_rows(records, analyses[records[0].run.recipe].alpha)


MEASURES = {
    "clocks": Measure(
        "Norm elasticity of recipes against their clocks: 1 / (1 + (clock / half)^steepness)",
        _clock_rows,
        {
            "family": Column("family", "text", "of recipes"),
            "clock": Column("clock", "text", "at the effective learning rate eta / (1 - momentum)"),
            "error": number("error", "root mean square, for a recipe left out of the fit", ".3f"),
            "error_of_mean": number("of the mean", "error of the other recipes' mean", ".3f"),
            "residual": number("residual", "root mean square of the fit", ".3f", priority=3),
            "half": number("half", "clock that leaves half of the elasticity", ".3g", priority=1),
            "steepness": number("steepness", "of the curve, in log clock", ".2g", priority=4),
        },
        of="slope",
        together=True,
    ),
    "radial": Measure(
        "Norm elasticity: how the norm of the selected weights depends on the initial one",
        _elasticity_rows,
        {
            "elasticity": number("elasticity", "1: the norm is carried over; 0: forgotten", ".3f"),
            ("low", "high"): number("95% interval", "of the elasticity", ".3f"),
        },
        options=("analyses",),
        of="slope",
    ),
    "layers": Measure(
        "Layers: how norm and direction of the selected weights depend on the initial ones",
        _layer_rows,
        {
            "layer": Column("layer", "text", "whose weights these are, in the order of the network"),
            "elasticity": number("elasticity", "of the norm; 1: carried over, 0: forgotten", ".3f"),
            ("low", "high"): number("95% interval", "of the elasticity", ".3f", priority=1),
            "cosine": number("cosine", "of the selected to the initial weights, mean over scales", ".3f"),
            ("cosine_low", "cosine_high"): number("cosine: 95% interval", "over seeds", ".3f", priority=3),
            "cosine_smallest": number("at smallest", "cosine at the smallest scale", ".3f", priority=2),
            "cosine_largest": number("at largest", "cosine at the largest scale", ".3f", priority=2),
            "alignment": number("alignment", "of the last hidden layer with its start", ".2f", priority=3),
            ("alignment_low", "alignment_high"): number("alignment: 95%", "interval", ".2f", priority=4),
        },
        options=("analyses",),
        of="slope",
        remarks=partial(unrecorded, array="layer_epochs", what="layers"),
    ),
}
