"""Whether the seeds of user code saw the data in different orders."""

from __future__ import annotations

import functools
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn, optim

import initmem

run = functools.partial(
    initmem.run,
    scales=(0.5, 1.0),
    seeds=range(3),
    engine="inline",
    workdir="shared",
    progress=False,
    name="order",
)
SAME, FULL = "every seed saw the data in the same order", "every update used the same batch"


def train(order: str, init: initmem.Init, tracker: initmem.Tracker) -> None:
    x = torch.linspace(-1, 1, 24).reshape(12, 2)
    model = init.apply(nn.Linear(2, 2))
    optimizer = optim.SGD(model.parameters(), 0.1)
    tracker.attach(model, optimizer, batch_size=4)
    with torch.no_grad():
        model(x)  # an evaluation is no training batch
    generator = torch.Generator().manual_seed(42) if order == "fixed" else None
    for epoch in range(3):
        index = torch.arange(12) if order == "full" else torch.randperm(12, generator=generator)
        for batch in index.split(12 if order == "full" else 4):
            model(x[batch]).square().mean().backward()
            optimizer.step()
        tracker.end_epoch(val_loss=1 / (epoch + 1))


@pytest.mark.parametrize(("order", "words"), [("seeded", None), ("fixed", SAME), ("full", FULL)])
def test_the_order_of_the_data_is_compared_over_seeds(order: str, words: str | None, tmp_path: Path) -> None:
    result = run(functools.partial(train, order), store=tmp_path)
    notes = [note for note in result.memory().notes if SAME in note or FULL in note]
    assert [note.partition(":")[0].partition(" (")[0] for note in notes] == ([words] if words else [])
    assert all(len(record.provenance["order"]) == 2 for record in result.records)


def test_one_seed_tells_nothing_about_orders(tmp_path: Path) -> None:
    result = run(functools.partial(train, "fixed"), store=tmp_path, seeds=[0])
    assert not [note for note in result.memory().notes if SAME in note]


def test_the_hook_leaves_the_model_after_two_batches() -> None:
    model, tracker = nn.Linear(2, 2), initmem.Tracker()
    tracker.attach(model, optim.SGD(model.parameters(), 0.1), 4)
    assert len(model._forward_hooks) == 1
    for _ in range(2):
        model(torch.ones(1, 2))
    assert not model._forward_hooks


def test_inputs_without_plain_values_do_no_harm() -> None:
    model, tracker = nn.Linear(2, 2), initmem.Tracker()
    tracker.attach(model, optim.SGD(model.parameters(), 0.1), 4)
    assert torch.func.vmap(model)(torch.ones(3, 2)).shape == (3, 2)
    assert "order" not in tracker.about()


def test_batches_of_which_nothing_is_seen_are_not_the_same() -> None:
    class Graph(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(2, 2)

        def forward(self, batch: SimpleNamespace) -> torch.Tensor:
            return self.fc(batch.x)

    model, tracker = Graph(), initmem.Tracker()
    tracker.attach(model, optim.SGD(model.parameters(), 0.1), 4)
    for _ in range(2):
        model(SimpleNamespace(x=torch.rand(3, 2)))
    assert "order" not in tracker.about()
