from __future__ import annotations

import itertools
import time

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from initmem import catalog
from initmem.data.dataset import Sizes
from initmem.data.sources import load, sizes
from initmem.engines.plan import (
    _makespan,
    pack_seconds,
    plan,
    record_bytes,
    run_flops,
)
from initmem.errors import duration as in_words
from initmem.recipe import Recipe
from initmem.store.encoding import encode
from initmem.study import Run
from initmem.study_file import load_study
from initmem.train import loop, native
from initmem.train.networks import build
from initmem.train.pack import EVALUATION_PIXELS
from initmem.train.requirements import flops_per_image


@pytest.mark.parametrize("model", catalog.PACKED)
def test_operations_are_those_that_torch_counts(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    side = 16
    monkeypatch.setattr(native, "library", lambda: None)  # what C does, PyTorch cannot count
    recipe = Recipe.parse({"model": model, "width": 6})
    shape = Sizes(1, 1, 1, 3, side, side, 10)
    network = build(recipe, shape)
    x = torch.zeros(2, 3, side, side)
    with FlopCounterMode(display=False) as counter:
        logits = network(x)
    forward = counter.get_total_flops()
    with FlopCounterMode(display=False) as counter:
        logits.sum().backward()
    count = flops_per_image(recipe, shape)
    assert 2 * count.forward == forward
    assert 2 * count.training == forward + counter.get_total_flops()


@pytest.mark.usefixtures("untimed")
def test_the_main_grid_is_6250_runs() -> None:
    _, found = plan(load_study("main-grid", "paper"), workers=2)
    assert (found["runs"], found["cells"], found["recipes"]) == (6250, 625, 25)
    by_hand = 0
    for recipe in load_study("main-grid", "paper").recipes:
        by_hand += 250 * 300 * -(-40_000 // recipe.batch_size)
    assert found["updates"] == by_hand


def test_a_run_is_training_validation_and_one_test(tiny: Recipe) -> None:
    shape = sizes(tiny)
    count = flops_per_image(tiny, shape)
    expected = 3 * (60 * count.training + 20 * count.forward) + 20 * count.forward
    assert run_flops(tiny, shape) == expected


def test_a_planned_pack_takes_about_as_long_as_a_trained_one() -> None:
    """In processor time, which the load of others changes least."""
    from initmem.data.sources import load
    from initmem.train.loop import train_pack

    recipe = Recipe.parse({"dataset": "digits", "width": 4, "batch_size": 32, "epochs": 3})
    expected = pack_seconds(recipe, sizes(recipe), 8)
    data, taken = load(recipe), []
    for _ in range(2):
        started = time.thread_time()
        train_pack([Run(recipe, 1.0, seed) for seed in range(8)], data)
        taken.append(time.thread_time() - started)
    assert min(taken) / 4 < expected < 4 * min(taken)


def test_packs_go_to_the_first_free_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("initmem.engines.plan.cores", lambda: 2)
    times = [5.0, 4.0, 3.0, 2.0]
    assert _makespan(times, 2) == 3 + 7
    assert _makespan(times, 4) == 3 + 2 * 5  # four workers on two cores
    best = min(max(sum(a), 14 - sum(a)) for n in range(5) for a in itertools.combinations((5, 4, 3, 2), n))
    assert best == 7


def test_durations_are_for_people() -> None:
    words = {
        0.2: "under 1 s", 45: "45 s", 600: "10 min", 12_600: "3.5 h", 79_200: "22 h", 1.8e5: "2.1 days",
        3.456e6: "40 days", 61454 * 86400: "168 years",
    }  # fmt: skip
    assert {seconds: in_words(seconds) for seconds in words} == words


def test_disk_is_what_a_record_takes(tiny: Recipe) -> None:
    longer = tiny.model_copy(update={"epochs": 50})
    (record,) = loop.train_pack([Run(longer, 1.0, 0)], load(longer))
    assert record_bytes(longer) == pytest.approx(len(encode(record)), rel=0.2)


def test_planning_evaluates_little_and_times_recipes_of_one_shape_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looked: list[int] = []
    evaluate = loop.evaluate
    monkeypatch.setattr(loop, "evaluate", lambda pack, x: looked.append(len(x)) or evaluate(pack, x))
    first = Recipe.parse({"dataset": "text:64", "model": "gpt", "width": 8, "depth": 1, "epochs": 3})
    once = pack_seconds(first, sizes(first), 2)
    assert max(looked) <= EVALUATION_PIXELS["cpu"] // (64 * 2) < sizes(first).n_val
    so_far = len(looked)
    again = first.replace(learning_rate=0.1, schedule="constant", warmup=5, epochs=6, train_size=6000)
    assert pack_seconds(again, sizes(again), 2) < once  # 2 x the epochs, a tenth of the data
    assert len(looked) == so_far
    pack_seconds(first.replace(optimizer="muon"), sizes(first), 2)
    assert len(looked) > so_far
