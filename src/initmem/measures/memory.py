"""Initialization memory: how far the mean of a metric moves when only the initialization scale does."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from initmem.errors import ConfigError, allowed, count
from initmem.measures.design import METRICS, Look, labelled, own_metrics, plain, present_name, unit_of
from initmem.measures.failures import Failures, failures
from initmem.measures.statistics import ALPHA, Spread, adjusted, equivalence_p, seeds_needed, spread
from initmem.recipe import AnyRecipe, Recipe
from initmem.store.record import RunRecord

Verdict = Literal["remembers", "forgets", "undetermined", "not applicable"]
Size = Literal["large", "moderate", "small"]

TOLERANCE_PP = 2.0  # a range of at most this many points counts as forgotten
SIZES: dict[Size, float] = {"large": 5.0, "moderate": 2.5, "small": 0.0}  # from so many tolerances on
FEW_SEEDS = 3  # up to so many are a first look
NEVER_USED = "the pipeline never used the scale"


@dataclass(frozen=True, slots=True)
class Profile:
    """The values of one metric for one recipe, (seed, scale): seeds with a finite value at every scale."""

    recipe: AnyRecipe
    metric: str
    scales: tuple[float, ...]
    seeds: tuple[int, ...]
    values: NDArray[np.float64]
    dropped: tuple[int, ...] = ()  # seeds without a finite value at some scale


@dataclass(frozen=True, slots=True)
class Memory:
    """The memory of one recipe: in percentage points for accuracies, else in the metric's own unit.

    `low` is positive exactly when `p` is at most `alpha`. The verdict is then `remembers`, unless `high` is
    within the tolerance.
    """

    recipe: str
    metric: str
    n_scales: int
    n_seeds: int
    memory: float | None
    low: float | None
    high: float | None
    floor: float | None
    p: float | None
    corrected: float | None
    verdict: Verdict
    seeds_needed: int | None  # in all, to settle an undetermined verdict; None: settled, or beyond reach
    unit: str
    recipe_id: str
    size: Size | None = None  # of a memory that is significant, by its corrected value
    tolerance: float | None = None
    p_equivalence: float | None = None  # of a range beyond the tolerance
    q: float | None = None  # p, adjusted for the recipes shown
    q_equivalence: float | None = None
    survives: bool | None = None  # whether the verdict stands after that adjustment; None: nothing to adjust
    alpha: float = ALPHA  # level of the test at this look; the interval has level 1 - alpha
    look: int = 1
    alpha_spent: float = ALPHA  # over all looks so far
    failed: int = 0  # runs that failed to train: at chance, or diverged
    failure_p: float | None = None  # of failure rates that are equal at all scales
    failure_limit: float | None = None  # no two scales' failure rates differ by more, at 97.5%
    dropped_seeds: tuple[int, ...] = ()
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Plain values, with the thresholds behind the words."""
        return asdict(self) | {"thresholds": self.thresholds}

    @property
    def thresholds(self) -> dict[str, float]:
        """What the verdict's words stand for, in the unit of the memory."""
        limit = self.tolerance
        sizes = {} if limit is None else {name: limit * times for name, times in SIZES.items() if times}
        return {"alpha": self.alpha} | ({} if limit is None else {"tolerance": limit}) | sizes

    @property
    def verdict_text(self) -> str:
        """The verdict with its size; a star marks one that does not survive the adjustment for many tests."""
        size = f" ({self.size})" if self.size else ""
        return f"{self.verdict}{size}{'*' if self.survives is False else ''}"

    @property
    def meaning(self) -> str:
        """The verdict in one sentence."""
        if self.verdict == "not applicable":
            return "The pipeline never used the initialization scale, so there is nothing to measure."
        if self.memory is None:
            return f"No seed has a {self.metric} at every scale yet."
        shown, floor = self._shown(self.memory), f"{self.floor or 0:.2g}"
        level = f"{100 * self.alpha:.2g}%"
        apart = f"failure rates that differ by {100 * (self.failure_limit or 0):.0f}% are not excluded"
        match self.verdict:
            case "remembers":
                return (
                    f"Changing only the initialization scale changes the mean {self.metric} by {shown} "
                    f"(expected from noise alone: {floor}), which is significant at the {level} level."
                )
            case "forgets":
                return f"{self._within}. {apart.capitalize()}."
            case _ if self.high is not None and self.tolerance is not None and self.high <= self.tolerance:
                return f"{self._within}, but {apart}."
            case _ if self.floor is None:
                return f"One seed says nothing about noise: the {self.metric} has a range of {shown}."
            case _:
                return (
                    f"The mean {self.metric} has a range of {shown} over the initialization scales (expected "
                    f"from noise alone: {floor}): neither memory nor its absence is established."
                )

    @property
    def _within(self) -> str:
        return (
            f"The mean {self.metric} differs by at most {self._shown(self.high)} between any two "
            f"initialization scales, which is within the tolerance of {self._shown(self.tolerance)}"
        )

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
            text += f" [{self.low:.3g}, {self.high:.3g}], floor {self.floor:.2g}"
        needed = f" ({self.seeds_needed} seeds would settle it)" if self.seeds_needed else ""
        return f"{text}, {self.verdict_text}{needed}"


class Memories(list[Memory]):
    """Memories of several recipes; a notebook shows them as a table."""

    def _repr_html_(self) -> str:
        from initmem.plots.memory_table import memory_table as table_of
        from initmem.plots.table_text import html

        return html(table_of(self))


def profile(records: Sequence[RunRecord], metric: str) -> Profile:
    """Arrange the records of one recipe by seed and scale, in the metric's display unit."""
    known = dict.fromkeys([*METRICS, *own_metrics(records)])
    if metric not in known:
        raise ConfigError(f"metric = {metric!r} ({allowed(known)})")
    metric = present_name(metric, records)
    factor, _ = unit_of(metric)
    found = {(r.run.seed, r.run.scale): r.metric(metric) for r in plain(records)}
    scales = sorted({scale for _, scale in found})
    seeds = [
        seed
        for seed in sorted({seed for seed, _ in found})
        if all((value := found.get((seed, scale))) is not None and math.isfinite(value) for scale in scales)
    ]
    values = np.array([[found[seed, scale] for scale in scales] for seed in seeds], dtype=float)
    return Profile(
        recipe=records[0].run.recipe,
        metric=metric,
        scales=tuple(scales),
        seeds=tuple(seeds),
        values=factor * values.reshape(len(seeds), len(scales)),
        dropped=tuple(sorted({seed for seed, _ in found} - set(seeds))),
    )


def memory(
    records: Sequence[RunRecord],
    metric: str = "test_accuracy",
    *,
    tolerance: float | None = None,
    failure_tolerance: float | None = None,
    label: str | None = None,
    look: Look | None = None,
) -> Memory:
    """Measure the memory of one recipe from its records.

    `tolerance` is the range that counts as forgotten; with `failure_tolerance`, `forgets` also asks that the
    rates of failed runs differ by no more than that between scales. `look` gives the level of this look.
    """
    arranged, look = profile(records, metric), look or Look()
    values, recipe = arranged.values, arranged.recipe
    _, unit = unit_of(metric)
    n_seeds, n_scales = values.shape
    bound = 100.0 if unit == "pp" and metric != "repair_gap" else math.inf
    applicable = scale_used(records)
    measured = n_seeds > 0 and applicable
    known = spread(values, alpha=look.alpha, bound=bound) if measured else Spread(*[None] * 6)
    limit = TOLERANCE_PP if tolerance is None and unit == "pp" else tolerance
    trained = failures(records)
    equal = trained is None or trained.equal(failure_tolerance)
    verdict = judge(known.p, known.high, limit, alpha=look.alpha, equal_failures=equal)
    if not applicable:
        verdict = "not applicable"
    passed = known.high is not None and limit is not None and known.high <= limit
    open_ = verdict == "undetermined" and n_seeds > 0 and not passed  # else failure rates leave it open
    return Memory(
        recipe=label or recipe.label(recipe.informative(["optimizer", "learning_rate"])),
        metric=arranged.metric,
        n_scales=n_scales,
        n_seeds=n_seeds,
        memory=known.spread,
        low=known.low,
        high=known.high,
        floor=known.floor,
        p=known.p,
        corrected=known.corrected,
        verdict=verdict,
        seeds_needed=seeds_needed(values, limit, alpha=look.alpha) if open_ else None,
        unit=unit,
        recipe_id=recipe.id,
        size=size_of(known.corrected, limit) if verdict == "remembers" else None,
        tolerance=limit,
        p_equivalence=equivalence_p(values, limit) if limit is not None and known.p is not None else None,
        alpha=look.alpha,
        look=look.number,
        alpha_spent=look.spent,
        failed=trained.failed if trained else 0,
        failure_p=trained.p if trained else None,
        failure_limit=trained.largest_difference if trained else None,
        dropped_seeds=arranged.dropped,
        notes=(*_notes(arranged, known, look, trained), *_early_notes(records), *_code_notes(records)),
    )


def scale_used(records: Sequence[RunRecord]) -> bool:
    """Whether the training code asked for the scale; user code may not, and then there is no memory."""
    trained = [record for record in records if record.status != "failed"]
    return not trained or any(record.provenance.get("scale_used", True) for record in trained)


def judge(
    p: float | None,
    high: float | None,
    tolerance: float | None,
    *,
    alpha: float = ALPHA,
    equal_failures: bool = True,
) -> Verdict:
    """Equivalence first: a range within the tolerance is forgotten, however significant it may be.

    Means that agree are not enough where runs fail to train at rates that depend on the scale, or that have
    not been shown to be equal: then only the test of the means speaks.
    """
    if equal_failures and high is not None and tolerance is not None and high <= tolerance:
        return "forgets"
    return "remembers" if p is not None and p <= alpha else "undetermined"


def size_of(corrected: float | None, tolerance: float | None) -> Size | None:
    """How large a memory is, in tolerances; None where the metric has none."""
    if corrected is None or not tolerance:
        return None
    return next(name for name, times in SIZES.items() if corrected >= times * tolerance)


def _notes(arranged: Profile, known: Spread, look: Look, trained: Failures | None) -> list[str]:
    """What a reader has to know beside the numbers."""
    notes = []
    n = len(arranged.seeds)
    if 1 < n <= FEW_SEEDS:
        notes.append(f"first look: {n} seeds miss most memories of a few standard deviations")
    if arranged.dropped:
        listed = ", ".join(map(str, arranged.dropped))
        notes.append(
            f"left out, because a scale has no finite value: seed{'s' * (len(arranged.dropped) > 1)} {listed}"
        )
    if known.p is not None and known.floor == 0 and n > 1:
        alike = "values" if not np.ptp(arranged.values, axis=0).any() else "differences between scales"
        notes.append(f"all seeds gave the same {alike}, so no noise was measured: is the seed used?")
    if look.number > 1:
        notes.append(
            f"look {look.number}: tested at {100 * look.alpha:.2g}%, interval at "
            f"{100 * (1 - look.alpha):.3g}%; {100 * look.spent:.2g}% spent over all looks"
        )
    if trained and trained.failed:
        notes.append(_failure_note(trained))
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
    known = [record.provenance.get("fingerprint") for record in records if record.status != "failed"]
    counts = Counter(str(sorted(one.items())) for one in known if isinstance(one, dict))
    if len(counts) < 2:
        return []
    runs = " and ".join(str(n) for _, n in counts.most_common())
    return [f"trained by {len(counts)} versions of the code ({runs} runs): the fingerprints differ"]


def _failure_note(trained: Failures) -> str:
    counts = f"{trained.failed} of {trained.n} runs failed to train"
    if trained.memorized:
        counts += f" ({trained.memorized} of them memorized the training examples: at chance on others)"
    if trained.p is None:
        return counts
    if trained.p <= ALPHA:
        return f"{counts}, at rates that depend on the scale (exact p = {trained.p:.2g})"
    return f"{counts}; rates that differ between scales cannot be excluded (exact p = {trained.p:.2g})"


def memory_table(
    records: Sequence[RunRecord],
    metric: str = "test_accuracy",
    *,
    order: Sequence[AnyRecipe] = (),
    tolerance: float | None = None,
    failure_tolerance: float | None = None,
    adjust: str = "bh",
    looks: Mapping[AnyRecipe, Look] | None = None,
) -> Memories:
    """The memory of every recipe, in the given order, then as they come, adjusted for their number."""
    return adjust_memories(
        [
            memory(
                group,
                metric,
                tolerance=tolerance,
                failure_tolerance=failure_tolerance,
                label=label,
                look=(looks or {}).get(group[0].run.recipe),
            )
            for label, group in labelled(records, order).items()
        ],
        adjust,
    )


def adjust_memories(rows: Sequence[Memory], method: str = "bh") -> Memories:
    """Add q-values over these recipes, and say which verdicts survive them."""
    qs = adjusted([row.p for row in rows], method)
    equivalence = adjusted([row.p_equivalence for row in rows], method)
    return Memories(
        replace(row, q=q, q_equivalence=other, survives=_survives(row, q, other))
        for row, q, other in zip(rows, qs, equivalence, strict=True)
    )


def _survives(row: Memory, q: float | None, q_equivalence: float | None) -> bool | None:
    if row.verdict == "remembers" and q is not None:
        return q <= row.alpha
    if row.verdict == "forgets" and q_equivalence is not None:
        return q_equivalence <= row.alpha / 2
    return None
