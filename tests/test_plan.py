from __future__ import annotations

import heapq

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from conftest import fake_record
from initmem.data import sizes
from initmem.engines.plan import accelerator_rate, plan, record_bytes, run_flops, simulate
from initmem.errors import ConfigError
from initmem.recipe import MODELS, Recipe
from initmem.shapes import flops_per_image
from initmem.store.encoding import encode
from initmem.study import Run, Study
from initmem.study_file import load_study
from initmem.train.models import build


@pytest.mark.parametrize("side", [8, 32])
@pytest.mark.parametrize("model", MODELS)
def test_operations_are_those_that_torch_counts(model: str, side: int) -> None:
    recipe = Recipe.parse({"model": model, "width": 6})
    network = build(model, replicas=1, shape=(3, side, side), classes=10, width=6, norm="batch")
    x = torch.zeros(2, 3, side, side)
    with FlopCounterMode(display=False) as counter:
        logits = network(x)
    forward = counter.get_total_flops()
    with FlopCounterMode(display=False) as counter:
        logits.sum().backward()
    count = flops_per_image(recipe, (3, side, side), 10)
    assert 2 * count.forward == forward
    assert 2 * count.training == forward + counter.get_total_flops()


def test_the_main_grid_is_6250_runs() -> None:
    found = plan(load_study("main-grid", "paper"), workers=2, calibrated=False)
    assert (found.runs, found.cells, found.recipes) == (6250, 625, 25)
    assert found.hours_here is None
    by_hand = 0
    for recipe in load_study("main-grid", "paper").recipes:
        by_hand += 250 * 300 * -(-40_000 // recipe.batch_size)
    assert found.updates == by_hand


def test_a_run_is_training_validation_and_one_test(tiny: Recipe) -> None:
    shape = sizes(tiny)
    count = flops_per_image(tiny, shape.shape, shape.classes)
    expected = 3 * (60 * count.training + 20 * count.forward) + 20 * count.forward
    assert run_flops(tiny, shape) == expected


def test_real_steps_tell_the_time(tiny_study: Study) -> None:
    found = plan(tiny_study, workers=2)
    assert found.hours_here is not None
    assert 0 < found.hours_here < 0.1


def test_disk_is_what_a_record_takes(tiny: Recipe) -> None:
    longer = tiny.model_copy(update={"epochs": 50})
    real = len(encode(fake_record(Run(longer, 1.0, 0), 0.5, epochs=50)))
    assert record_bytes(longer) == pytest.approx(real, rel=0.35)


def test_schedule_without_failures_is_list_scheduling() -> None:
    study = load_study("depth", "lab")
    rate = accelerator_rate("a100", 0.3)
    found = simulate(study, gpus=7, accelerator="a100", utilization=0.3)
    durations = sorted(
        (run_flops(r.recipe, sizes(r.recipe)) / rate / 3600 for r in study.all_runs()), reverse=True
    )
    ends = [0.0] * 7
    for duration in durations:
        heapq.heapreplace(ends, ends[0] + duration)
    assert found.makespan_hours == pytest.approx(max(ends))
    assert found.makespan_hours >= sum(durations) / 7
    assert found.failures == 0


def test_failures_make_it_longer_and_are_reproducible() -> None:
    study = load_study("main-grid", "lab")
    options = {"gpus": 4, "accelerator": "v100", "utilization": 0.2}
    smooth = simulate(study, **options)
    rough = simulate(study, **options, failures_per_day=2)
    assert rough == simulate(study, **options, failures_per_day=2)
    assert rough.failures > 0
    assert rough.makespan_hours > smooth.makespan_hours
    # A failure loses the ten minutes since a checkpoint at the most.
    assert rough.makespan_hours < smooth.makespan_hours + rough.failures / 6


def test_an_unknown_accelerator_is_explained() -> None:
    with pytest.raises(ConfigError, match=r"accelerator = 'abacus' .allowed: h100"):
        accelerator_rate("abacus", 0.5)
