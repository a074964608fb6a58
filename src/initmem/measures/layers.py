"""Layer memory: which layer still has the norm, or the direction, that it started with?

Elasticity and cosine are those of `elasticity`, kernel by kernel, at the selected epoch. The alignment of the
last hidden layer tells lazy training (near 1: its features are those of the initialization) from rich.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np

from initmem.measures.design import Analysis, Groups, Measure, Row, levels_of, plain, unrecorded
from initmem.measures.elasticity import elasticity_of
from initmem.measures.statistics import mean_over_seeds
from initmem.recipe import AnyRecipe
from initmem.record import RunRecord
from initmem.table import RECIPE, Column, number

SAME = 1.001  # ratio of the norms of a seed up to which the scale does not act on a kernel


def kernels_of(records: Sequence[RunRecord]) -> list[str]:
    """The kernels whose norms were recorded, from the first layer to the last."""
    names = dict.fromkeys(name for record in records for name in record.arrays)
    return [name.removeprefix("norm:") for name in names if name.startswith("norm:")]


def at_selected(record: RunRecord, name: str) -> float | None:
    """The value of an array over `layer_epochs` at the selected epoch."""
    epochs, values = record.arrays.get("layer_epochs"), record.arrays.get(name)
    if epochs is None or values is None:
        return None
    (at,) = (epochs == record.summary.tau_best).nonzero()
    return float(values[at[0]]) if len(at) else None


def by_epoch(records: Sequence[RunRecord], name: str) -> dict[int, float]:
    """The mean over runs of an array over `layer_epochs`, at the epochs that most of them have."""
    values: dict[int, list[float]] = {}
    runs = [r.arrays for r in records if name in r.arrays and "layer_epochs" in r.arrays]
    for arrays in runs:
        for epoch, value in zip(arrays["layer_epochs"].tolist(), arrays[name].tolist(), strict=True):
            values.setdefault(epoch, []).append(value)
    return {epoch: float(np.mean(at)) for epoch, at in sorted(values.items()) if 2 * len(at) > len(runs)}


def layer_rows(records: Sequence[RunRecord], alpha: float) -> list[Row]:
    """A row per kernel of one recipe."""
    main = plain(records)
    alignments = [(r.run.seed, value) for r in main if (value := r.metric("alignment")) is not None]
    aligned = mean_over_seeds(alignments, alpha=alpha).named("alignment")
    rows = []
    for kernel in kernels_of(main):
        norms = [
            (r.run.seed, float(r.arrays[f"norm:{kernel}"][0]), end)
            for r in main
            if (end := at_selected(r, f"norm:{kernel}"))
        ]
        drawn = [row for row in norms if row[1] > 0]
        elasticity = elasticity_of(drawn, alpha=alpha) if _is_scaled(drawn) else None
        cosines = [(r, c) for r in main if (c := at_selected(r, f"cosine:{kernel}")) is not None]
        mean = mean_over_seeds([(r.run.seed, c) for r, c in cosines], alpha=alpha)
        levels = levels_of(r for r, _ in cosines)
        ends = [np.mean([c for r, c in cosines if r.run.level == at]) for at in (levels[:1] + levels[-1:])]
        smallest, largest = map(float, ends) if ends else (None, None)
        rows.append(
            {
                "layer": kernel,
                "elasticity": elasticity and elasticity.elasticity,
                "low": elasticity and elasticity.low,
                "high": elasticity and elasticity.high,
                **mean.named("cosine"),
                "cosine_smallest": smallest,
                "cosine_largest": largest,
                **aligned,
                "n_runs": len(norms),
                "n_seeds": len({seed for seed, _, _ in norms}),
            }
        )
    return rows


def _is_scaled(norms: Sequence[tuple[int, float, float]]) -> bool:
    """Whether the initial norm of a seed depends on the scale."""
    by_seed: dict[int, list[float]] = {}
    for seed, start, _ in norms:
        by_seed.setdefault(seed, []).append(start)
    return any(max(starts) > SAME * min(starts) for starts in by_seed.values())


def _layer_rows(groups: Groups, metric: str | None, *, analyses: Mapping[AnyRecipe, Analysis]) -> list[Row]:
    return [
        {"recipe": label} | row
        for label, records in groups.items()
        for row in layer_rows(records, analyses[records[0].run.recipe].alpha)
    ]


def _alignments(rows: Sequence[Row]) -> list[str]:
    """The alignment of every recipe."""
    lines = []
    for row in {row["recipe"]: row for row in rows if row["alignment"] is not None}.values():
        low, high = row["alignment_low"], row["alignment_high"]
        limits = "" if low is None else f" [{low:.2f}, {high:.2f}]"
        value = f"{row['alignment']:.2f}{limits}"
        lines.append(f"{row['recipe']}: alignment of the last hidden layer with its initialization {value}")
    return lines


MEASURES = {
    "layers": Measure(
        "Layers: how norm and direction of the selected weights depend on the initial ones",
        _layer_rows,
        {
            "recipe": RECIPE,
            "layer": Column("layer", "text", "whose weights these are, in the order of the network"),
            "elasticity": number("elasticity", "of the norm; 1: carried over, 0: forgotten", ".3f"),
            ("low", "high"): number("95% interval", "of the elasticity", ".3f", priority=1),
            "cosine": number("cosine", "of the selected to the initial weights, mean over scales", ".3f"),
            ("cosine_low", "cosine_high"): number("cosine: 95% interval", "over seeds", ".3f", priority=3),
            "cosine_smallest": number("at smallest", "cosine at the smallest scale", ".3f", priority=2),
            "cosine_largest": number("at largest", "cosine at the largest scale", ".3f", priority=2),
            "alignment": number("alignment", "of the last hidden layer of the recipe", ".2f", priority=9),
            ("alignment_low", "alignment_high"): number(
                "alignment: 95% interval", "over seeds", ".2f", priority=9
            ),
            "n_runs": number("runs", "number of runs behind the row", priority=5),
            "n_seeds": number("seeds", "number of seeds", priority=6),
        },
        options=("analyses",),
        of_scale=True,
        numeric=True,
        conclusion=_alignments,
        remarks=partial(unrecorded, array="layer_epochs", what="layers"),
    ),
}
