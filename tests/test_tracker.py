"""The tracker's clocks against closed forms, and what it makes of a run."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

from initmem.clocks import clocks
from initmem.errors import ConfigError
from initmem.pipeline.init import Init
from initmem.pipeline.tracker import Tracker
from initmem.recipe import Recipe

EPOCHS, PER_EPOCH, BATCH = 3, 40, 16
K = EPOCHS * PER_EPOCH


def network() -> nn.Sequential:
    return Init(1.0, 0).apply(
        nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, 3)), draw="fan-in"
    )


def backward(model: nn.Module) -> None:
    x = torch.linspace(-1, 1, 48).reshape(8, 6)
    nn.functional.cross_entropy(model(x), torch.arange(8) % 3).backward()


def trained(optimizer_of, scheduler_of=None, *, accumulation: int = 1, **attach) -> Tracker:
    """Train a small network and track it; the scheduler steps at every update."""
    model = network()
    optimizer = optimizer_of(model)
    scheduler = scheduler_of(optimizer) if scheduler_of else None
    tracker = Tracker()
    tracker.attach(model, optimizer, BATCH, accumulation=accumulation, **attach)
    for epoch in range(EPOCHS):
        for _ in range(PER_EPOCH):
            for _ in range(accumulation):
                backward(model)
            optimizer.step()
            optimizer.zero_grad()
            if scheduler:
                scheduler.step()
        tracker.end_epoch(val_loss=1.0 / (epoch + 1))
    return tracker


def sgd(model: nn.Module, **options) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), **{"lr": 0.02} | options)


def assert_clocks(tracker: Tracker, rates: np.ndarray, *, batch: int = BATCH) -> None:
    """Compare with the sums over given rates, shape (update,), at the end of every epoch."""
    ends = np.arange(1, EPOCHS + 1) * PER_EPOCH - 1
    np.testing.assert_allclose(tracker.history["clock_adaptive"], np.cumsum(rates)[ends], rtol=1e-9)
    np.testing.assert_allclose(tracker.history["clock_sgd"], np.cumsum(rates**2)[ends] / batch, rtol=1e-9)
    np.testing.assert_allclose(tracker.history["learning_rate"], rates[ends], rtol=1e-9)


def test_cosine_is_the_closed_form_of_the_recipe() -> None:
    recipe = Recipe.parse(
        {"learning_rate": 0.02, "epochs": EPOCHS, "batch_size": BATCH, "l2": 0.003, "optimizer": "momentum"}
    )
    floor = recipe.lr_floor
    tracker = trained(
        lambda model: sgd(model, momentum=0.9, weight_decay=2 * recipe.l2),
        lambda optimizer: lr_scheduler.LambdaLR(
            optimizer, lambda k: floor + (1 - floor) * (1 + math.cos(math.pi * k / K)) / 2
        ),
    )
    expected = clocks(recipe, PER_EPOCH * BATCH)
    for name in ("sgd", "l2", "adaptive", "momentum"):
        np.testing.assert_allclose(tracker.history[f"clock_{name}"], getattr(expected, name), rtol=1e-9)
    assert tracker.updates == expected.updates[-1]


def test_a_constant_rate_and_a_penalty_of_the_users_own() -> None:
    tracker = trained(sgd, l2=0.01)
    recipe = Recipe.parse(
        {"learning_rate": 0.02, "schedule": "constant", "epochs": EPOCHS, "batch_size": BATCH, "l2": 0.01}
    )
    for name in ("sgd", "l2", "adaptive", "momentum"):
        expected = getattr(clocks(recipe, PER_EPOCH * BATCH), name)
        np.testing.assert_allclose(tracker.history[f"clock_{name}"], expected, rtol=1e-9)


def test_steps_down() -> None:
    tracker = trained(sgd, lambda optimizer: lr_scheduler.StepLR(optimizer, step_size=30, gamma=0.1))
    assert_clocks(tracker, 0.02 * 0.1 ** (np.arange(K) // 30))


def test_one_cycle() -> None:
    tracker = trained(
        sgd,
        lambda optimizer: lr_scheduler.OneCycleLR(
            optimizer, max_lr=0.1, total_steps=K + 1, pct_start=0.25, div_factor=10, final_div_factor=100,
            anneal_strategy="linear", cycle_momentum=False,
        ),
    )  # fmt: skip
    top = 0.25 * (K + 1) - 1  # torch counts the turning point so
    assert_clocks(tracker, np.interp(np.arange(K), [0, top, K], [0.01, 0.1, 0.0001]))


def test_warm_up() -> None:
    tracker = trained(
        sgd, lambda optimizer: lr_scheduler.LinearLR(optimizer, start_factor=0.1, total_iters=50)
    )
    assert_clocks(tracker, 0.02 * np.minimum(1, 0.1 + 0.9 * np.arange(K) / 50))


def test_two_groups_are_weighed_by_their_kernels() -> None:
    def two(model: nn.Sequential) -> torch.optim.Optimizer:
        first = {"params": model[0].parameters(), "lr": 0.1}
        rest = {"params": [*model[1].parameters(), *model[2].parameters()], "weight_decay": 0.5}
        return torch.optim.SGD([first, rest], lr=0.01)

    tracker = trained(two, lambda optimizer: lr_scheduler.ExponentialLR(optimizer, 0.99))
    decay = 0.99 ** np.arange(K)
    ends = np.arange(1, EPOCHS + 1) * PER_EPOCH - 1
    sums, squares = np.cumsum(decay)[ends], np.cumsum(decay**2)[ends] / BATCH
    history = tracker.history
    share = 30 / (30 + 15)  # 6 x 5 values of kernels in the first group, 5 x 3 in the second
    np.testing.assert_allclose(history["clock_l2"], (1 - share) * 0.25 * 0.01 * sums, rtol=1e-9)
    mixed = share * 0.1**2 + (1 - share) * 0.01**2
    np.testing.assert_allclose(history["clock_sgd"], mixed * squares, rtol=1e-9)
    np.testing.assert_allclose(
        history["clock_adaptive"], (share * 0.1 + (1 - share) * 0.01) * sums, rtol=1e-9
    )


def test_two_optimizers_are_two_groups() -> None:
    def pair(model: nn.Sequential):
        class Both(list):
            def step(self) -> None:
                for one in self:
                    one.step()

            def zero_grad(self) -> None:
                for one in self:
                    one.zero_grad()

        return Both(
            [torch.optim.SGD(model[0].parameters(), 0.1), torch.optim.Adam(model[2].parameters(), 0.01)]
        )

    tracker = trained(pair)
    assert tracker.updates == K
    share = 30 / 45
    assert tracker.history["clock_adaptive"][-1] == pytest.approx(K * (share * 0.1 + (1 - share) * 0.01))


def test_accumulation_of_four_counts_real_updates() -> None:
    tracker = trained(sgd, accumulation=4)
    assert tracker.updates == K
    assert_clocks(tracker, np.full(K, 0.02), batch=4 * BATCH)


@pytest.mark.parametrize("fused", [False, True])
def test_steps_that_mixed_precision_skips_do_not_count(fused: bool) -> None:
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, fused=fused)
    scaler = torch.amp.GradScaler("cpu", init_scale=1.0)
    tracker = Tracker()
    tracker.attach(model, optimizer, BATCH)
    real = 0
    for k in range(12):
        before = model[0].weight.detach().clone()
        loss = model(torch.randn(4, 6, generator=torch.Generator().manual_seed(k))).square().mean()
        scaler.scale(loss * (math.inf if k % 3 == 0 else 1.0)).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        real += not torch.equal(before, model[0].weight)
    tracker.end_epoch(val_loss=1.0)
    assert real == 8
    assert tracker.updates == real
    assert tracker.history["clock_adaptive"][-1] == pytest.approx(0.01 * real)


def test_the_momentum_of_adam_and_muon_does_not_lengthen_steps() -> None:
    tracker = trained(lambda model: torch.optim.Adam(model.parameters(), lr=0.01))
    np.testing.assert_allclose(tracker.history["clock_momentum"], tracker.history["clock_sgd"], rtol=1e-12)


# -- norms ----------------------------------------------------------------------------------------------


def explicit_angles(rate: float, updates: int) -> tuple[float, list[float]]:
    """The angular clock and the norms by an independent loop: biases and norm layers do not count."""
    model = network()
    optimizer = sgd(model, lr=rate, weight_decay=0.02)
    total, norms = 0.0, []
    for _ in range(updates):
        square = sum(float(model[i].weight.detach().double().square().sum()) for i in (0, 2))
        norms.append(math.sqrt(square))
        total += rate / square
        backward(model)
        optimizer.step()
        optimizer.zero_grad()
    return total, norms


def test_norms_and_the_angular_clock() -> None:
    exact, norms = explicit_angles(0.5, K + 1)
    every, some = (trained(lambda m: sgd(m, lr=0.5, weight_decay=0.02), norm_every=n) for n in (1, 64))
    assert every.norm_init == pytest.approx(norms[0])
    np.testing.assert_allclose(
        every.history["norm"], [norms[(i + 1) * PER_EPOCH] for i in range(EPOCHS)], rtol=1e-6
    )
    exact -= 0.5 / norms[K] ** 2  # the loop above goes one update further
    assert every.history["clock_angular"][-1] == pytest.approx(exact, rel=1e-6)
    assert some.history["clock_angular"][-1] == pytest.approx(exact, rel=0.02)
    assert norms[K] < 0.8 * norms[0]  # or the norms would say nothing


def test_it_counts_the_kernels_that_init_drew() -> None:
    init = Init(1.0, 0)
    model = nn.Sequential(nn.Linear(6, 5), nn.Linear(5, 3))
    init.apply(model, kernels="1.weight")
    tracker = Tracker(init)
    tracker.attach(model, sgd(model), BATCH)
    assert tracker.norm_init == pytest.approx(float(model[1].weight.detach().norm()))


# -- epochs ---------------------------------------------------------------------------------------------


def test_a_tracker_goes_on_where_it_was_saved() -> None:
    whole = trained(lambda m: sgd(m, momentum=0.9), norm_every=1).history
    model = network()
    optimizer = sgd(model, momentum=0.9)
    tracker = Tracker()
    tracker.attach(model, optimizer, BATCH, norm_every=1)
    for epoch in range(EPOCHS):
        for _ in range(PER_EPOCH):
            backward(model)
            optimizer.step()
            optimizer.zero_grad()
        tracker.end_epoch(val_loss=1.0 / (epoch + 1))
        saved = json.loads(json.dumps(tracker.state_dict()))
        tracker.detach()
        tracker = Tracker()
        if epoch:
            tracker.load_state_dict(saved)
        tracker.attach(model, optimizer, BATCH, norm_every=1)
        if not epoch:
            tracker.load_state_dict(saved)
    assert tracker.history.keys() == whole.keys()
    for name in whole.keys() - {"seconds"}:
        np.testing.assert_allclose(tracker.history[name], whole[name], rtol=1e-9, err_msg=name)
    assert tracker.norm_init == pytest.approx(explicit_angles(0.02, 1)[1][0])


def test_a_loss_that_is_not_finite_ends_the_history() -> None:
    tracker = Tracker()
    tracker.end_epoch(val_loss=1.0)
    tracker.end_epoch(val_loss=float("nan"))
    tracker.end_epoch(val_loss=0.5)
    assert tracker.diverged
    assert tracker.history["val_loss"].tolist() == [1.0]


def test_updates_can_be_counted_by_hand() -> None:
    tracker = Tracker()
    tracker.attach(batch_size=10)
    for rate in (0.3, 0.1):
        tracker.step(rate, momentum=0.5)
    tracker.end_epoch(val_loss=torch.tensor(2.0), norm=np.float32(3.0))
    assert tracker.history["clock_sgd"][0] == pytest.approx((0.09 + 0.01) / 10)
    assert tracker.history["clock_momentum"][0] == pytest.approx(4 * (0.09 + 0.01) / 10)
    assert tracker.history["norm"][0] == 3.0


@pytest.mark.parametrize(
    ("metrics", "words"),
    [
        ({"val_accuracy": 93.0}, "metric val_accuracy = 93 (allowed: a fraction from 0 to 1)"),
        ({"loss": torch.ones(2)}, "metric loss = tensor([1., 1.]) (allowed: a number)"),
        ({"loss": "low"}, "metric loss = 'low' (allowed: a number)"),
        ({"clock_sgd": 1.0}, "metric clock_sgd: initmem records that itself"),
        ({"tau_best": 1.0}, "metric tau_best: initmem records that itself"),
    ],
)
def test_odd_metrics_are_refused(metrics: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Tracker().end_epoch(**metrics)
    assert str(caught.value).startswith(words)


def test_metrics_come_with_every_epoch() -> None:
    tracker = Tracker()
    tracker.end_epoch(val_loss=1.0, bleu=0.3)
    with pytest.raises(ConfigError, match="epoch 2: metric bleu is not in every epoch"):
        tracker.end_epoch(val_loss=1.0)


def test_an_optimizer_of_another_kind_is_refused() -> None:
    with pytest.raises(ConfigError, match="optimizer: a int"):
        Tracker().attach(network(), 3, BATCH)
    with pytest.raises(ConfigError, match="batch_size = 0"):
        Tracker().attach(network(), None, 0)


def test_evaluating_before_the_first_update_gives_a_row_of_zeros() -> None:
    """As nanoGPT does, and Hugging Face with eval_on_start."""
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    tracker = Tracker()
    tracker.attach(model, optimizer, batch_size=10)
    for _ in range(3):
        tracker.end_epoch(val_loss=1.0)
        model(torch.ones(1, 3)).sum().backward()
        optimizer.step()
    history = tracker.history
    np.testing.assert_allclose(history["clock_sgd"], [0.0, 0.025, 0.05])
    np.testing.assert_allclose(history["clock_adaptive"], [0.0, 0.5, 1.0])
    assert history["clock_angular"][0] == 0.0 < history["clock_angular"][1]
    assert history["learning_rate"].tolist() == [0.0, 0.5, 0.5]
    assert tracker.dropped == []


def test_updates_counted_by_hand_begin_at_zero_too(tmp_path: Path) -> None:
    tracker = Tracker(out=tmp_path / "history.jsonl")
    tracker.attach(batch_size=10)
    for _ in range(3):
        tracker.end_epoch(val_loss=1.0)
        tracker.step(0.5)
    np.testing.assert_allclose(tracker.history["clock_sgd"], [0.0, 0.025, 0.05])
    again = Tracker()
    for line in (tmp_path / "history.jsonl").read_text().splitlines():
        again.add_row(json.loads(line))
    assert {name: column.tolist() for name, column in again.history.items()} == {
        name: column.tolist() for name, column in tracker.history.items()
    }


def test_a_group_that_joins_later_is_weighed_from_then_on() -> None:
    model = nn.Linear(2, 2), nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model[0].parameters(), lr=0.1)
    tracker = Tracker()
    tracker.attach(nn.ModuleList(model), optimizer, batch_size=1)
    for epoch in range(2):
        if epoch == 1:
            optimizer.add_param_group({"params": model[1].parameters(), "lr": 0.2})
        model[1](model[0](torch.ones(1, 2))).sum().backward()
        optimizer.step()
        tracker.end_epoch(val_loss=1.0)
    # Then half of the kernels have moved by 0.1 + 0.1, and the other half by 0.2.
    np.testing.assert_allclose(tracker.history["clock_adaptive"], [0.1, 0.2])
    np.testing.assert_allclose(tracker.history["learning_rate"], [0.1, 0.15])
    assert tracker.dropped == []


def test_a_clock_that_was_not_measured_is_absent() -> None:
    tracker = Tracker()
    tracker.step(0.5)
    tracker.end_epoch(loss=1.0)
    assert tracker.clocks() == {"adaptive": 0.5}  # the others need a batch size or kernels
    assert set(tracker.history) == {"loss", "learning_rate", "clock_adaptive", "updates", "seconds"}
    tracker.attach(batch_size=10)
    assert set(tracker.clocks()) == {"sgd", "l2", "adaptive", "momentum"}
    unwatched = Tracker()
    unwatched.end_epoch(loss=1.0)
    assert unwatched.clocks() == {} and set(unwatched.history) == {"loss", "seconds"}


def test_a_column_that_cannot_be_filled_is_named() -> None:
    tracker = Tracker()
    tracker.end_epoch(loss=1.0)
    tracker.attach(nn.Linear(2, 2), batch_size=1)
    tracker.end_epoch(loss=0.5)
    assert "norm" not in tracker.history
    assert tracker.dropped == ["norm"]


@pytest.mark.parametrize(
    ("said", "name"),
    [
        ("test_acc", "test_accuracy"),
        ("test/acc", "test_accuracy"),
        ("eval/accuracy", "val_accuracy"),
        ("valid_top1", "val_accuracy"),
        ("Validation Accuracy", "val_accuracy"),
        ("dev_acc1", "val_accuracy"),
        ("top1", "accuracy"),
        ("acc", "accuracy"),
        ("top5", "top5_accuracy"),
        ("test_top5", "test_top5_accuracy"),
        ("train/top-1 acc", "train_accuracy"),
        ("eval_loss", "val_loss"),
        ("test/loss", "test_loss"),
        ("loss", "loss"),
        ("acceleration", "acceleration"),
        ("bleu/top", "bleu/top"),
        ("test_rmse", "test_rmse"),
    ],
)
def test_names_of_accuracies_and_losses(said: str, name: str) -> None:
    tracker = Tracker()
    tracker.end_epoch(**{said: 0.5})
    assert tracker.history[name].tolist() == [0.5]
    if "accuracy" in name:
        with pytest.raises(ConfigError, match=r"= 97 \(allowed: a fraction from 0 to 1\)"):
            tracker.end_epoch(**{said: 97})


def test_two_names_of_one_metric_are_refused() -> None:
    with pytest.raises(ConfigError, match="metric test_acc: there is a test_accuracy already"):
        Tracker().end_epoch(test_accuracy=0.5, test_acc=0.5)


def test_a_metric_whose_name_cannot_be_written_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"metric 'score\\ud800' .allowed: a name that can be written"):
        Tracker().end_epoch(**{"score\ud800": 1.0})


def test_a_metric_too_large_to_compute_with_is_infinite() -> None:
    tracker = Tracker()
    tracker.end_epoch(val_loss=1e99)
    assert not tracker.diverged
    tracker.end_epoch(val_loss=1e308)
    assert tracker.diverged
    assert tracker.history["val_loss"].tolist() == [1e99]


def _of_one_rank(rank: int, folder: str) -> None:
    """One of two processes that train a model together; the tracker is made before they meet."""
    tracker = Tracker(out=Path(folder) / "history.jsonl")
    meeting = f"file://{folder}/meeting"
    torch.distributed.init_process_group("gloo", init_method=meeting, rank=rank, world_size=2)
    for epoch in range(3):
        tracker.end_epoch(val_loss=1.0 / (epoch + 1))
        torch.distributed.barrier()
    tracker.finish(test_accuracy=0.5)
    torch.distributed.destroy_process_group()


def test_one_of_several_processes_writes_the_history(tmp_path: Path) -> None:
    torch.multiprocessing.start_processes(_of_one_rank, (str(tmp_path),), nprocs=2, start_method="fork")
    lines = [json.loads(line) for line in (tmp_path / "history.jsonl").read_text().splitlines()]
    assert [line.get("val_loss") for line in lines] == [1.0, 1 / 2, 1 / 3, None]


def test_a_tracker_of_another_rank_of_torchrun_is_silent(tmp_path: Path, monkeypatch) -> None:
    rows: list = []
    for rank in ("1", "0"):
        monkeypatch.setenv("RANK", rank)
        tracker = Tracker(out=tmp_path / rank, on_epoch=rows.append)
        tracker.end_epoch(val_loss=1.0)
        assert tracker.history["val_loss"].tolist() == [1.0]
        assert (tmp_path / rank).exists() == (rank == "0") == bool(rows)
