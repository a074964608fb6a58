"""Verdicts on user code that learned nothing or too little, and where the scale never reached the weights."""

from __future__ import annotations

import functools
from dataclasses import replace
from pathlib import Path

import numpy as np
from torch import nn, optim, tensor

import initmem
from initmem.measures.memory import memory, memory_table
from initmem.measures.scales import failures
from initmem.store.store import Store
from initmem.study import Study

SCALES = (0.1, 1.0, 2.5)
run = functools.partial(
    initmem.run, scales=SCALES, seeds=range(6), engine="inline", workdir="shared", progress=False
)


def noise(init: initmem.Init, epoch: int = 0, size: float = 0.002) -> float:
    return size * init.generator("order", int(100 * init.run.scale) + 1000 * epoch).standard_normal()


def ends(tracker: initmem.Tracker, *accuracies: float) -> None:
    """Epochs with these accuracies; the validation loss falls, so that the last one is selected."""
    for i, accuracy in enumerate(accuracies):
        tracker.end_epoch(val_loss=1 / (i + 1), val_accuracy=accuracy, test_accuracy=accuracy)


def test_a_constant_accuracy_is_untrained(tmp_path: Path) -> None:
    result = run(lambda init, tracker: ends(tracker, *[0.1 * init.scale / init.scale] * 3), store=tmp_path)
    assert result.verdict == "untrained"
    assert "18 of 18 runs are untrained" in str(result)


def test_a_selected_epoch_no_better_than_the_first_is_untrained(tmp_path: Path) -> None:
    def train(init, tracker):
        ends(tracker, 0.1 * init.scale / init.scale + noise(init) + 0.001, 0.11, 0.1 + noise(init))

    assert run(train, store=tmp_path).verdict == "untrained"


def test_without_chance_only_clear_progress_allows_forgets(tmp_path: Path) -> None:
    def accuracies(gains: tuple[float, ...], init, tracker):
        gain = dict(zip(SCALES, gains, strict=True))[init.scale]
        ends(tracker, 0.9 - gain + noise(init), 0.9 + noise(init, 1))

    some = run(functools.partial(accuracies, (0.3, 0.01, 0.3)), store=tmp_path / "some", name="some")
    assert some.memory().within_tolerance and some.verdict == "inconclusive"
    assert 'recipe={"classes": 10}' in str(some) and "scale 1 " in str(some)
    assert some.memory().seeds_needed is None  # no number of them would settle it
    all_scales = run(functools.partial(accuracies, (0.3, 0.1, 0.3)), store=tmp_path / "all", name="all")
    assert all_scales.verdict == "forgets"
    declared = run(
        functools.partial(accuracies, (0.3, 0.01, 0.3)),
        store=tmp_path / "declared",
        name="declared",
        recipe={"classes": 10},
    )
    assert declared.verdict == "forgets"


def test_a_perfect_first_epoch_and_overfitting_are_no_failures(tmp_path: Path) -> None:
    def perfect(init, tracker):
        ends(tracker, init.scale / init.scale, 1.0)

    def overfitted(init, tracker):
        init.scale  # noqa: B018
        for epoch in range(3):  # the first epoch is selected, while train accuracy rises
            accuracy = 0.8 - 0.01 * epoch + noise(init)
            tracker.end_epoch(val_loss=1 + epoch, val_accuracy=accuracy, train_accuracy=0.7 + 0.1 * epoch)

    for train in (perfect, overfitted):
        assert failures(run(train, store=tmp_path / train.__name__).records).untrained == 0


def test_the_outputs_of_a_model_tell_the_number_of_classes(tmp_path: Path) -> None:
    def train(accuracy: float, init, tracker):
        model = init.apply(nn.Linear(4, 10))
        optimizer = optim.SGD(model.parameters(), 0.1)
        tracker.attach(model, optimizer, batch_size=2)
        model(tensor(init.generator("order").standard_normal((2, 4)), dtype=model.weight.dtype))
        ends(tracker, accuracy + noise(init), accuracy + noise(init, 1))

    chance = run(functools.partial(train, 0.1), store=tmp_path / "chance", name="chance")
    assert chance.verdict == "untrained"  # by noise, the second epoch is better than the first in some runs
    assert {record.provenance["classes"] for record in chance.records} == {10}
    assert run(functools.partial(train, 0.9), store=tmp_path / "good", name="good").verdict == "forgets"


def npz_study(path: Path) -> Study:
    rng = np.random.default_rng(0)
    np.savez(path, x=rng.random((60, 8, 8)), y=np.arange(60) % 3)
    recipe = initmem.Recipe.parse({"dataset": str(path), "epochs": 1, "width": 2, "learning_rate": 1e-9})
    return Study("own", "own", "full", "", (recipe,), (0.5, 1.0), (0, 1))


def test_measuring_opens_no_dataset(tmp_path: Path) -> None:
    from initmem.engines.engine import Settings
    from initmem.engines.local import InlineEngine
    from initmem.session import run_study

    study = npz_study(tmp_path / "own.npz")
    run_study(study, tmp_path / "store", InlineEngine(Settings()))
    before = memory_table(tmp_path / "store")[0]
    (tmp_path / "own.npz").unlink()
    after = memory_table(tmp_path / "store")[0]
    assert before.untrained > 0 and failures(Store(tmp_path / "store").records()).chance is not None
    assert (after.untrained, after.notes, after.verdict) == (before.untrained, before.notes, before.verdict)


def test_bundled_runs_of_unknown_chance_do_not_forget_without_progress(tmp_path: Path) -> None:
    from conftest import fake_record

    recipe = initmem.Recipe.parse({"dataset": str(tmp_path / "gone.npz"), "batch_statistics": "re-estimated"})
    rng = np.random.default_rng(0)
    runs = [initmem.Run(recipe, scale, seed) for scale in SCALES for seed in range(6)]
    clear = [fake_record(one, 0.8 + 0.001 * rng.standard_normal()) for one in runs]
    assert memory(clear).verdict == "forgets"
    short = [fake_record(record.run, record.summary.test_accuracy or 0.0, epochs=1) for record in clear]
    assert memory(short).verdict == "inconclusive"
    known = [replace(record, provenance={"classes": 3, "n_test": 12}) for record in short]
    assert memory(known).verdict == "forgets"


def test_weights_that_are_drawn_again_after_the_scale_was_applied(tmp_path: Path, command) -> None:
    def train(redraw: bool, init, tracker):
        model = init.apply(nn.Linear(4, 3))
        if redraw:
            model.reset_parameters()
        tracker.attach(model, optim.SGD(model.parameters(), 0.1), batch_size=4)
        ends(tracker, 0.5 + noise(init), 0.9 + noise(init, 1))

    def output_scaled(init, tracker):  # the scale is in the function, not in the weights
        model = nn.Linear(4, 3)
        model.factor = init.scale
        tracker.attach(model, optim.SGD(model.parameters(), 0.1), batch_size=4)
        ends(tracker, 0.5 + noise(init), 0.9 + noise(init, 1))

    redrawn = run(functools.partial(train, True), store=tmp_path / "redrawn", name="redrawn")
    assert str(redrawn.memory()) == "not applicable: the scale had no effect on the weights"
    assert "the same norm at all scales" in redrawn.memory().meaning
    _, printed, _ = command("measure", tmp_path / "redrawn", "--what", "beta")
    assert "redrawn: not applicable: the scale had no effect on the weights" in printed
    kept = run(functools.partial(train, False), store=tmp_path / "kept", name="kept")
    assert (kept.verdict, run(output_scaled, store=tmp_path / "own").verdict) == ("forgets", "forgets")


# -- too little ---------------------------------------------------------------------------------------------


def test_scales_that_were_not_fitted_are_no_large_memory(tmp_path: Path) -> None:
    def train(init, tracker):
        fitted = init.scale < 2
        for epoch in range(4):
            train = min(0.4 + 0.2 * epoch, 1.0) if fitted else 0.2 + 0.02 * epoch
            val = (0.95 if fitted else 0.2) - 0.1 / (epoch + 1) + noise(init)
            tracker.end_epoch(
                val_loss=abs(epoch - 3), train_accuracy=train, val_accuracy=val, test_accuracy=val
            )

    memory = run(train, store=tmp_path).memory()
    assert memory.memory > 70 and memory.verdict == "remembers" and memory.mode != "generalization"
    assert "(large" not in str(memory)
    (note,) = [note for note in memory.notes if "fitted equally well" in note]
    assert note.startswith("over the scales that are fitted equally well (0.1, 1): 0.")


def epochs(selected: int, init, tracker, length: int = 5) -> None:
    init.scale  # noqa: B018
    for epoch in range(1, length + 1):
        tracker.end_epoch(
            val_loss=abs(epoch - selected) + 0.1, val_accuracy=0.5 + 0.05 * epoch + noise(init, epoch)
        )


def test_runs_that_still_improve_are_told_to_train_longer(tmp_path: Path) -> None:
    improving = run(functools.partial(epochs, 5), store=tmp_path / "a", name="a").memory()
    assert any(
        note.startswith("still improving: the last epoch is selected in 18 of 18 runs")
        for note in improving.notes
    )
    done = run(functools.partial(epochs, 3), store=tmp_path / "b", name="b").memory()
    assert not any("still improving" in note for note in done.notes)


def test_runs_of_different_lengths_are_compared_with_a_remark(tmp_path: Path) -> None:
    def train(lengths, init, tracker):
        model = init.apply(nn.Linear(2, 2))
        optimizer = optim.SGD(model.parameters(), 0.1)
        tracker.attach(model, optimizer, batch_size=4)
        for epoch in range(3):
            for _ in range(lengths[init.scale]):
                optimizer.step()
            tracker.end_epoch(val_loss=1 / (epoch + 1), val_accuracy=0.5 + 0.1 * epoch + noise(init, epoch))

    unequal = run(
        functools.partial(train, {0.1: 5, 1.0: 20, 2.5: 50}), store=tmp_path / "a", name="a"
    ).memory()
    assert any("runs of 15 to 150 updates are compared" in note for note in unequal.notes)
    equal = run(
        functools.partial(train, dict.fromkeys((0.1, 1.0, 2.5), 5)), store=tmp_path / "b", name="b"
    ).memory()
    assert not any("are compared" in note for note in equal.notes)


def test_every_verdict_tells_what_is_missing_of_the_fit(tmp_path: Path) -> None:
    assert "record train_accuracy or train_loss" in str(
        run(functools.partial(epochs, 3), store=tmp_path, name="c")
    )
