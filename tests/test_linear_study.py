"""Linear networks as runs like any other: recipes, records, measures, and the bundled study."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from initmem.clocks import clocks
from initmem.data import load, sizes
from initmem.engines.packing import packs
from initmem.engines.plan import plan
from initmem.engines.settings import Settings
from initmem.engines.worker import Worker
from initmem.errors import ConfigError, DataError
from initmem.measures.collapse import collapse
from initmem.measures.memory import memory
from initmem.recipe import Recipe
from initmem.store.record import COLUMNS, RunRecord, decode, encode
from initmem.store.store import Store
from initmem.study import Run, Study
from initmem.study_file import load_study
from initmem.theory.ensemble import linear_task, squared_norm, trajectories
from initmem.theory.lab import train_linear
from initmem.train.flops import flops_per_image

LINEAR = {"model": "linear", "dataset": "linear"}


def recipe(**fields: object) -> Recipe:
    return Recipe.parse(LINEAR | {"learning_rate": 0.01, "batch_size": 32, "epochs": 3} | fields)


# -- recipes --------------------------------------------------------------------------------------------


def test_a_linear_recipe_has_its_width_and_an_id_that_stays() -> None:
    assert recipe().width == 4
    assert Recipe.parse(LINEAR).changes() == LINEAR
    assert Recipe.parse(LINEAR).id == "706d48e02f380816"


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"model": "linear"}, "model = 'linear' with dataset = 'cifar10' (allowed: linear with linear)"),
        ({"dataset": "linear"}, "model = 'resnet9' with dataset = 'linear'"),
        (
            LINEAR | {"optimizer": "muon"},
            "optimizer = 'muon' (allowed: sgd, momentum, adam, with model linear)",
        ),
        (LINEAR | {"norm": "layer"}, "norm = 'layer' (allowed: batch, with model linear)"),
        (LINEAR | {"train_size": 10}, "train_size = 10"),
        (LINEAR | {"weight_decay": 0.1}, "weight_decay = 0.1"),
        (LINEAR | {"augment": "flip-crop"}, "augment = 'flip-crop'"),
        (LINEAR | {"patience": 3}, "patience = 3"),
        (LINEAR | {"bias_std": 0.0}, "bias_std = 0.0 (allowed: 0.2, with model linear)"),
    ],
)
def test_what_a_linear_network_cannot_take_is_named(fields: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Recipe.parse(fields)
    assert str(caught.value).startswith(words)


def test_all_of_it_is_named_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        Recipe.parse(LINEAR | {"optimizer": "adamw", "patience": 3})
    assert str(caught.value).count(";") == 1
    assert "weight_decay" not in str(caught.value)  # it came with the optimizer


def test_sizes_are_those_of_the_task() -> None:
    task, known = linear_task(), sizes(recipe())
    assert (known.n_train, known.n_val, known.n_test) == (len(task.x), len(task.val_x), len(task.test_x))
    assert known.shape == (1, 1, task.x.shape[1])
    assert known.classes == task.y.shape[1]
    with pytest.raises(DataError, match="holds no images"):
        load(recipe())


def test_operations_are_those_of_two_matrix_products() -> None:
    count = flops_per_image(recipe(width=6), (1, 1, 4), 4)
    assert count.forward == 2 * (4 * 6 + 6 * 4)
    assert count.training == count.forward + 2 * 4 * 6 + 2 * 2 * 6 * 4  # no gradient of the input


# -- records --------------------------------------------------------------------------------------------


def test_a_record_has_every_column_and_survives_the_store() -> None:
    (record,) = train_linear([Run(recipe(), 1.5, 3)])
    assert set(record.history) == set(COLUMNS)
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
    known = clocks(asked, 512)
    for name in ("sgd", "l2", "adaptive", "momentum"):
        np.testing.assert_allclose(record.history[f"clock_{name}"], getattr(known, name), rtol=1e-12)


def test_the_angular_clock_sees_the_norm_before_every_update() -> None:
    run = Run(recipe(batch_size=512, schedule="constant"), 2.0, 0)  # one update per epoch
    (record,) = train_linear([run])
    path = trajectories([run], linear_task())
    squares = squared_norm(path.factors)[:, 0]
    np.testing.assert_allclose(record.history["clock_angular"], np.cumsum(0.01 / squares[:-1]), rtol=1e-12)
    np.testing.assert_allclose(record.history["norm"], np.sqrt(squares[1:]), rtol=1e-12)
    assert record.summary.norm_init == pytest.approx(np.sqrt(squares[0]))


def test_the_objective_holds_the_penalty_and_selects() -> None:
    (record,) = train_linear([Run(recipe(l2=0.2, epochs=8), 2.0, 0)])
    history = record.history
    np.testing.assert_allclose(
        history["val_loss"], history["val_cross_entropy"] + 0.2 * history["norm"] ** 2, rtol=1e-12
    )
    assert record.summary.tau_best == int(np.argmin(history["val_loss"])) + 1
    assert record.summary.norm_best == history["norm"][record.summary.tau_best - 1]


def test_the_test_is_taken_at_the_selected_epoch_with_perturbed_weights() -> None:
    run, task = Run(recipe(batch_size=8, epochs=12, learning_rate=0.03), 1.0, 4), linear_task()
    (record,) = train_linear([run])
    best = record.summary.tau_best
    assert best is not None
    assert 1 < best < 12
    v, u = (layer[best, 0] for layer in trajectories([run], task).factors)
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
    return {(r.optimizer, r.l2, r.batch_size): train_linear(study.runs(r)) for r in study.recipes}


@pytest.mark.parametrize(
    ("optimizer", "l2", "clock"), [("sgd", 0.0, "sgd"), ("sgd", 0.1, "l2"), ("adam", 0.0, "adaptive")]
)
def test_the_clock_of_each_family_lines_up_its_batch_sizes(
    trained: dict[tuple[str, float, int], list[RunRecord]], optimizer: str, l2: float, clock: str
) -> None:
    groups = [trained[optimizer, l2, b] for b in (4, 8, 16)]
    scores = {score.axis: score for score in collapse(groups, "norm").scores}
    assert scores[clock].score > 0.8
    wrong = "adaptive" if clock == "sgd" else "sgd"
    assert scores[wrong].disagreement > 1.4 * scores[clock].disagreement
    accuracy = {score.axis: score for score in collapse(groups, "val_accuracy").scores}
    assert accuracy[clock].score > 0.5


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


def test_a_worker_trains_linear_runs_by_their_own_trainer(tmp_path: Path) -> None:
    store = Store.create(tmp_path / "store")
    runs = [Run(recipe(), scale, 0) for scale in (1.0, 2.0)]
    worker = Worker(store, Settings())
    worker.work([runs])
    for run, known in zip(runs, train_linear(runs), strict=True):
        record = store.read(run.id)
        assert record.same_result(known)
        assert record.provenance["pack"] == 2
        assert record.provenance["hardware"]
        assert record.provenance["attempts"] == 1


def test_all_runs_of_a_recipe_move_at_once() -> None:
    study = load_study("linear")
    cut = packs(study, [sizes(r) for r in study.recipes], size=None, workers=2)
    assert [len(pack) for pack in cut] == [60] * 9


def test_a_plan_is_measured_by_real_steps() -> None:
    study = Study("linear", "", "full", "", (recipe(),), (1.0, 2.0), (0, 1))
    found = plan(study, workers=1)
    assert (found.runs, found.rows[0].pack, found.rows[0].updates) == (4, 4, 48)
    assert found.hours_here is not None
    assert 0 < found.hours_here < 0.01
