"""What a reader has to know next to the numbers of a memory: its meaning in a sentence, and notes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from initmem.errors import count
from initmem.measures.design import Analysis, Profile
from initmem.measures.failures import Failures
from initmem.measures.fit import Fit
from initmem.measures.statistics import ALPHA, Spread
from initmem.recipe import Recipe
from initmem.record import RunRecord

if TYPE_CHECKING:
    from initmem.measures.memory import Memory

FEW_SEEDS = 3  # up to so many miss most memories
ABOUT_INTERVAL = "The interval accounts for the choice of seeds, not for the choice of test examples"
MODES = {
    "generalization": "The scales are not fitted equally well ({fit}), but they also differ at equal fit",
    "trainability": "The scales are not fitted equally well ({fit}): at equal fit no difference is "
    "significant",
    "fit unknown": "Whether that is because some scales were not fitted as well as others is not known",
}
EQUAL_FIT = "All scales are fitted equally well ({fit}): the scales generalize differently"


def meaning(row: Memory) -> str:
    """The verdict in words."""
    if row.verdict == "not applicable":
        return "The pipeline never used the initialization scale, so there is nothing to measure."
    if row.verdict == "untrained":
        return "All runs are at chance, so there is nothing to remember."
    if row.memory is None:
        return f"No seed has a {row.metric} at every scale yet."
    if row.noise_range is None:
        return f"One seed says nothing about noise: the {row.metric} has a range of {row.shown(row.memory)}."
    return f"{_finding(row)}. {ABOUT_INTERVAL}."


def _finding(row: Memory) -> str:
    shown, noise = row.shown(row.memory), f"(expected from noise alone: {row.noise_range:.2g})"
    within = (
        f"The mean {row.metric} differs by at most {row.shown(row.high)} between any two "
        f"initialization scales, which is within the tolerance of {row.shown(row.tolerance)}"
    )
    if row.verdict == "remembers":
        family = f", adjusted for {row.family} recipes" if row.family > 1 and row.adjust == "bh" else ""
        mode = EQUAL_FIT if row.mode == "generalization" and row.equal_fit else MODES.get(row.mode or "", "")
        return (
            f"Changing only the initialization scale changes the mean {row.metric} by {shown} {noise}, which "
            f"is significant at the {100 * row.alpha:.2g}% level{family}"
            f"{mode and '. ' + mode.format(fit=row.fit)}"
        )
    if row.verdict == "forgets":
        return within + (f"; {row.not_excluded}" if row.not_excluded else "")
    if row.within_tolerance and not row.equal_failure_rates:
        rates = f"rates of untrained runs that differ by {100 * (row.failure_limit or 0):.0f}%"
        return f"{within}, but {rates} between scales are not excluded"
    return (
        f"The mean {row.metric} has a range of {shown} over the initialization scales {noise}: neither "
        "memory nor its absence is established"
    )


def notes_of(
    records: Sequence[RunRecord],
    arranged: Profile,
    ranges: Spread,
    analysis: Analysis,
    failures: Failures | None,
) -> list[str]:
    """What is unusual about the runs of one recipe and about their analysis."""
    notes = []
    n = len(arranged.seeds)
    if 1 < n <= FEW_SEEDS:
        notes.append(f"{n} seeds miss most memories of a few standard deviations")
    if arranged.dropped:
        listed = ", ".join(map(str, arranged.dropped))
        notes.append(
            f"left out, because a scale has no finite value: seed{'s' * (len(arranged.dropped) > 1)} {listed}"
        )
    if ranges.noise_range == 0:
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
    if failures and failures.untrained:
        notes.append(_failure_note(failures))
    return [*notes, *_early_notes(records), *_code_notes(records)]


def fit_notes(fit: Fit | None, *, equal: bool) -> list[str]:
    """What is known about the fit, where that is not simply equal."""
    if fit is None:
        return [
            "no train metric was recorded, so memory cannot be told from undertraining "
            "(record train_accuracy or train_loss in every epoch)"
        ]
    match = fit.matched
    if isinstance(match, str):
        return [] if equal else [f"no memory at matched fit: {match}"]
    notes = []
    if match.early:
        notes.append(
            f"{count(match.early, 'run')} reached the level of matched fit before the first validation"
        )
    if len(match.scales) < len(fit.scales) and not equal:
        compared = ", ".join(f"{scale:g}" for scale in match.scales)
        notes.append(
            f"matched fit compares the scales {compared}: the others reached it too early to be validated"
        )
    return notes


def _failure_note(failures: Failures) -> str:
    are = "is" if failures.untrained == 1 else "are"
    counts = f"{failures.untrained} of {failures.n} runs {are} untrained (at chance or diverged)"
    if failures.memorized:
        counts += f"; {failures.memorized} of them memorized the training examples"
    if failures.p is None:
        return counts
    if failures.p <= ALPHA:
        return f"{counts}, at rates that depend on the scale (p = {failures.p:.2g})"
    return f"{counts}; rates that differ between scales cannot be excluded (p = {failures.p:.2g})"


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
    prints = [record.provenance.get("fingerprint") for record in records if record.status != "crashed"]
    counts = Counter(str(sorted(one.items())) for one in prints if isinstance(one, dict))
    if len(counts) < 2:
        return []
    runs = " and ".join(str(n) for _, n in counts.most_common())
    return [f"trained by {len(counts)} versions of the code ({runs} runs): the fingerprints differ"]
