"""The design behind an answer: which records, by seed and by scale, which of their metrics, at which level.

More than one look at the same study. A test at 5% after five seeds, again after ten, and so on, reports a
memory that is not there in far more than 5% of all studies. With a schedule that is fixed beforehand every
look gets a share of the level, by the spending function of Lan and DeMets that resembles Pocock's design:
alpha log(1 + (e - 1) t) at the share t of the largest number of seeds. A look is tested at exactly what it
spends, so that the sum bounds the error whatever the dependence between looks. Unplanned looks come on top:
each has half the level of the one before, and the verdict says what all of them have spent.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from initmem.errors import ConfigError
from initmem.measures.statistics import ALPHA
from initmem.recipe import AnyRecipe, PipelineRecipe, Recipe, labels
from initmem.store.record import COLUMNS, RENAMED, SHARPNESS, SUMMARY_FIELDS, RunRecord
from initmem.study import Study

Array = NDArray[np.float64]

# The names with a meaning: those of bundled networks, and the losses of user code, which defines them.
METRICS = tuple(dict.fromkeys([*SUMMARY_FIELDS, *COLUMNS, *SHARPNESS, "train_loss", "val_loss"]))
# In order of preference; the epochs of a curve need a metric that is recorded in each.
CURVES = tuple(
    f"{split}_{name}"
    for split in ("val", "test", "train")
    for name in ("accuracy", "loss", "objective", "cross_entropy")
)
DERIVED = ("clock_", "group", "seconds", "learning_rate", "norm", "epoch")


def by_recipe(
    records: Iterable[RunRecord], order: Sequence[AnyRecipe] = ()
) -> dict[AnyRecipe, list[RunRecord]]:
    """Group records: recipes in the given order, each once, then as they first appear."""
    groups: dict[AnyRecipe, list[RunRecord]] = {recipe: [] for recipe in order}
    for record in records:
        groups.setdefault(record.run.recipe, []).append(record)
    return {recipe: group for recipe, group in groups.items() if group}


def labelled(records: Iterable[RunRecord], order: Sequence[AnyRecipe] = ()) -> dict[str, list[RunRecord]]:
    """The same groups by label. Recipes without a record count as well: labels stay as a store fills up."""
    groups = by_recipe(records, order)
    every = list(dict.fromkeys([*order, *groups]))
    names = dict(zip(every, labels(every), strict=True))
    return {names[recipe]: group for recipe, group in groups.items()}


def plain(records: Sequence[RunRecord]) -> list[RunRecord]:
    """The runs of the main design: not perturbed, and with the pins that most of them share.

    A study may hold perturbed replicates and runs that vary one seed role at a time; they serve other
    measures and would count some seeds twice here.
    """
    unperturbed = [record for record in records if record.run.perturbation == 1.0]
    if not unperturbed:
        return []
    counts = Counter(record.run.pins for record in unperturbed)
    usual = min(counts, key=lambda pins: (-counts[pins], len(pins)))
    return [record for record in unperturbed if record.run.pins == usual]


def bundled(records: Sequence[RunRecord]) -> list[RunRecord]:
    """The runs of bundled networks: of user code only what was declared is known."""
    return [record for record in records if isinstance(record.run.recipe, Recipe)]


def curves(records: Sequence[RunRecord], column: str) -> tuple[Array, Array, Array]:
    """A history column as (values of shape (seed, scale, epoch), scales, seeds); gaps are NaN.

    Runs that stopped early, diverged or are missing leave gaps; nothing is carried forward.
    """
    chosen = [record for record in plain(records) if column in record.history]
    scales = sorted({record.run.scale for record in chosen})
    seeds = sorted({record.run.seed for record in chosen})
    epochs = max((len(record.history[column]) for record in chosen), default=0)
    values = np.full((len(seeds), len(scales), epochs), np.nan)
    scale_at = {scale: i for i, scale in enumerate(scales)}
    seed_at = {seed: i for i, seed in enumerate(seeds)}
    for record in chosen:
        row = record.history[column]
        values[seed_at[record.run.seed], scale_at[record.run.scale], : len(row)] = row
    return values, np.array(scales), np.array(seeds, dtype=float)


class AtScale(NamedTuple):
    """A metric at one scale, over seeds: accuracies in percent, anything else in its own unit."""

    scale: float
    mean: float | None
    deviation: float | None  # None: fewer than two runs
    n: int
    n_failed: int


def by_scale(records: Sequence[RunRecord]) -> dict[float, list[RunRecord]]:
    """Records by initialization scale, in ascending order."""
    groups: dict[float, list[RunRecord]] = {}
    for record in sorted(records, key=lambda record: record.run.scale):
        groups.setdefault(record.run.scale, []).append(record)
    return groups


def scale_means(records: Sequence[RunRecord], metric: str) -> list[AtScale]:
    """Mean and standard deviation of a metric at every scale, smallest scale first."""
    metric = present_name(metric, records)
    factor, _ = unit_of(metric)
    rows = []
    for scale, at in by_scale(plain(records)).items():
        values = factor * np.array([v for record in at if (v := record.metric(metric)) is not None])
        rows.append(
            AtScale(
                scale,
                float(values.mean()) if len(values) else None,
                float(values.std(ddof=1)) if len(values) > 1 else None,
                len(values),
                sum(record.status == "failed" for record in at),
            )
        )
    return rows


def unit_of(metric: str) -> tuple[float, str]:
    """Factor and name of the unit in which a metric is shown."""
    return (100.0, "pp") if "accuracy" in metric or metric == "repair_gap" else (1.0, "")


def own_metrics(records: Sequence[RunRecord]) -> list[str]:
    """What user code recorded under names of its own."""
    recorded = dict.fromkeys(
        name
        for record in records
        if isinstance(record.run.recipe, PipelineRecipe)
        for name in (*record.history, *record.finals)
    )
    return [name for name in recorded if name not in METRICS]


def default_metric(records: Sequence[RunRecord]) -> str:
    """Test accuracy where it is known, else the next best that the records hold."""
    for name in ("test_accuracy", "val_accuracy_best", "test_loss", "val_loss", *own_metrics(records)):
        if any(record.metric(name) is not None for record in records):
            return name
    return "test_accuracy"


def metric_reason(metric: str, records: Sequence[RunRecord]) -> str:
    """Why a metric was chosen, in one line, with what else could be asked for."""
    recorded = [name for name in _recorded(records) if name != metric]
    match metric:
        case "test_accuracy":
            why = "the default"
        case "val_accuracy_best":
            why = "no test accuracy was recorded"
        case "test_loss" | "val_loss":
            why = "no accuracy was recorded"
        case _:
            why = "neither an accuracy nor a loss of test or validation was recorded"
    others = f"; also recorded: {', '.join(recorded)}" if recorded else ""
    return f"metric: {metric} ({why}{others})"


def curve_metrics(records: Sequence[RunRecord]) -> list[str]:
    """The metrics that were recorded epoch by epoch, in order of preference."""
    return preferred(name for record in records for name in record.history)


def preferred(columns: Iterable[str]) -> list[str]:
    """The metrics among the columns of histories, those that are asked for most first."""
    known = dict.fromkeys(columns)
    own = [name for name in known if not name.startswith(DERIVED)]
    return list(dict.fromkeys(name for name in (*CURVES, *own) if name in known))


def curve_metric(records: Sequence[RunRecord]) -> str:
    """The metric whose dependence on the scale is followed over epochs."""
    metrics = curve_metrics(records)
    if not metrics:
        raise ConfigError("no metric was recorded epoch by epoch (tracker.end_epoch records them)")
    return metrics[0]


def _recorded(records: Sequence[RunRecord]) -> list[str]:
    losses = ("test_loss", "test_cross_entropy", "test_objective", "val_loss", "val_cross_entropy")
    names = ["test_accuracy", "val_accuracy", *losses, "val_objective", *own_metrics(records)]
    known = [name for name in names if not name.startswith(DERIVED)]
    return [name for name in known if any(record.metric(name) is not None for record in records)]


def present_name(metric: str, records: Sequence[RunRecord]) -> str:
    """A loss of bundled networks by the name that says which, where it was asked for by its former name."""
    of_networks = all(isinstance(record.run.recipe, Recipe) for record in records)
    return RENAMED.get(metric, metric) if of_networks else metric


# -- looks ------------------------------------------------------------------------------------------------

FIRST_LOOK = 5  # seeds


class Look(NamedTuple):
    """Which look at a recipe this is, from 1, its own level, and the level of all looks so far together."""

    number: int = 1
    alpha: float = ALPHA
    spent: float = ALPHA


def schedule(seeds: int, most: int) -> tuple[int, ...]:
    """Numbers of seeds at which to look: from five, or what is there, doubling up to `most`."""
    looks = [max(seeds, min(FIRST_LOOK, most))]
    while looks[-1] < most:
        looks.append(2 * looks[-1] if 8 * looks[-1] <= 3 * most else most)  # no last step of a few seeds
    return tuple(looks)


def levels(planned: tuple[int, ...]) -> list[float]:
    """The level of each planned look; they add up to ALPHA."""
    spent = [ALPHA * math.log1p((math.e - 1) * n / planned[-1]) for n in planned]
    return [now - before for now, before in zip(spent, [0.0, *spent], strict=False)]


def look_of(study: Study, recipe: AnyRecipe) -> Look:
    """The look that the seeds of a recipe in a study make."""
    planned, unplanned = study.schedule, len(study.looked)
    if not planned:
        return Look(unplanned + 1, ALPHA / 2**unplanned, ALPHA * (2 - 0.5**unplanned))
    seeds = len(study.seeds_of(recipe))
    each = levels(planned)
    made = next((i for i, n in enumerate(planned) if n >= seeds), len(planned) - 1)
    beyond = unplanned + (seeds > planned[-1])
    if beyond:
        return Look(made + 1 + beyond, ALPHA / 2**beyond, ALPHA * (2 - 0.5**beyond))
    return Look(made + 1, each[made], sum(each[: made + 1]))


def looks_of(studies: Iterable[Study], recipes: Iterable[AnyRecipe] = ()) -> dict[AnyRecipe, Look]:
    """The looks at every recipe; of several studies that share one, the one that has spent most counts.

    Of `recipes`, those in no study were in one that was since run with others under the same name. Its looks
    were theirs too, so they get the look that has spent most of all.
    """
    looks: dict[AnyRecipe, Look] = {}
    for study in studies:
        for recipe in study.recipes:
            look = look_of(study, recipe)
            if recipe not in looks or look.spent > looks[recipe].spent:
                looks[recipe] = look
    most = max(looks.values(), key=lambda look: look.spent, default=Look())
    return dict.fromkeys(recipes, most) | looks
