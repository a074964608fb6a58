"""Every measure of a store as rows of plain values: what `initmem measure` prints."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from initmem.clocks import CLOCK_NAMES, FAMILY_NAMES
from initmem.errors import ConfigError, allowed
from initmem.measures.beta import beta_curve, half_lives
from initmem.measures.chaos import chaos_floor, seed_variance
from initmem.measures.clock_fits import clock_fits, observed
from initmem.measures.collapse import collapse, families
from initmem.measures.design import (
    Analysis,
    analyses_of,
    by_scale,
    curve_metric,
    default_metric,
    labelled,
    plain,
    scale_means,
    unit_of,
)
from initmem.measures.difference import controlled_pairs, difference
from initmem.measures.failures import failures
from initmem.measures.fit import Matched, cold_notes
from initmem.measures.interpolation import median_interpolation
from initmem.measures.memory import Memory, judged, measured, memory_table, scale_used
from initmem.measures.metric_names import metric_name
from initmem.measures.radial import radial_memory
from initmem.measures.sharpness import sharpness
from initmem.measures.statistics import adjusted
from initmem.recipe import AnyRecipe
from initmem.record import RunRecord
from initmem.store.encoding import plain_values
from initmem.store.results import Collection, Source, collected
from initmem.study import recipes_of

Row = dict[str, Any]
Groups = dict[str, list[RunRecord]]  # by the label of the recipe


def measure(
    source: Source,
    what: str = "memory",
    *,
    metric: str | None = None,
    scales: Sequence[float] | None = None,
    tolerance: float | None = None,
    failure_tolerance: float | None = None,
    adjust: str = "bh",
) -> list[Row]:
    """The rows that `initmem measure --json` prints, as plain values.

    `source` is a store or an archive, the path of one, several of these, or records. Plain records know
    nothing of the order of recipes and of planned interim analyses. `what` is a measure; `scales` chooses
    some of the scales.
    """
    if what not in ("memory", *MEASURES):
        raise ConfigError(f"what = {what!r} ({allowed(['memory', *MEASURES], what)})")
    options: dict[str, Any] = {"tolerance": tolerance, "failure_tolerance": failure_tolerance}
    options = {name: value for name, value in options.items() if value is not None}
    options |= {"adjust": adjust} if adjust != "bh" else {}
    for name in options:
        if what not in OPTIONS[name]:
            raise ConfigError(f"{name} does nothing with what = {what!r} ({allowed(OPTIONS[name])})")
    data = at_scales(source, scales)
    if what == "memory":
        return memory_rows(memory_table(data, metric, **options), data.records)
    chosen = metric and metric_name(metric)
    groups, left_out = labelled(data.records, recipes_of(data.studies)), not_applicable(what, data)
    used = {label: group for label, group in groups.items() if label not in left_out}
    if what in ("difference", "fit", "radial"):
        options |= {"analyses": analyses_of(data.studies, (r.run.recipe for r in data.records))}
    return [plain_values(row) for row in MEASURES[what](used, chosen, **options)]


def at_scales(source: Source, scales: Sequence[float] | None) -> Collection:
    """The records at some of the scales."""
    data = collected(source)
    if scales is None:
        return data
    there = sorted({record.run.scale for record in data.records})
    if missing := sorted(set(scales) - set(there)):
        raise ConfigError(f"scales = {missing} ({allowed(there)})")
    return Collection([r for r in data.records if r.run.scale in scales], data.studies)


def memory_rows(memories: Sequence[Memory], records: Sequence[RunRecord]) -> list[Row]:
    """Memories as plain values, each with what every scale reached."""
    groups: dict[str, list[RunRecord]] = {}
    for record in records:
        groups.setdefault(record.run.recipe.id, []).append(record)
    return [
        plain_values(row.to_json())
        | {"scales": [at._asdict() for at in scale_means(groups[row.recipe_id], row.metric)]}
        for row in memories
    ]


def not_applicable(what: str, data: Collection) -> list[str]:
    """The recipes that never used the scale, where a measure asks for its effect."""
    if what not in OF_SCALE:
        return []
    groups = labelled(data.records, recipes_of(data.studies))
    return [label for label, group in groups.items() if not scale_used(group)]


def _fit(
    groups: Groups,
    metric: str | None,
    *,
    analyses: Mapping[AnyRecipe, Analysis],
    tolerance: float | None = None,
    adjust: str = "bh",
) -> list[Row]:
    """The change from the smallest to the largest scale, split, and the memory at equal fit."""
    memories = judged(
        [
            measured(
                records,
                metric or default_metric(records),
                tolerance=tolerance,
                label=label,
                analysis=analyses.get(records[0].run.recipe),
            )
            for label, records in groups.items()
        ],
        adjust,
    )
    return [_fit_row(row) for row in memories if row.fit is not None]


def _fit_row(row: Memory) -> Row:
    fit = row.fit
    assert fit is not None
    cells: Row = {
        "recipe": row.recipe,
        "verdict": row.short_verdict,
        "metric": row.metric,
        "train_metric": fit.metric,
    }
    for name, change in (("test", fit.test_change), ("train", fit.train_change), ("gap", fit.gap_change)):
        value, low, high = change or (None, None, None)
        cells |= {name: value, f"{name}_low": low, f"{name}_high": high}
    cells |= {"train_smallest": fit.train[0], "train_largest": fit.train[-1]}
    for name, match in (("matched", fit.matched), ("by_loss", fit.matched_by_loss)):
        values = match if isinstance(match, Matched) else None
        fields = ("memory", "low", "high", "p", "level")
        cells |= {f"{name}_{field}": values and getattr(values, field) for field in fields}
        cells[f"{name}_scales"] = list(values.scales) if values else []
        if values and values.by == "train_accuracy":
            cells[f"{name}_level"] = 100 * values.level  # in percent, like all accuracies
    time = fit.time
    cells |= {f"time_{name}": time and getattr(time, name) for name in ("ratio", "low", "high")}
    return cells | {"n_scales": row.n_scales, "n_seeds": row.n_seeds}


def _beta(groups: Groups, metric: str | None) -> list[Row]:
    rows = []
    for label, records in groups.items():
        name = _followed(records, metric)
        curve = beta_curve(records, name)
        if not len(curve.beta) or np.isnan(curve.beta).all():
            continue
        peak = int(np.nanargmax(np.abs(curve.beta)))
        rows.append(
            {
                "recipe": label,
                "metric": name,
                "peak_epoch": peak + 1,
                "peak": float(curve.beta[peak]),
                "last_epoch": len(curve.beta),
                "last": float(curve.beta[-1]),
                "low": _number(curve.low[-1]),
                "high": _number(curve.high[-1]),
                "n_runs": curve.n_runs,
                "curve": {
                    "beta": [_number(v) for v in curve.beta],
                    "low": [_number(v) for v in curve.low],
                    "high": [_number(v) for v in curve.high],
                    "band_low": [_number(v) for v in curve.band_low],
                    "band_high": [_number(v) for v in curve.band_high],
                    **{f"clock_{name}": ticks.tolist() for name, ticks in curve.clocks.items()},
                },
            }
        )
    return rows


def _followed(records: Sequence[RunRecord], metric: str | None) -> str:
    """The metric that is followed over epochs; of records without any curve no measure says anything."""
    recorded = any(len(record.history) for record in records)
    return metric or (curve_metric(records) if recorded else "val_accuracy")


def _half_life(groups: Groups, metric: str | None) -> list[Row]:
    names = {label: _followed(records, metric) for label, records in groups.items()}
    return [
        {"recipe": label, "metric": names[label]} | life._asdict()
        for label, records in groups.items()
        for life in half_lives(records, names[label])
    ]


def _collapse(groups: Groups, metric: str | None) -> list[Row]:
    """The exponent alpha of the batch size, in families of recipes that differ in it alone."""
    rows = []
    for label, family in families(groups.values()).items():
        found = collapse(family, _followed(family[0], metric))
        row = {"family": label} | {name: value for name, value in found._asdict().items() if name != "scores"}
        axes = {fit.axis: fit.disagreement for fit in found.scores}
        apart = {f"apart_{axis}": axes.get(axis) for axis in ("epochs", "adaptive", "sgd")}
        rows.append(row | apart | {"reading": found.reading})
    return rows


def _difference(
    groups: Groups, metric: str | None, *, analyses: Mapping[AnyRecipe, Analysis], adjust: str = "bh"
) -> list[Row]:
    """Pairs of recipes that differ in one field alone, each at the stricter level of the two."""
    named = {records[0].run.recipe: (label, records) for label, records in groups.items()}
    rows: list[Row] = []
    for one, other, field in controlled_pairs(list(named)):
        (before, first), (after, second) = named[one], named[other]
        alpha = min(analyses[recipe].alpha for recipe in (one, other))
        found = difference(first, second, metric or default_metric(first), alpha=alpha)
        if found is not None:
            row = {"field": field, "from": before, "to": after} | asdict(found)
            rows.append(row | {"significant": found.significant})
    ps = adjusted([row["p"] for row in rows], adjust)
    return [row | {"p_adjusted": p} for row, p in zip(rows, ps, strict=True)]


def _failures(groups: Groups, metric: str | None) -> list[Row]:
    """Untrained runs, scale by scale; p is the recipe's."""
    rows: list[Row] = []
    for label, records in groups.items():
        if (counted := failures(records)) is not None:
            shared = {"p": counted.p, "counts_as_chance": counted.chance}
            rows += [{"recipe": label} | rate._asdict() | shared for rate in counted.rates]
    return rows


def _clocks(groups: Groups, metric: str | None) -> list[Row]:
    """How well each clock explains the norm elasticity of all recipes of a family."""
    recipes = [one for label, records in groups.items() if (one := observed(label, records)) is not None]
    return [fit._asdict() for fit in clock_fits(recipes)]


def _clocks_said(rows: Sequence[Row]) -> str:
    """Which clock comes out best in each family."""
    if not rows:
        return "too few recipes of one family of optimizers to fit a curve (needed: 4 with two scales each)"
    best = {row["family"]: row for row in reversed(rows)}  # the first of a family has the least error
    said = []
    for family, row in reversed(best.items()):
        better = "better than" if row["error"] < row["error_of_mean"] else "no better than"
        clock = CLOCK_NAMES.get(row["clock"], row["clock"])
        said.append(
            f"{FAMILY_NAMES[family]}: {clock} fits best; for a recipe left out it errs by "
            f"{row['error']:.2f}, {better} the mean of the others ({row['error_of_mean']:.2f}; "
            f"{row['n_recipes']} recipes)"
        )
    return "\n".join(said)


def _radial(groups: Groups, metric: str | None, *, analyses: Mapping[AnyRecipe, Analysis]) -> list[Row]:
    rows = []
    for label, records in groups.items():
        radial = radial_memory(records, alpha=analyses[records[0].run.recipe].alpha)
        rows += [{"recipe": label} | radial._asdict()] if radial is not None else []
    return rows


def _interpolation(groups: Groups, metric: str | None) -> list[Row]:
    return [
        {"recipe": label, "scale": scale} | median_interpolation(at)._asdict()
        for label, records in groups.items()
        for scale, at in by_scale(plain(records)).items()
    ]


def _repair(groups: Groups, metric: str | None) -> list[Row]:
    rows = []
    for label, records in groups.items():
        for scale, at in by_scale(plain(records)).items():
            gaps = [100 * r.summary.repair_gap for r in at if r.summary.repair_gap is not None]
            error = float(np.std(gaps, ddof=1) / np.sqrt(len(gaps))) if len(gaps) > 1 else None
            rows.append(
                {
                    "recipe": label,
                    "scale": scale,
                    "repair_gap_pp": float(np.mean(gaps)) if gaps else None,
                    "standard_error": error,
                    "n": len(gaps),
                    "n_never_interpolated": len(at) - len(gaps),
                }
            )
    return rows


def _sharpness(groups: Groups, metric: str | None) -> list[Row]:
    rows = (
        (label, scale, sharpness(at))
        for label, records in groups.items()
        for scale, at in by_scale(plain(records)).items()
    )
    return [
        {"recipe": label, "scale": scale} | row._asdict() for label, scale, row in rows if row is not None
    ]


def _chaos(groups: Groups, metric: str | None) -> list[Row]:
    found = ((label, chaos_floor(rs, metric or "test_accuracy")) for label, rs in groups.items())
    return [{"recipe": label} | chaos._asdict() for label, chaos in found if chaos is not None]


def _seeds(groups: Groups, metric: str | None) -> list[Row]:
    name = metric or "test_accuracy"
    return [
        {"recipe": label} | row._asdict() | {"unit": unit_of(name)[1]}
        for label, records in groups.items()
        for row in seed_variance(records, name)
    ]


def _number(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def _scale(groups: Groups, metric: str | None) -> list[Row]:
    """What every scale reached."""
    rows = []
    for label, records in groups.items():
        name = metric or default_metric(records)
        rows += [{"recipe": label, "metric": name} | at._asdict() for at in scale_means(records, name)]
    return rows


MEASURES: dict[str, Callable[..., list[Row]]] = {
    "fit": _fit,
    "scale": _scale,
    "beta": _beta,
    "half-life": _half_life,
    "difference": _difference,
    "failures": _failures,
    "collapse": _collapse,
    "clocks": _clocks,
    "radial": _radial,
    "interpolation": _interpolation,
    "repair": _repair,
    "sharpness": _sharpness,
    "chaos": _chaos,
    "seeds": _seeds,
}

# What measures an effect of the initialization scale.
OF_SCALE = ("fit", "beta", "half-life", "difference", "collapse", "clocks", "radial")
# The measures that take an option.
OPTIONS: dict[str, tuple[str, ...]] = {
    "adjust": ("memory", "fit", "difference"),
    "tolerance": ("memory", "fit"),
    "failure_tolerance": ("memory",),
}


def remarks(what: str, data: Collection) -> list[str]:
    """What a measure over time leaves out."""
    over_time = what in ("beta", "half-life", "collapse")
    return cold_notes(labelled(data.records, recipes_of(data.studies))) if over_time else []


# What is printed below the table of a measure.
REMARKS: dict[str, Callable[[Sequence[Row]], str]] = {"clocks": _clocks_said}
