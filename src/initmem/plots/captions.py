"""What is written under a plot: what is drawn, where the numbers come from and what is missing.

Every sentence about a sign, such as "open diamonds" or "hatched", is derived from the panels: a caption never
speaks of what is not drawn.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from initmem.errors import first_of
from initmem.labels import label
from initmem.plots.model import AnyPanel, Heatmap, Intervals, Panel, Plot, log_limits
from initmem.recipe import AnyRecipe
from initmem.record import INTERPOLATION
from initmem.study import Study

SIGMA = "initialization scale σ"
SPREAD = "Spread: max - min over scales of the mean test accuracy"
NAMED = 6  # how many missing cells a caption names; the plot holds them all


def caption(plot: Plot) -> str:
    """All sentences, the missing cells last."""
    panels = [panel for panel in plot.panels if panel.has_values()]
    maps = [panel for panel in plot.all_panels if isinstance(panel, Heatmap) and panel.has_runs()]
    insets = [panel.inset for panel in panels if panel.inset is not None]
    bars = [panel for panel in plot.all_panels if isinstance(panel, Intervals) and panel.has_runs()] + insets
    signs = published_signs(panels, bars)
    beside_maps = any(row.reference is not None for panel in maps for row in panel.intervals)
    paper = "; reference: the paper" if plot.published or signs or beside_maps else ""
    sentences = [
        plot.head,
        _statistics(panels),
        *_heatmaps(maps),
        *(plot.about if any(panel.has_runs() for panel in plot.all_panels) else ()),
        "Bars: spread of test accuracy, in ascending order" if insets else "",
        *_guides(plot, panels),
        "Values too small for the axis stand at its lower edge" if _cut_off(plot) else "",
        f"Published values: {', '.join(signs)}" if signs else "",
        *(f"Published values: {words}" for words in plot.published),
        "No published values for what is shown" if plot.reference and not paper else "",
        _spread(bars, maps),
        plot.source and plot.source + paper,
        plot.setting,
        *plot.notes,
        f"Hatched: {' or '.join(reasons)}" if (reasons := hatched(plot)) else "",
        f"Missing: {first_of(plot.missing, NAMED)}" if plot.missing else "",
    ]
    return "".join(f"{sentence}. " for sentence in sentences if sentence).strip()


def _statistics(panels: Sequence[Panel]) -> str:
    """What lines and bands are, with n; by quantity, where a plot shows several kinds."""
    sampled = [(panel, panel.statistic) for panel in panels if panel.statistic]
    banded = {statistic for panel, statistic in sampled if _has_band(panel)}
    kinds: dict[str, dict[str, None]] = {}
    for panel, statistic in sampled:
        # From single seeds all bands have zero width; then none is spoken of.
        kind = ", ".join(statistic) if statistic in banded else statistic.center
        quantity, _, _ = panel.y_title.partition(" (")
        kinds.setdefault(kind, {})[quantity] = None
    if not kinds:
        return ""
    text = "; ".join(f"{', '.join(names)}: {kind}" for kind, names in kinds.items())
    if len(kinds) == 1 and any(series.known() for panel, _ in sampled for series in panel.series):
        text = f"Lines: {next(iter(kinds))}"
    return f"{text[0].upper()}{text[1:]}, {counts([panel for panel, _ in sampled])}"


def _has_band(panel: Panel) -> bool:
    ends = [pair for series in panel.series for pair in zip(series.low, series.high, strict=True)]
    return any(high - low > 1e-9 * abs(high) for low, high in ends)


def counts(panels: Sequence[Panel]) -> str:
    """How many runs stand behind the points."""
    points = [
        n
        for panel in panels
        for one in panel.series
        for n, y in zip(one.n, one.y, strict=True)
        if y == y or (n and panel.ceiling is not None)  # a NaN is no point, or one beyond the last epoch
    ]
    reasons = dict.fromkeys(reason for panel in panels for reason in _why_open(panel))
    text = f"n = {_range(points)} {panels[0].counted}"
    return text + (f" (open markers: {' or '.join(reasons)})" if reasons else "")


def _range(counts: Iterable[int]) -> str:
    ordered = sorted(counts)
    low, high = ordered[0], ordered[-1]
    return f"{low}" if low == high else f"{low} to {high}"


def _why_open(panel: Panel) -> list[str]:
    """What is the matter with the points that have open markers."""
    points = [(one, i) for one in panel.series for i in one.partial()]
    further = panel.ceiling is None  # else the runs without a value are among the n
    missing = any(one.n[i] + further * one.n_censored[i] < one.expected[i] for one, i in points)
    censored = any(one.n_censored[i] for one, i in points)
    without = "some have no value" if panel.ceiling is None else "some never reach it"
    return ["some are missing"] * missing + [without] * censored


def _heatmaps(maps: Sequence[Heatmap]) -> list[str]:
    """Counts, crosses and spreads of heat maps."""
    cells = [pair for panel in maps for row in panel.rows for pair in zip(row.n, row.expected, strict=True)]
    if not any(n for n, _ in cells):
        return []
    spreads = [row for panel in maps for row in panel.intervals]
    paper = " (the paper)" if any(row.reference is not None for row in spreads) else ""
    crossed = any(any(row) for panel in maps for row in panel.crossed)
    return [
        f"Mean over n = {_range(n for n, _ in cells if n)} seeds",
        "In parentheses: n, where seeds are missing" if any(0 < n < wanted for n, wanted in cells) else "",
        f"Crosses: mean train accuracy below {100 * INTERPOLATION:g}%" if crossed else "",
        f"Right of each row: the spread in points, measured{paper}" if spreads else "",
    ]


def _guides(plot: Plot, panels: Sequence[Panel]) -> list[str]:
    """The dashed guides that no legend of the plot names."""
    in_legend = {entry.label for row in plot.legend for entry in row}
    guides = [guide for panel in panels for guide in panel.guides]
    named = dict.fromkeys(guide.label for guide in guides if guide.style.dash == "--")
    return [f"Dashed: {name}" for name in named if name not in ("", *in_legend)]


def _cut_off(plot: Plot) -> bool:
    limits = log_limits(plot)
    return any(
        0 <= y < limits[panel.y_title][0]
        for panel in plot.panels
        if panel.y_title in limits and panel.log_y and panel.ceiling is None
        for series in panel.series
        for y in series.y
    )


def _spread(bars: Sequence[Intervals], maps: Sequence[Heatmap]) -> str:
    """What a spread is, and over how many scales: over more of them it is larger."""
    shown = [(panel.n_scales, panel.rows) for panel in bars if panel.n_scales]
    shown += [(panel.n_scales, panel.intervals) for panel in maps if panel.intervals]
    rows = [row for _, some in shown for row in some if row.reference is not None]
    published = sorted({row.reference_scales for row in rows if row.reference_scales is not None})
    text = SPREAD if shown else ""
    if published:
        here = sorted({n_scales for n_scales, _ in shown})
        text += f"; published over {' or '.join(map(str, published))} scales"
        text += f", measured over {' or '.join(map(str, here))}"
    return text


def published_signs(panels: Sequence[Panel], bars: Sequence[Intervals]) -> list[str]:
    """How published values are marked in what is drawn."""
    rows = [row for panel in bars for row in panel.rows if row.reference is not None]
    signs = ["open triangles (upper limits)" if row.is_bound else "open diamonds" for row in rows]
    signs += ["stars" for panel in panels if panel.published]
    signs += [f"dotted line at {p.published_level:g}" for p in panels if p.published_level is not None]
    return list(dict.fromkeys(signs))


def hatched(plot: Plot) -> list[str]:
    """Why panels, bars, cells or samples in the legend are hatched, if any are."""
    absent = ["no runs"] if any(not entry.present for row in plot.legend for entry in row) else []
    return list(dict.fromkeys([*absent, *(reason for panel in plot.all_panels for reason in _gaps(panel))]))


def _gaps(panel: AnyPanel) -> list[str]:
    if isinstance(panel, Heatmap):
        return ["no runs"] * any(y != y for row in panel.rows for y in row.y)
    if not isinstance(panel, Panel) or not panel.has_runs():
        return [] if panel.has_runs() else ["no runs"]
    if not panel.has_values():
        return [panel.void]
    return [bar.void for bar in panel.inset.rows if bar.value is None] if panel.inset else []


def source(recipes: Sequence[AnyRecipe], studies: Sequence[Study]) -> str:
    """At which preset of which study the recipes were measured."""
    shown = set(recipes)
    asking = [study for study in studies if shown & set(study.recipes)]
    presets = list(dict.fromkeys(study.preset for study in asking))
    names = list(dict.fromkeys(study.name for study in asking))
    return f"Measured at preset {' and '.join(presets)} ({', '.join(names)})" if asking else "Preset unknown"


def common(recipes: Sequence[AnyRecipe], shown: Iterable[str] = ()) -> str:
    """What all these recipes share: data, network, length, rate."""
    if not recipes:
        return ""
    silent = {"data_sha256", "optimizer", *shown}
    changed = {name for recipe in recipes for name in recipe.changes()}
    names = ["dataset", "train_size", "model", "width", "norm", "learning_rate", "schedule", "epochs"]
    fields = dict.fromkeys(name for recipe in recipes for name in recipe.settings())
    names += [name for name in fields if name in changed and name not in names]
    same = [
        name
        for name in names
        if name not in silent and len({str(recipe.get(name)) for recipe in recipes}) == 1
    ]
    usual = {"train_size": None, "norm": "batch", "schedule": "cosine"}
    same = [name for name in same if recipes[0].get(name) not in (None, usual.get(name))]
    return ", ".join(phrase(recipes[0], name) for name in same)


def phrase(recipe: AnyRecipe, name: str) -> str:
    """One field of a recipe in words."""
    value = recipe.get(name)
    match name:
        case "epochs":
            return f"{value:,} epoch{'s' if value != 1 else ''}"
        case "train_size":
            return f"{value:,} training examples" if value else "all training examples"
        case "width":
            return f"width {value}"
        case "batch_statistics":
            return f"{value} batch statistics"
        case "test_unused":
            return "tested on unused training examples, too" if value else "tested on the test split alone"
        case _:
            return label(recipe, [name])
