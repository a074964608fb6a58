"""Initialization memory: how far the mean of a metric moves when only the initialization scale does."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from initmem.errors import count
from initmem.measures.design import (
    Analysis,
    Profile,
    analyses_of,
    default_metric,
    is_held_out,
    labelled,
    profile,
    unit_of,
)
from initmem.measures.failures import EQUAL_RATES, Failures, failures
from initmem.measures.fit import Fit, Matched, Mode, fit
from initmem.measures.metric_names import metric_name
from initmem.measures.statistics import ALPHA, Spread, adjusted, equivalence_p, seeds_needed, spread
from initmem.recipe import AnyRecipe, Recipe
from initmem.record import RunRecord
from initmem.store.results import Source, collected
from initmem.study import recipes_of

Verdict = Literal["remembers", "forgets", "inconclusive", "untrained", "not applicable"]

TOLERANCE_PP = 2.0  # a range of at most this many points counts as forgotten
SIZES = {"large": 5.0, "moderate": 2.5, "small": 0.0}  # from so many tolerances on
FEW_SEEDS = 3  # up to so many find hardly anything
NEVER_USED = "the pipeline never used the scale"
ABOUT_INTERVAL = "The interval accounts for the choice of seeds, not for the choice of test examples"


@dataclass(frozen=True, slots=True)
class Memory:
    """The memory of one recipe: in percentage points for accuracies, else in the metric's own unit.

    `low` is positive exactly when `p` is at most `alpha`, and `high` is within the tolerance exactly when
    `p_equivalence` is at most `alpha` / 2. The verdict follows from these, `forgets` first, where they also
    stand after an adjustment for the `family` of recipes that were measured together.
    """

    recipe: str
    metric: str
    n_scales: int
    n_seeds: int
    memory: float | None
    low: float | None
    high: float | None
    noise_range: float | None  # expected from noise alone
    p: float | None  # of "the range is 0"
    debiased: float | None
    verdict: Verdict
    unit: str
    recipe_id: str
    mode: Mode | None = None  # of a memory: whether the scales differ at equal fit; None: does not apply
    fit: Fit | None = None  # None: the metric is not one of new data, or no train metric was recorded
    size: str | None = None  # of a memory that is significant: the classes that its interval reaches
    tolerance: float | None = None
    p_equivalence: float | None = None  # of "the range exceeds the tolerance", by two one-sided tests
    p_adjusted: float | None = None  # of the two p-values the one that decides the verdict, adjusted
    p_equivalence_adjusted: float | None = None
    p_matched_adjusted: float | None = None  # of no memory at matched fit: it decides the mode
    adjust: str = "bh"
    family: int = 1  # number of recipes that it is adjusted for
    next_alpha: float = ALPHA  # level at which the next verdict of the family would be given
    alpha: float = ALPHA  # level of this analysis; the interval has level 1 - alpha
    analysis: int = 1  # its number in a planned schedule
    alpha_spent: float = ALPHA  # over all analyses so far
    untrained: int = 0  # runs at chance, or diverged
    failure_p: float | None = None  # of rates of untrained runs that are equal at all scales
    failure_limit: float | None = None  # no two scales' rates of untrained runs differ by more, at 97.5%
    equal_failure_rates: bool = True  # as far as one can tell: `forgets` asks for it
    dropped_seeds: tuple[int, ...] = ()
    notes: tuple[str, ...] = ()
    scales: tuple[float, ...] = ()
    values: NDArray[np.float64] = field(default_factory=lambda: np.empty((0, 0)), repr=False, compare=False)

    def to_json(self) -> dict[str, Any]:
        """Plain values, with the thresholds behind the words."""
        texts = {"verdict_text": self.verdict_text, "thresholds": self.thresholds}
        row = asdict(replace(self, fit=None)) | {"seeds_needed": self.seeds_needed} | texts
        row |= {"fit": self.fit and self.fit.to_json()}
        return {name: value for name, value in row.items() if name not in ("values", "next_alpha")}

    @property
    def seeds_needed(self) -> int | None:
        """How many seeds in all would settle an inconclusive verdict; None: it is settled, or over 300."""
        means_pass = self.p_equivalence is not None and self.p_equivalence <= self.alpha / 2
        if self.verdict != "inconclusive" or (means_pass and not self.equal_failure_rates):
            return None  # failure rates leave it open
        return seeds_needed(self.values, self.tolerance, alpha=self.next_alpha)

    @property
    def equal_fit(self) -> bool:
        """Whether the scales are fitted equally well: train accuracies within 2 points, or the tolerance."""
        if self.fit is None:
            return False
        usual = TOLERANCE_PP if self.fit.unit == "pp" else None
        return self.fit.is_equal(self.tolerance if self.fit.unit == self.unit else usual)

    @property
    def thresholds(self) -> dict[str, float]:
        """What the verdict's words stand for, in the unit of the memory."""
        limit = self.tolerance
        sizes = {} if limit is None else {name: limit * times for name, times in SIZES.items() if times}
        return {"alpha": self.alpha} | ({} if limit is None else {"tolerance": limit}) | sizes

    @property
    def short_verdict(self) -> str:
        """The verdict with its mode and size, and whether it is adjusted."""
        settled = self.verdict in ("remembers", "forgets")
        unadjusted = " (unadjusted)" if settled and self.adjust == "none" else ""
        mode, size = f": {self.mode}" if self.mode else "", f" ({self.size})" if self.size else ""
        return f"{self.verdict}{mode}{size}{unadjusted}"

    @property
    def verdict_text(self) -> str:
        """The same, with the failure rates that `forgets` does not exclude."""
        return self.short_verdict + (f" ({self.not_excluded})" if self.not_excluded else "")

    @property
    def not_excluded(self) -> str:
        """Which failure rates too few runs leave possible, for a memory that is forgotten."""
        unseen = self.verdict == "forgets" and (self.failure_limit or 0) > EQUAL_RATES
        return f"failure rates up to {100 * (self.failure_limit or 0):.0f}% not excluded" if unseen else ""

    @property
    def meaning(self) -> str:
        """The verdict in words."""
        shown, noise = self._shown(self.memory), f"{self.noise_range or 0:.2g}"
        within = (
            f"The mean {self.metric} differs by at most {self._shown(self.high)} between any two "
            f"initialization scales, which is within the tolerance of {self._shown(self.tolerance)}"
        )
        match self.verdict:
            case "not applicable":
                return "The pipeline never used the initialization scale, so there is nothing to measure."
            case "untrained":
                return "All runs are at chance, so there is nothing to remember."
            case _ if self.memory is None:
                return f"No seed has a {self.metric} at every scale yet."
            case _ if self.noise_range is None:
                return f"One seed says nothing about noise: the {self.metric} has a range of {shown}."
            case "remembers":
                family = f", adjusted for {self.family} recipes" if self.family > 1 else ""
                finding = (
                    f"Changing only the initialization scale changes the mean {self.metric} by {shown} "
                    f"(expected from noise alone: {noise}), which is significant at the "
                    f"{100 * self.alpha:.2g}% level{family if self.adjust == 'bh' else ''}{self._reading}"
                )
            case "forgets":
                finding = within + (f"; {self.not_excluded}" if self.not_excluded else "")
            case _ if not self.equal_failure_rates and (self.p_equivalence or 1.0) <= self.alpha / 2:
                rates = f"rates of untrained runs that differ by {100 * (self.failure_limit or 0):.0f}%"
                finding = f"{within}, but {rates} between scales are not excluded"
            case _:
                finding = (
                    f"The mean {self.metric} has a range of {shown} over the initialization scales (expected "
                    f"from noise alone: {noise}): neither memory nor its absence is established"
                )
        return f"{finding}. {ABOUT_INTERVAL}."

    @property
    def _reading(self) -> str:
        """What the fit says about a memory."""
        match self.mode:
            case "generalization" if self.equal_fit:
                return f". All scales are fitted equally well ({self.fit}): the scales generalize differently"
            case "generalization":
                return f". The scales are not fitted equally well ({self.fit}), but differ at equal fit, too"
            case "trainability":
                return (
                    f". The scales are not fitted equally well ({self.fit}): at equal fit no difference is "
                    "significant"
                )
            case "fit unknown":
                return ". Whether that is because some scales were not fitted as well as others is not known"
        return ""

    def _repr_html_(self) -> str:
        return Memories([self])._repr_html_()

    def _shown(self, value: float | None) -> str:
        return f"{value or 0:.3g}{self.unit and ' ' + self.unit}"

    def __str__(self) -> str:
        if self.verdict == "not applicable":
            return f"{self.verdict}: {NEVER_USED}"
        if self.memory is None:
            return f"not measured, {self.verdict}"
        text = self._shown(self.memory)
        if self.low is not None:
            text += f" [{self.low:.3g}, {self.high:.3g}], noise range {self.noise_range:.2g}"
        needed = f" (about {self.seeds_needed} seeds would settle it)" if self.seeds_needed else ""
        return f"{text}, {self.verdict_text}{needed}{f', {self.fit}' if self.fit else ''}"


class Memories(list[Memory]):
    """Memories of several recipes; a notebook shows them as a table."""

    def _repr_html_(self) -> str:
        from initmem.plots.memory_table import memory_table as table_of
        from initmem.plots.table_text import html

        return html(table_of(self))


def memory(
    records: Sequence[RunRecord],
    metric: str = "test_accuracy",
    *,
    tolerance: float | None = None,
    failure_tolerance: float | None = None,
    label: str | None = None,
    analysis: Analysis | None = None,
) -> Memory:
    """Measure the memory of one recipe from its records.

    `tolerance` is the range that counts as forgotten; with `failure_tolerance`, `forgets` also asks that the
    rates of untrained runs differ by no more than that between scales. Records know nothing of a plan of
    interim analyses: `memory_table` of a store or an archive does, and passes it on as `analysis`.
    """
    row = measured(
        records,
        metric,
        tolerance=tolerance,
        failure_tolerance=failure_tolerance,
        label=label,
        analysis=analysis,
    )
    return judged([row])[0]


def measured(
    records: Sequence[RunRecord],
    metric: str,
    *,
    tolerance: float | None = None,
    failure_tolerance: float | None = None,
    label: str | None = None,
    analysis: Analysis | None = None,
    with_fit: bool = True,
) -> Memory:
    """The same before `judged` gives it a verdict; without fit no history is read."""
    arranged, analysis = profile(records, metric), analysis or Analysis()
    values, recipe = arranged.values, arranged.recipe
    _, unit = unit_of(metric)
    n_seeds, n_scales = values.shape
    bound = 100.0 if unit == "pp" and metric != "repair_gap" else math.inf
    applicable = scale_used(records)
    known = Spread(*[None] * 6)
    if n_seeds > 0 and applicable:
        known = spread(values, alpha=analysis.alpha, bound=bound)
    limit = TOLERANCE_PP if tolerance is None and unit == "pp" else tolerance
    trained = failures(records)
    fitted = fit(records, metric) if with_fit and is_held_out(metric) else None
    verdict: Verdict = "inconclusive"
    if not applicable:
        verdict = "not applicable"
    elif trained is not None and trained.at_chance == trained.n:
        verdict = "untrained"
    row = Memory(
        recipe=label or recipe.label(recipe.informative(["optimizer", "learning_rate"])),
        metric=arranged.metric,
        n_scales=n_scales,
        n_seeds=n_seeds,
        memory=known.spread,
        low=known.low,
        high=known.high,
        noise_range=known.noise_range,
        p=known.p,
        debiased=known.debiased,
        verdict=verdict,
        unit=unit,
        recipe_id=recipe.id,
        fit=fitted,
        tolerance=limit,
        p_equivalence=None if None in (limit, known.p) else float(equivalence_p(values, limit or 0.0)),
        alpha=analysis.alpha,
        analysis=analysis.number,
        alpha_spent=analysis.spent,
        untrained=trained.untrained if trained else 0,
        failure_p=trained.p if trained else None,
        failure_limit=trained.largest_difference if trained else None,
        equal_failure_rates=trained is None or trained.equal(failure_tolerance),
        dropped_seeds=arranged.dropped,
        notes=(
            *_notes(arranged, known, analysis, trained),
            *_early_notes(records),
            *_code_notes(records),
        ),
        values=values,
        scales=arranged.scales,
    )
    if with_fit and is_held_out(metric) and n_seeds and applicable:
        row = replace(row, notes=(*row.notes, *_fit_notes(row)))
    return row


def scale_used(records: Sequence[RunRecord]) -> bool:
    """Whether the training code asked for the scale; user code may not, and then there is no memory."""
    trained = [record for record in records if record.status != "crashed"]
    return not trained or any(record.provenance.get("scale_used", True) for record in trained)


def judged(rows: Sequence[Memory], adjust: str = "bh") -> Memories:
    """Give memories their verdicts, adjusted for their number.

    Each recipe makes one claim: that its range is within the tolerance, where the interval is, else that it
    is not 0. Benjamini and Hochberg's adjustment of the claims' p-values controls the share of false claims.
    A level other than 5% enters as a weight of the p-value.
    """
    claims = [_claim(row) for row in rows]
    weighted = [p and min(p * (ALPHA / row.alpha), 1.0) for row, (_, p) in zip(rows, claims, strict=True)]
    ps = adjusted(weighted, adjust)
    family, settled = max(sum(p is not None for p in ps), 1), sum(p is not None and p <= ALPHA for p in ps)
    share = 1.0 if adjust == "none" else min((settled + 1) / family, 1.0)
    matches = adjusted([row.fit.matched_p if row.fit else None for row in rows], adjust)
    memories = Memories()
    for row, (claim, alone), p, matched in zip(rows, claims, ps, matches, strict=True):
        next_alpha = float(f"{row.alpha * share:.2g}")
        made = replace(row, adjust=adjust, family=family, next_alpha=next_alpha, p_matched_adjusted=matched)
        memories.append(made)
        if alone is not None and p is not None:
            memories[-1] = _with_verdict(memories[-1], claim, alone, max(alone, p * (row.alpha / ALPHA)))
    return memories


def _claim(row: Memory) -> tuple[Verdict, float | None]:
    """What a memory says if it is significant, with the p-value that is judged at its alpha."""
    if row.p is None or row.verdict in ("untrained", "not applicable"):
        return row.verdict, None
    if row.p_equivalence is not None and row.equal_failure_rates and 2 * row.p_equivalence <= row.alpha:
        return "forgets", 2 * row.p_equivalence
    return "remembers", row.p


def _with_verdict(row: Memory, claim: Verdict, alone: float, p: float) -> Memory:
    """A memory whose claim has these p-values, alone and adjusted."""
    forgets, notes = claim == "forgets", row.notes
    if p > row.alpha >= alone:
        what, times = ("equivalence p", 0.5) if forgets else ("p", 1.0)
        notes += (f"{what} = {times * alone:.2g} alone, {times * p:.2g} adjusted for {row.family} recipes",)
    verdict: Verdict = claim if p <= row.alpha else "inconclusive"
    own: dict[str, Any] = {"p_equivalence_adjusted": p / 2} if forgets else {"p_adjusted": p}
    judged_row = replace(row, verdict=verdict, notes=notes, **own)
    return _with_mode(judged_row) if verdict == "remembers" else judged_row


def _with_mode(row: Memory) -> Memory:
    """A memory with its mode and size. Where only matched fit shows that the scales generalize differently,
    the size is the one at matched fit."""
    low, high, notes = row.low, row.high, row.notes
    mode: Mode | None = None
    if is_held_out(row.metric):
        mode = "fit unknown"
    if row.fit:
        means = row.values.mean(axis=0) * (1 if row.unit == "pp" else -1)  # a loss is better where it is less
        better, worse = row.scales[int(means.argmax())], row.scales[int(means.argmin())]
        mode = row.fit.mode(better, worse, equal=row.equal_fit, p=row.p_matched_adjusted)
        if mode == "generalization" and not row.equal_fit and isinstance(row.fit.matched, Matched):
            low, high = row.fit.matched.low, row.fit.matched.high
            notes += (f"the scales are not fitted equally well ({row.fit}): the size is that at equal fit",)
    return replace(row, mode=mode, size=size_range(low, high, row.tolerance), notes=notes)


def size_of(value: float | None, tolerance: float | None) -> str | None:
    """How large a memory is, in tolerances; None where the metric has none."""
    if value is None or not tolerance:
        return None
    return next(name for name, times in SIZES.items() if value >= times * tolerance)


def size_range(low: float | None, high: float | None, tolerance: float | None) -> str | None:
    """The sizes that an interval reaches: one word where it lies within one class."""
    return " to ".join(dict.fromkeys(filter(None, (size_of(x, tolerance) for x in (low, high))))) or None


def _notes(arranged: Profile, known: Spread, analysis: Analysis, trained: Failures | None) -> list[str]:
    """What a reader has to know beside the numbers."""
    notes = []
    n = len(arranged.seeds)
    if 1 < n <= FEW_SEEDS:
        notes.append(f"{n} seeds miss most memories of a few standard deviations")
    if arranged.dropped:
        listed = ", ".join(map(str, arranged.dropped))
        notes.append(
            f"left out, because a scale has no finite value: seed{'s' * (len(arranged.dropped) > 1)} {listed}"
        )
    if known.p is not None and known.noise_range == 0 and n > 1:
        alike = "values" if not np.ptp(arranged.values, axis=0).any() else "differences between scales"
        notes.append(f"all seeds gave the same {alike}, so no noise was measured: is the seed used?")
    if analysis.alpha < ALPHA:
        notes.append(
            f"interim analysis {analysis.number}: tested at {100 * analysis.alpha:.2g}%, interval at "
            f"{100 * (1 - analysis.alpha):.3g}%; {100 * analysis.spent:.2g}% of alpha spent"
        )
    if analysis.unplanned:
        counts = ", then ".join(map(str, sorted({*analysis.unplanned, n})))
        notes.append(
            f"seeds were added after a first analysis ({counts}) without a plan: the error rate of the "
            f"verdict is above {100 * ALPHA:.2g}%"
        )
    if trained and trained.untrained:
        notes.append(_failure_note(trained))
    return notes


def _fit_notes(row: Memory) -> list[str]:
    """What is known about the fit, where that is not simply equal."""
    if row.fit is None:
        return [
            "no train metric was recorded, so memory cannot be told from undertraining "
            "(record train_accuracy or train_loss in every epoch)"
        ]
    match = row.fit.matched
    if isinstance(match, str):
        return [] if row.equal_fit else [f"no memory at matched fit: {match}"]
    notes = []
    if match.early:
        notes.append(
            f"{count(match.early, 'run')} reached the level of matched fit before the first validation"
        )
    if len(match.scales) < len(row.fit.scales) and not row.equal_fit:
        compared = ", ".join(f"{scale:g}" for scale in match.scales)
        notes.append(
            f"matched fit compares the scales {compared}: the others reached it too early to be validated"
        )
    return notes


def _early_notes(records: Sequence[RunRecord]) -> list[str]:
    """Whether runs were stopped before the last epoch of their schedule."""
    recipe = records[0].run.recipe
    if not isinstance(recipe, Recipe):
        return []
    trained = [record.summary.epochs for record in records if record.status == "completed"]
    early = [epochs for epochs in trained if epochs < recipe.epochs]
    if not early:
        return []
    least, most = min(early), max(early)
    span = f"{least} to {most}" if most > least else f"{most}"
    return [
        f"{count(len(early), 'run')} stopped after {span} of {recipe.epochs} epochs: "
        f"the validation loss had not fallen for {recipe.patience} (patience)"
    ]


def _code_notes(records: Sequence[RunRecord]) -> list[str]:
    """Whether the runs were trained by different code: their fingerprints differ."""
    known = [record.provenance.get("fingerprint") for record in records if record.status != "crashed"]
    counts = Counter(str(sorted(one.items())) for one in known if isinstance(one, dict))
    if len(counts) < 2:
        return []
    runs = " and ".join(str(n) for _, n in counts.most_common())
    return [f"trained by {len(counts)} versions of the code ({runs} runs): the fingerprints differ"]


def _failure_note(trained: Failures) -> str:
    are = "is" if trained.untrained == 1 else "are"
    counts = f"{trained.untrained} of {trained.n} runs {are} untrained (at chance or diverged)"
    if trained.memorized:
        counts += f"; {trained.memorized} of them memorized the training examples"
    if trained.p is None:
        return counts
    if trained.p <= ALPHA:
        return f"{counts}, at rates that depend on the scale (p = {trained.p:.2g})"
    return f"{counts}; rates that differ between scales cannot be excluded (p = {trained.p:.2g})"


def memory_table(
    source: Source,
    metric: str | None = None,
    *,
    recipes: Sequence[AnyRecipe] | None = None,
    tolerance: float | None = None,
    failure_tolerance: float | None = None,
    adjust: str = "bh",
) -> Memories:
    """The memory of every recipe of a store, an archive, the path of one, several of these, or of records.

    Plain records know nothing of their study: recipes come in order of appearance, and no interim analyses
    are taken into account. `recipes` chooses some. Verdicts are adjusted for the number of recipes
    (Benjamini-Hochberg; `adjust="none"`: not). Without a metric: test accuracy, or the next best recorded.
    """
    data = collected(source)
    order = recipes_of(data.studies) if recipes is None else recipes
    records = [r for r in data.records if recipes is None or r.run.recipe in recipes]
    chosen = metric_name(metric) if metric else default_metric(records)
    groups, analyses = labelled(records, order), analyses_of(data.studies, (r.run.recipe for r in records))
    return judged(
        [
            measured(
                group,
                chosen,
                tolerance=tolerance,
                failure_tolerance=failure_tolerance,
                label=label,
                analysis=analyses.get(group[0].run.recipe),
            )
            for label, group in groups.items()
        ],
        adjust,
    )
