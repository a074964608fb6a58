"""Memory against the best accuracy: a planted relation, a negative control, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import spearmanr

import planted
from initmem.errors import ConfigError
from initmem.measures.memory import memory_table
from initmem.measures.tradeoff import rank_correlation, tradeoffs
from initmem.paper import figures
from initmem.plots.model import Plot
from initmem.plots.styles import OPTIMIZERS
from initmem.record import RunRecord
from initmem.store.results import write_archive
from initmem.study import Study

BATCHES = (8, 16, 32, 64, 128, 256)


def study(batches: tuple[int, ...] = BATCHES, **fields: object) -> Study:
    axes = {"optimizer": ["sgd", "adam"], "batch_size": list(batches)}
    axes |= {name: [value] for name, value in fields.items()}
    return planted.study("mine", planted.grid(**axes), scales=(0.1, 1.0, 2.5))


def with_relation(made: Study, best: list[float], memory: list[float]) -> list[RunRecord]:
    """A record per run: a recipe reaches `best` at scale 0.1, and `memory` less at 2.5."""
    records = []
    for recipe, top, size in zip(made.recipes, best, memory, strict=True):
        for run in made.runs(recipe):
            noise = (run.seed + made.scales.index(run.scale)) % 3 - 1  # of mean zero over the three seeds
            value = top - size * (run.scale - 0.1) / 2.4 + 0.002 * noise
            one = planted.record(run)
            records.append(replace(one, summary=replace(one.summary, test_accuracy=value)))
    return records


def drawn(records: list[RunRecord], *studies: Study) -> Plot:
    return figures.plot_of("tradeoff", records, list(studies))


def test_a_planted_relation_is_found_and_a_shuffled_one_is_not() -> None:
    made, n = study(), 2 * len(BATCHES)
    memory = np.linspace(0.02, 0.3, n)
    erasers_generalize = with_relation(made, list(0.95 - 0.5 * memory), list(memory))
    plot = drawn(erasers_generalize, made)
    (panel,) = plot.panels
    assert plot.notes == [f"cifar10: rank correlation -1.00 [-1.00, -0.98], {n} recipes"]
    assert panel.texts[0].text == "rank correlation\n-1.00 [-1.00, -0.98]"
    for one, size in zip(panel.series, memory, strict=True):
        assert one.x == [pytest.approx(100 * (0.95 - 0.5 * size))]
        assert one.y == [pytest.approx(100 * size)]
        assert one.low[0] < one.y[0] < one.high[0]
        assert one.style.color == OPTIMIZERS[one.label.split()[0]].color
    order = np.random.default_rng(1).permutation(n)
    unrelated = with_relation(made, list(0.95 - 0.5 * memory[order]), list(memory))
    rows = memory_table(unrelated)
    (found,), few = tradeoffs(rows, {r.id: r for r in made.recipes})
    assert few == []
    assert found.correlation.low < 0 < found.correlation.high
    assert found.correlation.value == pytest.approx(spearmanr(memory, -memory[order]).statistic)


def test_only_recipes_of_the_same_data_are_compared() -> None:
    """Memory falls with accuracy within each dataset; pooled, it would rise."""
    large, small = study(BATCHES[:3]), study(BATCHES[:3], train_size=1000)
    memory = np.linspace(0.02, 0.1, 6)
    records = with_relation(large, list(0.9 - memory), list(0.2 + memory))
    records += with_relation(small, list(0.5 - memory), list(memory))
    plot = drawn(records, large, small)
    assert [panel.title for panel in plot.panels] == ["cifar10", "cifar10, 1,000 training examples"]
    assert [note.split(": ")[1].split(" [")[0] for note in plot.notes] == ["rank correlation -1.00"] * 2


def test_fewer_than_four_recipes_are_refused() -> None:
    made = study((16,))
    with pytest.raises(ConfigError, match=r"too few recipes with a memory \(cifar10: 2 recipes \(needed"):
        drawn(with_relation(made, [0.9, 0.8], [0.1, 0.2]), made)


def test_several_archives_make_one_figure(tmp_path: Path, command) -> None:
    paths = []
    for i, batches in enumerate((BATCHES[:2], BATCHES[2:4])):
        made = study(batches)
        memory = 0.05 * (1 + i) + 0.01 * np.arange(4)
        records = with_relation(made, list(0.9 - memory), list(memory))
        paths.append(tmp_path / f"{i}.initmem")
        write_archive(paths[-1], [made], records)
    code, text, complaint = command("figure", "tradeoff", *paths, "-o", tmp_path / "t.svg", "--json")
    assert code == 0, complaint
    (row,) = json.loads(text)["rows"]
    assert row["notes"] == ["cifar10: rank correlation -1.00 [-1.00, -0.90], 8 recipes"]
    assert len(row["series"]) == 8
    assert {"panel", "label", "x", "y", "low", "high", "n"} == row["series"][0].keys()
    assert (tmp_path / "t.svg").stat().st_size > 10_000


def test_the_interval_of_a_rank_correlation_covers_the_truth() -> None:
    """Of normal pairs the true value is known; a wrong one is left out."""
    rng = np.random.default_rng(0)
    for n, rho in ((4, 0.0), (8, 0.5), (12, 0.9)):
        truth = 6 / np.pi * np.arcsin(rho / 2)
        hits = wrong = 0
        for _ in range(400):
            x, noise = rng.normal(size=(2, n))
            _, low, high = rank_correlation(x, rho * x + np.sqrt(1 - rho**2) * noise)
            hits += low <= truth <= high
            wrong += low <= -0.9 <= high
        assert hits / 400 >= 0.95 - 3 * np.sqrt(0.05 * 0.95 / 400)
        assert n == 4 or wrong / 400 < 0.2
    assert np.isnan(rank_correlation([1, 1, 1, 1], [1, 2, 3, 4]).value)
