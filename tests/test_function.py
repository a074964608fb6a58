"""Predictions in records, and what they say about functions: planted, shuffled, and of real networks."""

from __future__ import annotations

import json
import math
import sys
from dataclasses import replace
from itertools import permutations
from pathlib import Path

import numpy as np
import pytest
import torch

import initmem
from conftest import fake_record
from initmem.data.sources import load
from initmem.errors import ConfigError, StoreError
from initmem.measures.function import (
    across,
    between_scales,
    between_seeds,
    disagreements,
    effect_p,
    function_memory,
    identification,
)
from initmem.measures.measure import measure, remarks
from initmem.pipeline.tracker import Tracker
from initmem.recipe import Recipe
from initmem.record import RunRecord
from initmem.store.encoding import decode, decode_array, encode, encode_array
from initmem.store.results import Archive, Collection, collected, restore, write_archive
from initmem.store.store import Store
from initmem.study import Run
from initmem.train.loop import train_pack
from initmem.train.pack import Pack

N = 1000


def planted(classes: np.ndarray, recipe: Recipe, initial: np.ndarray | None = None) -> list[RunRecord]:
    """Records with given predictions, (seed, scale, example)."""
    records = []
    for seed, row in enumerate(classes):
        for scale, one in enumerate(row, start=1):
            arrays = {"predictions": one.astype(np.uint16)}
            if initial is not None:
                arrays["initial_predictions"] = initial[seed, scale - 1].astype(np.uint16)
            records.append(replace(fake_record(Run(recipe, float(scale), seed), 0.8), arrays=arrays))
    return records


# -- records ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("classes", [1, 2, 10, 16, 17, 65536])
def test_an_array_of_classes_is_read_back_from_the_fewest_bits(classes: int) -> None:
    array = np.random.default_rng(0).integers(0, classes, (101, 3)).astype(np.uint16)
    array[0, 0] = classes - 1
    content = json.loads(json.dumps(encode_array(array)))
    assert (decode_array(content) == array).all()
    assert decode_array(content).shape == (101, 3)
    bits = max(1, math.ceil(math.log2(classes)))
    assert len(content["data"]) == math.ceil(math.ceil(303 * bits / 8) * 5 / 4)


def test_arrays_survive_store_archive_and_restore_with_the_same_bytes(tmp_path: Path, tiny: Recipe) -> None:
    (record,) = planted(np.random.default_rng(0).integers(0, 10, (1, 1, N)), tiny)
    layers = {"layer_epochs": np.array([0, 7]), "norm:head": np.array([1.5, 2.25])}
    arrays = {**record.arrays, "alignment": np.array(0.25), **layers}
    record = replace(record, arrays=arrays)
    old = fake_record(Run(tiny, 2.0, 0), 0.7)
    store = Store.create(tmp_path / "store")
    store.commit([record])
    store.commit([old])
    write_archive(tmp_path / "a.initmem", [], store.records())
    archive = Archive(tmp_path / "a.initmem")
    again = Store.create(tmp_path / "again")
    assert restore(archive, again) == 2
    for results in (store, archive, again, Store(store.path)):
        by_id = {one.id: one for one in results.records()}
        assert {name: a.tolist() for name, a in by_id[record.id].arrays.items()} == {
            name: a.tolist() for name, a in arrays.items()
        }
        assert dict(by_id[old.id].arrays) == {}
    for run in (record, old):
        paths = [one.paths.record(run.id) for one in (store, again)]
        assert paths[0].read_bytes() == paths[1].read_bytes()


def test_a_record_without_arrays_has_the_bytes_that_it_always_had(tiny: Recipe) -> None:
    assert b"arrays" not in encode(fake_record(Run(tiny, 1.0, 0), 0.7))


@pytest.mark.parametrize(
    "content",
    [
        {"shape": [10], "bits": 4, "data": "00"},
        {"shape": [1 << 40], "bits": 4, "data": ""},
        {"shape": [-1], "bits": 4, "data": ""},
        {"shape": [0, 1 << 62, 1 << 62], "bits": 4, "data": ""},
        {"shape": [1], "bits": 17, "data": "00000"},
        {"shape": ["x"], "bits": 4, "data": ""},
        {"bits": 4},
        [1.0, None],
        [1e200],
        ["x"],
        [[1.0], [1.0, 2.0]],
    ],
)
def test_arrays_that_nobody_wrote_are_refused_in_a_line(tiny: Recipe, content: object) -> None:
    from test_store import resealed

    (record,) = planted(np.zeros((1, 1, 5), dtype=int), tiny)
    with pytest.raises(StoreError, match="arrays that cannot be read"):
        decode(resealed(record, lambda whole: whole["arrays"].update(predictions=content)))


@pytest.mark.parametrize(
    "arrays",
    [
        {"predictions": [1.0, 2.0]},
        {"predictions": {"shape": [], "bits": 1, "data": "00"}},
        {"alignment": [0.5, 0.5]},
        {"norm:head": [1.0]},
        {"layer_epochs": [0.0, 1.0], "norm:head": [1.0]},
        {"layer_epochs": 0.0},
    ],
)
def test_arrays_of_another_form_than_their_name_says_are_refused(tiny: Recipe, arrays: object) -> None:
    from test_store import resealed

    (record,) = planted(np.zeros((1, 1, 5), dtype=int), tiny)
    with pytest.raises(StoreError, match="arrays that cannot be read"):
        decode(resealed(record, lambda whole: whole.update(arrays=arrays)))


def test_user_code_may_have_a_metric_of_the_name_alignment(tiny: Recipe) -> None:
    record = fake_record(Run(tiny, 1.0, 0), 0.8)
    own = replace(record, history={**record.history, "alignment": np.full(record.summary.epochs, 0.25)})
    assert own.metric("alignment") == 0.25
    assert record.metric("alignment") is None


def test_a_run_records_what_its_selected_and_its_initial_model_predict(tiny: Recipe) -> None:
    """Against the models themselves."""
    changes = {"model": "mlp", "norm": "layer", "width": 8, "dataset": "digits", "train_size": 200}
    recipe = Recipe.parse(tiny.changes() | changes | {"learning_rate": 0.1})
    data, runs = load(recipe), [Run(recipe, scale, seed) for seed, scale in enumerate((0.3, 1.0, 2.5))]
    fresh = Pack(runs, data)
    records = train_pack(runs, data)
    x, y = next(fresh.test.shared(len(fresh.test)))
    with torch.no_grad():
        classes = fresh.logits(x).argmax(-1)
    for r, record in enumerate(records):
        assert record.arrays["initial_predictions"].tolist() == classes[:, r].tolist()
        hits = np.mean(record.arrays["predictions"] == y.numpy())
        assert hits == pytest.approx(record.summary.test_accuracy)
        assert record.arrays["predictions"].tolist() != classes[:, r].tolist()


def test_tokens_have_a_prediction_each_and_whole_examples_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from initmem.train import comparison

    monkeypatch.setattr(comparison, "MOST_PREDICTIONS", 45)
    file = tmp_path / "letters.txt"
    file.write_text("".join(chr(97 + i % 26) for i in range(1003)))
    changes = {"dataset": f"text:10:{file}", "model": "gpt", "width": 8, "epochs": 1, "batch_size": 16}
    recipe = Recipe.parse(changes)
    (record,) = train_pack([Run(recipe, 1.0, 0)], load(recipe))
    assert record.arrays["predictions"].shape == (4, 10)
    assert record.arrays["initial_predictions"].shape == (10, 10)


# -- disagreement -----------------------------------------------------------------------------------------


def test_planted_disagreements_are_found(tiny: Recipe) -> None:
    """Seeds differ in examples of their own, scales in others: every mean is known in advance."""
    classes = np.zeros((4, 3, N), dtype=int)
    for seed in range(4):
        classes[seed, :, 50 * seed : 50 * (seed + 1)] = 1  # two seeds differ in 100 examples
    for scale in range(3):
        classes[:, scale, 500 + 30 * scale : 500 + 30 * (scale + 1)] = 1  # two scales differ in 60
    (row,) = measure(planted(classes, tiny), "function")
    assert row["scales"] == row["scales_low"] == row["scales_high"] == pytest.approx(6.0)
    assert row["seeds"] == pytest.approx(10.0)
    assert row["effect"] == pytest.approx(6.0)
    assert row["accuracy"] == pytest.approx(0.0)
    assert row["p"] < 0.01  # of 216 permutations
    assert (row["n_scales"], row["n_seeds"], row["n_predictions"]) == (3, 4, N)
    assert row["replicates"] is row["identified"] is row["p_identified"] is None


def test_means_over_pairs_are_those_of_loops() -> None:
    classes = np.random.default_rng(1).integers(0, 3, (4, 3, 50))
    apart = disagreements(classes)
    pairs = {"scales": [], "seeds": [], "both": []}
    for i, a, j, b in np.ndindex(4, 3, 4, 3):
        kind = {(True, False): "scales", (False, True): "seeds", (False, False): "both"}.get((i == j, a == b))
        if kind:
            pairs[kind].append(np.mean(classes[i, a] != classes[j, b]))
    assert between_scales(apart) == pytest.approx(np.mean(pairs["scales"]))
    assert between_seeds(apart) == pytest.approx(np.mean(pairs["seeds"]))
    assert across(apart) == pytest.approx(np.mean(pairs["both"]))


def test_equal_accuracy_and_different_functions_are_told_apart(tiny: Recipe) -> None:
    """All are right on 800 examples; which 200 are wrong depends on the scale, or on chance alone."""
    rng = np.random.default_rng(0)
    wrong = np.stack([rng.permutation(N)[:200] for _ in range(3 * 5)]).reshape(5, 3, 200)
    noise, planted_effect = np.zeros((2, 5, 3, N), dtype=int)
    for seed, scale in np.ndindex(5, 3):
        noise[seed, scale, wrong[seed, scale]] = 1
        own = np.r_[np.arange(100 * scale, 100 * (scale + 1)), 300 + wrong[seed, scale] % 700]
        planted_effect[seed, scale, np.unique(own)[:200]] = 1
    same, different = (function_memory(planted(one, tiny)) for one in (noise, planted_effect))
    assert same["accuracy"] == different["accuracy"] == 0
    assert same["p"] > 0.05
    assert different["p"] < 0.005


def test_the_p_value_of_no_effect_is_uniform() -> None:
    rng = np.random.default_rng(0)
    ps = []
    for _ in range(200):
        of_seed = rng.integers(0, 3, (4, 1, 60))  # seeds differ, scales are exchangeable
        noise = rng.integers(0, 3, (4, 3, 60))
        classes = np.where(rng.random((4, 3, 60)) < 0.5, of_seed, noise)
        ps.append(effect_p(disagreements(classes), draws=199))
    assert 0.01 <= np.mean(np.array(ps) <= 0.05) <= 0.10
    assert 0.4 <= np.mean(ps) <= 0.6


def test_the_interval_of_the_effect_holds_the_planted_one_in_95_percent(tiny: Recipe) -> None:
    """Seeds have rates of their own; half of the examples have another answer at the second scale, at 90%."""
    rng = np.random.default_rng(3)
    n, k, examples = 6, 2, 200
    within, wrong = [], []
    for _ in range(200):
        usual = np.where(np.arange(examples) < examples // 2, np.arange(k)[:, None], 0)
        rates = rng.uniform(0.05, 0.15, (n, 1, 1))
        classes = np.where(rng.random((n, k, examples)) < rates, 1 - usual, usual)
        row = function_memory(planted(classes, tiny))
        true = 100 / 2 * (1 - 2 * 0.1) ** 2  # half of the examples, answers of both as usual or both not
        within.append(row["effect_low"] <= true <= row["effect_high"])
        wrong.append(row["effect_low"] <= 0.6 * true <= row["effect_high"])
    assert 180 <= sum(within) <= 199
    assert sum(wrong) < 20


def test_a_test_that_cannot_be_significant_says_so(tiny: Recipe) -> None:
    """Two scales of five seeds have 16 orders that differ."""
    classes = np.zeros((6, 2, N), dtype=int)
    classes[:, 1, :300] = 1  # the scale decides, the seed does nothing
    few, enough = (measure(planted(classes[:n], tiny), "function")[0] for n in (5, 6))
    assert few["reading"] == "too few runs to tell"
    assert enough["reading"] == "changes the function"


def test_the_interval_over_seeds_holds_the_planted_disagreement_in_95_percent() -> None:
    """Each seed has its own rate around 20%."""
    from initmem.measures.statistics import mean_over_seeds

    rng = np.random.default_rng(0)
    inside = 0
    for _ in range(400):
        rates = rng.normal(0.2, 0.03, 6)
        _, low, high = mean_over_seeds([(seed, rate) for seed, rate in enumerate(rates)])
        inside += low <= 0.2 <= high
    assert 0.92 <= inside / 400 <= 0.98


def test_perturbed_replicates_give_what_chaos_alone_does(tiny: Recipe) -> None:
    base = planted(np.zeros((3, 2, N), dtype=int), tiny)
    replicates = []
    for record in base:
        classes = np.zeros(N, dtype=np.uint16)
        classes[: 20 + 10 * record.run.seed] = 1
        run = replace(record.run, perturbation=1.001)
        other = fake_record(run, 0.81)  # another course
        replicates.append(replace(other, arrays={"predictions": classes}))
    unseen = replace(base[0], run=replace(base[0].run, perturbation=1.002))  # it changed nothing
    (row,) = measure([*base, *replicates, unseen], "function")
    assert row["replicates"] == pytest.approx(3.0)
    assert row["n_pairs"] == 6
    half = 4.302653 * 1.0 / math.sqrt(3)  # of Student's t with 2 degrees of freedom
    assert row["replicates_high"] - row["replicates"] == pytest.approx(half, rel=1e-5)
    assert row["scales"] == 0


def test_records_without_predictions_are_named(tiny: Recipe) -> None:
    old = [fake_record(Run(tiny, scale, seed), 0.8) for scale in (1.0, 2.0) for seed in range(3)]
    assert measure(old, "function") == []
    data = Collection(old, [])
    assert remarks("function", data)[0].endswith("predictions not recorded in 6 of 6 runs")
    new = planted(np.zeros((3, 2, N), dtype=int), tiny)
    some = Collection([*new[:-1], *[one for one in old if one.id == new[-1].id]], [])
    assert measure(some, "function")[0]["n_seeds"] == 2
    assert remarks("function", some)[0].endswith("predictions not recorded in 1 of 6 runs")
    short = replace(new[-1], arrays={"predictions": np.zeros(7, dtype=np.uint16)})
    mixed = Collection([*new[:-1], short], [])
    assert measure(mixed, "function") == []
    assert "different numbers of predictions" in remarks("function", mixed)[0]


# -- identification ---------------------------------------------------------------------------------------


def test_a_match_is_found_and_its_p_is_exact() -> None:
    rng = np.random.default_rng(0)
    initial = rng.integers(0, 10, (5, 2, N))
    kept = rng.random((5, 2, N)) < 0.3
    classes = np.where(kept, initial, rng.integers(0, 10, (5, 2, N)))
    matched = identification(classes, initial)
    assert matched.share == 1.0
    assert matched.p == pytest.approx(1 / math.factorial(5))
    many = [rng.integers(0, 10, (9, 1, N)) for _ in range(2)]
    many[0][:, :, :300] = many[1][:, :, :300]
    assert identification(many[0], many[1]).p == pytest.approx(1e-4)


def test_shuffled_origins_are_at_chance() -> None:
    """Of all assignments of the untrained networks, one in 20 is called significant at most."""
    rng = np.random.default_rng(0)
    initial = rng.integers(0, 10, (5, 2, 300))
    classes = np.where(rng.random((5, 2, 300)) < 0.3, initial, rng.integers(0, 10, (5, 2, 300)))
    shuffled = [identification(classes, initial[list(order)]) for order in permutations(range(5))]
    assert np.mean([one.p <= 0.05 for one in shuffled]) <= 0.05
    assert np.mean([one.p for one in shuffled]) == pytest.approx(0.5, abs=0.02)
    assert np.mean([one.share for one in shuffled]) == pytest.approx(0.2, abs=0.03)


def test_networks_with_the_same_initialization_are_not_identified() -> None:
    initial = np.tile(np.random.default_rng(0).integers(0, 10, (1, 1, 300)), (5, 1, 1))
    assert identification(initial.copy(), initial).p == 1.0


def test_networks_are_identified_only_where_every_run_has_its_first_predictions(tiny: Recipe) -> None:
    classes = np.random.default_rng(0).integers(0, 10, (5, 2, 300))
    first, *rest = planted(classes, tiny, classes)
    (row,) = measure([first, *rest], "function")
    assert row["identified"] == 100
    bare = replace(first, arrays={"predictions": first.arrays["predictions"]})
    (row,) = measure([bare, *rest], "function")
    assert row["identified"] is row["p_identified"] is None


@pytest.mark.parametrize("model", ["mlp", "resnet9"])
def test_untrained_networks_are_identified_and_shuffled_ones_are_not(tiny: Recipe, model: str) -> None:
    changes = {"dataset": "digits", "train_size": 64, "model": model, "width": 4}
    recipe = Recipe.parse(tiny.changes() | changes | {"learning_rate": 1e-9, "epochs": 1})
    runs = [Run(recipe, scale, seed) for seed in range(6) for scale in (0.5, 2.0)]
    records = train_pack(runs, load(recipe))
    (row,) = measure(records, "function")
    assert row["p_identified"] < 0.01
    assert row["identified"] > 80
    order = [3, 5, 0, 1, 2, 4]  # no network keeps its own
    swapped = {
        (r.run.seed, r.run.scale): next(
            o.arrays["initial_predictions"]
            for o in records
            if (o.run.seed, o.run.scale) == (order[r.run.seed], r.run.scale)
        )
        for r in records
    }
    shuffled = [
        replace(r, arrays={**r.arrays, "initial_predictions": swapped[r.run.seed, r.run.scale]})
        for r in records
    ]
    (row,) = measure(shuffled, "function")
    assert row["p_identified"] > 0.05
    assert row["identified"] < 30


# -- user code --------------------------------------------------------------------------------------------


def test_user_code_records_classes_or_scores(tmp_path: Path) -> None:
    def train(init: initmem.Init, tracker: Tracker) -> dict[str, float]:
        rng = np.random.default_rng(init.seed)
        scores = rng.random((50, 4))
        tracker.predictions(torch.tensor(scores, dtype=torch.bfloat16), initial=True)
        tracker.predictions([0] * 50)
        tracker.predictions(torch.tensor(scores).argmax(-1))
        return {"test_accuracy": 0.5 * init.scale / init.scale}

    result = initmem.run(
        train, [1.0, 2.0], range(3), tmp_path / "store", engine="inline", progress=False, workdir="shared"
    )
    for record in result.records:
        scores = np.random.default_rng(record.run.seed).random((50, 4))
        assert record.arrays["predictions"].tolist() == scores.argmax(-1).tolist()
        assert (record.arrays["initial_predictions"] == scores.argmax(-1)).mean() > 0.9
    (row,) = measure(tmp_path / "store", "function")
    assert row["scales"] == 0
    assert row["seeds"] > 50
    assert row["p_identified"] == pytest.approx(1 / 6)


@pytest.mark.parametrize(
    "given", [[0.5, 1.5], [-1, 2], [70_000], [[[1]]], "abc", [], [[1], [2, 3]], [[math.nan, 1.0]], 3, None]
)
def test_what_is_no_prediction_is_refused_in_a_line(given: object) -> None:
    with pytest.raises(ConfigError, match="predictions"):
        Tracker().predictions(given)


def test_a_tracker_resumes_with_its_predictions() -> None:
    tracker, other = Tracker(), Tracker()
    tracker.predictions([3, 1, 2], initial=True)
    other.load_state_dict(json.loads(json.dumps(tracker.state_dict())))
    assert other.arrays["initial_predictions"].tolist() == [3, 1, 2]
    state = tracker.state_dict()
    del state["arrays"]  # of an earlier version
    other.load_state_dict(state)
    assert other.arrays == {}


def test_a_program_records_predictions_by_tracker_or_by_hand(tmp_path: Path) -> None:
    from initmem.pipeline.command import CommandTrainer, ProgramError, parse

    script = tmp_path / "train.py"
    run = Run(initmem.study_file.own_study("p", {}, [1.0], [0]).recipes[0], 1.0, 0)

    def record(code: str) -> RunRecord:
        script.write_text(code)
        command = f"{sys.executable} {script} {{scale}} {{history}}"
        (made,) = CommandTrainer(parse(command))([run], lambda run, row: None)
        return made

    tracked = "import sys, initmem; t = initmem.Tracker(out=sys.argv[2]); t.end_epoch(val_loss=1.0); "
    assert record(tracked + "t.predictions([1, 2, 3])").arrays["predictions"].tolist() == [1, 2, 3]
    by_hand = "import sys; open(sys.argv[2], 'w').write('{\"val_loss\": 1}\\n{\"predictions\": %s}\\n')"
    assert record(by_hand % "[1, 2]").arrays["predictions"].tolist() == [1, 2]
    with pytest.raises(ProgramError, match="line 2 of the history: predictions"):
        record(by_hand % "[1.5, 2]")


def test_several_stores_with_old_and_new_records_of_a_run_fit_together(tiny: Recipe) -> None:
    (new,) = planted(np.zeros((1, 1, 5), dtype=int), tiny)
    old = replace(new, arrays={})
    assert len(collected([old, new]).records) == 1
