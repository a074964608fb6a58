"""What a store of user code answers on the command line: tables, figures, power, advice, half-lives."""

from __future__ import annotations

import csv
import io
import json
from contextlib import chdir
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import initmem
import planted
from initmem.errors import ConfigError
from initmem.measures.beta import half_lives
from initmem.plots.tables import render
from initmem.store.store import Store

pytestmark = pytest.mark.usefixtures("empty_folder")

SEEDS, SCALES = range(5), (0.1, 1.0, 2.5)
STEPS = 7  # updates of an epoch


def train(init: initmem.Init, tracker: initmem.Tracker) -> None:
    """Accuracy falls with the scale, the less the larger the learning rate; no network is needed for that."""
    rate, noise = init.recipe["lr"], np.random.default_rng([init.seed, int(10 * init.scale)]).normal(0, 0.003)
    tracker.attach(batch_size=10)
    for epoch in range(1, 9):
        tracker.step([rate] * STEPS)
        slope = 0.1 * 0.5**epoch + (0.1 if rate < 0.05 else 0.0)
        accuracy = 0.8 - slope * init.scale + noise
        metrics = {f"{part}_accuracy": accuracy for part in ("train", "val", "test")}
        tracker.end_epoch(val_loss=1 - accuracy, **metrics)


def train_regression(init: initmem.Init, tracker: initmem.Tracker) -> dict[str, float]:
    """A loss, and nothing that is counted in points."""
    noise = np.random.default_rng([init.seed, int(10 * init.scale)]).normal(0, 0.02)
    tracker.end_epoch(val_loss=1 + 0.1 * init.scale + noise)
    return {"test_loss": 1 + 0.1 * init.scale + noise}


@pytest.fixture(scope="module")
def grid(tmp_path_factory) -> initmem.Result:
    """A pipeline with a learning rate at which it remembers, and one at which it forgets."""
    with chdir(tmp_path_factory.mktemp("own")):
        return initmem.run(
            train, SCALES, SEEDS, "store", engine="inline", progress=False,
            recipe={"optimizer": "sgd", "classes": 10}, grid={"lr": [0.01, 0.1]},
        )  # fmt: skip


@pytest.fixture(scope="module")
def losses(tmp_path_factory) -> initmem.Result:
    with chdir(tmp_path_factory.mktemp("losses")):
        return initmem.run(train_regression, SCALES, SEEDS, "store", engine="inline", progress=False)


# -- tables -----------------------------------------------------------------------------------------------


def test_measures_are_written_for_a_paper_and_for_a_spreadsheet(grid, command) -> None:
    store, (first, second) = grid.store.path, grid.memories()
    code, latex, _ = command("measure", store, "--format", "latex")
    assert code == 0 and latex.startswith("% needs") and latex.endswith("\\end{table}\n")
    assert first.recipe in latex and f"{first.memory:.1f}" in latex
    code, markdown, _ = command("measure", store, "--format", "markdown", "--what", "half-life")
    assert code == 0 and markdown.startswith("**Half-life")
    code, text, remarks = command("measure", store, "--format", "csv")
    rows = list(csv.DictReader(io.StringIO(text)))
    assert code == 0 and [float(row["memory"]) for row in rows] == [first.memory, second.memory]
    assert [float(row["high"]) for row in rows] == [first.high, second.high]
    assert "metric: test_accuracy" in remarks  # in the table it would be one more row
    assert [row["notes"] for row in rows] == ["; ".join(row.notes) for row in (first, second)]
    code, _, complaint = command("measure", store, "--format", "doc")
    assert code == 2 and "allowed" in complaint and "latex" in complaint
    code, _, complaint = command("measure", store, "--format", "csv", "--json")
    assert code == 2 and "--json" in complaint


def test_a_csv_of_any_measure_has_its_plain_values(grid, command) -> None:
    code, text, _ = command("measure", grid.store.path, "--what", "beta", "--format", "csv")
    rows = list(csv.DictReader(io.StringIO(text)))
    assert code == 0 and [float(row["peak"]) for row in rows] == [
        row["peak"] for row in initmem.measure(grid.store, "beta")
    ]


def test_memories_are_a_data_frame_and_a_latex_table(grid, command) -> None:
    memories = grid.memories()
    frame = memories.to_pandas()
    assert list(frame["recipe"]) == [row.recipe for row in memories]
    assert list(frame["low"]) == [row.low for row in memories]
    assert not frame.map(lambda cell: isinstance(cell, dict | list | tuple)).any(axis=None)
    assert memories.to_latex() == command("measure", grid.store.path, "--format", "latex")[1]


def test_latex_numbers_a_table_once() -> None:
    from initmem.paper import tables

    studies = planted.everything()
    made = tables.make("2", planted.records(*studies), studies)
    assert render(made, "txt").startswith("Table 2. ")
    (caption,) = (line for line in render(made, "tex").splitlines() if "\\caption" in line)
    assert "Table" not in caption  # LaTeX sets "Table 1:" before it


# -- figures ----------------------------------------------------------------------------------------------


def test_the_memories_are_drawn_on_the_command_line(grid, command, tmp_path: Path) -> None:
    target = tmp_path / "memory.svg"
    code, out, _ = command("figure", "memory", grid.store.path, "-o", target, "--json")
    assert code == 0 and json.loads(out)["rows"][0]["figure"] == "memory"
    assert all(row.recipe in target.read_text() for row in grid.memories())
    code, out, _ = command("figure", "all", grid.store.path, "-o", tmp_path / "all", "--json")
    assert code == 0 and {row["figure"] for row in json.loads(out)["rows"]} == {"beta", "memory", "scale"}


# -- power ------------------------------------------------------------------------------------------------


def test_the_power_of_a_store_of_user_code(grid, losses, command) -> None:
    store = grid.store.path
    code, out, _ = command("plan", store, "--power", store, "--json")
    rows = json.loads(out)["rows"]
    assert code == 0 and [row["recipe"] for row in rows] == grid.study.labels()
    assert all(
        row["noise"] == pytest.approx(0.3, rel=0.5) and row["metric"] == "test_accuracy" for row in rows
    )
    assert {row["planned"] for row in rows} == {5} and {row["noise_from"] for row in rows} == {"pilot"}
    code, _, complaint = command("plan", store)
    assert code == 2 and "--power" in complaint
    code, _, complaint = command("plan", store, "--power", "1", "--set", "seeds=[1]")
    assert code == 2 and "--set" in complaint and "a study" in complaint


def test_points_are_not_taken_for_losses(losses, command) -> None:
    store = losses.store.path
    code, _, complaint = command("plan", store, "--power", store)
    assert code == 2 and "test_loss" in complaint and "--memory" in complaint and "--tolerance" in complaint
    assert command("plan", store, "--power", "0.02")[0] == 2  # the noise of that loss, not in points
    sizes = ("--memory", "0.1", "--tolerance", "0.05")
    code, out, _ = command("plan", store, "--power", store, *sizes, "--json")
    (row,) = json.loads(out)["rows"]
    assert code == 0 and row["metric"] == "test_loss" and row["noise"] == pytest.approx(0.02, rel=0.5)
    assert (row["memory"], row["tolerance"]) == (0.1, 0.05)


# -- advice -----------------------------------------------------------------------------------------------


def test_advice_from_a_store_of_user_code(grid, command) -> None:
    code, out, _ = command("advise", grid.store.path, "--json")
    slow, fast = json.loads(out)["rows"]
    assert code == 0 and slow["verdict"] == "remembers" and fast["verdict"] == "forgets"
    assert slow["family"] == fast["family"] == "sgd"
    # 8 epochs of 7 updates at batch size 10.
    assert slow["clock"] == pytest.approx(8 * STEPS * 0.01**2 / 10)
    assert fast["advice"] == "none: it forgets"
    factors = {one["field"]: one["factor"] for one in slow["changes"]}
    # The other recipe forgot at 100 times the clock, which is a sum of squared rates over the batch size.
    assert factors == pytest.approx({"learning_rate": 10, "batch_size": 0.1})  # not 100 times the epochs
    assert slow["reaches"]["recipe"] == fast["recipe"]
    code, text, _ = command("advise", grid.store.path)
    assert code == 0 and "learning_rate x 10" in text and "not a prediction" in text


def test_advice_says_what_it_cannot_say(losses, tmp_path: Path, command) -> None:
    code, out, _ = command("advise", losses.store.path, "--json")
    (row,) = json.loads(out)["rows"]
    assert code == 0 and row["clock"] is None and not row["changes"]
    assert "optimizer" in row["advice"] and "recipe=" in row["advice"]
    store = tmp_path / "declared"
    run = {"engine": "inline", "progress": False}
    initmem.run(train_regression, SCALES, SEEDS, store, recipe={"optimizer": "adam"}, **run)
    (row,) = json.loads(command("advise", store, "--json")[1])["rows"]
    assert row["family"] == "adaptive" and "tracker.attach" in row["advice"]
    initmem.run(train_regression, SCALES, SEEDS, store, name="other", recipe={"optimizer": "mine"}, **run)
    rows = json.loads(command("advise", store, "--json")[1])["rows"]
    (row,) = (row for row in rows if row["family"] is None)
    assert row["clock"] is None and "'mine'" in row["advice"]
    code, _, complaint = command("advise", tmp_path)
    assert code == 2 and "no store here" in complaint
    code, _, complaint = command("advise", Store.create(tmp_path / "empty").path)
    assert code == 2 and "no finished run yet" in complaint


@pytest.mark.parametrize(
    ("clock", "batch_size", "fields"),
    [
        (6.0, 128, {"learning_rate", "batch_size", "epochs"}),
        (6.0, 8, {"learning_rate", "epochs"}),  # there is no batch of less than one image
        (1.0, 128, {"learning_rate", "batch_size"}),  # nor patience for 63 times the epochs
        (1e-3, 128, set()),
    ],
)
def test_advice_from_a_store_of_bundled_recipes(clock, batch_size, fields, tmp_path: Path, command) -> None:
    study = planted.study("two", planted.grid(optimizer=["sgd", "adam"], batch_size=[batch_size]))
    store = Store.create(tmp_path / "store")
    store.add_study(study)
    for record in planted.records(study):  # without momentum
        history = dict(record.history) | {"clock_momentum": record.history["clock_sgd"]}
        history["clock_adaptive"] = clock * np.arange(1.0, 7.0)
        store.commit([replace(record, history=history)])
    code, out, _ = command("advise", store.path, "--json")
    rows = json.loads(out)["rows"]
    assert code == 0 and [row["family"] for row in rows] == ["sgd", "adaptive"]
    # Planted: the sum of learning rates at the end of six epochs.
    assert rows[1]["clock"] == pytest.approx(clock * 6)
    ratio = rows[1]["reaches"]["clock"] / rows[1]["clock"]
    expected = {"learning_rate": ratio, "batch_size": 1 / ratio, "epochs": ratio}
    factors = {one["field"]: one["factor"] for one in rows[1]["changes"]}
    assert factors == pytest.approx({name: expected[name] for name in fields})
    assert fields or "no single change" in rows[1]["advice"]


# -- half-lives -------------------------------------------------------------------------------------------


def test_a_half_life_also_counts_updates(grid, command) -> None:
    code, out, _ = command("measure", grid.store.path, "--what", "half-life", "--json")
    rows = [row for row in json.loads(out)["rows"] if row["recipe"] == grid.memories()[1].recipe]
    lives = {row["unit"]: row for row in rows}
    assert code == 0 and set(lives) == {"epochs", "sgd", "updates"}
    assert lives["updates"]["value"] == pytest.approx(STEPS * lives["epochs"]["value"])
    assert lives["updates"]["low"] == pytest.approx(STEPS * lives["epochs"]["low"])


def test_a_program_may_record_its_updates_by_itself(tmp_path: Path) -> None:
    def wordy(init: initmem.Init, tracker: initmem.Tracker) -> None:
        for epoch in range(1, 6):
            tracker.end_epoch(val_accuracy=0.8 - 0.2 * init.scale * 0.5**epoch, updates=30 * epoch**2)

    result = initmem.run(wordy, SCALES, range(2), tmp_path, engine="inline", progress=False)
    lives = {life.unit: life.value for life in half_lives(result.records, "val_accuracy")}
    assert lives == pytest.approx({"epochs": 1.0, "updates": 30 * (4 - 1)})
    assert result.memory().metric == "val_accuracy_best" and "updates" not in result.explain()
    tracker = initmem.Tracker()
    tracker.attach(batch_size=1)
    tracker.step(0.1)
    with pytest.raises(ConfigError, match="updates"):
        tracker.end_epoch(val_loss=1.0, updates=1)
