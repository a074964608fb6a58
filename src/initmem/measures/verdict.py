"""The memory of one recipe as it is reported: its numbers, its verdict in words, notes, and the table.

The terminal, the page and notebooks share the columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from importlib import import_module
from typing import Any, Literal

import numpy as np

from initmem.errors import ConfigError, count
from initmem.intervention import Level, level_text
from initmem.measures.design import shared_notes
from initmem.measures.fit import Fit, Mode
from initmem.measures.scales import EQUAL_RATES, NEVER_USED, NO_EFFECT
from initmem.measures.statistics import ALPHA, TOLERANCE_PP, Array, seeds_needed
from initmem.metric import metric_of
from initmem.store.encoding import plain_values
from initmem.table import RECIPE, Cell, Column, Table, cell, flat, interval, number

Verdict = Literal["remembers", "forgets", "inconclusive", "untrained", "not applicable"]

SIZES = {"large": 5.0, "moderate": 2.5, "small": 0.0}  # from so many tolerances on


@dataclass(frozen=True, slots=True)
class Memory:
    """The memory of one recipe: in percentage points for accuracies, else in the metric's own unit.

    `low` is positive exactly when `p` is at most `alpha`, and `high` is within the tolerance exactly when
    `p_equivalence` is at most `alpha` / 2. The verdict follows from these, `forgets` first, where they also
    stand after an adjustment for the `family` of recipes that were measured together.

    Attributes:
        recipe: label of the recipe; `recipe_id` is its id.
        metric: the metric that is measured, in `unit`.
        n_scales: number of scales.
        n_seeds: number of seeds with a value at every scale; `dropped_seeds` have not.
        memory: range over scales of the mean over seeds.
        low: lower limit of its interval of level 1 - `alpha`.
        high: upper limit.
        noise_range: the memory expected from seed noise alone.
        p: p-value of a range of 0.
        debiased: the memory without its upward bias.
        verdict: `remembers`, `forgets`, `inconclusive`, `untrained` or `not applicable`.
        unit: `pp` for accuracies.
        recipe_id: id of the recipe.
        inapplicable: why the verdict is `not applicable`.
        mode: of `remembers`: `generalization`, `trainability` or `fit unknown`.
        fit: the train metric; None for metrics that are not of new data, or if none was recorded.
        size: of a significant memory: the classes that its interval reaches.
        tolerance: the range that counts as forgotten.
        p_equivalence: p-value of a range beyond the tolerance, by two one-sided tests.
        p_adjusted: `p`, adjusted, where it decides the verdict.
        p_equivalence_adjusted: `p_equivalence`, adjusted, where it decides the verdict.
        p_matched_adjusted: p-value of no memory at matched fit, adjusted: it decides the mode.
        adjust: `bh` (Benjamini-Hochberg) or `none`.
        family: number of recipes that it is adjusted for.
        next_alpha: level at which the next verdict of the family would be given.
        alpha: level of this analysis.
        analysis: number of this analysis in a planned schedule.
        alpha_spent: over all analyses so far.
        untrained: number of runs at chance, or diverged.
        failure_p: p-value of equal rates of untrained runs at all scales.
        failure_limit: no two of these rates differ by more, at 97.5% confidence.
        equal_failure_rates: whether `forgets` is possible, as far as these rates are known.
        unclear_scales: scales at which nothing shows that anything was learned: no `forgets`.
        dropped_seeds: seeds without a value at some scale.
        notes: remarks that belong to the verdict.
        scales: the scales, or interventions.
        values: the metric, shape (seed, scale).
    """

    recipe: str
    metric: str
    n_scales: int
    n_seeds: int
    memory: float | None
    low: float | None
    high: float | None
    noise_range: float | None
    p: float | None
    debiased: float | None
    verdict: Verdict
    unit: str
    recipe_id: str
    inapplicable: str = ""
    mode: Mode | None = None
    fit: Fit | None = None
    size: str | None = None
    tolerance: float | None = None
    p_equivalence: float | None = None
    p_adjusted: float | None = None
    p_equivalence_adjusted: float | None = None
    p_matched_adjusted: float | None = None
    adjust: str = "bh"
    family: int = 1
    next_alpha: float = ALPHA
    alpha: float = ALPHA
    analysis: int = 1
    alpha_spent: float = ALPHA
    untrained: int = 0
    failure_p: float | None = None
    failure_limit: float | None = None
    equal_failure_rates: bool = True
    unclear_scales: tuple[Level, ...] = ()
    dropped_seeds: tuple[int, ...] = ()
    notes: tuple[str, ...] = ()
    scales: tuple[Level, ...] = ()
    values: Array = field(default_factory=lambda: np.empty((0, 0)), repr=False, compare=False)

    def to_json(self) -> dict[str, Any]:
        """Plain values, with the thresholds behind the words."""
        row = asdict(replace(self, fit=None)) | {"fit": self.fit and self.fit.to_json()}
        row |= {"verdict_text": self.verdict_text, "thresholds": self.thresholds}
        row |= {"seeds_needed": self.seeds_needed}
        return {name: value for name, value in row.items() if name not in ("values", "next_alpha")}

    @property
    def axis(self) -> str:
        """What differs between the runs of a seed."""
        return "interventions" if any(isinstance(level, str) for level in self.scales) else "scales"

    @property
    def within_tolerance(self) -> bool:
        """Whether the interval excludes a range beyond the tolerance."""
        return self.p_equivalence is not None and self.p_equivalence <= self.alpha / 2

    @property
    def learned_alike(self) -> bool:
        """Whether it is known that runs learned something at all scales, so that `forgets` is possible."""
        return self.equal_failure_rates and not self.unclear_scales

    @property
    def seeds_needed(self) -> int | None:
        """How many seeds in all would settle an inconclusive verdict; None: it is settled, or over 300."""
        if self.verdict != "inconclusive" or (self.within_tolerance and not self.learned_alike):
            return None
        return seeds_needed(self.values, self.tolerance, alpha=self.next_alpha)

    @property
    def equal_fit(self) -> bool:
        """Whether the scales are fitted equally well."""
        return self.fit is not None and self.fit.is_equal(self.fit_tolerance)

    @property
    def fit_tolerance(self) -> float | None:
        """How far train metrics may differ and count as equal; None: no difference may."""
        if self.fit is None or self.fit.unit == self.unit:
            return self.tolerance
        return TOLERANCE_PP if self.fit.unit == "pp" else None

    @property
    def thresholds(self) -> dict[str, float]:
        """What the verdict's words stand for, in the unit of the memory."""
        if self.tolerance is None:
            return {"alpha": self.alpha}
        sizes = {name: self.tolerance * times for name, times in SIZES.items() if times}
        return {"alpha": self.alpha, "tolerance": self.tolerance} | sizes

    @property
    def short_verdict(self) -> str:
        """The verdict with its mode and size, and whether it is adjusted."""
        settled = self.verdict in ("remembers", "forgets")
        unadjusted = " (unadjusted)" if settled and self.adjust == "none" else ""
        mode, size = f": {self.mode}" if self.mode else "", f" ({self.size})" if self.size else ""
        return f"{self.verdict}{mode}{size}{unadjusted}"

    @property
    def not_excluded(self) -> str:
        """Which failure rates too few runs leave possible, for a memory that is forgotten."""
        unseen = self.verdict == "forgets" and (self.failure_limit or 0.0) > EQUAL_RATES
        return f"failure rates up to {100 * (self.failure_limit or 0.0):.0f}% not excluded" if unseen else ""

    @property
    def verdict_text(self) -> str:
        """The verdict, with the failure rates that `forgets` does not exclude."""
        return self.short_verdict + (f" ({self.not_excluded})" if self.not_excluded else "")

    @property
    def meaning(self) -> str:
        """The verdict in words."""
        if self.verdict == "not applicable":
            return INAPPLICABLE[self.inapplicable]
        if self.verdict == "untrained":
            return "No run is better than chance or than its first epoch, so there is nothing to remember."
        if self.memory is None:
            return f"No seed has a {self.metric} at every scale yet."
        if self.noise_range is None:
            shown = self.shown(self.memory)
            return f"One seed says nothing about noise: the {self.metric} has a range of {shown}."
        return f"{_finding(self)}. {ABOUT_INTERVAL}."

    def shown(self, value: float | None) -> str:
        """A value with the unit of the memory."""
        return f"{value or 0:.3g}{self.unit and ' ' + self.unit}"

    def __str__(self) -> str:
        if self.verdict == "not applicable":
            return f"{self.verdict}: {self.inapplicable}"
        if self.memory is None:
            return f"not measured, {self.verdict}"
        text = self.shown(self.memory)
        if self.low is not None:
            text += f" [{self.low:.3g}, {self.high:.3g}], noise range {self.noise_range:.2g}"
        needed = f" ({remark})" if (remark := _seeds_remark(self)) else ""
        return f"{text}, {self.verdict_text}{needed}{f', {self.fit}' if self.fit else ''}"

    def _repr_html_(self) -> str:
        return Memories([self])._repr_html_()


class Memories(list[Memory]):
    """Memories of several recipes; a notebook shows them as a table."""

    def rows(self) -> list[dict[str, Any]]:
        """Plain values, a row per recipe: those of `initmem measure --json` that are single values."""
        return flat([plain_values(row.to_json()) | {"notes": "; ".join(row.notes)} for row in self])

    def to_pandas(self) -> Any:
        """The rows as a data frame of pandas, which has to be installed."""
        try:
            pandas = import_module("pandas")
        except ImportError:
            raise ConfigError("to_pandas: pandas is not installed (allowed: pip install pandas)") from None
        return pandas.DataFrame(self.rows())

    def to_latex(self) -> str:
        """The table of verdicts, for a paper with the package booktabs."""
        from initmem.plots.tables import latex

        return latex(verdict_table(self))

    def _repr_html_(self) -> str:
        from initmem.plots.tables import html

        return html(verdict_table(self))


# -- in words --------------------------------------------------------------------------------------------

INAPPLICABLE = {
    NEVER_USED: "The pipeline never used the initialization scale, so there is nothing to measure.",
    NO_EFFECT: "The weights have the same norm at all scales when training begins: they were drawn again "
    "after init.apply, so there is nothing to measure.",
}
ABOUT_INTERVAL = "The interval accounts for the choice of seeds, not for the choice of test examples"
MODES = {
    "generalization": "The {axis} are not fitted equally well ({fit}), but they also differ at equal fit",
    "trainability": "The {axis} are not fitted equally well ({fit}): at equal fit no difference is "
    "significant",
    "fit unknown": "Whether that is because some {axis} were not fitted as well as others is not known",
}
EQUAL_FIT = "All {axis} are fitted equally well ({fit}): the {axis} generalize differently"


def _seeds_remark(row: Memory) -> str:
    return f"about {row.seeds_needed} seeds would settle it" if row.seeds_needed else ""


def _finding(row: Memory) -> str:
    axis = "initialization scales" if row.axis == "scales" else row.axis
    shown, noise = row.shown(row.memory), f"(expected from noise alone: {row.noise_range:.2g})"
    within = (
        f"The mean {row.metric} differs by at most {row.shown(row.high)} between any two "
        f"{axis}, which is within the tolerance of {row.shown(row.tolerance)}"
    )
    if row.verdict == "remembers":
        family = f", adjusted for {row.family} recipes" if row.family > 1 and row.adjust == "bh" else ""
        mode = EQUAL_FIT if row.mode == "generalization" and row.equal_fit else MODES.get(row.mode or "", "")
        return (
            f"Changing only the {axis.removesuffix('s')} changes the mean {row.metric} by {shown} {noise}, "
            f"which is significant at the {100 * row.alpha:.2g}% level{family}"
            f"{mode and '. ' + mode.format(fit=row.fit, axis=row.axis)}"
        )
    if row.verdict == "forgets":
        return within + (f"; {row.not_excluded}" if row.not_excluded else "")
    if row.within_tolerance and not row.learned_alike:
        return f"{within}, but nothing shows that runs learned something at all {axis} alike"
    return (
        f"The mean {row.metric} has a range of {shown} over the {axis} {noise}: neither "
        "memory nor its absence is established"
    )


def scales_text(scales: Sequence[Level]) -> str:
    """Some scales, or interventions, in words."""
    noun = "intervention" if any(isinstance(level, str) for level in scales) else "scale"
    return f"{noun}{'s' * (len(scales) > 1)} {', '.join(map(level_text, scales))}"


# -- the table ---------------------------------------------------------------------------------------------

OPTIONAL = ("train", "matched")  # left out where no recipe has anything to show
SMALLEST_P = 1e-9
MOST_NOTES = 6


def columns_of(rows: Sequence[Memory]) -> dict[str, Column]:
    """The columns of these memories: intervals of interim analyses are wider than 95%."""
    levels = {row.alpha for row in rows if row.low is not None} or {ALPHA}
    alpha = levels.pop()
    title = "interval" if levels else f"{100 * (1 - alpha):.3g}% interval"
    about = f"of the memory, for new seeds and this test set: it holds 0 exactly when p is above {alpha:.3g}"
    if levels:
        about = "of the memory: of 95%, or as a note says for an interim analysis"
    trained = dict.fromkeys(row.fit.metric.replace("_", " ") for row in rows if row.fit) or ["train accuracy"]
    axis = " or ".join(dict.fromkeys(row.axis for row in rows)) or "scales"
    reached = "memory of the validation metric when each run first reaches a common level of fit"
    adjusted = "for the number of recipes; for forgets, p of the equivalence test (limit: 0.025)"
    lowest = f"lowest and highest mean over {axis}, of the selected models"
    design = f"number of {axis} and of seeds that have them all"
    return {
        "recipe": RECIPE,
        "verdict": Column("verdict", "text", "whether the trained model still depends on the scale"),
        "memory": number("memory", f"range over {axis} (max - min) of the mean over seeds"),
        "interval": number(title, about),
        "train": Column(" or ".join(trained), "text", lowest),
        "matched": Column("at equal fit", "text", reached, priority=4),
        "noise_range": number("noise range", "the memory expected from noise alone", priority=7),
        "debiased": number("debiased", "the memory minus its upward bias", priority=8),
        "p": number("p", "p-value of the hypothesis that the scale does not matter", priority=9),
        "p_adjusted": number("p (adjusted)", adjusted, priority=6),
        "design": Column(f"{axis} × seeds", "text", design, priority=5),
        "remarks": Column("remarks", "text", "what else to know about the recipe", priority=1, room=9),
    }


def verdict_table(rows: Sequence[Memory], *, until: float | None = None, explain: bool = False) -> Table:
    """A row per recipe; `until` is the interval width that was asked for."""
    metric, unit = (rows[0].metric, rows[0].unit) if rows else ("nothing", "")
    title = f"Initialization memory of {metric}" + (f" ({unit})" if unit else "")
    notes = shared_notes([(row.recipe, _notes_of(row, until)) for row in rows])
    body = [memory_cells(row) for row in rows]
    columns = columns_of(rows)
    shown = [key for key in columns if key != "remarks"]
    shown = [key for key in shown if key not in OPTIONAL or any(cells[key].text for cells in body)]
    cells = [[row[key] for key in shown] for row in body]
    return Table(title, [columns[key] for key in shown], cells, notes=notes if explain else shortened(notes))


def _notes_of(row: Memory, until: float | None) -> list[str]:
    """What to know next to the numbers of a recipe."""
    unseen = f"forgets: {row.not_excluded}" if row.not_excluded else ""
    return [note for note in (memory_remark(row, until), *row.notes, unseen) if note]


def shortened(notes: Sequence[str]) -> list[str]:
    """The first notes, and how many more there are."""
    left = len(notes) - MOST_NOTES
    return [*notes[:MOST_NOTES], *([f"{count(left, 'more note')} (--explain lists all)"] if left > 0 else [])]


def memory_remark(row: Memory, until: float | None = None) -> str:
    """Seeds still needed, or how wide the interval is against what was asked for."""
    if row.verdict == "not applicable":
        return row.inapplicable
    if until is not None and row.low is not None and row.high is not None:
        width = row.high - row.low
        return f"interval {width:.1f} wide" + ("" if width <= until else f" (asked: {until:g})")
    return _seeds_remark(row)


def memory_cells(row: Memory) -> dict[str, Cell]:
    """The cells of one recipe by the name of their column, without remarks."""
    form = metric_of(row.metric).form
    tiny = row.p is not None and row.p < SMALLEST_P
    return {
        "recipe": cell(row.recipe, style="name"),
        "verdict": cell(row.short_verdict, style=f"verdict {row.verdict.split()[0]}"),
        "memory": cell(row.memory, form, style="strong"),
        "interval": interval(row.low, row.high, form),
        "train": cell(row.fit and row.fit.span(metric_of(row.fit.metric).form)),
        "matched": cell(_matched_text(row)),
        "noise_range": cell(row.noise_range, form),
        "debiased": cell(row.debiased, form),
        "p": Cell(row.p, f"< {SMALLEST_P:g}") if tiny else cell(row.p, ".2g"),
        "p_adjusted": cell(row.p_equivalence_adjusted if row.p_adjusted is None else row.p_adjusted, ".2g"),
        "design": cell(f"{row.n_scales} × {row.n_seeds}", style="number"),
    }


def _matched_text(row: Memory) -> str:
    """The memory at matched fit with its interval and the level that was matched."""
    if row.fit is None or isinstance(match := row.fit.matched, str):
        return ""
    form = metric_of(match.metric).form
    kind = "loss" if metric_of(match.by).better == "lower" else match.by
    limits = "" if match.low is None else f" [{match.low:{form}}, {match.high:{form}}]"
    level = f"{100 * match.level:g}%" if match.by == "train_accuracy" else f"{kind} {match.level:g}"
    return f"{match.memory:{form}}{limits} at {level}"
