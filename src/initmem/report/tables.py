"""The values of the page's tables: clocks, half-lives, published values, and the audit of the runs."""

from __future__ import annotations

import contextlib
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from initmem.clocks import CLOCK_NAMES, CLOCKS
from initmem.clocks import clocks as clocks_of
from initmem.data.sources import sizes
from initmem.errors import InitmemError
from initmem.measures.beta import HalfLife
from initmem.metric import metric_of, metric_title
from initmem.paper.reference import Reference, references
from initmem.plots.captions import common
from initmem.plots.html import numbers
from initmem.plots.series import folded
from initmem.recipe import AnyRecipe, Recipe
from initmem.record import RunRecord, cause_line, crashed_alike
from initmem.report.content import Content, RecipeStats
from initmem.report.verdicts import hardware
from initmem.store.results import study_status
from initmem.study import Run

Limits = tuple[float, float]


# -- clocks and forgetting --------------------------------------------------------------------------------


def clocks(content: Content) -> dict[str, Any] | None:
    """All clocks at the last epoch. The angular clock, and all clocks of user code, are measured."""
    if not content.names:
        return None
    at_end: dict[AnyRecipe, dict[str, float | None]] = {}
    for recipe in content.names:
        at_end[recipe] = dict.fromkeys(("updates", *CLOCKS))
        if recipe in content.stats:
            at_end[recipe] |= content.stats[recipe].last_clocks
        with contextlib.suppress(InitmemError):  # the data may not be here, or known to user code alone
            at_end[recipe] |= _clocks_at_end(recipe)
    return {"at_end": at_end, "clocks": {name: CLOCK_NAMES.get(name, name) for name in CLOCKS}}


@lru_cache(maxsize=1024)
def _clocks_at_end(recipe: AnyRecipe) -> dict[str, float]:
    """The clocks at the last epoch that follow from the recipe alone."""
    network = recipe.network
    return clocks_of(network, sizes(network).n_train).at_end()


def half_lives(content: Content) -> dict[AnyRecipe, tuple[HalfLife | None, str, HalfLife | None]]:
    """How long |beta| takes to halve for good: in epochs, and on the clock of the recipe's family."""
    rows = {}
    for recipe, stats in content.stats.items():
        lives = {life.unit: life for life in stats.half_lives}
        epochs = lives.pop("epochs", None)
        clock, life = next(iter(lives.items()), ("", None))
        rows[recipe] = epochs, CLOCK_NAMES.get(clock, clock), life
    return rows


# -- published values -------------------------------------------------------------------------------------


QUANTITIES = {
    "spread": "memory",
    "test": "test accuracy",
    "train": "least train accuracy over scales",
    "gap": "difference between scales",
    "beta": "|β|, last epoch",
    "tau_best": "epoch of the returned model, mean over scales",
    "tau_interp": "median interpolation epoch, mean over scales",
}


class Published(NamedTuple):
    """A published value, and the same quantity measured here; `void` says why there is none."""

    recipe: Recipe
    reference: Reference
    quantity: str
    value: float | None
    limits: Limits | None
    void: str
    settings: str


def published(content: Content) -> list[Published]:
    """The published values whose procedure was run here, at whatever size."""
    return [
        _published(recipe, stats, item)
        for recipe, stats in content.stats.items()
        for item in references()
        if isinstance(recipe, Recipe) and item.fits(recipe)
    ]


def _published(recipe: Recipe, stats: RecipeStats, item: Reference) -> Published:
    value, limits = _measured(stats, item)
    scale = "" if item.scale is None else f" at σ = {item.scale:g}"
    unit = f" ({item.unit})" if item.unit in ("pp", "%") else ""
    void = ""
    if value is None:
        reached = item.quantity == "tau_interp" and bool(stats.interpolation.y)
        void = "not reached from every scale" if reached else "not run"
    settings = common([recipe], ("learning_rate", "l2", "batch_size", "momentum"))
    return Published(recipe, item, f"{QUANTITIES[item.quantity]}{scale}{unit}", value, limits, void, settings)


def _measured(stats: RecipeStats, item: Reference) -> tuple[float | None, Limits | None]:
    """The same quantity from our records, with its interval."""
    match item.quantity:
        case "spread" | "gap":
            low, high = stats.memory.low, stats.memory.high
            return stats.memory.memory, None if low is None or high is None else (low, high)
        case "test":
            curve = stats.curve("test_accuracy")
            i = None if item.scale is None else curve.at(item.scale)
            return (None, None) if i is None else (curve.y[i], curve.limits[i])
        case "train":  # published as a bound for all scales
            return min(stats.train.values(), default=None), None
        case "tau_best":
            return _mean(stats.curve("tau_best").y), None
        case "tau_interp":
            return _mean(stats.interpolation.y), None
        case _:
            return _last_slope(stats)


def _mean(epochs: Sequence[float]) -> float | None:
    """The mean over scales; None where a scale has no value."""
    complete = epochs and not any(map(math.isnan, epochs))
    return sum(epochs) / len(epochs) if complete else None


def _last_slope(stats: RecipeStats) -> tuple[float | None, Limits | None]:
    """|beta| at the last epoch."""
    beta = stats.beta
    if not len(beta.beta) or math.isnan(beta.beta[-1]):
        return None, None
    low, high = (limit[-1] for limit in folded(beta.low, beta.high))
    return abs(float(beta.beta[-1])), None if math.isnan(low) else (low, high)


# -- the audit of the runs --------------------------------------------------------------------------------


ENVIRONMENT = ("hardware", "device", "threads", "torch", "python", "initmem")
RUN_COLUMNS = (
    "run", "scale", "seed", "kind", "status", "test (%)", "val (%)", "selected at", "fitted at",
    "repair (pp)", "‖W‖ at start", "‖W‖", "attempts", "faults", "environment", "pack", "pack seconds",
)  # fmt: skip
SHOWN = 50  # runs listed one by one; the table of runs has them all


def audit(content: Content) -> dict[str, Any]:
    """The values for the template of the audit: every number leads to its runs, and no run is hidden."""
    survey = content.survey
    machines = {content.names[recipe]: hardware(group) for recipe, group in content.groups.items()}
    diverged = []
    for record in survey.records:
        if record.status == "diverged":
            metric = content.stats[record.run.recipe].metric
            value = record.metric(metric)
            shown = None if value is None else metric_of(metric).factor * value
            diverged.append((record, metric_title(metric), shown))
    recipes = [recipe for study in survey.studies for recipe in study.recipes]
    status = [(study["name"], row) for study in study_status(survey) for row in study["recipes"]]
    return {
        "progress": [(name, key, row) for key, (name, row) in zip(recipes, status, strict=True)],
        "environments": environments(survey.records),
        "mixed": {name: counts for name, counts in machines.items() if len(counts) > 1},
        "packs": packs(content),
        "failures": failures(content),
        "diverged": diverged,
        "missing": missing(content),
        "damaged": survey.damaged,
        "shown": SHOWN,
    }


def environments(records: Sequence[RunRecord]) -> dict[tuple[str, ...], int]:
    """The environments that runs were trained in, the most used first, with the number of runs."""
    return dict(Counter(map(_environment, records)).most_common())


def _environment(record: RunRecord) -> tuple[str, ...]:
    return tuple(str(record.provenance.get(key, "unknown")) for key in ENVIRONMENT)


def packs(content: Content) -> dict[str, tuple[int, list[int]]]:
    """Recipes with runs from several packs: the number of runs, and the sizes of the packs."""
    several = {}
    for recipe, records in content.groups.items():
        together = {(r.provenance.get("pack_id"), r.provenance.get("pack")) for r in records}
        sizes = sorted(size for _, size in together if isinstance(size, int))
        if len(sizes) > 1 and sizes[-1] > 1:  # a run alone is always the same pack
            several[content.names[recipe]] = len(records), sizes
    return several


def failures(content: Content) -> list[dict[str, Any]]:
    """Crashed runs, those with the same cause together: the cause, a traceback, and the runs."""
    return [
        {
            "error": cause_line(records[0]),
            "traceback": records[0].error or "",
            "runs": [(record.id, describe(content, record.run)) for record in records[:SHOWN]],
            "total": len(records),
        }
        for records in crashed_alike(content.survey.records)
    ]


def describe(content: Content, run: Run) -> str:
    """A run by its recipe, scale and seed."""
    name = content.names.get(run.recipe, "unknown")
    return ", ".join(filter(None, [name, f"σ = {run.scale:g}", f"seed {run.seed}", kind_of(run)]))


def kind_of(run: Run) -> str:
    """What sets a run apart from the main design."""
    pins = ", ".join(f"{role} seed {seed}" for role, seed in run.pins)
    perturbed = f"one weight times {run.perturbation:g}" if run.perturbation != 1.0 else ""
    return ", ".join(filter(None, [perturbed, pins]))


def missing(content: Content) -> list[tuple[str, int, str]]:
    """Requested runs that are neither done nor in training: recipe, how many, which."""
    done = {record.id for record in content.survey.records} | content.survey.training
    runs: dict[str, list[Run]] = {}
    for run_id, run in content.requested.items():
        if run_id not in done:
            runs.setdefault(content.names[run.recipe], []).append(run)
    return [(name, len(some), which(some)) for name, some in runs.items()]


def which(runs: Sequence[Run]) -> str:
    """Runs in words: scales that lack the same seeds together."""
    seeds: dict[float, list[int]] = {}
    for run in runs:
        if not kind_of(run):
            seeds.setdefault(run.scale, []).append(run.seed)
    scales: dict[tuple[int, ...], list[str]] = {}
    for scale, lacking in sorted(seeds.items()):
        scales.setdefault(tuple(lacking), []).append(f"{scale:g}")
    phrases = [
        f"σ {', '.join(alike)}: seeds {', '.join(map(str, lacking))}" for lacking, alike in scales.items()
    ]
    others = sum(bool(kind_of(run)) for run in runs)
    phrases += [f"{others} perturbed or with a seed role of their own"] if others else []
    return "; ".join(phrases)


def run_rows(content: Content, recipe: AnyRecipe) -> dict[str, Any]:
    """The runs of one recipe for the table of runs: columns, and a list of values each."""
    numbered = {values: i for i, values in enumerate(environments(content.survey.records), start=1)}
    metric = content.stats[recipe].metric
    own = [] if metric == "test_accuracy" else [metric]
    records = sorted(
        content.groups[recipe], key=lambda r: (r.run.scale, r.run.seed, r.run.pins, r.run.perturbation)
    )
    rows = [
        [*_run_row(record, numbered[_environment(record)]), *numbers(map(record.metric, own))]
        for record in records
    ]
    return {"columns": [*RUN_COLUMNS, *(name.replace("_", " ") for name in own)], "rows": rows}


def _run_row(record: RunRecord, environment: int) -> list[Any]:
    run, summary, origin = record.run, record.summary, record.provenance
    shares = summary.test_accuracy, summary.val_accuracy_best, summary.repair_gap
    test, val, repair = numbers(None if share is None else 100 * share for share in shares)
    norms = numbers([summary.norm_init, summary.norm_best])
    faults = origin.get("faults")
    causes = [f"{n} {cause}" for cause, n in faults.items()] if isinstance(faults, Mapping) else []
    return [
        *(record.id, run.scale, run.seed, kind_of(run), record.status),
        *(test, val, summary.tau_best, summary.tau_interp, repair, *norms),
        *(origin.get("attempts"), ", ".join(causes), environment, origin.get("pack"), origin.get("seconds")),
    ]
