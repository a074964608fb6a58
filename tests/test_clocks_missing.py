"""A clock that was not measured is absent, with the reason; one that was is the same number everywhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn, optim

import initmem
from initmem.errors import ConfigError
from initmem.pipeline.tracker import Tracker

pytestmark = pytest.mark.usefixtures("empty_folder")


class SharpnessAware(optim.Optimizer):
    """Two half steps; nobody calls `step`."""

    def __init__(self, params: Any, lr: float) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def second_step(self) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.mul_(0.9)


class AroundAnother(SharpnessAware):
    """The published kind: its steps are those of a base optimizer."""

    def __init__(self, params: Any, lr: float) -> None:
        super().__init__(params, lr)
        self.base_optimizer = optim.SGD(self.param_groups)
        self.param_groups = self.base_optimizer.param_groups

    def second_step(self) -> None:
        self.base_optimizer.step()


def columns(tracker: Tracker) -> set[str]:
    return {name for name in tracker.history if name.startswith("clock_") or name == "learning_rate"}


def test_steps_that_are_not_seen_leave_no_clock() -> None:
    model, tracker = nn.Linear(2, 2), Tracker()
    optimizer = SharpnessAware(model.parameters(), 0.1)
    tracker.attach(model, optimizer, batch_size=4)
    optimizer.second_step()
    tracker.end_epoch(val_loss=1.0)
    assert columns(tracker) == set()
    (reason,) = tracker.about()["clocks_missing"]
    assert reason.startswith("all clocks: weights changed, but SharpnessAware.step was never called")


def test_the_steps_of_a_base_optimizer_count() -> None:
    model, tracker = nn.Linear(2, 2), Tracker()
    optimizer = AroundAnother(model.parameters(), 0.1)
    tracker.attach(model, optimizer, batch_size=4)
    model(torch.ones(1, 2)).sum().backward()
    optimizer.second_step()
    tracker.end_epoch(val_loss=1.0)
    assert tracker.updates == 1 and tracker.clocks()["sgd"] == pytest.approx(0.1**2 / 4)
    assert "clocks_missing" not in tracker.about()


def test_an_optimizer_that_was_never_attached_leaves_no_clock() -> None:
    model, tracker = nn.Linear(2, 2), Tracker()
    tracker.attach(model, batch_size=4)
    optim.SGD(model.parameters(), 0.1).step()
    tracker.end_epoch(val_loss=1.0)
    assert columns(tracker) == set()
    (reason,) = tracker.about()["clocks_missing"]
    assert "no optimizer was attached, and tracker.step was never called" in reason


def test_without_a_batch_size_clocks_that_divide_by_it_are_absent(tmp_path: Path) -> None:
    def train(init: initmem.Init, tracker: Tracker) -> None:
        model = init.apply(nn.Linear(2, 2))
        optimizer = optim.SGD(model.parameters(), 0.1, weight_decay=0.2)
        tracker.attach(model, optimizer)
        optimizer.step()
        tracker.end_epoch(val_loss=1.0)

    result = initmem.run(train, [0.5, 1.0], [0, 1], tmp_path, engine="inline", progress=False)
    assert set(result.clocks()) == {"l2", "adaptive", "angular"}
    assert result.clocks()["l2"] == pytest.approx(0.1 * 0.2 / 2)
    assert any("clocks not measured: sgd, momentum: no batch_size" in note for note in result.notes)


def test_a_loss_that_is_a_sum_makes_steps_longer() -> None:
    def clocks(optimizer_of: Any, reduction: str) -> dict[str, float]:
        model, tracker = nn.Linear(2, 2), Tracker()
        optimizer = optimizer_of(model.parameters(), 0.1, weight_decay=0.2)
        tracker.attach(model, optimizer, 4, accumulation=2, reduction=reduction)
        optimizer.step()
        return tracker.clocks()

    assert clocks(optim.SGD, "sum")["sgd"] == pytest.approx((8 * 0.1) ** 2 / 8)
    assert clocks(optim.SGD, "sum")["l2"] == clocks(optim.SGD, "mean")["l2"]  # decay is not in the loss
    assert clocks(optim.AdamW, "sum")["adaptive"] == pytest.approx(0.1)  # its steps do not depend on it
    with pytest.raises(ConfigError, match=r"reduction = 'max' \(allowed: mean, sum\)"):
        clocks(optim.SGD, "max")


def test_clocks_are_those_of_the_selected_epoch(tmp_path: Path) -> None:
    def train(init: initmem.Init, tracker: Tracker) -> None:
        model = init.apply(nn.Linear(2, 2))
        optimizer = optim.SGD(model.parameters(), 0.1)
        tracker.attach(model, optimizer, 1)
        for loss in (3.0, 1.0, 2.0):
            optimizer.step()
            tracker.end_epoch(val_loss=loss)

    result = initmem.run(train, [0.5, 1.0], [0, 1], tmp_path, engine="inline", progress=False)
    assert result.clocks()["adaptive"] == pytest.approx(0.2)
    assert [record.metric("clock_adaptive") for record in result.records] == pytest.approx([0.2] * 4)
