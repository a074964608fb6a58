"""Replicas with learning rates and penalties of their own share a pack."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch

from initmem.catalog import OPTIMIZERS
from initmem.data.sources import load
from initmem.engines.packs import packs
from initmem.engines.plan import plan
from initmem.recipe import Recipe
from initmem.record import COLUMNS
from initmem.study import Run, Study
from initmem.train.loop import train_epoch, train_pack
from initmem.train.pack import Pack

BASE = {
    "dataset": "synthetic:60x1x8x8",
    "model": "mlp",
    "norm": "layer",
    "width": 6,
    "batch_size": 12,
    "epochs": 3,
}
OWN = [
    {"learning_rate": 1e-2, "l2": 0.0, "weight_decay": 0.1},
    {"learning_rate": 3e-4, "l2": 0.02, "weight_decay": 0.0},
    {"learning_rate": 5e-2, "l2": 1e-3, "weight_decay": 0.5},
]


def recipes(**values: object) -> list[Recipe]:
    return [Recipe.parse(BASE | own | values) for own in OWN]


@pytest.mark.parametrize("decay_on", ["all", "kernels"])
@pytest.mark.parametrize("optimizer", [name for name, row in OPTIMIZERS.items() if row.own_rates])
def test_each_replica_follows_the_trajectory_it_follows_alone(optimizer: str, decay_on: str) -> None:
    runs = [
        Run(recipe, scale, seed)
        for seed, (recipe, scale) in enumerate(
            zip(recipes(optimizer=optimizer, decay_on=decay_on, warmup=4), (0.5, 1.0, 2.0), strict=True)
        )
    ]
    data = load(runs[0].recipe)
    packed = train_pack(runs, data, dtype=torch.float64)
    for run, record in zip(runs, packed, strict=True):
        (alone,) = train_pack([run], data, dtype=torch.float64)
        for name in set(COLUMNS) - {"seconds"}:
            np.testing.assert_allclose(record.history[name], alone.history[name], rtol=1e-8, err_msg=name)
        assert record.summary.test_objective == pytest.approx(alone.summary.test_objective, rel=1e-8)


def test_a_small_rate_beside_a_large_one_is_as_exact_as_alone() -> None:
    """In float32: the steps of the small rate are not taken from a rounded difference of weights."""
    rates = (10.0, 1e-6)
    runs = [Run(Recipe.parse(BASE | {"learning_rate": rate, "epochs": 1}), 1.0, 0) for rate in rates]
    for order in (runs, runs[::-1]):
        pack = Pack(order, load(runs[0].recipe))
        before = [p.detach().clone() for p in pack.parameters]
        gradients = [torch.randn_like(p) for p in pack.parameters]
        pack.optimizer.step([g.clone() for g in gradients], order[0].recipe.learning_rate, 1)
        for p, old, gradient in zip(pack.parameters, before, gradients, strict=True):
            for r, run in enumerate(order):
                part = [t.detach().reshape(2, -1)[r] for t in (p, old, gradient)]
                torch.testing.assert_close(part[0], part[1] - run.recipe.learning_rate * part[2])


def test_a_checkpoint_of_a_mixed_pack_resumes_alone() -> None:
    """The state of a replica is the one that it has alone."""
    runs = [Run(recipe, 1.0, 0) for recipe in recipes(optimizer="adam")]
    data = load(runs[0].recipe)
    pack = Pack(runs, data, dtype=torch.float64)
    train_epoch(pack)
    saved = copy.deepcopy(pack.checkpoint())
    while not pack.finished:
        train_epoch(pack)
    for r, run in enumerate(runs):
        alone = Pack([run], data, dtype=torch.float64)
        alone.restore([saved[r]])
        while not alone.finished:
            train_epoch(alone)
        assert alone.history[0]["val_objective"] == pytest.approx(pack.history[r]["val_objective"], rel=1e-8)


@pytest.mark.parametrize("values", [{"optimizer": "momentum"}, {"optimizer": "schedule-free-sgd"}])
def test_other_recipes_do_not_mix(values: dict[str, object]) -> None:
    mixed = recipes(**values)
    with pytest.raises(ValueError, match="must share one recipe"):
        Pack([Run(recipe, 1.0, 0) for recipe in mixed], load(mixed[0]))
    wider = [Recipe.parse(BASE | {"width": width}) for width in (4, 8)]
    with pytest.raises(ValueError, match="must share one recipe"):
        Pack([Run(recipe, 1.0, 0) for recipe in wider], load(wider[0]))


@pytest.mark.usefixtures("untimed")
def test_a_grid_of_rates_fills_packs_and_the_plan_counts_each_recipe() -> None:
    grid = (*recipes(), *recipes(optimizer="momentum"))
    study = Study("mixed", "Mixed", "full", "", grid, (0.5, 1.0), (0,))
    cut = packs(study, size=8, workers=1)
    assert sorted(map(len, cut)) == [2, 2, 2, 6]
    assert {run for pack in cut for run in pack} == set(study.all_runs())
    assert sorted(map(len, packs(study, size=5, workers=1))) == [2, 2, 2, 2, 4]
    rows, _ = plan(study, workers=1)
    assert [row["runs"] for row in rows] == [2] * 6
    assert [row["pack"] for row in rows] == [6, 6, 6, 2, 2, 2]


def test_a_mixed_pack_saved_inside_an_epoch_continues_bit_by_bit() -> None:
    runs = [Run(recipe, 1.0, 0) for recipe in recipes(optimizer="muon")]
    data = load(runs[0].recipe)
    whole, pieces = Pack(runs, data), Pack(runs, data)
    while not whole.finished:
        train_epoch(whole)
    while not pieces.finished:
        train_epoch(pieces, lambda: True)
        saved, pieces = pieces.checkpoint(), Pack(runs, data)
        pieces.restore(saved)
    for one, other in zip(whole.history, pieces.history, strict=True):
        assert {**one, "seconds": []} == {**other, "seconds": []}
