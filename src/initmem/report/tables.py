"""The values of the page's tables: the verdicts on the first screen, and the audit of the runs."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, get_args

import numpy as np
from markupsafe import Markup

from initmem.errors import count
from initmem.intervention import Level, level_order
from initmem.measures.difference import compared_ranges
from initmem.measures.fit import Mode
from initmem.measures.memory import Memory, Verdict
from initmem.measures.scales import NO_EFFECT, AtScale, scale_means
from initmem.measures.verdict import columns_of, memory_cells
from initmem.metric import metric_of
from initmem.plots.html import bar_axis, glyph, interval_bar, nice_limit, numbers, sparkline
from initmem.recipe import AnyRecipe
from initmem.record import RunRecord
from initmem.report.content import Array, Content, at_level, runs_of
from initmem.store.faults import crash_lines, crashed_alike
from initmem.store.results import study_status
from initmem.study import Run
from initmem.table import Cell, Column, Table, cell

# A verdict about one recipe, and about several.
VERBS: dict[Verdict, tuple[str, str]] = {
    "remembers": ("remembers its initialization", "remember their initialization"),
    "forgets": ("forgets its initialization", "forget their initialization"),
    "inconclusive": ("is inconclusive", "are inconclusive"),
    "untrained": ("is untrained", "are untrained"),
    "not applicable": (f"is not applicable ({NO_EFFECT})", f"are not applicable ({NO_EFFECT})"),
}
# Memories behind which there may be no more than a bad fit from some scales.
UNDERTRAINED: tuple[Mode | None, ...] = ("trainability", "fit unknown")
DIFFERS = ("differs by scale, but may be undertrained", "differ by scale, but may be undertrained")

# The columns of the memory table, from left to right.
COLUMNS = ("recipe", "verdict", "bar", "memory", "interval", "train", "matched", "design", "metric")
FEW = 3  # recipes that a remark names
STATISTICS = ("recipe", "memory", "noise_range", "debiased", "p", "p_adjusted")  # in a table to be opened


def verdicts(content: Content) -> dict[str, Any]:
    """The values for the template of the first screen."""
    rows, by_recipe = list(content.memories.values()), reached(content)
    links = [
        {
            "recipe": cell(row.recipe, href=runs_of(recipe.id), style="name")._replace(
                about=content.full_names[recipe]
            )
        }
        for recipe, row in content.memories.items()
    ]
    table = memory_table(rows, COLUMNS, links)
    metrics = list(dict.fromkeys(row.metric for row in rows)) or ["test_accuracy"]
    names = [name.replace("_", " ") for name in metrics]
    tolerances = {f"{row.tolerance:g} {row.unit}".strip() for row in rows if row.tolerance is not None}
    return {
        "headline": headline(rows, waiting=len(content.names) - len(rows)),
        "unfitted": unfitted(content),
        "differences": differences(content),
        "failures": crash_lines(content.survey.records),
        "reached": by_levels(by_recipe),
        "table": replace(table, id="memory", style="stack"),
        "statistics": replace(memory_table(rows, STATISTICS, links), id="statistics"),
        "remarks": remarks(content),
        "words": filter_words(content),
        "signs": {verdict: glyph(verdict) for verdict in VERBS},
        "modes": {row.mode for row in rows},
        "metrics": names,
        "bounds": _bounds(content, metrics[0]) if len(metrics) == 1 else None,
        "unit": "%" if metric_of(metrics[0]).is_percentage else "",
        "tolerance": " or ".join(sorted(tolerances)),
        "no_effect": NO_EFFECT,
    }


# -- sentences --------------------------------------------------------------------------------------------


def headline(rows: Sequence[Memory], *, waiting: int = 0) -> str:
    """The answer in one sentence; `waiting` more recipes have no finished run yet."""
    undertrained = [row for row in rows if row.verdict == "remembers" and row.mode in UNDERTRAINED]
    phrases: list[str] = []
    for (one, many), members in (
        (VERBS["remembers"], [r for r in rows if r.verdict == "remembers" and r not in undertrained]),
        (DIFFERS, undertrained),
        *((verb, [r for r in rows if r.verdict == v]) for v, verb in VERBS.items() if v != "remembers"),
    ):
        if n := len(members):
            subject = str(n) if phrases else _subject(n, len(rows))
            phrases.append(f"{subject} {one if n == 1 else many}{_modes(members)}")
    if not phrases:
        return "No run has finished yet."
    if waiting:
        phrases.append(f"{waiting} more {'has' if waiting == 1 else 'have'} no finished run yet")
    return "; ".join(phrases) + "."


def _subject(n: int, total: int) -> str:
    if n < total:
        return f"{n} of {total} recipes"
    return {1: "The recipe", 2: "Both recipes"}.get(n, f"All {n} recipes")


def _modes(rows: Sequence[Memory]) -> str:
    """How many memories have each mode."""
    counts = Counter(row.mode for row in rows if row.mode)
    modes: tuple[Mode, ...] = get_args(Mode)
    shown = [f"{counts[mode]} {mode}" if len(counts) > 1 else mode for mode in modes if counts[mode]]
    return f" ({', '.join(shown)})" if shown else ""


def unfitted(content: Content) -> str:
    """In how many cells training was too short to fit the training data; empty: in none of them."""
    series = [stats.interpolation for stats in content.stats.values()]
    cells = sum(len(one.y) for one in series)
    never = cells - sum(len(one.known()) for one in series)
    where = f"{never} of {count(cells, 'cell')} of the grid"
    return f"In {where}, most runs never fitted the training data (99.5% train accuracy)." if never else ""


class Remark(NamedTuple):
    """What to know next to the numbers of some recipes."""

    recipes: list[str]
    text: str
    subject: str  # the recipes, or how many they are


def remarks(content: Content) -> list[Remark]:
    """What to know next to the numbers, and about which recipes; what holds for several is stated once."""
    done = {record.id for record in content.survey.records}
    to_come = Counter(run.recipe for run_id, run in content.requested.items() if run_id not in done)
    lines = {
        row.recipe: _remarks(content.groups[recipe], row, to_come[recipe])
        for recipe, row in content.memories.items()
    }
    recipes: dict[str, list[str]] = {}
    for name, every in lines.items():
        for line in every:
            recipes.setdefault(line, []).append(name)

    def subject(names: Sequence[str]) -> str:
        every = "All recipes" if len(names) == len(lines) else count(len(names), "recipe")
        return ", ".join(names) if len(names) <= FEW and len(names) < len(lines) else every

    shared = [Remark(names, text, subject(names)) for text, names in recipes.items() if len(names) > 1]
    own = {name: [line for line in every if len(recipes[line]) == 1] for name, every in lines.items()}
    return [*shared, *(Remark([name], "; ".join(rest), name) for name, rest in own.items() if rest)]


def _remarks(records: Sequence[RunRecord], row: Memory, to_come: int) -> list[str]:
    counts = Counter(record.status for record in records)
    lines = [
        row.seeds_needed and f"about {row.seeds_needed} seeds would settle it",
        row.not_excluded,
        counts["crashed"] and f"{counts['crashed']} crashed",
        counts["diverged"] and f"{counts['diverged']} diverged",
        to_come and f"{count(to_come, 'run')} to come",
        len(hardware(records)) > 1 and "mixed hardware",
    ]
    return [*(line for line in lines if line), *row.notes]


def differences(content: Content) -> dict[str, str]:
    """The difference of two memories with its interval, in words, by the ids of both recipes, for all pairs
    with the same metric, scales and seeds."""
    groups: dict[tuple[Any, ...], list[tuple[AnyRecipe, Array]]] = {}
    for recipe, row in content.memories.items():
        if row.n_seeds > 1 and row.n_scales > 1:
            one = content.stats[recipe].profile
            groups.setdefault((row.metric, row.unit, one.scales, one.seeds), []).append((recipe, one.values))
    words = {}
    for (metric, unit, scales, seeds), members in groups.items():
        first, second = np.triu_indices(len(members), 1)
        values, form = np.stack([values for _, values in members]), metric_of(metric).form
        ranges = compared_ranges(values[first], values[second])
        design = f"{len(scales)} × {len(seeds)}"
        for i, j, *ends in zip(first, second, ranges.difference, ranges.low, ranges.high, strict=True):
            size, low, high = (f"{end:{form}}".replace("-", "−") for end in ends)
            text = f"{size}{' points' * (unit == 'pp')} (95% interval {low} to {high}, n = {design})"
            words[f"{members[i][0].id} {members[j][0].id}"] = text
    return words


def filter_words(content: Content) -> list[str]:
    """What to choose recipes by: verdicts, and the optimizers, datasets and networks between them."""
    verdicts = {row.verdict for row in content.memories.values()}
    names = [{recipe.get(field) for recipe in content.stats} for field in ("optimizer", "dataset", "model")]
    return sorted({str(name) for group in (verdicts, *names) if len(group) > 1 for name in group})


def hardware(records: Iterable[RunRecord]) -> Counter[tuple[str, str]]:
    """The kinds of machine that runs were trained on, (hardware, device), with the number of runs."""
    return Counter(
        (str(of.get("hardware", "unknown")), str(of.get("device", "unknown")).split(":")[0])
        for of in (record.provenance for record in records)
    )


# -- tables -----------------------------------------------------------------------------------------------


class Reached(NamedTuple):
    """What each scale of one recipe reached in one metric."""

    recipe: AnyRecipe
    metric: str
    picture: Markup
    by_scale: dict[Level, AtScale]
    digits: int


def reached(content: Content) -> list[Reached]:
    """Mean, standard deviation and n of every scale, as `--what scale` prints them: the metric of each
    memory, then its train metric."""
    means = {
        (recipe, metric): {at.scale: at for at in scale_means(content.groups[recipe], metric)}
        for recipe, stats in content.stats.items()
        for metric in filter(None, (stats.metric, stats.train_metric))
    }
    every: dict[str, list[AtScale]] = {}
    for (_, metric), by_scale in means.items():
        every.setdefault(metric, []).extend(by_scale.values())
    return [
        Reached(
            recipe,
            metric,
            sparkline(content.stats[recipe].curve(metric), *_bounds(content, metric)),
            by_scale,
            _digits(metric, every[metric]),
        )
        for (recipe, metric), by_scale in means.items()
    ]


def by_levels(rows: Sequence[Reached]) -> list[tuple[list[Level], list[Reached]]]:
    """Rows that share a table: those with the same levels, or with some of these."""
    grids = sorted({frozenset(row.by_scale) for row in rows}, key=len, reverse=True)
    tables: dict[frozenset[Level], list[Reached]] = {}
    for row in rows:
        tables.setdefault(next(grid for grid in grids if grid >= set(row.by_scale)), []).append(row)
    return [(sorted(grid, key=level_order), members) for grid, members in tables.items()]


def _digits(metric: str, reached: Sequence[AtScale]) -> int:
    """Decimals that separate the means and show a typical deviation; of percentages, one."""
    if metric_of(metric).is_percentage:
        return 1
    means = [at.mean for at in reached if at.mean is not None]
    spread = max(means, default=0.0) - min(means, default=0.0)  # a twentieth of it can be told
    between = math.ceil(1.3 - math.log10(spread)) if spread > 0 else 3 * bool(means)
    deviations = sorted(at.deviation for at in reached if at.deviation)
    for_deviation = math.ceil(-math.log10(deviations[len(deviations) // 2])) if deviations else 0
    return min(6, max(0, between, for_deviation))


def _bounds(content: Content, metric: str) -> tuple[float, float]:
    """The axis that the small curves of one metric share; all accuracies share one."""
    metrics = {name for item in content.stats.values() for name in (item.metric, item.train_metric) if name}
    unit = metric_of(metric).unit
    alike = [name for name in metrics if unit and metric_of(name).unit == unit] or [metric]
    means = [m for item in content.stats.values() for name in alike for m in item.curve(name).y]
    return min(means, default=0.0), max(means, default=1.0)


def memory_table(rows: Sequence[Memory], columns: Sequence[str], extra: Sequence[dict[str, Cell]]) -> Table:
    """A row per memory: the sign of its verdict, the bar of its interval, and `extra` cells of its own."""
    ends: dict[str, list[float]] = {}  # what the axes of the bars have to reach
    for row in rows:
        ends.setdefault(row.metric, []).extend([row.high or row.memory or 0.0, row.tolerance or 0.0])
    limits = {metric: nice_limit(max(values)) for metric, values in ends.items()}
    alike = len(limits) == 1
    unit = f" ({rows[0].unit})" if alike and rows[0].unit else ""
    axis = bar_axis(limits[rows[0].metric]) if alike else ""
    heads = {
        **columns_of(rows),
        "bar": Column(f"memory against its noise range{unit}", "picture", "with its interval", picture=axis),
        "curve": Column("by scale", "picture"),
        "metric": Column("metric", "text"),
    }
    body = []
    for row, more in zip(rows, extra, strict=True):
        cells = memory_cells(row)
        cells["verdict"] = cells["verdict"]._replace(picture=glyph(row.verdict))
        bar = interval_bar(row, limits[row.metric])
        metric = row.metric.replace("_", " ") + (f" ({row.unit})" if row.unit else "")
        body.append(cells | {"bar": Cell(picture=bar), "metric": cell(metric)} | more)
    hidden = {"metric"} if alike else set()
    hidden |= {key for key in ("train", "matched") if not any(cells[key].text for cells in body)}
    shown = [key for key in columns if key not in hidden]
    return Table(
        "Initialization memory",
        [heads[key] for key in shown],
        [[cells[key] for key in shown] for cells in body],
    )


# -- the audit of the runs --------------------------------------------------------------------------------


ENVIRONMENT = ("hardware", "device", "threads", "torch", "python", "initmem")
RUN_COLUMNS = (
    "run", "scale", "seed", "kind", "status", "test (%)", "val (%)", "selected at", "fitted at",
    "repair (pp)", "‖W‖ at start", "‖W‖", "attempts", "faults", "environment", "pack", "pack seconds",
)  # fmt: skip


def audit(content: Content) -> dict[str, Any]:
    """The values for the template of the audit: every number leads to its runs, and no run is hidden."""
    survey = content.survey
    machines = {content.names[recipe]: hardware(group) for recipe, group in content.groups.items()}
    recipes = [recipe for study in survey.studies for recipe in study.recipes]
    status = [(study["name"], row) for study in study_status(survey) for row in study["recipes"]]
    return {
        "progress": [(name, key, row) for key, (name, row) in zip(recipes, status, strict=True)],
        "environments": environments(survey.records),
        "mixed": {name: counts for name, counts in machines.items() if len(counts) > 1},
        "crashed": crashed_alike(survey.records),
    }


def environments(records: Sequence[RunRecord]) -> dict[tuple[str, ...], int]:
    """The environments that runs were trained in, the most used first, with the number of runs."""
    return dict(Counter(map(_environment, records)).most_common())


def _environment(record: RunRecord) -> tuple[str, ...]:
    return tuple(str(record.provenance.get(key, "unknown")) for key in ENVIRONMENT)


def describe(content: Content, run: Run) -> str:
    """A run by its recipe, scale and seed."""
    name = content.names.get(run.recipe, "unknown")
    return ", ".join(filter(None, [name, at_level(run.level), f"seed {run.seed}", kind_of(run)]))


def kind_of(run: Run) -> str:
    """What sets a run apart from the main design."""
    pins = ", ".join(f"{role} seed {seed}" for role, seed in run.pins)
    perturbed = f"perturbed by {run.perturbation:g}" if run.perturbation != 1.0 else ""
    return ", ".join(filter(None, [perturbed, pins]))


def run_rows(content: Content, recipe: AnyRecipe) -> dict[str, Any]:
    """The runs of one recipe for the table of runs: columns, a list of values each, and all its settings."""
    numbered = {values: i for i, values in enumerate(environments(content.survey.records), start=1)}
    metric = content.stats[recipe].metric
    own = [] if metric == "test_accuracy" else [metric]
    records = sorted(
        content.groups[recipe],
        key=lambda r: (level_order(r.run.level), r.run.seed, r.run.pins, r.run.perturbation),
    )
    rows = []
    for record in records:
        run, summary, origin = record.run, record.summary, record.provenance
        shares = summary.test_accuracy, summary.val_accuracy_best, summary.repair_gap
        test, val, repair = numbers(None if share is None else 100 * share for share in shares)
        faults = origin.get("faults")
        causes = [f"{n} {cause}" for cause, n in faults.items()] if isinstance(faults, Mapping) else []
        norms = numbers([summary.norm_init, summary.norm_best])
        row = [record.id, run.level, run.seed, kind_of(run), record.status, test, val]
        row += [summary.tau_best, summary.tau_interp, repair, *norms]
        row += [origin.get("attempts"), ", ".join(causes), numbered[_environment(record)]]
        row += [origin.get("pack"), origin.get("seconds"), *numbers(map(record.metric, own))]
        rows.append(row)
    settings = ", ".join(
        f"{name} = {value}" for name, value in recipe.settings().items() if value not in (None, "")
    )
    columns = [*RUN_COLUMNS, *(name.replace("_", " ") for name in own)]
    return {"columns": columns, "rows": rows, "settings": settings}
