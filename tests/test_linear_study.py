"""Linear networks as runs like any other: recipes, records, measures, and the bundled study."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from initmem.clocks import clocks
from initmem.data.sources import load, sizes
from initmem.engines.engine import EpochEnded, Event, Settings
from initmem.engines.packs import packs
from initmem.engines.worker import Worker
from initmem.errors import ConfigError
from initmem.measures.collapse import collapse
from initmem.measures.memory import memory
from initmem.pipeline import bundled_pipeline
from initmem.recipe import PipelineRecipe, Recipe
from initmem.record import COLUMNS, RunRecord
from initmem.store.encoding import decode, encode
from initmem.store.store import Store
from initmem.study import Run
from initmem.study_file import load_study
from initmem.theory import lab
from initmem.theory.lab import LinearSettings, linear_task, squared_norm, train_linear, trajectories


def recipe(**fields: object) -> PipelineRecipe:
    known = {"pipeline": "linear", "learning_rate": 0.01, "batch_size": 32, "epochs": 3}
    return PipelineRecipe.parse(known | fields)


# -- recipes --------------------------------------------------------------------------------------------


def test_a_linear_recipe_has_its_defaults_and_an_id_that_stays() -> None:
    plain = PipelineRecipe.parse({"pipeline": "linear"})
    assert LinearSettings.of(plain) == LinearSettings(width=4, optimizer="sgd", batch_size=128, epochs=300)
    assert plain.id == "5186cfd7f0c13b78"


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"optimizer": "muon"}, "optimizer = 'muon' (allowed: 'sgd', 'momentum' or 'adam')"),
        ({"norm": "layer"}, "unknown field norm = 'layer' (allowed: batch_size, beta1, "),
        ({"train_size": 10}, "unknown field train_size = 10"),
        ({"weight_decay": 0.1}, "unknown field weight_decay = 0.1"),
        ({"augment": "flip-crop"}, "unknown field augment = 'flip-crop'"),
        ({"patience": 3}, "unknown field patience = 3"),
        ({"bias_std": 0.0}, "unknown field bias_std = 0.0"),
        ({"learning_rat": 0.1}, "unknown field learning_rat = 0.1 (did you mean learning_rate?)"),
    ],
)
def test_what_a_linear_network_cannot_take_is_named(fields: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        LinearSettings.of(recipe(**fields))
    assert str(caught.value).startswith(f"pipeline linear: {words}")


def test_all_of_it_is_named_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        LinearSettings.of(recipe(optimizer="adamw", patience=3))
    assert str(caught.value).count(";") == 1


def test_a_study_file_names_no_other_pipeline() -> None:
    study = load_study("linear", "smoke")
    assert bundled_pipeline(study).pack == 100
    other = replace(study, recipes=(study.recipes[0].replace(pipeline="mine"),))
    with pytest.raises(
        ConfigError, match=r"pipeline = 'mine' \(allowed in a study file: linear, .*--command"
    ):
        bundled_pipeline(other)
    mixed = replace(study, recipes=(study.recipes[0], Recipe()))
    with pytest.raises(ConfigError, match="in all of its recipes"):
        bundled_pipeline(mixed)


def test_what_needs_images_refuses_a_pipeline() -> None:
    for ask in (load, sizes):
        with pytest.raises(
            ConfigError, match="pipeline = 'linear': its data and network are known to its own"
        ):
            ask(recipe())


# -- records --------------------------------------------------------------------------------------------


def test_a_record_has_every_column_and_survives_the_store() -> None:
    (record,) = train_linear([Run(recipe(), 1.5, 3)])
    assert set(record.history) == {name.replace("cross_entropy", "half_mse") for name in COLUMNS}
    assert {len(column) for column in record.history.values()} == {3}
    assert record.status == "completed"
    assert 0.3 < record.summary.test_accuracy < 1
    assert record.summary.tau_interp is None
    assert decode(encode(record)).same_result(record)


@pytest.mark.parametrize(
    "fields",
    [{"schedule": "cosine", "l2": 0.1}, {"optimizer": "momentum", "schedule": "constant", "batch_size": 100}],
)
def test_clocks_are_those_of_the_recipe(fields: dict[str, object]) -> None:
    asked = recipe(**fields)
    (record,) = train_linear([Run(asked, 1.0, 0)])
    known = clocks(LinearSettings.of(asked), 512)
    for name in ("sgd", "l2", "adaptive", "momentum"):
        np.testing.assert_allclose(record.history[f"clock_{name}"], getattr(known, name), rtol=1e-12)


def test_the_angular_clock_sees_the_norm_before_every_update() -> None:
    run = Run(recipe(batch_size=512, schedule="constant"), 2.0, 0)  # one update per epoch
    (record,) = train_linear([run])
    path = trajectories([run], linear_task())
    squares = squared_norm(path)[:, 0]
    np.testing.assert_allclose(record.history["clock_angular"], np.cumsum(0.01 / squares[:-1]), rtol=1e-12)
    np.testing.assert_allclose(record.history["norm"], np.sqrt(squares[1:]), rtol=1e-12)
    assert record.summary.norm_init == pytest.approx(np.sqrt(squares[0]))


def test_the_objective_holds_the_penalty_and_selects() -> None:
    (record,) = train_linear([Run(recipe(l2=0.2, epochs=8), 2.0, 0)])
    history = record.history
    np.testing.assert_allclose(
        history["val_objective"], history["val_half_mse"] + 0.2 * history["norm"] ** 2, rtol=1e-12
    )
    assert record.summary.tau_best == int(np.argmin(history["val_objective"])) + 1
    assert record.summary.norm_best == history["norm"][record.summary.tau_best - 1]


def test_the_test_is_taken_at_the_selected_epoch_with_perturbed_weights() -> None:
    run, task = Run(recipe(batch_size=8, epochs=12, learning_rate=0.03), 1.0, 4), linear_task()
    (record,) = train_linear([run])
    best = record.summary.tau_best
    assert best is not None
    assert 1 < best < 12
    v, u = (layer[best, 0] for layer in trajectories([run], task))
    perturbed = [(u + f) @ (v + e) for e, f in zip(*task.perturbations, strict=True)]
    truth = task.test_x @ task.truth.T
    losses = [np.mean(np.sum((task.test_x @ w.T - truth) ** 2, axis=1)) / 2 for w in perturbed]
    right = [np.mean((task.test_x @ w.T).argmax(axis=1) == truth.argmax(axis=1)) for w in perturbed]
    assert record.summary.test_loss == pytest.approx(np.mean(losses))
    assert record.summary.test_accuracy == pytest.approx(np.mean(right))


def test_a_diverged_run_is_a_result_and_leaves_the_others_alone() -> None:
    wild = recipe(learning_rate=0.08, epochs=4, schedule="constant")
    calm, lost = train_linear([Run(wild, 0.1, 0), Run(wild, 6.0, 0)])
    (alone,) = train_linear([Run(wild, 0.1, 0)])
    assert calm.status == "completed"
    assert calm.history["norm"].tolist() == pytest.approx(alone.history["norm"].tolist(), rel=1e-9)
    assert lost.status == "diverged"
    assert lost.summary.epochs == 0  # it did not live through the first epoch
    assert lost.summary.tau_best == 0
    assert lost.summary.norm_best == lost.summary.norm_init
    assert decode(encode(lost)).same_result(lost)


# -- the study ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trained() -> dict[tuple[str, float, int], list[RunRecord]]:
    study = load_study("linear", overrides=["seeds=[0, 1, 2, 3, 4, 5]"])
    settings = {r: LinearSettings.of(r) for r in study.recipes}
    return {(s.optimizer, s.l2, s.batch_size): train_linear(study.runs(r)) for r, s in settings.items()}


@pytest.mark.parametrize(
    ("optimizer", "l2", "clock"), [("sgd", 0.0, "sgd"), ("sgd", 0.1, "l2"), ("adam", 0.0, "adaptive")]
)
def test_the_clock_of_each_family_lines_up_its_batch_sizes(
    trained: dict[tuple[str, float, int], list[RunRecord]], optimizer: str, l2: float, clock: str
) -> None:
    groups = [trained[optimizer, l2, b] for b in (4, 8, 16)]
    apart = collapse(groups, "norm").apart
    assert apart[clock] < apart["epochs"] / 3
    wrong = "adaptive" if clock == "sgd" else "sgd"
    assert apart[wrong] > 1.4 * apart[clock]
    accuracy = collapse(groups, "val_accuracy").apart
    assert accuracy[clock] < accuracy["epochs"] / 1.7


def test_memory_is_visible_and_small_batches_lose_it(
    trained: dict[tuple[str, float, int], list[RunRecord]],
) -> None:
    found = {key: memory(records) for key, records in trained.items()}
    assert found["sgd", 0.0, 16].verdict == "remembers"
    assert found["sgd", 0.0, 16].memory > 5
    for optimizer, l2 in (("sgd", 0.0), ("sgd", 0.1), ("adam", 0.0)):
        norms = [memory(trained[optimizer, l2, b], "norm_last").memory for b in (4, 8, 16)]
        assert norms[0] < 0.5 * norms[1] < norms[2]
    assert found["sgd", 0.0, 4].memory < 2


def test_every_run_of_the_demo_is_finite(
    trained: dict[tuple[str, float, int], list[RunRecord]],
) -> None:
    assert {record.status for records in trained.values() for record in records} == {"completed"}


def test_a_worker_trains_linear_runs_as_user_code(tmp_path: Path) -> None:
    store = Store.create(tmp_path / "store")
    runs = [Run(recipe(), scale, 0) for scale in (1.0, 2.0)]
    heard: list[Event] = []
    Worker(store, Settings(trainer=lab.train), listen=heard.append).work([runs])
    for run, known in zip(runs, train_linear(runs), strict=True):
        record = store.read(run.id)
        assert record.same_result(known)
        assert record.provenance["pack"] == 2
        assert record.provenance["hardware"]
        assert record.provenance["attempts"] == 1
    assert [event for event in heard if isinstance(event, EpochEnded)] == [
        EpochEnded((run.id,), 3) for run in runs
    ]


def test_all_runs_of_a_recipe_move_at_once() -> None:
    study = load_study("linear")
    assert [len(pack) for pack in packs(study, size=lab.PACK, workers=1)] == [60] * 9
