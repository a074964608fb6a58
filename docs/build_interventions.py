"""Print, and draw, what docs/interventions-results.md and docs/function.md show of one study.

    python docs/build_interventions.py relax        # from the root of the project; trains nothing
    python docs/build_interventions.py schemes
    python docs/build_interventions.py finetune
    python docs/build_interventions.py function

Differences are paired by seed, with Student's 95% intervals; for schemes the intervals of a recipe hold at
once (Bonferroni). Two results are equivalent if this interval lies within 2 points.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import NamedTuple

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray
from scipy.stats import t as student

from initmem.clocks import family_of
from initmem.intervention import NONE, Intervention
from initmem.labels import labels
from initmem.measures.design import by_recipe, complete, plain
from initmem.measures.elasticity import ClockFit, clock_fits, observed
from initmem.measures.fit import fit
from initmem.measures.function import across, between_scales, between_seeds, disagreements
from initmem.measures.relaxation import NORM, decay_half_life, decay_ticks, differences, relaxations
from initmem.measures.statistics import jackknife
from initmem.plots.styles import COLORS
from initmem.record import RunRecord
from initmem.store.results import collected

Array = NDArray[np.float64]
Groups = Mapping[str, Sequence[RunRecord]]

STYLE = Path(__file__).resolve().parents[1] / "src" / "initmem" / "plots" / "initmem.mplstyle"
FOLDER = Path("docs")
SWEEPS = ("quickstart", "undertrained", "widths", "long-sgd-digits", "batch-norm")  # on digits
EQUAL = 2.0  # points
FEWEST = 5  # seeds that two recipes share
ROW = "{:22}{:14}{:>9}{:>16}{:>11}{:>13}{:>13}"


def groups(*names: str) -> Groups:
    """The records of archives by the label of their recipe."""
    found = by_recipe(collected([FOLDER / "results" / f"{name}.initmem" for name in names]).records)
    return dict(zip(labels(list(found)), found.values(), strict=True))


# -- relax ------------------------------------------------------------------------------------------------


def relax() -> None:
    """Half-lives of norms in epochs, next to two predictions; one panel of curves per recipe."""
    best: dict[str, ClockFit] = {}
    for curve in clock_fits(observed(groups(*SWEEPS))):
        best.setdefault(curve.family, curve)
    found = groups("relax")
    figure, axes = plt.subplots(1, len(found), figsize=(13, 3.4), sharey=True, layout="constrained")
    print(
        ROW.format(
            "recipe", "rescaling", "half-life", "95% interval", "explained", "decay alone", "clock curve"
        )
    )
    for panel, (label, records) in zip(axes, found.items(), strict=True):
        for level in sorted(levels(records), key=lambda text: (epoch_of(text), text)):
            one = next(one for one in relaxations(records, level, NORM) if one.unit == "epochs")
            value, low, high = one.half_life
            beyond = f"> {one.span:.0f}"
            interval = f"{shown(low, beyond)} to {shown(high, beyond)}" if one.has_effect else ""
            half = shown(value, beyond) if one.has_effect else "no effect"
            explained = f"{max(one.explained, 0):.0%}" if one.has_effect else ""
            print(ROW.format(label, level, half, interval, explained, *predictions(records, level, best)))
            draw(panel, records, level)
        expected(panel, records)
        panel.axhline(0, color="0.6", lw=0.8)
        panel.set(xlabel="epochs since the rescaling", title=label)
    axes[0].set(ylabel="log2 of the norm ratio", ylim=(-1.4, 1.4))
    axes[0].legend(frameon=False, fontsize=8)
    save(figure, "relax")


def epoch_of(level: str) -> int:
    """After which epoch it takes place."""
    return Intervention.parse(level).epoch


def shown(value: float | None, otherwise: str) -> str:
    """Epochs, rounded."""
    return otherwise if value is None else f"{value:.2g}" if value < 10 else f"{value:.0f}"


def predictions(records: Sequence[RunRecord], level: str, best: Mapping[str, ClockFit]) -> tuple[str, str]:
    """Half-lives of decay alone, and from the curve of elasticities: where its clock halves them."""
    touched = next(record for record in records if record.run.intervention == level)
    start, epochs = epoch_of(level), len(touched.history[NORM])
    time = np.arange(1.0, epochs - start + 1)
    ticks = decay_ticks(touched)
    alone = decay_half_life(ticks[start - 1 :], time) if len(ticks) else None
    curve = best[family_of(touched.run.recipe) or ""]
    name = "sgd" if curve.clock == "momentum" else curve.clock  # the same without momentum
    passed = touched.history[f"clock_{name}"][start:] - touched.history[f"clock_{name}"][start - 1]
    halved = float(np.interp(curve.half, passed, time)) if passed[-1] >= curve.half else None
    return shown(alone, "" if not len(ticks) else f"> {time[-1]:.0f}"), shown(halved, f"> {time[-1]:.0f}")


def draw(axes: Axes, records: Sequence[RunRecord], level: str) -> None:
    """The mean over seeds with its 95% band."""
    values = differences(records, level, NORM)[0] / math.log(2)
    middle, half = values.mean(axis=0), half_width(values)
    color = COLORS[(5, 20, 80).index(epoch_of(level))]
    time = np.arange(1, len(middle) + 1)
    name = f"after epoch {epoch_of(level)}" if level.startswith("scale=2") else None
    axes.plot(time, middle, color=color, label=name, lw=1.2)
    axes.fill_between(time, middle - half, middle + half, color=color, alpha=0.15, lw=0)


def expected(axes: Axes, records: Sequence[RunRecord]) -> None:
    """What decay alone leaves of a factor of 2."""
    ticks = decay_ticks(records[0])
    if len(ticks):
        left = np.exp(-2 * (ticks - ticks[0]))
        for sign in (1, -1):
            axes.plot(np.arange(1, len(left) + 1), sign * left, color="0.3", ls=":", lw=1.2)


# -- schemes and warm starts ------------------------------------------------------------------------------


class Difference(NamedTuple):
    """A paired difference to the untouched runs, with its interval."""

    value: float
    low: float
    high: float
    n: int

    def __str__(self) -> str:
        return f"{self.value:+.1f} [{self.low:+.1f}, {self.high:+.1f}]"

    @property
    def verdict(self) -> str:
        """In words, for points."""
        if self.low > 0 or self.high < 0:
            return "higher" if self.value > 0 else "lower"
        return "equivalent" if max(-self.low, self.high) <= EQUAL else "inconclusive"


def half_width(values: Array, tests: int = 1) -> Array:
    """Of Student's interval for the mean over seeds, (seed, ...), simultaneous for some tests."""
    n = len(values)
    return np.asarray(student.ppf(1 - 0.025 / tests, n - 1) * values.std(axis=0, ddof=1) / math.sqrt(n))


def paired(values: Array, tests: int = 1) -> Difference:
    """The mean of differences by seed."""
    half = float(half_width(values, tests))
    return Difference(
        float(values.mean()), float(values.mean()) - half, float(values.mean()) + half, len(values)
    )


def column(records: Sequence[RunRecord], level: str, metric: str) -> Array:
    """Values by seed, in points."""
    runs = sorted((r for r in records if r.run.intervention == level), key=lambda r: r.run.seed)
    return np.array([100 * float(r.metric(metric) or math.nan) for r in runs])


def levels(records: Sequence[RunRecord]) -> list[str]:
    """All interventions but `none`."""
    return sorted({r.run.intervention for r in records} - {NONE})


def to_none(records: Sequence[RunRecord], level: str, metric: str, tests: int = 1) -> Difference:
    """How far a metric is from the untouched runs, in points."""
    return paired(column(records, level, metric) - column(records, NONE, metric), tests)


def time_to(records: Sequence[RunRecord], level: str, share: float) -> Array:
    """Log epochs to a train accuracy, by seed."""
    runs = sorted((r for r in records if r.run.intervention == level), key=lambda r: r.run.seed)
    reached = [np.flatnonzero(r.history["train_accuracy"] >= share) for r in runs]
    return np.log([1.0 + one[0] if len(one) else math.nan for one in reached])


def schemes() -> None:
    """Test accuracy and time to fit of every scheme, against the usual initialization."""
    found = groups("schemes")
    figure, axes = plt.subplots(2, len(found), figsize=(12.5, 4.2), layout="constrained", sharey="col")
    for i, (label, records) in enumerate(found.items()):
        tried = levels(records)
        judged = fit(records)
        assert judged is not None and judged.time is not None
        level = judged.time.level
        base = column(records, NONE, "test_accuracy")
        print(f"{label}: test accuracy {base.mean():.1f}%, {len(base)} seeds")
        results, times = [], []
        for scheme in tried:
            results.append(to_none(records, scheme, "test_accuracy", len(tried)))
            logs = paired(time_to(records, scheme, level) - time_to(records, NONE, level), len(tried))
            times.append(Difference(math.exp(logs.value), math.exp(logs.low), math.exp(logs.high), logs.n))
            low, high = times[-1].low, times[-1].high
            speed = "slower" if low > 1 else "faster" if high < 1 else "no clear difference"
            print(
                f"  {scheme:16} {results[-1]!s:>20} pp, {results[-1].verdict:12}  epochs to {100 * level:g}% "
                f"train accuracy times {times[-1].value:.2f} [{low:.2f}, {high:.2f}], {speed}"
            )
        intervals(axes[0, i], tried, results, 0.0)
        axes[0, i].axvspan(-EQUAL, EQUAL, color="0.9", zorder=0)
        recipe = records[0].run.recipe
        axes[0, i].set(xlabel="test accuracy, difference (pp)", title=f"{recipe.optimizer} {recipe.model}")
        intervals(axes[1, i], tried, times, 1.0)
        axes[1, i].set(xlabel=f"epochs to {100 * level:g}% train accuracy, ratio", xscale="log")
        axes[1, i].set_xticks([0.25, 0.5, 1, 2], ["1/4", "1/2", "1", "2"])
        axes[1, i].set_xticks([], minor=True)
    save(figure, "schemes")


def intervals(axes: Axes, names: Sequence[str], results: Sequence[Difference], none: float) -> None:
    """A line for every result; full where its interval excludes no difference."""
    axes.axvline(none, color="0.5", lw=0.8)
    for i, one in enumerate(results):
        clear = one.low > none or one.high < none
        axes.plot((one.low, one.high), (-i, -i), color=COLORS[0], lw=2)
        axes.plot(one.value, -i, "o", color=COLORS[0], mfc=COLORS[0] if clear else "white", ms=6)
    axes.set_yticks([-i for i in range(len(names))], names)
    axes.set_ylim(0.6 - len(names), 0.6)


def finetune() -> None:
    """Warm starts against training from the initialization: the selected model, and the last epoch."""
    found = groups("finetune")
    figure, axes = plt.subplots(1, len(found), figsize=(4 * len(found), 3.2), layout="constrained")
    metrics = {"test_accuracy": "selected model, test", "val_accuracy_last": "last epoch, validation"}
    for panel, (label, records) in zip(np.atleast_1d(axes), found.items(), strict=True):
        names, results = [], []
        print(f"{label}, {len(column(records, NONE, 'test_accuracy'))} seeds")
        for metric, title in metrics.items():
            base = column(records, NONE, metric).mean()
            print(f"  {title}: {base:.1f}% from the initialization")
            for level in levels(records):
                results.append(to_none(records, level, metric))
                names.append(f"{level}, {title.partition(',')[0]}")
                print(f"    {level:9} {results[-1]!s:>20} pp, {results[-1].verdict}")
        lasts = {level: column(records, level, "train_accuracy_last") for level in [NONE, *levels(records)]}
        trained = ", ".join(f"{level} {values.mean():.1f}%" for level, values in lasts.items())
        print(f"  train accuracy in the last epoch: {trained}")
        intervals(panel, names, results, 0.0)
        recipe = records[0].run.recipe
        title = f"{recipe.optimizer} {recipe.model}, {recipe.train_size:,} images"
        panel.set(xlabel="accuracy, difference to none (pp)", title=title)
    save(figure, "finetune")


# -- function ---------------------------------------------------------------------------------------------


def function() -> None:
    """How two recipes differ in their memory of accuracy and of function, over the seeds they share."""
    found = groups("main-grid-fit")
    for (one, before), (other, after) in combinations(found.items(), 2):
        runs = [{row[0].run.seed: row for row in complete(plain(group))} for group in (before, after)]
        shared = sorted(runs[0].keys() & runs[1].keys())
        if len(shared) < FEWEST:
            continue
        rows = [[of_seed[seed] for seed in shared] for of_seed in runs]
        print(f"{other} minus {one}, {len(shared)} seeds:")
        accuracy = [np.array([[r.metric("test_accuracy") for r in row] for row in group]) for group in rows]
        apart = [
            disagreements(np.array([[r.arrays["predictions"].ravel() for r in row] for row in group]))
            for group in rows
        ]
        print(f"  accuracy memory          {change(accuracy, range_of_means)} pp")
        print(f"  disagreement of scales   {change(apart, between_scales)} pp")
        print(f"  disagreement of seeds    {change(apart, between_seeds)} pp")
        print(f"  effect of the scale      {change(apart, lambda a: across(a) - between_seeds(a))} pp")


def change(pair: Sequence[Array], estimate: Callable[[Array], float]) -> Difference:
    """The difference of two estimates in points, with the jackknife's interval over seeds."""
    one, other = pair
    n = len(one)

    def of(kept: NDArray[np.intp]) -> float:
        parts = [array[kept][:, :, kept] if array.ndim == 4 else array[kept] for array in (other, one)]
        return 100 * (estimate(parts[0]) - estimate(parts[1]))

    value, low, high = jackknife(of, n)
    assert value is not None and low is not None and high is not None
    return Difference(value, low, high, n)


def range_of_means(values: Array) -> float:
    """The memory from values of shape (seed, scale)."""
    return float(np.ptp(values.mean(axis=0)))


def save(figure: Figure, name: str) -> None:
    """Write a picture that is the same each time."""
    figure.savefig(FOLDER / "images" / f"{name}.png", dpi=110, metadata={"Software": None})
    plt.close(figure)


STUDIES = {"relax": relax, "schemes": schemes, "finetune": finetune, "function": function}

if __name__ == "__main__":
    with plt.style.context(STYLE):
        STUDIES[sys.argv[1]]()
