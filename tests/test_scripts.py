"""Training scripts as the public has them, wrapped in a few lines: what each of them hides is told.

Written here, with the structure of what they are named after.
More of them: nanoGPT in test_command.py, Lightning in test_adapters.py and test_examples.py.
"""

from __future__ import annotations

import importlib
import math
import shlex
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import initmem
from initmem.measures.provenance import applied, applied_lines
from initmem.store.store import Store

pytestmark = pytest.mark.filterwarnings("ignore")  # those libraries warn about each other
FOLDER = Path(__file__).parent / "scripts"


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Train a script's function from two scales and three seeds in this process."""
    monkeypatch.chdir(tmp_path)

    def trained(
        name: str, *, scales: tuple[float, ...] = (0.5, 1.0), seeds: int = 3, **options: Any
    ) -> initmem.Result:
        script = importlib.import_module(f"scripts.{name}")
        options = {"engine": "inline", "progress": False, "name": name} | options
        return initmem.run(script.train, scales, range(seeds), **options)

    return trained


def has_note(result: initmem.Result, words: str) -> bool:
    return words in str(result)


@pytest.mark.usefixtures("no_workers", "programs_here")
def test_cifar_the_best_checkpoint_is_the_one_of_the_run(tmp_path, monkeypatch, command) -> None:
    monkeypatch.chdir(tmp_path)
    words = "{python} {script} --scale {{scale}} --seed {{seed}} --history {{history}}".format(
        python=shlex.quote(sys.executable), script=shlex.quote(str(FOLDER / "cifar_like.py"))
    )
    options = ["--set", "scales=[0.5, 2.0]", "--set", "seeds=[0, 1]", "--store", "store"]
    code, printed, told = command("run", "--command", words, *options)
    assert code == 0, told
    assert "scaled 2 of 5 parameters; left alone: 1.weight, 1.bias, 4.bias" in printed
    assert "removed with the runs' own working directories: checkpoint/ckpt.pth" in told
    records = Store("store").records()
    for record in records:
        assert record.metric("test_accuracy") == max(record.history["val_accuracy"])
        rates = [0.05 * (1 + math.cos(math.pi * epoch / 3)) for epoch in range(3)]
        np.testing.assert_allclose(record.history["clock_adaptive"], np.cumsum(10 * np.array(rates)), 1e-6)
        assert (record.provenance["classes"], record.provenance["updates"]) == (10, 30)
    orders = {record.run.seed: record.provenance["order"] for record in records}
    assert orders[0] != orders[1]


def test_airbench_frozen_layers_stay_and_a_summed_loss_counts(run: Any) -> None:
    result = run("airbench_like")
    (line,) = applied_lines(result.records)
    assert line.startswith("scaled 2 of 6 parameters; left alone: 0.weight, 2.bias")
    for record in result.records:
        rows = {row.name: row for model in applied(record) for row in model.rows}
        assert rows["0.weight"].used == rows["0.weight"].own
        assert rows["2.weight"].used == pytest.approx(record.run.scale * rows["2.weight"].own, 0.01)
    # 16 updates of SGD with the rate 0.05 / 64 on a sum over 64 examples
    assert result.clocks()["sgd"] == pytest.approx(16 * 0.05**2 / 64, 1e-5)
    assert all(np.isfinite(record.history["norm"]).all() for record in result.records)
    assert {record.status for record in result.records} == {"completed"}


def test_edge_of_stability_full_batches_and_divergence_are_named(run: Any) -> None:
    result = run("edge_like", scales=(1.0, 30.0), recipe={"lr": 0.3})
    states = {scale: {r.status for r in result.records if r.run.scale == scale} for scale in (1.0, 30.0)}
    assert states == {1.0: {"completed"}, 30.0: {"diverged"}}
    assert has_note(result, "3 of 6 runs diverged (train_loss is not finite)")
    assert has_note(result, "every update used the same batch")
    assert (result.memory().metric, result.verdict) == ("train_loss", "inconclusive")


def test_omnigrok_a_script_that_scales_its_weights_itself_is_measured(run: Any) -> None:
    result = run("omnigrok_like", scales=(1.0, 4.0))
    assert not applied_lines(result.records)
    norms = {r.run.scale: r.summary.norm_init for r in result.records if r.run.seed == 0}
    assert norms[4.0] == pytest.approx(4 * norms[1.0], 1e-5)
    memory = result.memory()
    assert memory.metric == "test_accuracy" and memory.memory is not None and not memory.inapplicable
    assert {record.provenance["classes"] for record in result.records} == {10}
    assert memory.verdict in ("remembers", "inconclusive")


def test_reinforce_a_reward_is_better_when_higher_and_lengths_differ(run: Any) -> None:
    result = run("reinforce_like", scales=(0.5, 20.0))
    memory = result.memory()
    assert memory.metric == "mean_reward" and memory.unit == ""
    lengths = [record.provenance["updates"] for record in result.records]
    assert min(lengths) < max(lengths)
    assert has_note(result, f"runs of {min(lengths)} to {max(lengths)} updates are compared")
    assert has_note(result, "no train metric was recorded")
    rewards = [record.history["mean_reward"] for record in result.records]
    assert memory.untrained == sum(len(each) > 1 and each[-1] <= each[0] for each in rewards)


@pytest.mark.parametrize("own_seed", [False, True])
def test_hugging_face_the_default_seed_fixes_the_order(run: Any, own_seed: bool) -> None:
    result = run("hf_like", seeds=2, recipe={"own_seed": own_seed})
    same = "every seed saw the data in the same order: noise is understated"
    assert has_note(result, same) != own_seed


def test_jax_a_list_of_weights_and_biases_at_scale_1_is_the_unwrapped_model(run: Any) -> None:
    result = run("jax_like")
    script = importlib.import_module("scripts.jax_like")
    for record in result.records:
        if record.run.scale == 1.0:
            params = script.make_params(initmem.Init(1.0, record.run.seed).seed)
            unwrapped = float(script.loss(params, script.X[:512], script.TARGETS[:512]))
            assert record.history["train_loss"][0] == unwrapped
        assert record.history["train_loss"][-1] < record.history["train_loss"][0]
    assert applied_lines(result.records) == ["scaled 2 of 4 parameters; left alone: 0.1, 1.1"]
    assert result.clocks()["adaptive"] == pytest.approx(32 * 0.1)
