"""Training code of a user's own: from a function to a verdict."""

from __future__ import annotations

import functools
import json
import math
import os
import random
import subprocess
import sys
import threading
import time
from contextlib import chdir
from dataclasses import replace
from pathlib import Path

import cloudpickle
import numpy as np
import polars
import pytest
import torch
from torch import nn

import initmem
from initmem.cli import app
from initmem.engines.engine import Settings
from initmem.engines.local import InlineEngine, LocalEngine
from initmem.errors import ConfigError, StoreError
from initmem.labels import labels
from initmem.measures.beta import beta_curve
from initmem.pipeline.run import PipelineTrainer, engine_for, train_sent
from initmem.recipe import PipelineRecipe, Recipe
from initmem.store.encoding import decode, encode
from initmem.store.store import Store
from initmem.study import Run
from initmem.study_file import own_study

pytestmark = pytest.mark.usefixtures("empty_folder")

SCALES = (0.1, 0.5, 1.0, 1.8, 2.5)
run = functools.partial(initmem.run, engine="inline", progress=False)


def settings_of(train, timeout: float | None = None) -> Settings:
    return Settings(trainer=PipelineTrainer(train), timeout=timeout)


def noise(init: initmem.Init, size: float = 0.003) -> float:
    """A run's own noise, the same whatever the global generators do."""
    return size * init.generator("order", int(100 * init.run.scale)).standard_normal()


def planted(slope: float, init: initmem.Init, tracker: initmem.Tracker) -> None:
    """An accuracy that falls by `slope` from scale 0 to 1, with noise of its own in every run."""
    for epoch in (1, 2, 3):
        accuracy = 0.9 - slope * init.scale + noise(init)
        tracker.end_epoch(val_loss=1 / epoch, val_accuracy=accuracy - 0.1 / epoch, test_accuracy=accuracy)
    tracker.finish(hardness=accuracy**2)


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> initmem.Result:
    """A study with a planted memory, which several tests read."""
    with chdir(tmp_path_factory.mktemp("planted")):
        return run(functools.partial(planted, 0.05), SCALES, range(8), "store")


def test_planted_memory_comes_back_within_its_interval(result: initmem.Result) -> None:
    memory = result.memory("test_accuracy")
    assert memory.low <= 100 * 0.05 * (2.5 - 0.1) <= memory.high
    assert memory.high - memory.low < 2
    assert result.verdict == memory.verdict == "remembers"
    assert str(memory).endswith(", remembers: fit unknown (large)") and " pp [" in str(memory)
    assert f"by {memory.memory:.3g} pp" in str(result)
    assert "which is significant at the 5% level." in str(result)
    said = result.explain("val_accuracy", tolerance=30)
    assert ", forgets (failure rates up to 37% not excluded) (5 scales x 8 seeds)" in said
    assert "which is within the tolerance of 30 pp;" in said


def test_what_an_unsettled_verdict_means(tmp_path: Path) -> None:
    def train(init, tracker):
        tracker.end_epoch(test_accuracy=0.5 + 0.05 * init.generator().standard_normal() * (init.scale - 1.5))

    said = run(train, [1.0, 2.0], [0, 1, 2], tmp_path).explain()
    assert "neither memory nor its absence is established." in said
    assert "3 seeds miss most memories" in said
    one = run(train, [1.0, 2.0], [0], tmp_path).explain()
    assert "One seed says nothing about noise" in one


def test_a_pipeline_that_ignores_the_scale_forgets(tmp_path: Path) -> None:
    result = run(functools.partial(planted, 0.0), (0.1, 1.0, 2.5), range(6), tmp_path)
    assert result.verdict == "forgets"
    assert result.study.name == "planted"  # the name of the function within


def test_the_slope_over_epochs_and_the_tables(result: initmem.Result) -> None:
    np.testing.assert_allclose(beta_curve(result.records, "val_accuracy").beta, -0.05, atol=0.005)
    frame, history = result.frame, result.history
    assert frame.height == 40 and history.height == 120
    assert set(frame["scale"]) == set(SCALES)
    one = history.filter((history["scale"] == 1.8) & (history["seed"] == 2))
    assert one["epoch"].to_list() == [1, 2, 3]
    record = next(r for r in result.records if (r.run.scale, r.run.seed) == (1.8, 2))
    assert record.summary.tau_best == 3
    assert record.summary.test_accuracy == one["test_accuracy"][2]
    assert record.summary.val_accuracy_best == one["val_accuracy"][2]
    assert "test_accuracy" in result.metrics and "norm" not in result.metrics


def trained(init: initmem.Init, tracker: initmem.Tracker) -> dict[str, float]:
    """A real network on a toy problem; the order of the data comes from the global generator."""
    x = torch.linspace(-1, 1, 60).reshape(30, 2)
    y = (x[:, 0] * x[:, 1] > 0.2).long()
    model = init.apply(nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 2)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    tracker.attach(model, optimizer, batch_size=10)
    for _ in range(4):
        for index in torch.randperm(30).split(10):
            loss = nn.functional.cross_entropy(model(x[index]), y[index])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        tracker.end_epoch(val_loss=loss)
    return {"test_accuracy": 0.75, "sharpness": 3.0 + init.scale}


def test_final_metrics_stand_beside_the_history(tmp_path: Path) -> None:
    result = run(trained, (0.5, 2.0), range(3), tmp_path)
    record = result.records[0]
    assert record.summary.test_accuracy == 0.75
    assert dict(record.finals) == {"sharpness": 3.5}
    assert decode(encode(record)).same_result(record)
    assert result.memory("sharpness").memory == pytest.approx(1.5)
    assert result.memory("sharpness", tolerance=2.0).verdict == "forgets"
    assert result.memory("norm_init").memory > 1
    updates = 3 * np.mean([record.summary.tau_best for record in result.records])
    assert result.clocks()["sgd"] == pytest.approx(updates * 0.5**2 / 10)
    with pytest.raises(ConfigError, match=r"metric = 'bleu' .*sharpness"):
        result.memory("bleu")


def test_runs_are_seeded_and_the_global_generators_are_put_back(tmp_path: Path) -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    first = run(trained, [1.0], [0, 1], tmp_path / "a")
    assert torch.equal(torch.rand(3), expected)
    random.seed(99)
    again = run(trained, [1.0], [1, 0], tmp_path / "b")
    by_seed = {record.run.seed: record for record in again.records}
    assert all(record.same_result(by_seed[record.run.seed]) for record in first.records)
    assert not np.array_equal(*(record.history["val_loss"] for record in first.records))


def test_what_is_done_is_not_done_again(tmp_path: Path) -> None:
    calls = []

    def train(init, tracker):
        calls.append((init.run.scale, init.seed))
        if len(calls) == 3:
            raise KeyboardInterrupt
        tracker.end_epoch(test_accuracy=0.5)

    with pytest.raises(KeyboardInterrupt):
        run(train, [1.0, 2.0], [0, 1], tmp_path)
    assert Store(tmp_path).in_flight() == []
    result = run(train, [1.0, 2.0], [0, 1], tmp_path)
    assert calls == [(1.0, 0), (2.0, 0), (1.0, 1), (1.0, 1), (2.0, 1)]
    assert len(result.records) == 4
    run(train, [1.0, 2.0], [0, 1, 2], tmp_path)  # more seeds only add
    assert calls[5:] == [(1.0, 2), (2.0, 2)]
    run(train, [1.0, 2.0], [0], tmp_path, name="other")
    assert len(calls) == 9


def test_a_failure_is_a_record_and_the_rest_goes_on(tmp_path: Path) -> None:
    broken = [True]

    def train(init, tracker):
        if init.scale == 2.0 and init.seed == 1 and broken[0]:
            raise ZeroDivisionError("too large")
        tracker.end_epoch(test_accuracy=0.5)

    result = run(train, [1.0, 2.0], [0, 1, 2], tmp_path)
    assert list(result.crashes) == [(2.0, 1)]
    assert "ZeroDivisionError: too large" in result.crashes[2.0, 1]
    assert result.memory().n_seeds == 2
    words = "1 of 6 runs crashed: 1 with ZeroDivisionError: too large (the first: scale 2, seed 1, files in "
    assert words in str(result)
    again = run(train, [1.0, 2.0], [0, 1, 2], tmp_path)  # nothing has changed
    assert again.records[3].provenance == result.records[3].provenance
    broken[0] = False
    with pytest.raises(ConfigError, match=r"5 of 6 runs .* before this changed: \S+broken changed"):
        run(train, [1.0, 2.0], [0, 1, 2], tmp_path)
    result = run(train, [1.0, 2.0], [0, 1, 2], tmp_path, keep_old=True)
    assert not result.crashes
    assert "5 of 6 runs were trained before this changed" in str(result)


def test_divergence_is_a_result(tmp_path: Path) -> None:
    def train(init, tracker):
        tracker.end_epoch(val_loss=1.0, test_accuracy=0.5)
        tracker.end_epoch(val_loss=math.inf, test_accuracy=0.1)

    result = run(train, [1.0], [0], tmp_path)
    assert result.records[0].status == "diverged"
    assert result.records[0].summary.test_accuracy == 0.5
    assert any("1 of 1 runs diverged" in note for note in result.notes)


def test_the_selected_epoch_is_that_of_the_best_validation_there_is(tmp_path: Path) -> None:
    rows = [{"val_accuracy": a, "test_accuracy": t} for a, t in [(0.2, 0.1), (0.6, 0.5), (0.4, 0.3)]]

    def by_accuracy(init, tracker):
        for row in rows:
            tracker.end_epoch(**row)

    def by_loss(init, tracker):
        for row, loss in zip(rows, (0.1, 0.2, 0.3), strict=True):
            tracker.end_epoch(val_loss=loss, **row)

    def by_nothing(init, tracker):
        for row in rows:
            tracker.end_epoch(test_accuracy=row["test_accuracy"])

    expected = {by_accuracy: (2, 0.5), by_loss: (1, 0.1), by_nothing: (3, 0.3)}
    for train, (epoch, accuracy) in expected.items():
        (record,) = run(train, [1.0], [0], tmp_path).records
        assert (record.summary.tau_best, record.summary.test_accuracy) == (epoch, accuracy)


def test_what_looks_wrong_is_said(tmp_path: Path) -> None:
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc, self.gain = nn.Linear(2, 2), nn.Parameter(torch.ones(2))

    def first(init, tracker):
        init.apply(Own())
        tracker.end_epoch(loss=1.0)

    def second(init, tracker):
        tracker.end_epoch(loss=1.0)

    notes = run(first, [1.0], [0], tmp_path, name="same").notes
    assert notes == ["init.apply left as they are: gain (`kernels` says what to scale)"]
    notes = run(second, [1.0], [0, 1], tmp_path, name="same", keep_old=True).notes
    assert notes[1].startswith(
        "1 of 2 runs were trained before this changed: module test_pipeline was edited"
    )
    (note,) = run(second, [1.0], [0], tmp_path / "new").notes
    assert note.startswith("not applicable: the pipeline never used the scale")


def test_training_code_that_says_nothing_fails(tmp_path: Path) -> None:
    result = run(lambda init, tracker: init.scale, [1.0], [0], tmp_path)
    with pytest.raises(StoreError, match="1 of 1 runs crashed"):
        result.memory()
    assert "nothing measured" in str(result)
    assert "no epoch was ended and no metric returned" in result.crashes[1.0, 0]
    assert result.study.name == "pipeline"


# -- recipes, ids, the command line ---------------------------------------------------------------------


def test_a_pipeline_is_a_recipe_and_ids_stay() -> None:
    study = own_study("mine", {"optimizer": "adam"}, [1], [0])
    (run,) = study.all_runs()
    assert run.id == "3099a2b10eee988e"
    assert Run.from_json(json.loads(json.dumps(run.to_json()))) == run
    assert run.recipe.changes() == {"pipeline": "mine", "optimizer": "adam"}
    assert PipelineRecipe.parse({"pipeline": "other"}).id != PipelineRecipe.parse({"pipeline": "mine"}).id


def test_labels_hold_all_that_was_declared_and_stay_as_a_store_fills() -> None:
    own = [PipelineRecipe.parse({"pipeline": "vit", "dropout": d, "dataset": "digits"}) for d in (0.1, 0.5)]
    assert labels(own[:1]) == ["vit digits dropout=0.1"]
    assert labels(own) == ["vit digits dropout=0.1", "vit digits dropout=0.5"]
    assert labels([own[0], Recipe.parse({})])[0] == "vit digits dropout=0.1"
    assert own[0].settings() == {"pipeline": "vit", "dropout": 0.1, "dataset": "digits"}


def test_any_hyperparameter_is_declared_and_handed_to_the_code(tmp_path: Path) -> None:
    declared = {"dropout": 0.1, "optimizer": "lion", "warmup": 100, "nesterov": True, "betas": [0.9, 0.99]}
    seen = []

    def train(init, tracker):
        seen.append(dict(init.recipe))
        with pytest.raises(ConfigError, match=r"init.recipe\['lr'\]: not declared"):
            init.recipe["lr"]
        tracker.end_epoch(loss=init.scale)

    result = run(train, [1.0], [0], tmp_path, name="mine", recipe=declared)
    assert seen == [declared | {"pipeline": "mine"}]
    assert str(result).startswith("mine lion betas=[0.9, 0.99] dropout=0.1 nesterov=True warmup=100: loss")
    other = run(train, [1.0], [0], tmp_path, name="mine", recipe=declared | {"dropout": 0.2})
    assert other.records[0].id != result.records[0].id


def test_only_its_own_code_can_run_it() -> None:
    with pytest.raises(ConfigError, match="pipeline = 'vit': its data and network are known to its own code"):
        _ = PipelineRecipe.parse({"pipeline": "vit"}).network


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"train": 3}, "train: 3 is not a callable object (allowed: a function of (init, tracker))"),
        ({"train": lambda init: None}, "train: too many positional arguments (allowed: a function of"),
        ({"scales": [0.0]}, "scales.0 = 0.0 (allowed: greater than 0)"),
        ({"scales": []}, "scales = []"),
        ({"scales": ["big"]}, "scales or seeds: could not convert"),
        ({"seeds": [1.5]}, "scales or seeds: 'float' object cannot be interpreted as an integer"),
        ({"seeds": [-1]}, "seeds.0 = -1"),
        ({"engine": "cloud"}, "engine = 'cloud' (allowed: local, inline, ray, slurm)"),
        (
            {"recipe": {"model": object}},
            "model = <class 'object'> (allowed: finite numbers, integers below 2^63, strings, booleans",
        ),
        ({"recipe": {"batch_size": 0}}, "batch_size = 0 (allowed: greater than or equal to 1)"),
        ({"split": ["init", "luck"]}, "split.1 = 'luck' (allowed: 'init', 'order' or 'augment')"),
    ],
)
def test_mistakes_are_explained(tmp_path: Path, how: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        initmem.run(**{"train": trained, "store": tmp_path / "store", "progress": False} | how)
    assert str(caught.value).startswith(words)


def test_perturbed_replicates_and_split_seeds(tmp_path: Path) -> None:
    result = run(trained, [1.0], [0, 1], tmp_path, chaos=True, split=["init", "order"])
    by_run = {r.run: r.summary.norm_init for r in result.records}
    plain, perturbed = (by_run[run] for run in by_run if run.seed == 0 and not run.pins)
    assert plain != perturbed and plain == pytest.approx(perturbed, rel=1e-3)
    init_varied, order_varied = (by_run[run] for run in by_run if run.pins)
    assert init_varied == by_run[Run(result.recipe, 1.0, 1)]
    assert order_varied == plain
    losses = {r.run: tuple(r.history["val_loss"]) for r in result.records}
    reordered = next(run for run in losses if dict(run.pins).get("order") == 1)
    assert losses[reordered] != losses[Run(result.recipe, 1.0, 0)]  # the same start, another order
    assert result.memory().n_seeds == 2


def two_streams(size: dict[str, float], init: initmem.Init, tracker: initmem.Tracker) -> None:
    """An accuracy with noise of known size from the model's own weights, and from the order of training."""
    model = init.apply(nn.Linear(8, 1, bias=False))
    drawn = float(model.weight.detach().sum()) / init.scale
    tracker.attach(model, batch_size=1)
    order = float(torch.randn(())) + random.gauss() + np.random.standard_normal()  # noqa: NPY002
    tracker.end_epoch(test_accuracy=0.5 + size["init"] * drawn + size["order"] * order)


@pytest.mark.parametrize("noisy", ["init", "order"])
def test_noise_counts_for_the_role_that_it_comes_from(noisy: str, tmp_path: Path) -> None:
    """Each role is the other one's negative control: what it does not cause is not counted as its own."""
    size = {"init": 0.0, "order": 0.0} | {noisy: 0.01}
    run(functools.partial(two_streams, size), [0.5, 2.0], range(3), tmp_path, split=["init", "order"])
    share = {row["role"]: row["share"] for row in initmem.measure(tmp_path, "seeds")}
    quiet = "order" if noisy == "init" else "init"
    assert share[noisy] == pytest.approx(1.0) and share[quiet] == pytest.approx(0.0)


def test_the_two_streams_differ_where_their_seeds_are_equal(tmp_path: Path) -> None:
    drawn: list[float] = []

    def train(init, tracker):
        drawn.append(float(torch.rand(())))
        tracker.attach()
        drawn.append(float(torch.rand(())))
        tracker.attach()  # again: training has begun
        drawn.append(float(torch.rand(())))
        return {"loss": 1.0}

    run(train, [1.0], [3], tmp_path)
    torch.manual_seed(3)
    alone = torch.rand(3).tolist()  # what a script draws that seeds itself
    assert drawn[0] == pytest.approx(alone[0])
    assert not {round(value, 6) for value in drawn[1:]} & {round(value, 6) for value in alone}
    assert drawn[1] != drawn[2]


def test_split_roles_without_attach_are_refused(tmp_path: Path) -> None:
    def train(init, tracker):
        return {"loss": float(torch.rand(()))}

    result = run(train, [1.0], [0, 1], tmp_path, split=["order"], keep_going=True)
    (trace,) = result.crashes.values()
    assert trace.strip().endswith("split: training never began (allowed: tracker.attach before training)")


def test_a_perturbation_that_nothing_sees_is_no_measurement(tmp_path: Path) -> None:
    def blind(init, tracker):
        init.apply(nn.Linear(2, 2))
        return {"test_accuracy": 0.5}

    run(blind, [0.5, 2.0], [0], tmp_path / "blind", chaos=True)
    (row,) = initmem.measure(tmp_path / "blind", "chaos")
    assert row["deviation"] is None and row["note"].startswith("not measured: the perturbation changed")
    run(trained, [0.5, 2.0], [0], tmp_path / "real", chaos=True)
    (row,) = initmem.measure(tmp_path / "real", "chaos", metric="val_loss")
    assert row["deviation"] > 0 and row["n_pairs"] == 2 and row["note"] == ""


def first_losses(loss_of, tmp_path: Path) -> list[float]:
    """The loss of a model before any update, at scales 1 and 2 and seed 3."""

    def train(init, tracker):
        return {"first_loss": loss_of(init)}

    records = run(train, [1.0, 2.0], [3], tmp_path).records
    return [record.metric("first_loss") for record in sorted(records, key=lambda r: r.run.scale)]


def test_at_scale_1_a_torch_model_is_the_unwrapped_one_to_the_bit(tmp_path: Path) -> None:
    x = torch.linspace(-1, 1, 64).reshape(2, 4, 8)

    def loss_of(init: initmem.Init | None) -> float:
        block = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        model = nn.Sequential(block, nn.Flatten(), nn.Linear(32, 1))
        model = model if init is None else init.apply(model)
        return model(x).square().mean().item()

    same, other = first_losses(loss_of, tmp_path)
    torch.manual_seed(3)
    alone = loss_of(None)
    assert same == alone != other


class Strange(nn.Module):
    """A layer that is scaled, a norm, a kernel of zeros, and a parameter that no rule knows."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.norm, self.head = nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 2, bias=False)
        self.gain = nn.Parameter(torch.ones(4))
        nn.init.zeros_(self.head.weight)


def odd(init: initmem.Init, tracker: initmem.Tracker) -> dict[str, float]:
    init.apply(Strange())
    return {"test_accuracy": 0.5 + noise(init)}


ODD = (
    "scaled 1 of 6 parameters; all zero: head.weight; left alone: fc.bias, norm.weight, norm.bias; "
    "not recognized: gain"
)


def test_what_was_done_to_a_model_is_shown_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = initmem.run(odd, [0.5, 2.0], [0, 1], tmp_path, engine="inline")
    assert capsys.readouterr().err.count(ODD) == 1
    (table,) = result.records[-1].provenance["init"]
    rows = {row[0]: row for row in table["rows"]}
    own, used = rows["fc.weight"][-2:]
    assert rows["fc.weight"][:4] == ["fc.weight", [4, 4], "kernel", "scaled"]
    assert used == pytest.approx(2 * own, rel=1e-4) and 0.1 < own < 0.5
    assert rows["gain"][2:] == ["other", "not recognized", 0.0, 0.0]
    page = result.report().read_text()
    section = page[page.index("What initmem did to your model") :]
    assert ODD in section and "fc.weight" in section and "scale 0.5" in section
    shown = result._repr_html_()
    assert "What initmem did to your model" in shown and "head.weight" in shown
    record = result.records[0]
    assert decode(encode(record)).provenance["init"] == record.provenance["init"]


def test_a_record_of_a_large_model_stays_small(tmp_path: Path) -> None:
    def large(init, tracker):
        init.apply(nn.Sequential(*(nn.Linear(1, 1) for _ in range(150))))
        return {"loss": 1.0}

    result = run(large, [2.0], [0], tmp_path)
    (table,) = result.records[0].provenance["init"]
    assert len(table["rows"]) == 200 and table["counts"] == {"scaled": 150, "left alone": 150}
    shown = result._repr_html_()
    assert "and 145 more" in shown and "and 100 more parameters" in shown


def test_the_commands_know_it(result: initmem.Result, tmp_path: Path, capsys) -> None:
    store = str(result.store.path)

    def said(*words: str) -> str:
        app(list(words), standalone_mode=False)
        return capsys.readouterr().out

    (study,) = json.loads(said("status", store, "--json"))["summary"]["studies"]
    assert (study["name"], study["done"], study["runs"]) == ("planted", 40, 40)
    (row,) = json.loads(said("measure", store, "--json"))["rows"]
    assert (row["recipe"], row["verdict"]) == ("planted", "remembers")
    (row,) = json.loads(said("measure", store, "--what", "beta", "--json"))["rows"]
    assert row["metric"] == "val_accuracy"
    assert row["last"] == pytest.approx(-0.05, abs=0.005)
    assert json.loads(said("measure", store, "--what", "radial", "--json"))["rows"] == []
    said("export", store, "--to", "csv", "-o", str(tmp_path / "tables"))
    tables = [polars.read_csv(tmp_path / "tables" / name) for name in ("runs.csv", "history.csv")]
    assert tables[0]["pipeline"].unique().to_list() == ["planted"]
    assert "learning_rate" not in tables[0].columns  # it was not declared
    assert tables[0]["final_hardness"].n_unique() == 40
    assert tables[1].height == 120
    drawn = json.loads(said("figure", "all", store, "-o", str(tmp_path), "--json"))["rows"]
    assert [row["figure"] for row in drawn] == ["scale", "memory", "beta"]
    assert all(Path(row["file"]).stat().st_size > 1000 for row in drawn)
    assert "planted" in Path(json.loads(said("report", store, "--json"))["rows"][0]["report"]).read_text()
    with pytest.raises(StoreError, match=r"figure 1: only runs of your own training code .*scale"):
        said("figure", "1", store)
    with pytest.raises(StoreError, match="table 4: the store holds runs of user code only"):
        said("table", "4", store)


def test_the_usual_metric_is_what_there_is(tmp_path: Path) -> None:
    def train(init, tracker):
        tracker.end_epoch(perplexity=10 * init.scale)

    result = run(train, [1.0, 2.0], [0, 1], tmp_path)
    assert result.memory().metric == "perplexity"
    assert result.memory().memory == 10
    assert "perplexity 10, inconclusive" not in str(result)


# -- processes ------------------------------------------------------------------------------------------

SCRIPT = """
import initmem

offset = 0.5

def train(init, tracker):
    from torch.utils.data import DataLoader
    seen = [int(x) for x in DataLoader(range(4), num_workers=1)]
    if (init.scale, init.seed) == (1.0, 1):
        raise OSError("no space")
    tracker.end_epoch(test_accuracy=offset + 0.1 * init.scale + 0.001 * sum(seen))

result = initmem.run(train, scales=[1.0, 2.0], seeds=range(2), store="runs", workers=1)
print(len(result.records), result.memory("test_accuracy"))
"""


def test_a_plain_script_trains_in_processes(tmp_path: Path) -> None:
    """No guard around its top level, data loaders with workers, a failure."""
    (tmp_path / "script.py").write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, "script.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        env=os.environ | {"PYTHONPATH": str(Path(initmem.__file__).parents[1])},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("4 10 pp")
    assert (
        "1 of 4 runs crashed: 1 with OSError: no space (the first: scale 1, seed 1, files in" in done.stderr
    )
    records = Store(tmp_path / "runs").records()
    assert {record.provenance["threads"] for record in records if record.status == "completed"} == {1}


def test_what_cannot_travel_is_trained_here(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lock = threading.Lock()

    def train(init, tracker):
        with lock:
            tracker.end_epoch(test_accuracy=0.5)

    result = initmem.run(train, [1.0], [0], tmp_path)
    assert len(result.records) == 1 and not result.crashes
    assert "cannot be sent to other processes (cannot pickle '_thread.lock'" in capsys.readouterr().err
    assert isinstance(engine_for("local", settings_of(trained), 2), LocalEngine)
    assert isinstance(engine_for("inline", settings_of(trained), 2), InlineEngine)
    with pytest.raises(ConfigError, match=r"engine = 'ray': this training code cannot be sent"):
        engine_for("ray", settings_of(train), 2)


def test_functions_travel_by_value(tmp_path: Path) -> None:
    gain = 0.25
    trainer = PipelineTrainer(lambda init, tracker: {"test_accuracy": gain * init.scale})
    study = own_study("travelled", {}, [2.0], [0])
    (record,) = train_sent(cloudpickle.dumps(trainer), study.all_runs(), lambda run, row: None)
    assert record.summary.test_accuracy == 0.5


# -- grids ----------------------------------------------------------------------------------------------


def in_grid(init: initmem.Init, tracker: initmem.Tracker) -> None:
    lr, dropout = init.recipe["lr"], init.recipe["dropout"]
    tracker.end_epoch(test_accuracy=0.5, loss=lr)
    tracker.end_epoch(test_accuracy=0.9 - lr * init.scale - dropout * 0.01 + noise(init), loss=lr)


def test_a_grid_is_a_memory_per_recipe(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    grid = {"lr": [0.001, 0.1], "dropout": [0.0, 0.5]}
    result = run(in_grid, [0.1, 1.0, 2.0], range(4), tmp_path, name="mine", grid=grid)
    assert len(result.records) == 2 * 2 * 3 * 4
    rows = result.memories()
    labels = ["mine dropout=0 lr=0.001", "mine dropout=0.5 lr=0.001", "mine dropout=0 lr=0.1"]
    assert [row.recipe for row in rows] == [*labels, "mine dropout=0.5 lr=0.1"]
    assert [row.verdict for row in rows] == ["forgets", "forgets", "remembers", "remembers"]
    for row in rows:
        assert f"{row.recipe}: test_accuracy {row} (3 scales x 4 seeds)" in str(result)
    with pytest.raises(ConfigError, match=r"4 recipes \(allowed: mine dropout=0 lr=0.001, .* result.select"):
        result.memory()
    one = result.select(lr=0.1, dropout=0.5)
    # Adjusted for the recipes shown: four, and one.
    assert {row.family for row in rows} == {len(rows)}
    alone = {"p_adjusted": rows[3].p, "family": 1}
    assert one.memory() == replace(rows[3], **alone) and one.verdict == "remembers"
    with pytest.raises(ConfigError, match=r"select\({'lr': 7}\): no such recipe"):
        result.select(lr=7)
    assert result.frame.filter(polars.col("lr") == 0.1)["dropout"].unique().sort().to_list() == [0.0, 0.5]
    app(["measure", str(tmp_path), "--json"], standalone_mode=False)
    assert [row["recipe"] for row in json.loads(capsys.readouterr().out)["rows"]] == [
        row.recipe for row in rows
    ]


@pytest.mark.parametrize(
    ("grid", "words"),
    [
        ({"lr": 0.1}, "grid['lr'] = 0.1 (allowed: a list of at least one value)"),
        ({"lr": []}, "grid['lr'] = [] (allowed: a list of at least one value)"),
        ({"lr": "fast"}, "grid['lr'] = 'fast' (allowed: a list"),
        ({"dropout": [0.1]}, "dropout: in the recipe and in the grid"),
        ({"lr": range(1000), "b": range(1000)}, "the grid has 1,000,000 recipes"),
        ({"batch_size": [16, 0]}, "batch_size = 0 (allowed: greater than or equal to 1)"),
    ],
)
def test_grids_that_make_no_sense(tmp_path: Path, grid: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        run(in_grid, [1.0], [0], tmp_path, recipe={"dropout": 0.1}, grid=grid)
    assert str(caught.value).startswith(words)


def test_failures_in_a_grid_have_their_recipe(tmp_path: Path) -> None:
    def train(init, tracker):
        return {"loss": 1 / init.recipe["divisor"]}

    result = run(train, [1.0], [0], tmp_path, name="mine", grid={"divisor": [0, 1]})
    assert list(result.crashes) == [("mine divisor=0", 1.0, 0)]
    assert [row.recipe for row in result.memories()] == ["mine divisor=1"]


# -- what every scale reached, curves without accuracies ------------------------------------------------


def test_what_every_scale_reached(result: initmem.Result, capsys: pytest.CaptureFixture[str]) -> None:
    store = str(result.store.path)
    expected = [
        (scale, 100 * np.mean(values), 100 * np.std(values, ddof=1), 8)
        for scale in SCALES
        for values in [[r.summary.test_accuracy for r in result.records if r.run.scale == scale]]
    ]
    rows = result.scales().select("scale", "mean", "deviation", "n").rows()
    np.testing.assert_allclose(rows, expected)
    app(["measure", store, "--what", "scale", "--json"], standalone_mode=False)
    printed = json.loads(capsys.readouterr().out)["rows"]
    assert [(row["recipe"], row["metric"]) for row in printed] == [("planted", "test_accuracy")] * 5
    np.testing.assert_allclose([row["mean"] for row in printed], [row[1] for row in expected])
    app(["measure", store, "--json"], standalone_mode=False)
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    both = [[at["scale"], at["mean"], at["deviation"], at["n"]] for at in row["scales"]]
    np.testing.assert_allclose(both, expected)


def test_curves_of_a_loss_where_there_is_no_accuracy(tmp_path: Path) -> None:
    def train(init, tracker):
        for epoch in (1, 2, 3, 4):
            tracker.end_epoch(perplexity=10 + (0.5 + 0.1 * init.seed) * init.scale * 0.5**epoch)

    result = run(train, SCALES, range(3), tmp_path)
    slopes = beta_curve(result.records, "perplexity").beta
    np.testing.assert_allclose(slopes, 0.6 * 0.5 ** np.arange(1, 5), rtol=1e-9)
    (life,) = [row for row in initmem.measure(result.records, "half-life") if row["unit"] == "epochs"]
    assert life["value"] == pytest.approx(1.0)


def test_the_metric_and_why_it_was_chosen_are_printed(tmp_path: Path, capsys) -> None:
    def train(init, tracker):
        tracker.end_epoch(val_loss=init.scale, bleu=0.5)

    result = run(train, [1.0, 2.0], [0, 1], tmp_path)
    assert "metric: val_loss (no accuracy was recorded; also recorded: bleu)" in str(result)
    assert "metric:" not in result.explain("bleu")

    def short(init, tracker):
        tracker.end_epoch(test_acc=0.5)

    app(["measure", str(tmp_path)], standalone_mode=False)
    assert "metric: val_loss (no accuracy was recorded; also recorded: bleu)" in capsys.readouterr().out
    named = run(short, [1.0, 2.0], [0, 1], tmp_path)
    app(["measure", str(tmp_path), "--metric", "test_acc", "--json"], standalone_mode=False)
    assert {row["metric"] for row in json.loads(capsys.readouterr().out)["rows"]} == {"test_accuracy"}
    assert named.memory().metric == named.memory("test_acc").metric == "test_accuracy"
    assert named.memory("test_acc").unit == "pp"


# -- the scale that is never used -----------------------------------------------------------------------


def used(train, folder: Path) -> list[bool]:
    result = run(train, [1.0], [0], folder, name="used")
    assert (
        any("never used the scale" in note for note in result.notes)
        != result.records[0].provenance["scale_used"]
    )
    return [record.provenance["scale_used"] for record in result.records]


def test_records_say_whether_the_scale_was_used(tmp_path: Path) -> None:
    def applied(init, tracker):
        init.apply(nn.Linear(2, 2))
        return {"loss": 1.0}

    def by_kernel(init, tracker):
        init.kernel(2, 2, fan_in=2)
        return {"loss": 1.0}

    def by_number(init, tracker):
        return {"loss": init.scale}

    def looked_at(init, tracker):
        str(init.describe(nn.Linear(2, 2)))
        repr(init)
        init.bias(3)
        return {"loss": init.seed}

    assert (
        used(applied, tmp_path / "a")
        == used(by_kernel, tmp_path / "b")
        == used(by_number, tmp_path / "c")
        == [True]
    )
    assert used(looked_at, tmp_path / "d") == [False]


def test_no_command_speaks_of_a_scale_that_was_never_used(tmp_path: Path, capsys) -> None:
    def ignores(init, tracker):
        for epoch in (1, 2, 3):
            tracker.end_epoch(val_accuracy=0.5 + 0.1 * epoch + noise_of(init.seed, epoch))

    def noise_of(seed: int, epoch: int) -> float:
        return 0.001 * np.sin(7 * seed + epoch)

    result = run(ignores, (0.5, 1.0, 2.0), range(4), tmp_path)
    assert (result.verdict, result.memory().memory) == ("not applicable", None)
    said = "not applicable: the pipeline never used the scale"
    assert said in str(result)
    app(["measure", str(tmp_path)], standalone_mode=False)
    assert "the pipeline never used the scale" in capsys.readouterr().out.replace("\n", " ")
    for what in ("beta", "half-life", "radial", "difference"):
        app(["measure", str(tmp_path), "--what", what], standalone_mode=False)
        assert capsys.readouterr().out.startswith(f"ignores: {said}\n")
        app(["measure", str(tmp_path), "--what", what, "--json"], standalone_mode=False)
        content = json.loads(capsys.readouterr().out)
        assert (content["rows"], content["summary"]) == ([], {"not_applicable": ["ignores"]})
    page = result.report().read_text()
    assert "The recipe is not applicable (the scale had no effect on the weights)." in page


# -- failures -------------------------------------------------------------------------------------------


class Odd(BaseException):
    pass


def leaving(init: initmem.Init, tracker: initmem.Tracker) -> dict[str, float]:
    match init.seed:
        case 1:
            sys.exit(0)
        case 2:
            sys.exit("no data")
        case 3:
            raise SystemExit
        case 4:
            raise Odd("strange")
        case 5:
            raise KeyboardInterrupt
        case 6:
            time.sleep(600)
    return {"test_accuracy": 0.5}


def test_code_that_exits_is_a_crashed_run(tmp_path: Path) -> None:
    result = run(leaving, [1.0], range(5), tmp_path)
    assert len(result.records) == 5
    for seed, words in (
        (1, "SystemExit: 0 (the training code called sys.exit or quit)"),
        (2, "SystemExit: no data (the training code"),
        (3, "SystemExit: None (the training code"),
        (4, "Odd: strange"),
    ):
        assert words in result.crashes[1.0, seed] or f"1 with {words}" in str(result)


def test_workers_survive_code_that_exits_and_end_code_that_hangs(tmp_path: Path) -> None:
    # A worker ignores Ctrl-C, so a KeyboardInterrupt there comes from the training code.
    in_a_worker = functools.partial(initmem.run, leaving, [1.0], store=tmp_path, workers=1, progress=False)
    in_a_worker([0, 1, 5], timeout=600)
    result = in_a_worker([0, 1, 5, 6], timeout=1)  # the last one hangs, however busy the machine is
    assert list(result.crashes) == [(1.0, 1), (1.0, 5), (1.0, 6)]
    assert {record.provenance["attempts"] for record in result.records[:3]} == {1}
    assert "timeout" in result.crashes[1.0, 6]
    done, *_, hung = (record.provenance["fingerprint"] for record in result.records)
    assert hung == done  # so that the same code is not tried again, and other code is
    again = run(leaving, [1.0], [0, 6], tmp_path)  # without a time limit: it would hang here
    assert list(again.crashes) == [(1.0, 6)]


def test_a_study_whose_first_runs_fail_alike_stops(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    calls = []

    def train(init, tracker):
        calls.append(init.seed)
        tracker.end_epoch(test_accuracy=97 + init.seed)

    with pytest.raises(initmem.InitmemError) as caught:
        run(train, [1.0, 2.0], range(5), tmp_path)
    words = "ConfigError: metric test_accuracy = 97 (allowed: a fraction from 0 to 1)"
    assert f"stopped: the first 3 of 10 runs all crashed with initmem.errors.{words}" in str(caught.value)
    assert len(calls) == 3
    app(["status", str(tmp_path)], standalone_mode=False)
    assert "crashed: 3 with initmem.errors.ConfigError: metric test_accuracy = 97" in capsys.readouterr().out
    app(["status", str(tmp_path), "--json"], standalone_mode=False)
    (study,) = json.loads(capsys.readouterr().out)["summary"]["studies"]
    assert [(cause["runs"], cause["scale"], cause["seed"]) for cause in study["crashes"]] == [(3, 1.0, 0)]
    result = run(train, [1.0, 2.0], range(5), tmp_path, keep_going=True)
    assert len(calls) == 10 and len(result.crashes) == 10
    page = result.report(tmp_path / "report.html").read_text()
    assert "10 of 10 runs crashed: 10 with initmem.errors.ConfigError: metric test_accuracy = 97" in page


def test_losses_print_with_significant_digits(tmp_path: Path, capsys) -> None:
    def train(init, tracker):
        tracker.end_epoch(test_loss=0.0123 * init.scale + 1e-4 * noise(init, 1.0))

    result = run(train, [1.0, 2.0], range(4), tmp_path)
    app(["measure", str(tmp_path)], standalone_mode=False)
    said = capsys.readouterr().out
    memory = result.memory()
    assert f" {memory.memory:.3g} " in said and f"{memory.low:.3g} to {memory.high:.3g}" in said
    assert 0.011 < memory.memory < 0.014


def test_runs_that_fail_each_in_its_own_way_do_not_stop_a_study(tmp_path: Path) -> None:
    def train(init, tracker):
        raise [ValueError("shape"), KeyError("name"), OSError("file")][init.seed % 3]

    assert len(run(train, [1.0], range(6), tmp_path / "a").crashes) == 6

    def first_only(init, tracker):
        if init.seed in (1, 2, 3, 4):
            raise ValueError("no")
        return {"loss": 1.0}

    assert len(run(first_only, [1.0], range(6), tmp_path / "b").crashes) == 4


def test_a_time_limit_is_for_worker_processes(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"timeout = 3 with engine = 'inline'"):
        run(trained, [1.0], [0], tmp_path, timeout=3)
    with pytest.raises(ConfigError, match=r"timeout = -1"):
        initmem.run(trained, [1.0], [0], tmp_path, timeout=-1)
    assert engine_for("local", settings_of(trained, timeout=2.5), 1).settings.timeout == 2.5


def dividing(init: initmem.Init, tracker: initmem.Tracker) -> dict[str, float]:
    return {"loss": 1 / 0}


def test_worker_processes_stop_early_too(tmp_path: Path) -> None:
    with pytest.raises(
        initmem.InitmemError, match=r"stopped: the first \d of 40 runs all crashed with ZeroDivision"
    ):
        initmem.run(dividing, [1.0, 2.0], range(20), tmp_path, progress=False, workers=1)
    assert 3 <= len(Store(tmp_path).records()) < 40
    assert Store(tmp_path).in_flight() == []
