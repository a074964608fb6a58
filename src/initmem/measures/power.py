"""Power before the run: how many seeds find a memory of a given size, or show that there is none.

Studies are simulated with the method that will judge the real one, for normal noise, the same at all scales.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from initmem.errors import ConfigError
from initmem.measures.design import by_recipe, default_metric, profile
from initmem.measures.memory import TOLERANCE_PP
from initmem.measures.statistics import noise_of, spreads
from initmem.recipe import AnyRecipe
from initmem.record import RunRecord
from initmem.study import Study
from initmem.table import RECIPE, Column, Columns, number

POWER = 0.8
MEMORY_PP = 5.0
SEEDS = (3, 4, 5, 6, 8, 10, 12, 15, 20, 25, 30, 40, 50, 75, 100)
STUDIES = 500


class Power(NamedTuple):
    """Seeds that give a verdict in 80% of all studies. None: more than a hundred."""

    recipe: str
    noise: float  # standard deviation over seeds of one run, in the unit of the metric
    noise_from: str
    scales: int
    memory: float
    seeds_to_find: int | None  # `remembers`, if this is the memory, spread evenly over the scales
    tolerance: float
    seeds_to_forget: int | None  # `forgets`, if there is no memory
    planned: int
    found_as_planned: float  # share of studies with the planned seeds that find the memory


def power_rows(
    study: Study,
    *,
    noise: float | None,
    pilot: Sequence[RunRecord] = (),
    memory: float = MEMORY_PP,
    tolerance: float = TOLERANCE_PP,
) -> list[Power]:
    """The power of a study, recipe by recipe, from the noise of pilot records or an assumed one."""
    pooled = {recipe: pooled_noise(records) for recipe, records in by_recipe(pilot).items()}
    measured = {recipe: sigma for recipe, sigma in pooled.items() if sigma}
    scales = len(study.scales)
    rows = []
    for recipe, label in zip(study.recipes, study.labels(), strict=True):
        sigma, source = (noise, "assumed") if noise is not None else _pilot_noise(recipe, measured)
        rows.append(
            Power(
                recipe=label,
                noise=sigma,
                noise_from=source,
                scales=scales,
                memory=memory,
                seeds_to_find=seeds_to_find(scales, _rounded(memory / sigma)),
                tolerance=tolerance,
                seeds_to_forget=seeds_to_forget(scales, _rounded(tolerance / sigma)),
                planned=len(study.seeds_of(recipe)),
                found_as_planned=rates(scales, len(study.seeds_of(recipe)), _rounded(memory / sigma))[0],
            )
        )
    return rows


def _pilot_noise(recipe: AnyRecipe, measured: Mapping[AnyRecipe, float]) -> tuple[float, str]:
    """The noise of a recipe and where it is from: its own pilot runs, or the median of the others."""
    if recipe in measured:
        return measured[recipe], "pilot"
    if not measured:
        raise ConfigError("power needs the noise over seeds (allowed: --noise POINTS, or --pilot STORE)")
    return float(np.median(list(measured.values()))), "pilot, other recipes"


def pooled_noise(records: Sequence[RunRecord]) -> float | None:
    """The standard deviation of a run around its seed's level, pooled over scales; None from one seed."""
    values = profile(records, default_metric(records)).values
    n, k = values.shape
    if n < 2 or k < 2:
        return None
    return math.sqrt(float(noise_of(values).total) / (k - 1)) or None


def _rounded(ratio: float) -> float:
    """Two digits: enough for a plan, and recipes of about the same noise share their simulation."""
    return float(f"{ratio:.2g}")


@lru_cache(maxsize=4096)
def rates(scales: int, seeds: int, ratio: float) -> tuple[float, float]:
    """Shares of studies that find a memory of `ratio` sigma, and that exclude it where there is none."""
    if min(scales, seeds) < 2:
        return 0.0, 0.0
    noise = np.random.default_rng([scales, seeds]).standard_normal((STUDIES, seeds, scales))
    significant = spreads(noise + np.linspace(0, ratio, scales)).p <= 0.05
    return float(significant.mean()), float((spreads(noise).high <= ratio).mean())


def seeds_to_find(scales: int, ratio: float) -> int | None:
    """The fewest seeds that find a memory of so many sigma in 80% of the studies."""
    return next((n for n in SEEDS if rates(scales, n, ratio)[0] >= POWER), None)


def seeds_to_forget(scales: int, ratio: float) -> int | None:
    """The fewest seeds that show a range within so many sigma in 80% of the studies without memory."""
    return next((n for n in SEEDS if rates(scales, n, ratio)[1] >= POWER), None)


COLUMNS: Columns = {
    "recipe": RECIPE,
    "noise": number("noise", "standard deviation over seeds of one run", ".2g"),
    "noise_from": Column("from", "text", "where the noise was taken from", priority=4),
    "scales": number("scales", "number of scales", priority=3),
    "memory": number("memory", "to be detected", ".3g"),
    "seeds_to_find": number("seeds", "that detect it; empty: more than a hundred"),
    "tolerance": number("tolerance", "range that counts as forgotten", ".3g"),
    "seeds_to_forget": number("seeds to forget", "that show it is forgotten, if there is none"),
    "planned": number("planned", "seeds of the study", priority=1),
    "found_as_planned": number("power", "share of studies that detect it as planned", ".0%"),
}
