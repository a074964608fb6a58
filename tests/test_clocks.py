from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

import initmem
from initmem.clocks import clocks, epoch_rates, horizon_sums
from initmem.data.sources import load
from initmem.recipe import Recipe
from initmem.study import Run
from initmem.train.loop import train_pack

N = 40_000


@pytest.mark.parametrize(
    ("fields", "clock", "expected"),
    [
        ({"batch_size": 128, "learning_rate": 1e-3}, "sgd", 7.3e-4),
        ({"batch_size": 128, "learning_rate": 1e-3, "epochs": 5000}, "sgd", 1.2e-2),
        ({"batch_size": 16, "learning_rate": 1e-2}, "sgd", 4.7),
        ({"batch_size": 128, "learning_rate": 1e-2, "l2": 1e-3}, "l2", 0.94),
        ({"batch_size": 128, "learning_rate": 1e-2, "l2": 5e-3}, "l2", 4.7),
    ],
)
def test_the_papers_figures(fields, clock: str, expected: float) -> None:
    found = clocks(Recipe(schedule="constant", **fields), N).at_end()[clock]
    assert found == pytest.approx(expected, rel=0.025)


def test_cosine_sums_have_closed_forms() -> None:
    """With c_k = cos(pi k / K): sum c_k = 1 and sum c_k^2 = K / 2 over k < K."""
    recipe = Recipe(learning_rate=0.3, lr_floor=0.05, batch_size=100, epochs=7, l2=0.02)
    k = 7 * math.ceil(1030 / 100)
    level, swing = 0.3 * (1 + 0.05) / 2, 0.3 * (1 - 0.05) / 2
    found = clocks(recipe, 1030).at_end()
    assert found["updates"] == k
    assert found["adaptive"] == pytest.approx(level * k + swing, rel=1e-12)
    square = level**2 * k + 2 * level * swing + swing**2 * k / 2
    assert found["sgd"] == pytest.approx(square / 100, rel=1e-12)
    assert found["l2"] == pytest.approx(0.02 * (level * k + swing), rel=1e-12)


def test_momentum_makes_the_rate_ten_times_itself() -> None:
    plain = clocks(Recipe(optimizer="sgd", epochs=3), N).at_end()
    heavy = clocks(Recipe(optimizer="momentum", epochs=3), N).at_end()
    assert heavy["sgd"] == plain["sgd"]
    assert heavy["momentum"] == pytest.approx(100 * plain["momentum"])


def test_clocks_only_go_forward() -> None:
    found = clocks(Recipe(epochs=20, l2=1e-3), N)
    for column in found:
        assert (np.diff(column) > 0).all()


@pytest.mark.parametrize("schedule", ["cosine", "constant"])
def test_warmup_grows_the_rate_linearly_and_then_leaves_the_schedule_alone(schedule: str) -> None:
    plain = Recipe(learning_rate=0.3, schedule=schedule, batch_size=10, epochs=4)
    warm = plain.replace(warmup=15)  # longer than an epoch of 10 updates
    rates, known = (np.concatenate([epoch_rates(r, 100, e) for e in range(1, 5)]) for r in (warm, plain))
    np.testing.assert_allclose(rates[:15], known[:15] * np.arange(1, 16) / 15, rtol=1e-12)
    np.testing.assert_array_equal(rates[15:], known[15:])
    sums = horizon_sums(warm, 100)
    assert (sums.eta, sums.eta2) == pytest.approx((rates.sum(), (rates**2).sum()), rel=1e-12)
    assert clocks(warm, 100).at_end()["adaptive"] == pytest.approx(rates.sum(), rel=1e-12)


# -- weight decay -------------------------------------------------------------------------------------------

PER_EPOCH, ROUNDS, RATE = 4, 2, 0.01  # updates per epoch, epochs, learning rate


def counted_in_user_code(store: Path, make: Callable[..., Optimizer], l2: float) -> np.ndarray:
    """`clock_l2` of a training loop of the user's own under torch's scheduler: the cosine of the recipes."""

    def train(init: initmem.Init, tracker: initmem.Tracker) -> None:
        model = init.apply(
            nn.Sequential(nn.Linear(6, 5, bias=False), nn.Linear(5, 3, bias=False)), draw="fan-in"
        )
        optimizer = make(model.parameters())
        k = PER_EPOCH * ROUNDS
        cosine = LambdaLR(optimizer, lambda i: 0.01 + 0.99 * (1 + math.cos(math.pi * i / k)) / 2)
        tracker.attach(model, optimizer, batch_size=16, l2=l2)
        for _ in range(ROUNDS):
            for _ in range(PER_EPOCH):
                model(torch.ones(4, 6)).square().sum().backward()
                optimizer.step()
                optimizer.zero_grad()
                cosine.step()
            tracker.end_epoch(val_loss=1.0)

    result = initmem.run(train, [1.0], [0], store, engine="inline", progress=False)
    return result.records[0].history["clock_l2"]


@pytest.mark.parametrize(
    ("fields", "make"),
    [
        ({"optimizer": "adamw"}, torch.optim.AdamW),
        ({"optimizer": "torch:AdamW"}, torch.optim.AdamW),
        ({"optimizer": "adamw", "decay_on": "kernels"}, torch.optim.AdamW),
        ({"optimizer": "torch:Adam"}, torch.optim.Adam),
        ({"optimizer": "torch:SGD"}, torch.optim.SGD),
        ({"optimizer": "momentum"}, partial(torch.optim.SGD, momentum=0.9)),
        ({"optimizer": "muon"}, torch.optim.Muon),
        ({"optimizer": "sgd", "l2": 0.03}, torch.optim.SGD),
    ],
    ids=lambda value: "-".join(map(str, value.values())) if isinstance(value, dict) else "",
)
def test_weight_decay_counts_alike_in_recipes_and_in_user_code(
    fields: dict[str, object], make: Callable[..., Optimizer], tmp_path: Path
) -> None:
    """Coupled or decoupled: half of kappa = sum of eta * weight_decay, next to l2 * sum of eta."""
    size = {"dataset": "digits", "train_size": 16 * PER_EPOCH, "model": "mlp", "width": 4}
    size |= {"batch_size": 16, "epochs": ROUNDS, "learning_rate": RATE, "weight_decay": 0.1}
    recipe = Recipe.parse(size | fields)
    k = np.arange(PER_EPOCH * ROUNDS)
    eta = RATE * (0.01 + 0.99 * (1 + np.cos(np.pi * k / len(k))) / 2)
    kappa = np.cumsum(0.1 * eta)[PER_EPOCH - 1 :: PER_EPOCH]
    expected = kappa / 2 + recipe.l2 * np.cumsum(eta)[PER_EPOCH - 1 :: PER_EPOCH]
    (record,) = train_pack([Run(recipe, 1.0, 0)], load(recipe))
    user = counted_in_user_code(tmp_path, partial(make, lr=RATE, weight_decay=0.1), recipe.l2)
    for found in (record.history["clock_l2"], initmem.clocks(recipe, 16 * PER_EPOCH).l2, user):
        np.testing.assert_allclose(found, expected, rtol=1e-9)
    assert horizon_sums(recipe, 16 * PER_EPOCH).decay == pytest.approx(expected[-1])
