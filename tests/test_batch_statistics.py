"""Batch norm evaluated with statistics re-estimated after every epoch, instead of moving averages."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from initmem.data.sources import load, sizes
from initmem.errors import ConfigError
from initmem.recipe import Recipe
from initmem.study import Run
from initmem.train.loop import STATISTICS_BATCHES, train_epoch, train_pack
from initmem.train.pack import Pack

DIGITS = {"dataset": "digits", "width": 4, "batch_size": 16, "epochs": 2}
TRAINED = ("train_cross_entropy", "train_accuracy", "norm", "clock_angular")


def recipe(**fields: object) -> Recipe:
    return Recipe.parse({**DIGITS, "batch_statistics": "re-estimated", **fields})


def test_training_is_the_same_bit_by_bit_and_only_evaluation_differs() -> None:
    moving, again = (
        train_pack([Run(recipe(batch_statistics=kind), scale, 0) for scale in (0.1, 1.0)], load(recipe()))
        for kind in ("moving", "re-estimated")
    )
    for one, other in zip(moving, again, strict=True):
        for name in TRAINED:
            assert np.array_equal(one.history[name], other.history[name])
        assert not np.array_equal(one.history["val_accuracy"], other.history["val_accuracy"])


def test_a_small_scale_is_not_at_chance_after_its_first_epochs() -> None:
    moving, again = (
        train_pack([Run(recipe(batch_statistics=kind, optimizer="adam"), 0.1, 0)], load(recipe()))[0]
        for kind in ("moving", "re-estimated")
    )
    assert moving.history["val_accuracy"][-1] < 0.2  # the starting value of the moving variance
    assert again.history["val_accuracy"][-1] > 0.85


def test_the_statistics_are_the_means_over_the_first_batches_of_the_epoch() -> None:
    """A second way to compute them: the inputs of each norm, seen by a hook, batch by batch."""
    own = recipe(model="mlp", width=8, train_size=100)
    pack = Pack([Run(own, 1.0, 0)], load(own), dtype=torch.float64)
    train_epoch(pack)
    estimated = {name: value.clone() for name, value in pack.network.state_dict().items()}
    for name in ("norm1", "norm2"):
        seen: list[torch.Tensor] = []
        norm = getattr(pack.network, name)
        handle = norm.register_forward_pre_hook(lambda _, inputs, seen=seen: seen.append(inputs[0]))
        pack.network.train()
        with torch.no_grad():
            for batch in pack.order(1).split(16)[:STATISTICS_BATCHES]:
                pack.network(pack.train.packed(batch)[0])
        handle.remove()
        weights = torch.tensor([len(batch) / 100 for batch in seen], dtype=torch.float64)[:, None]
        means = torch.stack([batch.mean(0) for batch in seen])
        variances = torch.stack([batch.var(0, correction=0) for batch in seen])
        expected = (means * weights).sum(0), (variances * weights).sum(0)
        assert torch.allclose(estimated[f"{name}.moving_mean"], expected[0], atol=1e-10)
        assert torch.allclose(estimated[f"{name}.moving_variance"], expected[1], rtol=1e-8)


def test_a_replica_of_a_pack_has_the_statistics_it_has_alone() -> None:
    own = recipe(width=3, train_size=60, val_size=50)
    runs = [Run(own, scale, seed) for seed, scale in enumerate((0.1, 1.0, 2.5))]
    packed = train_pack(runs, load(own), dtype=torch.float64)
    for run, record in zip(runs, packed, strict=True):
        (alone,) = train_pack([run], load(own), dtype=torch.float64)
        assert record.history["val_cross_entropy"] == pytest.approx(
            alone.history["val_cross_entropy"], rel=1e-8
        )
        assert record.summary.test_accuracy == alone.summary.test_accuracy


def test_a_module_brings_its_own_layers() -> None:
    with pytest.raises(ConfigError, match="batch_statistics = 're-estimated' with model = 'vit'"):
        recipe(model="vit")


def test_unused_training_examples_join_the_test_examples() -> None:
    whole, part = load(Recipe.parse(DIGITS)), load(recipe(train_size=200, test_unused=True))
    assert (len(part.train), len(part.test)) == (200, 360 + 878)
    assert np.array_equal(part.test.x[:360], whole.test.x)
    assert np.array_equal(part.test.x[360:], whole.train.x[200:])
    assert np.array_equal(part.test.y[360:], whole.train.y[200:])
    assert sizes(recipe(train_size=200, test_unused=True)) == part.sizes
