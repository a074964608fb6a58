"""Norms and cosines of single layers, and the alignment of the last hidden one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from conftest import fake_record
from initmem.data.sources import load
from initmem.measures.elasticity import by_epoch
from initmem.measures.measure import measure, remarks
from initmem.recipe import Recipe
from initmem.record import MOST_EPOCHS, RunRecord
from initmem.store.results import Collection
from initmem.study import Run
from initmem.train.comparison import alignment
from initmem.train.init import initialized
from initmem.train.layers import by_replica
from initmem.train.loop import records as records_of
from initmem.train.loop import train_epoch, train_pack
from initmem.train.pack import Pack


def digits(**changes: Any) -> Recipe:
    base = {"dataset": "digits", "train_size": 64, "width": 4, "batch_size": 16, "learning_rate": 0.05}
    return Recipe.parse(base | {"epochs": 3, "batch_statistics": "re-estimated"} | changes)


# -- what training records --------------------------------------------------------------------------------


@pytest.mark.parametrize("model", ["resnet9", "mlp", "vit"])
def test_norms_and_cosines_are_those_of_the_kernels(model: str) -> None:
    """Against the weights of the last epoch and of a network that was initialized again."""
    statistics = {"batch_statistics": "moving"} if model == "vit" else {}
    recipe = digits(model=model, epochs=2, **statistics)
    runs, data = [Run(recipe, scale, seed) for seed, scale in enumerate((0.5, 1.0, 2.0))], load(recipe)
    pack = Pack(runs, data)
    while not pack.finished:
        train_epoch(pack)
    last = {name: value.clone() for name, value in pack.network.state_dict().items()}
    made = records_of(pack, 0.0)
    start = initialized(runs, data.sizes, device=torch.device("cpu"), dtype=torch.float32).state_dict()
    for r, record in enumerate(made):
        epochs = record.arrays["layer_epochs"].tolist()
        assert epochs == [0, 1, 2]
        for name in pack.network.kernel_names():
            before, after = (by_replica(state[name], 3)[r].flatten().double() for state in (start, last))
            short = name.removeprefix("net.").removesuffix(".kernel")
            norm, cosine = record.arrays[f"norm:{short}"], record.arrays[f"cosine:{short}"]
            assert norm[0] == pytest.approx(float(before.norm()), rel=6e-5)
            assert norm[-1] == pytest.approx(float(after.norm()), rel=6e-5)
            assert cosine[0] == pytest.approx(1.0, abs=6e-5)
            expected = float(before @ after / before.norm() / after.norm())
            assert cosine[-1] == pytest.approx(expected, abs=6e-5)
        total = np.sqrt(sum(a[-1] ** 2 for name, a in record.arrays.items() if name.startswith("norm:")))
        assert total == pytest.approx(record.summary.norm_last, rel=1e-4)


def test_a_resumed_run_has_the_same_layers() -> None:
    recipe = digits()
    runs, data = [Run(recipe, scale, 0) for scale in (0.5, 2.0)], load(recipe)
    whole = train_pack(runs, data)
    half = Pack(runs, data)
    train_epoch(half)
    saved = half.checkpoint()
    resumed = train_pack(runs, data, resume=saved)
    for one, other in zip(whole, resumed, strict=True):
        assert {k: a.tolist() for k, a in one.arrays.items()} == {
            k: a.tolist() for k, a in other.arrays.items()
        }


def test_of_many_epochs_some_are_kept_with_the_selected_one() -> None:
    recipe = digits(model="mlp", epochs=3 * MOST_EPOCHS, learning_rate=0.3)
    (record,) = train_pack([Run(recipe, 1.0, 0)], load(recipe))
    epochs = record.arrays["layer_epochs"].tolist()
    assert epochs[0] == 0
    assert epochs[-1] == record.summary.epochs
    assert record.summary.tau_best in epochs
    assert len(epochs) <= MOST_EPOCHS + 2
    assert len(record.arrays["norm:head"]) == len(epochs)


def test_a_run_that_diverges_at_once_has_the_layers_of_its_start(tiny: Recipe) -> None:
    pack = Pack([Run(tiny, 1.0, 0), Run(tiny, 2.0, 0)], load(tiny))
    with torch.no_grad():
        by_replica(pack.network.kernels()[0], 2)[1].fill_(float("nan"))
    while not pack.finished:
        train_epoch(pack)
    healthy, diverged = records_of(pack, 0.0)
    assert len(healthy.arrays["layer_epochs"]) == 4
    assert diverged.status == "diverged"
    assert diverged.arrays["layer_epochs"].tolist() == [0]


# -- alignment --------------------------------------------------------------------------------------------


def test_alignment_is_1_for_the_same_kernel_and_0_for_independent_features() -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((128, 500))
    turn = np.linalg.qr(rng.standard_normal((500, 500)))[0]
    assert alignment(x, 3 * x @ turn + 7) == pytest.approx(1.0, abs=0.02)
    unrelated = [alignment(x, rng.standard_normal((128, 500))) for _ in range(20)]
    assert np.mean(unrelated) == pytest.approx(0.0, abs=0.05)
    y = rng.standard_normal((128, 500))
    kernels = [one @ one.T for one in (x - x.mean(0), y - y.mean(0))]
    plain = np.sum(kernels[0] * kernels[1]) / np.prod([np.linalg.norm(k) for k in kernels])
    assert plain > 0.5  # why the plain estimate will not do
    assert alignment(x, np.zeros((128, 3))) is None
    assert alignment(x[:3], x[:3]) is None
    assert alignment(x, np.full((128, 3), np.inf)) is None


@pytest.mark.parametrize("model", ["resnet9", "resnet9-avgpool", "mlp", "resnet56", "vit"])
@pytest.mark.parametrize("replicas", [1, 8])
def test_hidden_features_are_what_the_last_layer_reads(model: str, replicas: int) -> None:
    """Its kernel and bias turn them into the logits, in packs, in SIMD lanes and alone."""
    statistics = {"batch_statistics": "moving"} if model == "vit" else {}
    recipe = digits(model=model, **statistics)
    pack = Pack([Run(recipe, 0.5 + seed, seed) for seed in range(replicas)], load(recipe))
    pack.network.eval()
    x, _ = next(pack.val.shared(16))
    names = list(pack.network.state_dict())
    kernel, bias = (
        by_replica(pack.network.state_dict()[next(n for n in names if n.endswith(end))], replicas)
        for end in (("head.kernel", "head.weight"), "head.bias")
    )
    with torch.no_grad():
        features = pack.network.hidden(x).view(16, replicas, -1)
        expected = torch.einsum("nrf,rcf->nrc", features, kernel) + bias
        assert torch.allclose(pack.logits(x), expected, rtol=1e-4, atol=1e-4)


def test_lazy_training_stays_aligned_and_a_metric_of_the_scale() -> None:
    lazy, rich = (
        train_pack(
            [Run(digits(learning_rate=rate, epochs=4), 1.0, seed) for seed in range(3)], load(digits())
        )
        for rate in (1e-9, 0.5)
    )
    still, moved = (np.mean([record.metric("alignment") for record in some]) for some in (lazy, rich))
    assert still > 0.95
    assert moved < still - 0.1
    rows = measure(lazy, "scale", metric="alignment")
    assert rows[0]["mean"] == pytest.approx(still)


# -- the measure ------------------------------------------------------------------------------------------


def planted(run: Run, end: float) -> RunRecord:
    """The first kernel keeps a power of its norm, the second is not scaled, the third began at zero."""
    record = fake_record(run, 0.8)
    best = record.summary.tau_best
    epochs = (
        np.array([0, best, record.summary.epochs]) if best != record.summary.epochs else np.array([0, best])
    )
    n = len(epochs)
    arrays: dict[str, Any] = {
        "layer_epochs": epochs,
        "norm:first": np.r_[10 * run.scale, np.full(n - 1, 10 * run.scale**end * (1 + 0.01 * run.seed))],
        "cosine:first": np.r_[1.0, np.full(n - 1, 0.5 + 0.1 * run.scale + 0.01 * run.seed)],
        "norm:second": np.r_[5 + 0.01 * run.seed, np.full(n - 1, 7.0)],
        "cosine:second": np.r_[1.0, np.full(n - 1, 0.9)],
        "norm:third": np.r_[0.0, np.full(n - 1, 1.0)],
        "alignment": np.array(0.25 + 0.1 * run.seed),
    }
    return replace(record, arrays=arrays)


def test_elasticity_and_cosine_are_found_layer_by_layer(tiny: Recipe) -> None:
    runs = [Run(tiny, scale, seed) for scale in (0.5, 1.0, 2.0) for seed in range(3)]
    first, second, third = measure([planted(run, 0.3) for run in runs], "layers")
    assert [row["layer"] for row in (first, second, third)] == ["first", "second", "third"]
    assert first["elasticity"] == pytest.approx(0.3)
    assert (first["low"], first["high"]) == pytest.approx((0.3, 0.3))
    assert first["cosine"] == pytest.approx(0.5 + 0.1 * 3.5 / 3 + 0.01)
    assert first["cosine_high"] - first["cosine"] == pytest.approx(4.302653 * 0.01 / np.sqrt(3), rel=1e-5)
    assert first["cosine_smallest"] == pytest.approx(0.56)
    assert first["cosine_largest"] == pytest.approx(0.71)
    assert first["alignment"] == pytest.approx(0.35)
    assert second["elasticity"] is None  # seeds differ in their norms, scales do not
    assert second["cosine"] == pytest.approx(0.9)
    assert third["elasticity"] is third["cosine"] is third["cosine_smallest"] is None


def test_records_without_layers_are_named(tiny: Recipe) -> None:
    runs = [Run(tiny, scale, seed) for scale in (0.5, 1.0) for seed in range(2)]
    old, new = [fake_record(run, 0.8) for run in runs], [planted(run, 1.0) for run in runs]
    assert measure(old, "layers") == []
    assert remarks("layers", Collection(old, []))[0].endswith("layers not recorded in 4 of 4 runs")
    mixed = [*new[:3], old[3]]
    assert measure(mixed, "layers")[0]["n_runs"] == 3
    assert remarks("layers", Collection(mixed, []))[0].endswith("layers not recorded in 1 of 4 runs")


def test_the_curve_of_a_layer_is_the_mean_over_runs(tiny: Recipe) -> None:
    records = [planted(Run(tiny, scale, 0), 1.0) for scale in (1.0, 2.0)]
    curve = by_epoch(records, "cosine:first")
    assert curve[0] == 1.0
    assert list(curve.values())[-1] == pytest.approx(0.65)
    assert by_epoch([fake_record(Run(tiny, 1.0, 0), 0.8)], "cosine:first") == {}
