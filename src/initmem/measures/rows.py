"""Every measure of a store as rows of plain values: what `initmem measure` prints."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from initmem.data import sizes
from initmem.errors import ConfigError, allowed
from initmem.measures.beta import beta_curve, half_lives
from initmem.measures.chaos import chaos_floor, seed_variance
from initmem.measures.collapse import collapse
from initmem.measures.design import by_recipe, plain
from initmem.measures.difference import controlled_pairs, difference
from initmem.measures.forecast import checked, forecast, lived_clocks, outlook
from initmem.measures.interpolation import median_interpolation
from initmem.measures.memory import default_metric, memory, unit_of
from initmem.measures.radial import radial_memory
from initmem.recipe import AnyRecipe, PipelineRecipe, labels
from initmem.store.record import RunRecord

Row = dict[str, Any]
Groups = dict[str, list[RunRecord]]  # by the label of the recipe


def rows_of(
    what: str, records: Sequence[RunRecord], *, metric: str | None = None, order: Sequence[AnyRecipe] = ()
) -> list[Row]:
    """The rows of one measure, recipe by recipe."""
    if what not in MEASURES:
        raise ConfigError(f"what = {what!r} ({allowed(['memory', *MEASURES])})")
    return MEASURES[what](labelled(records, order), metric)


def labelled(records: Sequence[RunRecord], order: Sequence[AnyRecipe] = ()) -> Groups:
    """Records by recipe label, in the given order, then as they come."""
    groups = by_recipe(records, order)
    return dict(zip(labels(list(groups)), groups.values(), strict=True))


def _beta(groups: Groups, metric: str | None) -> list[Row]:
    rows = []
    for label, records in groups.items():
        curve = beta_curve(records, metric or "val_accuracy")
        if not len(curve.beta) or np.isnan(curve.beta).all():
            continue
        peak = int(np.nanargmax(np.abs(curve.beta)))
        rows.append(
            {
                "recipe": label,
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
                    **{f"clock_{name}": ticks.tolist() for name, ticks in curve.clocks.items()},
                },
            }
        )
    return rows


def _half_life(groups: Groups, metric: str | None) -> list[Row]:
    return [
        {"recipe": label} | life._asdict()
        for label, records in groups.items()
        for life in half_lives(records, metric or "val_accuracy")
    ]


def _collapse(groups: Groups, metric: str | None) -> list[Row]:
    """Families of recipes that differ in batch size alone."""
    rows = []
    for label, family in families(groups).items():
        found = collapse(family, metric or "val_accuracy")
        for score in found.scores:
            row = {"family": label} | score._asdict()
            rows.append(row | {"winner": score.axis == found.winner, "n_curves": found.n_curves})
    return rows


def families(groups: Groups) -> dict[str, list[list[RunRecord]]]:
    """Groups of at least two recipes that differ in batch size alone, by what they share."""
    shared: dict[AnyRecipe, list[list[RunRecord]]] = {}
    for records in groups.values():
        key = records[0].run.recipe.replace(batch_size=1)
        shared.setdefault(key, []).append(records)
    several = {recipe: members for recipe, members in shared.items() if len(members) > 1}
    return dict(zip(labels(list(several)), several.values(), strict=True))


def _difference(groups: Groups, metric: str | None) -> list[Row]:
    """Pairs of recipes that differ in one field alone."""
    named = {records[0].run.recipe: (label, records) for label, records in groups.items()}
    rows: list[Row] = []
    for one, other, field in controlled_pairs(list(named)):
        (before, first), (after, second) = named[one], named[other]
        found = difference(first, second, metric or default_metric(first))
        if found is not None:
            row = {"field": field, "from": before, "to": after} | found._asdict()
            rows.append(row | {"significant": found.sure})
    return rows


def _forecast(groups: Groups, metric: str | None) -> list[Row]:
    """What the clocks foretold, at the horizon and when the predictor was selected, and what came."""
    rows = []
    for label, records in groups.items():
        recipe = records[0].run.recipe
        if isinstance(recipe, PipelineRecipe):
            continue  # the thresholds are those of the bundled networks
        came = memory(records, metric or default_metric(records), label=label)
        planned, lived = forecast(recipe, sizes(recipe).n_train), lived_clocks(recipe, records)
        late = outlook(lived).forecast if lived else None
        rows.append(
            {
                "recipe": label,
                "clock": planned.clock,
                "needed": planned.needed,
                "at_horizon": planned.value,
                "forecast": planned.forecast,
                "when_selected": lived.get(planned.clock),
                "forecast_then": late,
                "memory": came.memory,
                "verdict": came.verdict,
                "horizon": checked(planned.forecast, came.verdict),
                "selected": checked(late, came.verdict) if late else None,
            }
        )
    return rows


def _hits(rows: Sequence[Row]) -> str:
    """How often the forecast held, where that can be told."""
    said = []
    for when in ("horizon", "selected"):
        told = [row[when] for row in rows if row[when] in ("held", "did not hold")]
        said.append(f"by the clocks {WHEN[when]} it held for {told.count('held')} of {len(told)} recipes")
    return f"the forecast, where it can be told: {'; '.join(said)} ({len(rows)} recipes in all)"


WHEN = {"horizon": "at the horizon", "selected": "when the predictor was selected"}


def _radial(groups: Groups, metric: str | None) -> list[Row]:
    found = ((label, radial_memory(records)) for label, records in groups.items())
    return [{"recipe": label} | radial._asdict() for label, radial in found if radial is not None]


def _interpolation(groups: Groups, metric: str | None) -> list[Row]:
    return [
        {"recipe": label, "scale": scale} | median_interpolation(at)._asdict()
        for label, records in groups.items()
        for scale, at in _by_scale(records).items()
    ]


def _repair(groups: Groups, metric: str | None) -> list[Row]:
    rows = []
    for label, records in groups.items():
        for scale, at in _by_scale(records).items():
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


def _by_scale(records: Sequence[RunRecord]) -> dict[float, list[RunRecord]]:
    found: dict[float, list[RunRecord]] = {}
    for record in sorted(plain(records), key=lambda r: r.run.scale):
        found.setdefault(record.run.scale, []).append(record)
    return found


def _number(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


MEASURES: dict[str, Callable[[Groups, str | None], list[Row]]] = {
    "beta": _beta,
    "half-life": _half_life,
    "difference": _difference,
    "collapse": _collapse,
    "forecast": _forecast,
    "radial": _radial,
    "interpolation": _interpolation,
    "repair": _repair,
    "chaos": _chaos,
    "seeds": _seeds,
}

# What is said below the table of a measure.
REMARKS: dict[str, Callable[[Sequence[Row]], str]] = {"forecast": _hits}
