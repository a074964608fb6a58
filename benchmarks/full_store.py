"""All measures, figures and tables from a full-size store of planted records: seconds and memory.

    python benchmarks/full_store.py [--studies main-grid,depth] [--out DIR] [--store DIR] [--reference]

The records are made, not trained: every curve is a smooth function of recipe, scale, seed and epoch, shaped
like what such a study finds. They say nothing about real networks. Aim: measures within 10 seconds, figures
within 60, all within 2 GB.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from initmem.clocks import Clocks, clocks
from initmem.measures.measure import MEASURES, measure
from initmem.measures.memory import memory_table
from initmem.paper import figures
from initmem.paper import tables as papertables
from initmem.plots.tables import render
from initmem.recipe import Recipe
from initmem.record import RunRecord, summarize
from initmem.store.store import Store
from initmem.study import Run, Study
from initmem.study_file import load_study

Array = NDArray[np.float64]

STUDIES = ("main-grid", "long-sgd", "lr-l2", "norm-aug", "best-recipe", "depth")
N_TRAIN = 40_000
ADAPTIVE = ("adam", "adamw", "muon", "muon-conv")
GAIN = {"adamw": 0.004, "muon": 0.01, "muon-conv": 0.014}  # so that lines do not lie upon each other
DEPTH = {"resnet9": 0, "resnet9-avgpool": 0, "resnet56": 1, "resnet110": 2, "mlp": 0}
MEASURE_SECONDS, LIMIT_SECONDS, LIMIT_GB = 10.0, 60.0, 2.0


def remaining(recipe: Recipe, time_at: Clocks) -> Array:
    """Share of the initial dependence on scale that is left after each epoch, shape (epoch,)."""
    left = np.exp(-(time_at.momentum / 2.1 + time_at.l2))
    if recipe.optimizer in ADAPTIVE:
        left = left * (1 + time_at.adaptive / 0.49) ** -0.4
    return np.maximum(left, 0.01)


def plant(recipe: Recipe, runs: Sequence[Run]) -> list[RunRecord]:
    """Records of all runs of one recipe; inside, arrays have shape (run, epoch)."""
    time_at = clocks(recipe, min(recipe.train_size or N_TRAIN, N_TRAIN))
    scale = np.array([run.scale for run in runs])[:, None]
    rng = np.random.default_rng([int(recipe.id[:8], 16), len(runs)])
    epoch = np.arange(1, recipe.epochs + 1)[None, :]
    adaptive, deep = recipe.optimizer in ADAPTIVE, DEPTH[recipe.model]
    helped = 0.45 if recipe.augment != "none" else 1.0
    size = helped * (0.22 + 0.02 * np.log2(recipe.batch_size / 16)) * (1 - 0.1 * deep)
    best = (
        0.85
        + GAIN.get(recipe.optimizer, 0.0)
        + 0.02 * adaptive
        + 0.05 * (recipe.augment != "none")
        + 0.03 * (recipe.learning_rate > 5e-3)
    )
    lost = size * remaining(recipe, time_at) * np.clip((scale - 0.1) / 2.4, 0, None) ** 1.2
    # When the labels are fitted: late for plain descent from a large scale, early for the rest.
    slow = 8.0 if adaptive else 5 + (3 + 0.05 * recipe.batch_size) * scale**2 * (1 + deep)
    slow = slow * np.exp(0.08 * rng.standard_normal((len(runs), 1)))
    left = np.exp(-epoch / slow)
    noise = 0.01 * rng.standard_normal((len(runs), 1)) + 0.002 * rng.standard_normal(left.shape)
    val = np.clip((best - 0.06 * deep - lost) * (1 - 0.7 * np.exp(-epoch / (0.6 * slow))) + noise, 0, 1)
    # Adaptive steps in small batches overfit soon: their least validation loss comes before the labels fit.
    soon = 0.3 if adaptive and recipe.batch_size <= 64 else 0.004
    overfit = np.maximum(0, np.log(epoch / (3 * slow)) * soon)
    start = np.full_like(scale, 60.0) * scale
    drift = (1 - remaining(recipe, time_at)) * (95 - start) if adaptive or recipe.l2 else 3 * (1 - left)
    norm = start + drift + np.zeros_like(left)
    train, plain = 2.3 * left + 1e-3, 2.3 * (1 - val) + overfit + 0.3 * left
    columns = {
        "train_cross_entropy": train,
        "train_objective": train + recipe.l2 * norm**2,
        "train_accuracy": np.clip(1 - 0.9 * left - 0.0008 * rng.random(left.shape), 0, 1),
        "val_cross_entropy": plain,
        "val_objective": plain,  # selected as if there were no penalty
        "val_accuracy": val,
        "norm": norm,
    }
    shared = _shared(recipe, time_at)
    return [
        _record(run, {name: values[i] for name, values in columns.items()} | shared, float(start[i, 0]))
        for i, run in enumerate(runs)
    ]


def _shared(recipe: Recipe, time_at: Clocks) -> dict[str, Array]:
    """Columns that all runs of a recipe have in common."""
    ticks = {f"clock_{name}": getattr(time_at, name) for name in ("sgd", "l2", "adaptive", "momentum")}
    per_epoch = np.diff(time_at.adaptive, prepend=0.0) / (time_at.updates[0] or 1)
    seconds = np.full(recipe.epochs, 1.0)
    return ticks | {"clock_angular": time_at.adaptive / 1e4, "learning_rate": per_epoch, "seconds": seconds}


def _record(run: Run, history: dict[str, Array], norm: float) -> RunRecord:
    accuracy = float(history["val_accuracy"][np.argmin(history["val_objective"])])
    summary = summarize(history, norm_init=norm, test_accuracy=accuracy - 0.002)
    return RunRecord(run, "completed", summary, history, {"planted": True})


def planted(studies: Sequence[Study]) -> list[RunRecord]:
    """Records of all runs of several studies, each run once."""
    wanted: dict[Recipe, dict[Run, None]] = {}
    for study in studies:
        for recipe in study.recipes:
            wanted.setdefault(recipe, {}).update(dict.fromkeys(study.runs(recipe)))
    return [record for recipe, runs in wanted.items() for record in plant(recipe, list(runs))]


def timed(label: str, work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    seconds = time.perf_counter() - start
    print(f"  {label:<12} {seconds:6.2f} s")
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--studies", default=",".join(STUDIES))
    parser.add_argument("--out", type=Path, help="keep the figures and tables here")
    parser.add_argument("--ending", default=".pdf", help="of the figures: .pdf, .png or .svg")
    parser.add_argument("--store", type=Path, help="also write the records to a store")
    parser.add_argument("--reference", action="store_true", help="show the published values too")
    asked = parser.parse_args()
    studies = [load_study(name, "paper") for name in asked.studies.split(",")]
    start = time.perf_counter()
    records = planted(studies)
    print(f"{len(records):,} records planted in {time.perf_counter() - start:.1f} s")
    if asked.store:
        store = Store.create(asked.store)
        for study in studies:
            store.add_study(study)
        timed("commit", lambda: [store.commit(records[i : i + 50]) for i in range(0, len(records), 50)])
    measures = [timed("memory", lambda: memory_table(records))]
    measures += [timed(what, lambda what=what: measure(records, what)) for what in MEASURES]
    with tempfile.TemporaryDirectory() as temporary:
        out = asked.out or Path(temporary)
        out.mkdir(parents=True, exist_ok=True)
        spent = [
            timed(
                f"figure {name}",
                lambda name=name: figures.draw(
                    figures.plot_of(name, records, studies, asked.reference),
                    out / f"figure-{name}{asked.ending}",
                ),
            )
            for name in figures.NAMES
        ]
        tables = [
            timed(
                f"table {name}",
                lambda name=name: (out / f"table-{name}.txt").write_text(
                    render(papertables.make(name, records, studies, reference=asked.reference), "txt")
                ),
            )
            for name in papertables.NAMES
        ]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"all measures {sum(measures):.1f} s (aim {MEASURE_SECONDS:.0f})")
    print(f"all figures {sum(spent):.1f} s (aim {LIMIT_SECONDS:.0f}), all tables {sum(tables):.1f} s")
    print(f"peak memory {peak:.2f} GB (aim {LIMIT_GB:.0f})")


if __name__ == "__main__":
    main()
