"""Initialization memory: how far the mean of a metric moves when only the initialization scale does.

`measured` arranges the records of one recipe by seed and scale and infers the range over scales of the mean
over seeds (`statistics`), next to how well the training data were fitted (`fit`). `judged` gives memories
their verdicts, adjusted for the number of recipes that are measured together. No other place gives one.
The result, a `Memory`, and its words are in `verdict`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from initmem.intervention import Level, level_text
from initmem.labels import informative
from initmem.labels import label as short_name
from initmem.measures.design import Analysis, analyses_of, default_metric, labelled, profile
from initmem.measures.fit import Fit, Matched, Mode, fit, fit_notes
from initmem.measures.notes import notes_of
from initmem.measures.scales import failures, unclear_scales, why_inapplicable
from initmem.measures.statistics import ALPHA, TOLERANCE_PP, Spread, adjusted, equivalence_p, spread
from initmem.measures.verdict import SIZES, Memories, Memory, Verdict
from initmem.metric import UNCLEAR, metric_name, metric_of
from initmem.recipe import AnyRecipe
from initmem.record import RunRecord
from initmem.store.results import Source, collected
from initmem.study import recipes_of

__all__ = ["Memories", "Memory", "Verdict", "judged", "measured", "memory", "memory_table"]

# -- measuring --------------------------------------------------------------------------------------------


def memory(
    records: Sequence[RunRecord],
    metric: str = "test_accuracy",
    *,
    tolerance: float | None = None,
    label: str | None = None,
    analysis: Analysis | None = None,
) -> Memory:
    """Measure the memory of one recipe from its records.

    Args:
        records: the runs of one recipe, at several scales and seeds.
        metric: any recorded metric.
        tolerance: the range that counts as forgotten, in the unit of the metric; 2 points for accuracies.
        label: name of the recipe in the result.
        analysis: which of several planned interim analyses this is. Records do not contain the plan;
            `memory_table` takes it from a store or an archive.
    """
    return judged([measured(records, metric, label, analysis, tolerance)])[0]


def measured(
    records: Sequence[RunRecord],
    metric: str,
    label: str | None = None,
    analysis: Analysis | None = None,
    tolerance: float | None = None,
) -> Memory:
    """A memory before `judged` gives it a verdict."""
    arranged, analysis = profile(records, metric), analysis or Analysis()
    recipe, shown = records[0].run.recipe, metric_of(metric)
    n_seeds, n_scales = arranged.values.shape
    reason, failed = why_inapplicable(records), failures(records)
    ranges = Spread[float | None](*[None] * 6)
    if n_seeds > 0 and not reason:
        ranges = spread(arranged.values, alpha=analysis.alpha, bound=shown.widest)
    limit = TOLERANCE_PP if tolerance is None and shown.unit == "pp" else tolerance
    tested = limit is not None and ranges.p is not None
    verdict: Verdict = "untrained" if failed.n and failed.at_chance == failed.n else "inconclusive"
    row = Memory(
        recipe=label or short_name(recipe, informative(recipe, ["optimizer", "learning_rate"])),
        metric=metric,
        n_scales=n_scales,
        n_seeds=n_seeds,
        memory=ranges.spread,
        low=ranges.low,
        high=ranges.high,
        noise_range=ranges.noise_range,
        p=ranges.p,
        debiased=ranges.debiased,
        verdict="not applicable" if reason else verdict,
        inapplicable=reason,
        unit=shown.unit,
        recipe_id=recipe.id,
        fit=fit(records, metric) if shown.held_out else None,
        tolerance=limit,
        p_equivalence=float(equivalence_p(arranged.values, limit or 0.0)) if tested else None,
        alpha=analysis.alpha,
        analysis=analysis.number,
        alpha_spent=analysis.spent,
        untrained=failed.untrained,
        failure_p=failed.p,
        failure_limit=failed.largest_difference,
        equal_failure_rates=failed.equal,
        unclear_scales=unclear_scales(records, metric, failed, limit),
        dropped_seeds=arranged.dropped,
        values=arranged.values,
        scales=arranged.scales,
    )
    notes = notes_of(row, records, analysis, failed)
    if shown.held_out and n_seeds and not reason:
        notes += fit_notes(records, metric, row.fit, equal=row.equal_fit)
    return replace(row, notes=tuple(notes))


def memory_table(
    source: Source,
    metric: str | None = None,
    *,
    recipes: Sequence[AnyRecipe] | None = None,
    tolerance: float | None = None,
    adjust: str = "bh",
) -> Memories:
    """The memory of every recipe, with verdicts that are adjusted for the number of recipes.

    Args:
        source: a store or an archive, the path of one, several of these, or records. Plain records contain no
            study: recipes come in order of appearance, and interim analyses are not taken into account.
        metric: any recorded metric; unless given, test accuracy or the next best.
        recipes: measure only these.
        tolerance: the range that counts as forgotten, in the unit of the metric; 2 points for accuracies.
        adjust: `bh` (Benjamini-Hochberg), or `none` for verdicts of single recipes.
    """
    data = collected(source)
    order = recipes_of(data.studies) if recipes is None else recipes
    records = [r for r in data.records if recipes is None or r.run.recipe in recipes]
    chosen = metric_name(metric) if metric else default_metric(records)
    analyses = analyses_of(data.studies, (r.run.recipe for r in records))
    rows = [
        measured(group, chosen, label, analyses[group[0].run.recipe], tolerance)
        for label, group in labelled(records, order).items()
    ]
    return judged(rows, adjust)


# -- verdicts ---------------------------------------------------------------------------------------------


def judged(rows: Sequence[Memory], adjust: str = "bh") -> Memories:
    """Give memories their verdicts, adjusted for their number.

    Each recipe makes one claim: that its range is within the tolerance, where the interval is, else that it
    is not 0. Benjamini and Hochberg's adjustment of the claims' p-values controls the share of false claims.
    A level other than 5% enters as a weight of the p-value.
    """
    claims = [_claim(row) for row in rows]
    weights = [ALPHA / row.alpha for row in rows]
    ps = adjusted([p and min(p * w, 1.0) for (_, p), w in zip(claims, weights, strict=True)], adjust)
    tested = [p for p in ps if p is not None]
    family, settled = max(len(tested), 1), sum(p <= ALPHA for p in tested)
    share = 1.0 if adjust == "none" else min((settled + 1) / family, 1.0)  # of alpha, for the next claim
    matches = adjusted([row.fit.matched_p if row.fit else None for row in rows], adjust)
    memories = Memories()
    for row, claim, weight, p, matched in zip(rows, claims, weights, ps, matches, strict=True):
        next_alpha = float(f"{row.alpha * share:.2g}")
        row = replace(row, adjust=adjust, family=family, next_alpha=next_alpha, p_matched_adjusted=matched)
        memories.append(row if p is None else _with_verdict(row, *claim, p / weight))
    return memories


def _claim(row: Memory) -> tuple[Verdict, float | None]:
    """The verdict of a memory if it is significant, and its p-value; None: nothing is tested."""
    if row.p is None or row.verdict in ("untrained", "not applicable"):
        return row.verdict, None
    if row.learned_alike and row.p_equivalence is not None and row.within_tolerance:
        return "forgets", 2 * row.p_equivalence
    return "remembers", row.p


def _with_verdict(row: Memory, verdict: Verdict, alone: float | None, p: float) -> Memory:
    """A memory with what it claims, if `p`, its p-value after the adjustment, is small enough."""
    alone, forgets = alone or 0.0, verdict == "forgets"
    p = max(alone, p)
    if p > row.alpha >= alone:
        what, times = ("equivalence p", 0.5) if forgets else ("p", 1.0)
        note = f"{what} = {times * alone:.2g} alone, {times * p:.2g} adjusted for {row.family} recipes"
        row = replace(row, notes=(*row.notes, note))
    row = replace(row, p_equivalence_adjusted=p / 2) if forgets else replace(row, p_adjusted=p)
    if p > row.alpha:
        return replace(row, verdict="inconclusive")
    return replace(row, verdict="forgets") if forgets else _with_mode(replace(row, verdict="remembers"))


def _with_mode(row: Memory) -> Memory:
    """A memory with its mode and size. Where only matched fit shows that the scales generalize differently,
    the size is the one at matched fit."""
    low, high, notes = row.low, row.high, row.notes
    shown = metric_of(row.metric)
    mode: Mode | None = "fit unknown" if shown.held_out else None
    if row.fit:
        means = row.values.mean(axis=0) * (-1 if shown.better == "lower" else 1)
        ends = row.scales[int(means.argmax())], row.scales[int(means.argmin())]  # the better one first
        mode_of = partial(row.fit.mode, equal=row.equal_fit, p=row.p_matched_adjusted)
        mode = mode_of(*ends)
        if shown.better is None and mode != mode_of(*reversed(ends)):
            mode, notes = "fit unknown", (*notes, UNCLEAR.format(row.metric))
        if mode == "generalization" and not row.equal_fit and isinstance(row.fit.matched, Matched):
            low, high = row.fit.matched.low, row.fit.matched.high
            notes += (
                f"the {row.axis} are not fitted equally well ({row.fit}): the size is that at equal fit",
            )
        elif mode != "generalization" and (fitted := _fitted_scales(row, row.fit)):
            ranges = spread(row.values[:, [row.scales.index(scale) for scale in fitted]], alpha=row.alpha)
            limits = "" if ranges.low is None else f" [{ranges.low:.3g}, {ranges.high:.3g}]"
            over = f"over the {row.axis} that are fitted equally well ({', '.join(map(level_text, fitted))})"
            notes += (f"{over}: {row.shown(ranges.spread)}{limits}",)
            if mode == "fit unknown":
                low, high = ranges.low, ranges.high
    return replace(row, mode=mode, size=size_range(low, high, row.tolerance), notes=notes)


def _fitted_scales(row: Memory, fit: Fit) -> list[Level]:
    """The scales that are fitted as well as the best one, where these are several, but not all."""
    limit, lower = row.fit_tolerance, metric_of(fit.metric).better == "lower"
    behind = [value - min(fit.train) if lower else max(fit.train) - value for value in fit.train]
    scales = [scale for scale, gap in zip(fit.scales, behind, strict=True) if limit and gap <= limit]
    return scales if 1 < len(scales) < len(fit.scales) and set(scales) <= set(row.scales) else []


def size_range(low: float | None, high: float | None, tolerance: float | None) -> str | None:
    """The sizes that an interval reaches, in tolerances: one word where it lies within one class."""
    if not tolerance:
        return None
    limits = [value for value in (low, high) if value is not None]
    sizes = [next(name for name, times in SIZES.items() if x >= times * tolerance) for x in limits]
    return " to ".join(dict.fromkeys(sizes)) or None
