"""Divergence of user code: judged by the loss that selects and by the weights; other gaps are data."""

from __future__ import annotations

import functools
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn, optim

import initmem
from initmem.pipeline.tracker import Tracker
from initmem.store.encoding import decode, encode

pytestmark = pytest.mark.usefixtures("empty_folder")

run = functools.partial(initmem.run, scales=[1.0], seeds=[0], engine="inline", progress=False)


def test_a_gap_in_an_auxiliary_metric_is_data(tmp_path: Path) -> None:
    def train(init, tracker):
        init.scale  # noqa: B018
        for epoch in range(4):
            auc = math.nan if epoch == 1 else math.inf if epoch == 2 else 0.5 + 0.1 * epoch
            tracker.end_epoch(val_loss=1 / (epoch + 1), auc=auc, test_accuracy=0.5 + 0.1 * epoch)

    (record,) = run(train, store=tmp_path).records
    assert (record.status, record.summary.tau_best) == ("completed", 4)
    np.testing.assert_array_equal(record.history["auc"], [0.5, math.nan, math.nan, 0.8])
    assert decode(encode(record)).same_result(record)


def test_a_selected_epoch_without_a_metric_has_none(tmp_path: Path) -> None:
    def train(init, tracker):
        init.scale  # noqa: B018
        for epoch, accuracy in enumerate((0.5, math.nan)):
            tracker.end_epoch(val_loss=1 / (epoch + 1), test_accuracy=accuracy)

    (record,) = run(train, store=tmp_path).records
    assert (record.status, record.summary.test_accuracy, record.metric("test_accuracy")) == (
        "completed",
        None,
        None,
    )


def test_an_infinite_loss_before_the_first_update_does_not_end_a_run(tmp_path: Path) -> None:
    def train(init, tracker):
        model = init.apply(nn.Linear(2, 2))
        optimizer = optim.SGD(model.parameters(), 0.1)
        tracker.attach(model, optimizer, 4)
        for loss in (math.inf, 2.0, 1.0):
            tracker.end_epoch(val_loss=loss)
            optimizer.step()

    (record,) = run(train, store=tmp_path).records
    assert (record.status, record.summary.epochs, record.summary.tau_best) == ("completed", 3, 3)


def test_what_diverged_is_named(tmp_path: Path) -> None:
    def by_loss(init, tracker):
        tracker.end_epoch(val_loss=init.scale, auc=0.5)
        tracker.end_epoch(val_loss=math.nan, auc=0.5)

    def by_weights(init, tracker):
        model = init.apply(nn.Linear(2, 2))
        tracker.attach(model, optim.SGD(model.parameters(), 0.1), 4)
        tracker.end_epoch(val_accuracy=0.5)
        with torch.no_grad():
            model.weight.fill_(math.nan)
        tracker.end_epoch(val_accuracy=0.5)

    for train, name in ((by_loss, "val_loss"), (by_weights, "norm")):
        result = run(train, store=tmp_path / name)
        (record,) = result.records
        assert (record.status, record.summary.epochs) == ("diverged", 1)
        assert record.provenance["diverged"] == f"{name} is not finite in epoch 2"
        assert any(f"1 of 1 runs diverged ({name} is not finite)" in note for note in result.notes)


def test_without_validation_the_training_loss_counts() -> None:
    tracker = Tracker()
    tracker.end_epoch(train_loss=math.nan, val_accuracy=0.1)
    assert tracker.diverged
