"""What is said of the fit of user code: unequal fit, runs that still improve, runs of different lengths."""

from __future__ import annotations

import functools
from pathlib import Path

from torch import nn, optim

import initmem

run = functools.partial(
    initmem.run, scales=(0.1, 1.0, 2.5), seeds=range(6), engine="inline", workdir="shared", progress=False
)


def noise(init: initmem.Init, epoch: int = 0, size: float = 0.002) -> float:
    return size * init.generator("order", int(100 * init.run.scale) + 1000 * epoch).standard_normal()


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
