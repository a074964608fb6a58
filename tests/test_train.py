from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from initmem.clocks import clocks, epoch_rates, updates_per_epoch
from initmem.data.dataset import Sizes
from initmem.data.sources import load
from initmem.errors import ModelError
from initmem.recipe import Recipe
from initmem.record import COLUMNS, RunRecord
from initmem.store.encoding import decode, encode
from initmem.study import Run
from initmem.train import loop
from initmem.train.init import initialized
from initmem.train.layers import by_replica
from initmem.train.loop import records, train_epoch, train_pack
from initmem.train.networks import build, count
from initmem.train.pack import Checkpoint, Pack

SCALES = (0.3, 1.0, 2.5)


def runs_of(recipe: Recipe) -> list[Run]:
    return [Run(recipe, scale, seed) for seed, scale in enumerate(SCALES)]


def differences(one: RunRecord, other: RunRecord) -> float:
    """The largest relative difference between two histories."""
    return max(
        float(np.max(np.abs(one.history[c] - other.history[c]) / (1e-12 + np.abs(other.history[c]))))
        for c in COLUMNS
        if c != "seconds"
    )


@pytest.mark.parametrize(
    ("model", "norm", "optimizer"),
    [
        ("resnet9", "batch", "sgd"),
        ("resnet9", "layer", "adam"),
        ("resnet9-avgpool", "batch", "momentum"),
        ("mlp", "batch", "adam"),
        ("mlp", "layer", "momentum"),
    ],
)
def test_a_replica_of_a_pack_follows_the_trajectory_it_follows_alone(
    tiny: Recipe, model: str, norm: str, optimizer: str
) -> None:
    recipe = Recipe.parse(
        tiny.changes() | {"model": model, "norm": norm, "optimizer": optimizer, "l2": 1e-3, "width": 3}
    )
    data = load(recipe)
    packed = train_pack(runs_of(recipe), data, dtype=torch.float64)
    for run, record in zip(runs_of(recipe), packed, strict=True):
        (alone,) = train_pack([run], data, dtype=torch.float64)
        # A conv bias before a norm has a zero gradient, so Adam walks on its rounding noise there; the
        # norm cancels that walk in training, and the moving statistics catch up with it only slowly.
        assert differences(record, alone) < (1e-4 if optimizer == "adam" else 1e-8)
        assert record.summary.tau_best == alone.summary.tau_best


def test_replicas_of_a_pack_are_different_runs(tiny: Recipe) -> None:
    """The negative control of the test above: it would see a mix-up."""
    first, second, _ = train_pack(runs_of(tiny), load(tiny), dtype=torch.float64)
    assert differences(first, second) > 0.01


def test_a_replica_that_diverges_leaves_the_others_alone(tiny: Recipe) -> None:
    data = load(tiny)
    healthy = Pack(runs_of(tiny), data)
    poisoned = Pack(runs_of(tiny), data)
    with torch.no_grad():
        by_replica(poisoned.network.kernels()[0], 3)[1].fill_(math.nan)
    for pack in (healthy, poisoned):
        while not pack.finished:
            train_epoch(pack)
    expected, found = records(healthy, 0.0), records(poisoned, 0.0)
    assert [record.status for record in found] == ["completed", "diverged", "completed"]
    assert found[0].same_result(expected[0])
    assert found[2].same_result(expected[2])
    assert found[1].summary.epochs == 0
    assert found[1].summary.tau_best == 0
    assert found[1].summary.test_accuracy is not None


def test_divergence_keeps_the_predictor_selected_before_it(tiny: Recipe) -> None:
    recipe = tiny.model_copy(update={"epochs": 6})
    pack = Pack([Run(recipe, 1.0, 0)], load(recipe))
    train_epoch(pack)
    train_epoch(pack)
    expected = pack.best["head.kernel"].clone()
    with torch.no_grad():
        pack.network.kernels()[0].mul_(math.inf)
    while not pack.finished:
        train_epoch(pack)
    (record,) = records(pack, 0.0)
    assert (record.status, record.summary.epochs, pack.epoch) == ("diverged", 2, 3)
    assert torch.equal(pack.network.state_dict()["head.kernel"], expected)


def test_a_record_says_everything(tiny: Recipe) -> None:
    recipe = tiny.model_copy(update={"l2": 0.01, "epochs": 5})
    data = load(recipe)
    (record,) = train_pack([Run(recipe, 1.0, 3)], data)
    history, summary = record.history, record.summary
    assert set(history) == set(COLUMNS)
    assert all(len(column) == 5 for column in history.values())
    penalty = 0.01 * history["norm"] ** 2
    for part in ("train", "val"):
        plain, objective = history[f"{part}_cross_entropy"], history[f"{part}_objective"]
        assert np.allclose(objective, plain + penalty, rtol=1e-5)
    added = 0.01 * summary.norm_best**2
    assert summary.test_objective == pytest.approx(summary.test_cross_entropy + added, rel=1e-5)
    assert summary.test_loss is None
    assert summary.tau_best == 1 + int(np.argmin(history["val_objective"]))
    assert summary.val_accuracy_best == history["val_accuracy"][summary.tau_best - 1]
    assert summary.norm_last == history["norm"][-1]
    expected = clocks(recipe, len(data.train))
    for name in ("sgd", "l2", "adaptive", "momentum"):
        assert np.allclose(history[f"clock_{name}"], getattr(expected, name), rtol=1e-12)
    assert history["learning_rate"][-1] == epoch_rates(recipe, len(data.train), 5)[-1]
    assert record.provenance["pack"] == 1


def test_the_angular_clock_is_measured_at_every_update(tiny: Recipe, monkeypatch) -> None:
    recipe = tiny.model_copy(update={"epochs": 1})
    pack = Pack([Run(recipe, 1.0, 0)], load(recipe), dtype=torch.float64)
    ticks = []
    step = pack.optimizer.step

    def spy(gradients, rate, k):
        square = sum(float((kernel**2).sum()) for kernel in pack.network.kernels())
        ticks.append(rate / square)
        step(gradients, rate, k)

    monkeypatch.setattr(pack.optimizer, "step", spy)
    train_epoch(pack)
    assert len(ticks) == 4
    assert pack.history[0]["clock_angular"][0] == pytest.approx(sum(ticks), rel=1e-5)


def test_the_test_set_is_used_once_and_on_the_selected_predictor(tiny: Recipe, monkeypatch) -> None:
    pack = Pack([Run(tiny, 1.0, 0)], load(tiny))
    looks = []
    evaluate = loop.evaluate

    def spy(pack, images, *predicted):
        looks.append("test" if images is pack.test else "val")
        return evaluate(pack, images, *predicted)

    monkeypatch.setattr(loop, "evaluate", spy)
    while not pack.finished:
        train_epoch(pack)
    best = {name: value.clone() for name, value in pack.best.items()}
    records(pack, 0.0)
    assert looks == ["val"] * 3 + ["test"]
    assert all(torch.equal(value, best[name]) for name, value in pack.network.state_dict().items())


def test_the_selected_predictor_is_the_one_of_least_validation_loss(tiny: Recipe) -> None:
    """Each replica has its own best epoch; what is kept is its state at the end of that epoch."""
    recipe = tiny.model_copy(update={"epochs": 12, "learning_rate": 0.3})
    pack = Pack(runs_of(recipe), load(recipe))
    snapshots = []
    while not pack.finished:
        train_epoch(pack)
        snapshots.append({name: value.clone() for name, value in pack.network.state_dict().items()})
    best = [int(np.argmin(rows["val_objective"])) for rows in pack.history]
    assert len(set(best)) > 1  # one rule for all would not do
    assert min(best) < 11  # and for some replica the last epoch is not it
    for replica, epoch in enumerate(best):
        for name, value in pack.best.items():
            assert torch.equal(by_replica(value, 3)[replica], by_replica(snapshots[epoch][name], 3)[replica])


def test_interpolation_is_censored_when_never_reached(tiny: Recipe) -> None:
    (slow,) = train_pack([Run(tiny.model_copy(update={"learning_rate": 1e-9}), 1.0, 0)], load(tiny))
    assert slow.summary.tau_interp is None
    assert slow.summary.repair_gap is None
    easy = tiny.model_copy(update={"epochs": 40, "optimizer": "adam", "width": 8})
    (fast,) = train_pack([Run(easy, 1.0, 0)], load(easy))
    tau = fast.summary.tau_interp
    assert tau is not None
    accuracy = fast.history["train_accuracy"]
    assert accuracy[tau - 1] >= 0.995 > accuracy[: tau - 1].max()
    gap = fast.history["val_accuracy"][fast.summary.tau_best - 1] - fast.history["val_accuracy"][tau - 1]
    assert fast.summary.repair_gap == pytest.approx(gap)


def test_a_restored_pack_continues_bit_by_bit(tiny: Recipe) -> None:
    recipe = Recipe.parse(tiny.changes() | {"optimizer": "adam", "epochs": 5})
    data, runs = load(recipe), runs_of(recipe)
    whole = train_pack(runs, data)
    first = Pack(runs, data)
    train_epoch(first)
    train_epoch(first)
    second = train_pack(runs, data, resume=first.checkpoint())
    assert all(a.same_result(b) for a, b in zip(whole, second, strict=True))


@pytest.mark.parametrize(
    ("optimizer", "augment"), [("momentum", "flip-crop"), ("adam", "none"), ("muon-conv", "none")]
)
def test_a_pack_saved_inside_an_epoch_continues_bit_by_bit(
    tiny: Recipe, optimizer: str, augment: str
) -> None:
    changes = {"optimizer": optimizer, "augment": augment, "epochs": 4, "batch_size": 7}
    recipe = Recipe.parse(tiny.changes() | changes)
    data, runs = load(recipe), runs_of(recipe)
    whole = train_pack(runs, data)
    per_epoch = math.ceil(len(data.train) / 7)
    asked = iter([False, True] + [False] * (per_epoch - 3) + [True] * 99)
    pack, pauses = Pack(runs, data), []
    while not pack.finished:
        if not train_epoch(pack, lambda: next(asked, False)):
            pauses.append((pack.epoch, pack.position))
            saved = pack.checkpoint()
            pack = Pack(runs, data)
            pack.restore(saved)
    assert pauses[0] == (0, 2)  # in the first epoch
    assert pauses[1] == (1, 1)  # never at its end: there it is over
    assert len(pauses) > 10
    assert all(a.same_result(b) for a, b in zip(whole, records(pack, 0.0), strict=True))


def test_the_time_of_a_run_is_that_of_all_its_sessions(tiny: Recipe) -> None:
    data, runs = load(tiny), runs_of(tiny)
    pack = Pack(runs, data)
    train_epoch(pack)
    assert not train_epoch(pack, lambda: True)
    saved = pack.checkpoint()
    for checkpoint in saved:  # as if it had been slow
        checkpoint.meta["seconds"] = 100.0
        checkpoint.meta["history"]["seconds"] = [10.0]
    before = 110.0 * len(runs)
    for record in train_pack(runs, data, resume=saved):
        first, second, third = record.history["seconds"]
        assert first == 10.0
        assert 100.0 < second < 110.0
        assert 0 < third < 10.0
        assert before < record.provenance["seconds"] < before + 60.0
    for record in train_pack(runs, data):
        assert record.provenance["seconds"] < 60.0


def test_initialization_is_paired_and_has_the_right_size() -> None:
    recipe = Recipe(dataset="synthetic", width=16, bias_std=0.2)
    runs = [Run(recipe, 0.5, 7), Run(recipe, 2.0, 7), Run(recipe, 2.0, 8)]
    network = initialized(runs, COLOR)
    for layer in network.named_layers().values():
        small, large, other = by_replica(layer.kernel, 3)
        assert torch.allclose(4 * small, large)
        assert not torch.allclose(large, other)
        expected = 2.0 / math.sqrt(layer.fan_in)
        n = large.numel()
        assert large.std().item() == pytest.approx(expected, rel=5 / math.sqrt(n))
        first_bias, second_bias, _ = by_replica(layer.bias, 3)
        assert torch.equal(first_bias, second_bias)
    biases = torch.cat([layer.bias for layer in network.named_layers().values()])
    assert biases.std().item() == pytest.approx(0.2, rel=0.1)


def test_seed_roles_move_only_their_own_stream(tiny: Recipe) -> None:
    data = load(tiny)

    def start(**pins: int) -> tuple[torch.Tensor, torch.Tensor]:
        pack = Pack([Run(tiny, 1.0, 0, tuple(pins.items()))], data)
        return pack.network.kernels()[0].detach(), pack.order(1)

    kernel, order = start()
    other_order = start(order=1)
    assert torch.equal(kernel, other_order[0])
    assert not torch.equal(order, other_order[1])
    other_init = start(init=1)
    assert not torch.equal(kernel, other_init[0])
    assert torch.equal(order, other_init[1])


COLOR = Sizes(1, 1, 1, 3, 32, 32, 10)


def test_parameter_counts() -> None:
    for replicas in (1, 4):
        network = build(Recipe(), COLOR, replicas)
        assert count(network) == (replicas * 6_575_370, replicas * 6_579_850)


def test_images_too_small_for_the_pools_are_refused() -> None:
    with pytest.raises(ModelError, match=r"cannot take 4x8 images .allowed: at least 8x8"):
        build(Recipe(), Sizes(1, 1, 1, 1, 4, 8, 10))


def test_shared_input_is_the_same_as_repeated_input() -> None:
    torch.manual_seed(0)
    for model in ("resnet9", "mlp"):
        runs = runs_of(Recipe(model=model, width=4))
        network = initialized(runs, Sizes(1, 1, 1, 2, 8, 8, 5), dtype=torch.float64)
        network.eval()
        x = torch.rand(6, 2, 8, 8, dtype=torch.float64)
        assert torch.allclose(network(x), network(x.repeat(1, 3, 1, 1)), rtol=1e-10)


def test_patience_stops_a_run_without_changing_its_schedule(tiny: Recipe) -> None:
    recipe = tiny.model_copy(update={"epochs": 30, "learning_rate": 0.5, "patience": 2})
    free = recipe.model_copy(update={"patience": None})
    (stopped,) = train_pack([Run(recipe, 1.0, 0)], load(recipe))
    (whole,) = train_pack([Run(free, 1.0, 0)], load(free))
    n = stopped.summary.epochs
    assert n < 30
    assert n == stopped.summary.tau_best + 2
    for name in ("val_objective", "learning_rate"):
        assert np.array_equal(stopped.history[name], whole.history[name][:n])


def test_the_cross_entropy_can_select_and_stop_in_place_of_the_objective(tiny: Recipe) -> None:
    """With a large penalty the objective falls as the norm does, while the cross-entropy already rises."""
    plain = tiny.replace(epochs=8, learning_rate=0.03, l2=0.02, batch_size=8)
    recipe, stopping = plain.replace(select_by="cross-entropy"), {"select_by": "cross-entropy", "patience": 2}
    data = load(plain)
    records = [train_pack([Run(one, 1.0, 0)], data)[0] for one in (plain, recipe)]
    (stopped,) = train_pack([Run(plain.replace(**stopping), 1.0, 0)], data)
    objective, other = records
    losses = objective.history["val_cross_entropy"]
    assert np.array_equal(losses, other.history["val_cross_entropy"])
    assert objective.summary.tau_best == 1 + objective.history["val_objective"].argmin()
    assert other.summary.tau_best == 1 + losses.argmin()
    assert other.summary.tau_best != objective.summary.tau_best
    assert other.summary.test_cross_entropy != objective.summary.test_cross_entropy
    waited = [n - 1 - int(losses[:n].argmin()) for n in range(1, len(losses) + 1)]
    assert stopped.summary.epochs == 1 + waited.index(2)


def test_the_train_split_can_be_measured_after_the_epoch(tiny: Recipe) -> None:
    """As validation is, so a train split that is also the validation split gives the same values."""
    recipe = tiny.replace(train_eval=True, augment="flip-crop")
    data = load(recipe)
    (record,) = train_pack([Run(recipe, 1.0, 0)], replace(data, val=data.train))
    (running,) = train_pack([Run(recipe.replace(train_eval=False), 1.0, 0)], replace(data, val=data.train))
    for name in ("cross_entropy", "objective", "accuracy"):
        assert np.array_equal(record.history[f"train_{name}"], record.history[f"val_{name}"])
        assert np.array_equal(record.history[f"val_{name}"], running.history[f"val_{name}"])
    assert not np.array_equal(record.history["train_cross_entropy"], running.history["train_cross_entropy"])


@pytest.mark.parametrize("change", [{"layer_scales": "output=1e38"}, {"bias_std": 1e38}])
def test_a_network_that_is_not_finite_at_the_start_is_a_diverged_record(tiny: Recipe, change: dict) -> None:
    recipe = tiny.replace(**change)
    (record,) = train_pack([Run(recipe, 100.0, 0)], load(recipe))
    assert (record.status, record.summary.epochs) == ("diverged", 0)
    assert decode(encode(record)).same_result(record)


def test_a_test_result_that_is_not_finite_is_a_diverged_record(tiny: Recipe) -> None:
    data = load(tiny)
    huge = replace(data, test=replace(data.test, x=np.full_like(data.test.x, 3e38, dtype=np.float32)))
    (record,) = train_pack([Run(tiny, 1.0, 0)], huge)
    assert (record.status, record.summary.epochs, record.summary.test_cross_entropy) == ("diverged", 3, None)
    assert decode(encode(record)).same_result(record)


def half_way(tiny: Recipe, runs: list[Run], **how) -> list[Checkpoint]:
    pack = Pack(runs, load(tiny), **how)
    train_epoch(pack)
    return pack.checkpoint()


def test_a_record_says_when_its_sessions_were_not_alike(tiny: Recipe) -> None:
    runs = [Run(tiny, scale, 0) for scale in (0.5, 1.0, 2.0)]
    saved = half_way(tiny, runs)
    alike = train_pack(runs, load(tiny), resume=saved)
    assert all("sessions" not in record.provenance for record in alike)
    (mixed,) = train_pack(runs[1:2], load(tiny), resume=saved[1:2])
    first, second = mixed.provenance["sessions"]
    each = updates_per_epoch(tiny, len(load(tiny).train))
    assert (first["updates"], first["pack"]) == (each, 3)
    assert (second["updates"], second["pack"]) == (3 * each, 1)
    assert {"initmem", "torch", "native", "device"} <= first.keys()


def test_a_checkpoint_fits_exactly_or_not_at_all(tiny: Recipe) -> None:
    runs = [Run(tiny, 1.0, 0)]
    (saved,) = half_way(tiny, runs)
    pack = Pack(runs, load(tiny))
    pack.restore([saved])
    name = next(name for name, tensor in saved.tensors.items() if tensor.ndim > 1)
    for tensors in (
        saved.tensors | {name: saved.tensors[name].flatten()[:1]},  # would be broadcast
        saved.tensors | {name: saved.tensors[name].double()},
        saved.tensors | {"now/more": saved.tensors[name]},
        {key: tensor for key, tensor in saved.tensors.items() if key != name},
    ):
        with pytest.raises(ValueError, match="other tensors"):
            pack.restore([Checkpoint(tensors, saved.meta)])
    pair = [Run(tiny, 1.0, 0), Run(tiny, 1.0, 1)]
    later = saved._replace(meta=saved.meta | {"epoch": 2})
    with pytest.raises(ValueError, match="different updates"):
        Pack(pair, load(tiny)).restore([saved, later])
