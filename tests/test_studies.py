"""Every bundled study really runs, at its smallest preset."""

from __future__ import annotations

from pathlib import Path

import pytest

from initmem.engines.engine import Settings
from initmem.engines.packs import packs
from initmem.engines.worker import Worker
from initmem.recipe import Recipe
from initmem.store.store import Store
from initmem.study_file import bundled, load_study


@pytest.mark.parametrize("name", bundled())
def test_smoke(tmp_path: Path, name: str) -> None:
    study = load_study(name, "smoke")
    store = Store.create(tmp_path / "store")
    Worker(store, Settings()).work(packs(study, workers=1))
    records = store.records()
    assert {record.id for record in records} == {run.id for run in study.all_runs()}
    assert {record.status for record in records} <= {"completed", "diverged"}


def recipes(name: str, preset: str = "paper") -> tuple[Recipe, ...]:
    return load_study(name, preset).recipes


def test_the_papers_studies_are_as_reported() -> None:
    """Axes, epochs and seeds of the original experiments."""
    seeds = (0, 1, 42, 123, 456, 789, 999, 2024, 2025, 2026)
    five = (0.1, 0.5, 1.0, 1.8, 2.5)
    grid = load_study("main-grid", "paper")
    assert grid.scales == tuple(round(0.1 * i, 1) for i in range(1, 26))
    assert grid.seeds == seeds
    assert {r.optimizer for r in grid.recipes} == {"sgd", "momentum", "adam", "adamw", "muon"}
    assert {r.batch_size for r in grid.recipes} == {16, 32, 64, 128, 256}
    assert {(r.epochs, r.schedule, r.learning_rate, r.model) for r in grid.recipes} == {
        (300, "cosine", 1e-3, "resnet9")
    }

    long = load_study("long-sgd", "paper")
    assert {(r.epochs, r.schedule, r.optimizer, r.batch_size) for r in long.recipes} == {
        (5000, "constant", "sgd", 16),
        (5000, "constant", "sgd", 128),
    }
    assert (long.scales, len(long.seeds)) == (five, 1)

    sweep = [r for r in recipes("lr-l2") if r.optimizer == "sgd"]
    assert {(r.learning_rate, r.l2) for r in sweep} == {
        (eta, l2) for eta in (1e-3, 1e-2, 1e-1) for l2 in (0, 1e-3, 5e-3, 1e-2)
    }
    assert {r.batch_size for r in sweep} == {16, 128}
    assert "adam" in {r.optimizer for r in recipes("lr-l2")}

    assert {(r.norm, r.augment) for r in recipes("norm-aug")} == {
        ("batch", "flip-crop"),
        ("layer", "flip-crop"),
        ("batch", "none"),
    }
    norms = load_study("norm-aug", "paper")
    assert {(r.augment, len(norms.seeds_of(r))) for r in norms.recipes} == {("flip-crop", 5), ("none", 10)}
    grid = load_study("main-grid", "paper")
    assert all(set(norms.seeds_of(r)) == set(grid.seeds) for r in norms.recipes if r.augment == "none")
    assert load_study("norm-aug", "lab").more_seeds == ()
    assert load_study("norm-aug", "paper", ["seeds=[0, 1]"]).more_seeds == ()

    best = {(r.optimizer, r.learning_rate, r.l2, r.momentum, r.epochs) for r in recipes("best-recipe")}
    assert best == {("momentum", 0.1, 5e-4, 0.9, 200), ("adam", 1e-3, 0.0, 0.9, 200)}
    assert load_study("best-recipe", "paper").scales == (0.1, 2.5)

    assert {(r.model, r.width, r.patience) for r in recipes("depth")} == {
        ("resnet9-avgpool", 64, None),
        ("resnet56", 16, 30),
        ("resnet110", 16, 30),
    }
    assert len(load_study("depth", "paper").all_runs()) == 3 * 5 * 2 * 5 * 10


@pytest.mark.parametrize("name", ["quickstart", "chaos", "relax"])
def test_the_sizes_that_a_run_announces_add_up(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from initmem.cli.run import introduce

    introduce(load_study(name, preset="smoke"), tmp_path)
    sizes_, _, rest = capsys.readouterr().err.splitlines()[1].partition(" = ")
    grid, _, further = sizes_.partition(" + ")
    numbers = [int(part.split()[0]) for part in grid.split(" x ")]
    total = numbers[0] * numbers[1] * numbers[2] + int(further.split()[0] if further else 0)
    assert total == int(rest.split()[0])


def test_more_seeds_for_some_recipes_are_announced(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from initmem.cli.run import introduce

    file = tmp_path / "mine.toml"
    file.write_text(
        'name = "mine"\nscales = [0.1, 2.5]\nseeds = [0, 1]\n[[grid]]\nlearning_rate = 0.1\n'
        "more_seeds = [2, 3]\n[[grid]]\nlearning_rate = 0.01\n"
    )
    introduce(load_study(str(file)), tmp_path)
    assert "2 recipes x 2 scales x 2 seeds + 4 further runs (more seeds) = 12 runs" in capsys.readouterr().err
