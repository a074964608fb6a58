"""Chart data: plain values that the script on the page draws."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from initmem.measures.memory import Memory
from initmem.paper.figures.sensitivity import folded
from initmem.plots.captions import SIGMA
from initmem.plots.curves import Curve, in_words
from initmem.recipe import AnyRecipe
from initmem.report.facets import Facet
from initmem.report.recipe_stats import Facts, Fitted

Json = dict[str, Any]
MOST_POINTS = 160  # of one line: more would not be seen

CLOCK_WORDS = {
    "sgd": "SGD clock, (1/b) Σ η²",
    "l2": "L2 clock, λ Σ η",
    "adaptive": "adaptive clock, Σ η",
    "momentum": "momentum clock, (1/b) Σ (η/(1-μ))²",
    "angular": "angular clock, Σ η/‖W‖²",
}
SELECTED = "Of the predictor with the least validation loss."
MOST_METRICS = 8
OTHERS = (
    ("norm", "Kernel norm", "Frobenius norm", "Of all kernels of the selected predictor."),
    (
        "fitted",
        "Interpolation epoch",
        "interpolation epoch",
        "The first epoch with 99.5% train accuracy: median over runs with 95% limits. Above: never reached.",
    ),
    (
        "repair",
        "Repair gap",
        "repair gap (pp)",
        "Validation accuracy when selected less that at interpolation, over the runs that interpolated.",
    ),
    (
        "settling",
        "Memory by seeds",
        "memory",
        "How the estimate and its 95% interval settle as seeds come in.",
    ),
)


def curves(facts: Mapping[AnyRecipe, Facts], names: Mapping[AnyRecipe, str], facets: Sequence[Facet]) -> Json:
    """Every metric against the initialization scale, and the memory against the number of seeds."""
    metrics = metrics_of(facts)
    series = {metric: [_curve(item.curve(metric), item) for item in facts.values()] for metric in metrics}
    series |= {
        "norm": [_curve(item.curve("norm_best"), item) for item in facts.values()],
        "fitted": [_fitted(item.fitted) for item in facts.values()],
        "repair": [_curve(item.curve("repair_gap"), item) for item in facts.values()],
        "settling": [_settling(item.settling) for item in facts.values()],
    }
    words = [(name, name.replace("_", " ").capitalize(), in_words(name), SELECTED) for name in metrics]
    choices: list[Json] = [
        {
            "key": key,
            "title": title,
            "x": "seeds" if key == "settling" else SIGMA,
            "y": y,
            "about": about,
            "ceiling": key == "fitted",
        }
        for key, title, y, about in [*words, *OTHERS]
        if any(value is not None or never for line in series[key] for value, never in _values(line))
    ]
    return {
        "choices": choices,
        "series": {choice["key"]: series[choice["key"]] for choice in choices},
        "runs": [{f"{scale:g}": ids for scale, ids in item.runs.items()} for item in facts.values()],
    } | _frame(facts, names, facets)


def _values(line: Json) -> Iterable[tuple[float | None, int]]:
    return zip(line["y"], line.get("never", [0] * len(line["y"])), strict=True)


def metrics_of(facts: Mapping[AnyRecipe, Facts]) -> list[str]:
    """What memories are measured in, then what users' own code recorded beside it."""
    main = dict.fromkeys(item.metric for item in facts.values())
    own = dict.fromkeys(name for item in facts.values() for name in item.own_metrics)
    return list(main | own)[:MOST_METRICS]


def slopes(facts: Mapping[AnyRecipe, Facts], names: Mapping[AnyRecipe, str], facets: Sequence[Facet]) -> Json:
    """|beta| against epoch and clocks. Lines share their heights; an axis only moves them."""
    axes: dict[str, list[Json]] = {"epochs": [_slope(item) for item in facts.values()]}
    for clock in CLOCK_WORDS:
        ticks = [_clock(item, clock) for item in facts.values()]
        if any(ticks):
            axes[clock] = [{"as": "epochs", "x": x} for x in ticks]
    words = {key: "epochs" if key == "epochs" else f"the {key} clock" for key in axes}
    choices = [
        {
            "key": key,
            "title": "Epoch" if key == "epochs" else f"{key} clock",
            "x": CLOCK_WORDS.get(key, "epoch"),
            "y": "|β| per unit of σ",
            "about": f"|β| with its 95% interval, against {words[key]}.",
            "xlog": key != "epochs",
            "ylog": True,
        }
        for key in axes
    ]
    return {"choices": choices, "series": axes} | _frame(facts, names, facets)


def _frame(facts: Mapping[AnyRecipe, Facts], names: Mapping[AnyRecipe, str], facets: Sequence[Facet]) -> Json:
    """Recipes, and which of them stand in which chart."""
    place = {recipe: i for i, recipe in enumerate(facts)}
    return {
        "recipes": [{"id": recipe.id, "label": names[recipe]} for recipe in facts],
        "facets": [
            {
                "title": facet.title,
                "lines": [
                    {"recipe": place[line.recipe], "label": line.label, "style": line.style}
                    for line in facet.lines
                ],
            }
            for facet in facets
        ],
    }


def _curve(curve: Curve, facts: Facts) -> Json:
    never = [len(facts.runs[scale]) - n for scale, n in zip(curve.scales, curve.n, strict=True)]
    return {
        "x": curve.scales,
        "y": numbers(curve.mean),
        "low": numbers(curve.low),
        "high": numbers(curve.high),
        "limits": [limits and numbers(limits) for limits in curve.limits],
        "n": curve.n,
        "never": never,
    }


def _fitted(rows: Sequence[Fitted]) -> Json:
    return {
        "x": [row.scale for row in rows],
        "y": numbers(row.median for row in rows),
        "low": numbers(row.low if row.median is not None else None for row in rows),
        "high": numbers(row.high if row.median is not None else None for row in rows),
        "n": [row.n for row in rows],
        "never": [row.never for row in rows],
    }


def _settling(rows: Sequence[Memory]) -> Json:
    return {
        "x": [row.n_seeds for row in rows],
        "y": numbers(row.memory for row in rows),
        "low": numbers(row.low for row in rows),
        "high": numbers(row.high for row in rows),
        "n": [row.n_seeds * row.n_scales for row in rows],
    }


def _slope(facts: Facts) -> Json:
    curve, at = facts.beta, thinned(len(facts.beta.beta))
    size, low, high = folded(curve)
    return {
        "x": [int(curve.epochs[i]) for i in at],
        "y": numbers(size[i] for i in at),
        "low": numbers(low[i] for i in at),
        "high": numbers(high[i] for i in at),
        "n": curve.n_runs,
    }


def _clock(facts: Facts, name: str) -> list[float | None]:
    """A clock at the epochs that are shown; nothing if it stands still."""
    ticks = facts.beta.clocks[name]
    if not len(ticks) or not np.nanmax(ticks) > 0:
        return []
    return numbers(ticks[i] for i in thinned(len(ticks)))


def thinned(count: int) -> NDArray[np.int64]:
    """Indices of the points to show: the first and the last, dense in the beginning for logarithmic axes."""
    if count <= MOST_POINTS:
        return np.arange(count)
    early = np.geomspace(1, count, MOST_POINTS // 2) - 1
    even = np.linspace(0, count - 1, MOST_POINTS // 2)
    return np.unique(np.round(np.concatenate([early, even])).astype(np.int64))


def numbers(values: Iterable[float | None]) -> list[float | None]:
    """Values to five digits; what is not a number becomes null."""
    return [None if v is None or not np.isfinite(v) else float(f"{v:.5g}") for v in values]
