"""Sharpness against the whole Hessian, in records, and in what reads them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy.sparse.linalg import LinearOperator, eigsh
from torch import nn

from initmem import register
from initmem.clocks import stability_limit
from initmem.data.sources import load
from initmem.errors import ConfigError
from initmem.measures.measure import measure
from initmem.measures.scales import sharpness, sharpness_curve
from initmem.plots.builders import scale_plot, sharpness_plot
from initmem.recipe import Recipe
from initmem.record import COLUMNS, SHARPNESS
from initmem.store.encoding import decode, encode
from initmem.study import Run
from initmem.train import native
from initmem.train import sharpness as measured
from initmem.train.layers import by_replica
from initmem.train.loop import train_epoch, train_pack
from initmem.train.pack import Pack

SCALES = (0.3, 1.0, 2.5)


def runs_of(recipe: Recipe) -> list[Run]:
    return [Run(recipe, scale, seed) for seed, scale in enumerate(SCALES)]


@pytest.fixture
def small(tiny: Recipe) -> Recipe:
    return tiny.replace(model="mlp", width=3, sharpness_every=2, epochs=5, learning_rate=0.05)


def full_hessian(pack: Pack, replica: int) -> np.ndarray:
    """Of one replica, by autograd of autograd of a network that is written out here."""
    values = {
        name: by_replica(p.detach(), pack.replicas)[replica].double()
        for name, p in pack.network.named_parameters()
    }
    shapes = {name: value.shape for name, value in values.items()}
    x, y = pack.train.x.double().flatten(1), pack.train.y

    def loss(flat: torch.Tensor) -> torch.Tensor:
        parts = flat.split([shape.numel() for shape in shapes.values()])
        w = {name: part.view(shape) for (name, shape), part in zip(shapes.items(), parts, strict=True)}
        h = x
        for i in ("1", "2"):
            h = h @ w[f"hidden{i}.kernel"].T + w[f"hidden{i}.bias"]
            axis = 0 if pack.recipe.norm == "batch" else 1
            center, spread = h.mean(axis, keepdim=True), h.var(axis, correction=0, keepdim=True)
            h = (h - center) / (spread + 1e-3).sqrt() * w[f"norm{i}.gamma"] + w[f"norm{i}.beta"]
            h = F.relu(h)
        logits = h @ w["head.kernel"].T + w["head.bias"]
        penalty = sum(value.square().sum() for name, value in w.items() if name.endswith("kernel"))
        return F.cross_entropy(logits, y) + pack.recipe.l2 * penalty

    return torch.autograd.functional.hessian(loss, torch.cat([v.flatten() for v in values.values()])).numpy()


@pytest.mark.parametrize(("norm", "l2"), [("batch", 0.0), ("layer", 0.03)])
def test_it_is_the_largest_eigenvalue_of_the_whole_hessian(small: Recipe, norm: str, l2: float) -> None:
    recipe = small.replace(norm=norm, l2=l2)
    pack = Pack(runs_of(recipe), load(recipe))
    train_epoch(pack)
    found = measured.sharpness(pack.network, pack.train, l2)
    assert pack.train.x.dtype == torch.float32 and len(pack.train) < measured.SHARPNESS_SUBSET
    for r in range(3):
        values = np.linalg.eigvalsh(full_hessian(pack, r))
        assert abs(values[0]) > 1e-3  # negative curvature, which a power iteration may mistake for it
        assert found[r] == pytest.approx(values[-1], rel=1e-4)
    assert len(set(found)) == 3


class Spare(nn.Module):
    """With a frozen parameter, and one that it does not use."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.layer, self.spare = nn.Linear(16, outputs), nn.Linear(2, 2)
        self.shift = nn.Parameter(torch.ones(16), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x.flatten(1) * self.shift).tanh()


@pytest.mark.parametrize(
    "values",
    [
        {"model": "gpt", "dataset": "modular-addition:5:0.4", "depth": 1, "heads": 2},
        {"model": "gpt", "dataset": "text:3", "depth": 1, "heads": 1, "train_size": 8},
        {"model": "vit", "dataset": "synthetic:20x1x4x4", "patch": 2, "depth": 1, "heads": 2},
        {"model": "spare", "dataset": "synthetic:20x1x4x4"},
    ],
    ids=["sums", "characters", "images", "spare"],
)
def test_plain_modules_too(values: dict, tmp_path: Path) -> None:
    """Tokens, with one label or one for each; parameters without a gradient."""
    register.model("spare")(lambda input, outputs, width: Spare(outputs))
    if values["dataset"] == "text:3":
        (tmp_path / "text").write_text("to be or not " * 7)
        values = values | {"dataset": f"text:3:{tmp_path / 'text'}"}
    recipe = Recipe.parse(values | {"width": 2, "batch_size": 6, "learning_rate": 0.05})
    pack = Pack(runs_of(recipe)[1:], load(recipe))
    found = measured.sharpness(pack.network, pack.train, 0.0)
    net = Pack(runs_of(recipe)[2:], load(recipe)).network.net.double()
    named = {name: p.detach().clone() for name, p in net.named_parameters() if p.requires_grad}
    x, y = pack.train.x, pack.train.y
    x = x.flatten(1) if recipe.model == "gpt" else x.permute(0, 3, 1, 2).double()

    def loss(flat: torch.Tensor) -> torch.Tensor:
        parts = flat.split([value.numel() for value in named.values()])
        w = {name: part.view_as(named[name]) for name, part in zip(named, parts, strict=True)}
        logits = torch.func.functional_call(net, w, (x,))
        if logits.ndim == 3 and y.ndim == 1:
            logits = logits[:, -1]
        return F.cross_entropy(logits.flatten(0, -2), y.flatten())

    hessian = torch.autograd.functional.hessian(loss, torch.cat([v.flatten() for v in named.values()]))
    assert found[1] == pytest.approx(np.linalg.eigvalsh(hessian.numpy())[-1], rel=1e-4)


@pytest.mark.parametrize(
    ("replicas", "width", "uses"), [(8, 4, "lanes"), (1, 8, "winograd")], ids=["lanes", "winograd"]
)
def test_networks_in_c_are_measured_in_plain_operations(
    tiny: Recipe, replicas: int, width: int, uses: str, monkeypatch
) -> None:
    """No C code is called, and ARPACK finds the same eigenvalue of the first replica."""
    recipe = tiny.replace(width=width, dataset="synthetic:40x1x8x8")
    pack = Pack([Run(recipe, 0.5 + 0.2 * i, i) for i in range(replicas)], load(recipe))
    if not native.ready(pack.device, torch.float32):
        pytest.skip("no C compiler")
    assert (pack.network.lanes is not None) == (uses == "lanes")
    plain = measured.plain_copy(pack.network)
    monkeypatch.setattr(native, "call", lambda *_: pytest.fail("C code has no second derivative"))
    product, size = measured.hessian(plain, pack.train, 0.0)
    start = torch.from_numpy(np.random.default_rng(3).standard_normal(size)).expand(replicas, -1)
    found = measured.largest_eigenvalues(product, start)

    def first(vector: np.ndarray) -> np.ndarray:
        along = torch.zeros(replicas, size, dtype=torch.float64)
        along[0] = torch.from_numpy(vector.ravel())
        return product(along)[0].numpy()

    operator = LinearOperator((size, size), matvec=first, dtype=np.float64)
    (expected,) = eigsh(operator, k=1, which="LA", tol=1e-7, v0=np.ones(size), return_eigenvectors=False)
    assert found[0] == pytest.approx(expected, rel=1e-4)


def test_operators_are_independent_and_what_is_not_finite_is_not_a_number() -> None:
    rng = np.random.default_rng(0)
    spectra = np.stack([np.linspace(-3, 1, 40), np.r_[np.zeros(39), 7.0], rng.standard_normal(40)])
    spectra[2, 5] = np.nan
    diagonals = torch.from_numpy(spectra)
    start = torch.from_numpy(rng.standard_normal((3, 40)))
    found = measured.largest_eigenvalues(lambda v: diagonals * v, start)
    assert found[:2] == pytest.approx([1.0, 7.0], rel=1e-4)
    assert np.isnan(found[2])
    (alone,) = measured.largest_eigenvalues(lambda v: diagonals[:1] * v, start[:1])
    assert found[0] == pytest.approx(alone, rel=1e-12)


def test_what_does_not_converge_is_not_a_number(monkeypatch) -> None:
    monkeypatch.setattr(measured, "MOST_PRODUCTS", 3)
    diagonal = torch.linspace(0, 1, 200, dtype=torch.float64)
    start = torch.from_numpy(np.random.default_rng(0).standard_normal((1, 200)))
    assert np.isnan(measured.largest_eigenvalues(lambda v: diagonal * v, start)).all()


def test_measuring_leaves_training_bit_by_bit_as_it_is(tiny: Recipe) -> None:
    with_it = train_pack(runs_of(tiny.replace(sharpness_every=1)), load(tiny))
    without = train_pack(runs_of(tiny), load(tiny))
    for one, other in zip(with_it, without, strict=True):
        assert set(other.history) == set(COLUMNS)
        assert set(one.history) == {*COLUMNS, *SHARPNESS}
        assert all(
            one.history[name].tolist() == other.history[name].tolist()
            for name in COLUMNS
            if name != "seconds"
        )


def test_records_say_what_was_measured_when_packed_and_alone_and_resumed(small: Recipe) -> None:
    data, runs = load(small), runs_of(small)
    packed = train_pack(runs, data, dtype=torch.float64)
    for run, record in zip(runs, packed, strict=True):
        assert record.history["sharpness_epoch"].tolist() == [1, 2, 2, 4, 4]
        values = record.history["sharpness"]
        assert values[1] == values[2] != values[3] == values[4]
        (alone,) = train_pack([run], data, dtype=torch.float64)
        assert np.allclose(values, alone.history["sharpness"], rtol=1e-6)
        assert decode(encode(record)).same_result(record)
    whole, pack = train_pack(runs, data), Pack(runs, data)
    train_epoch(pack)
    train_epoch(pack)
    resumed = train_pack(runs, data, resume=pack.checkpoint())
    assert all(a.same_result(b) for a, b in zip(whole, resumed, strict=True))


def test_a_value_that_was_not_found_is_not_recorded(small: Recipe, monkeypatch) -> None:
    monkeypatch.setattr(measured, "MOST_PRODUCTS", 1)
    (record,) = train_pack(runs_of(small)[:1], load(small))
    assert (record.status, record.history["sharpness_epoch"].tolist()) == ("completed", [0] * 5)
    assert sharpness_curve([record]) is None


@pytest.mark.parametrize(
    ("settings", "limit"),
    [
        ({"optimizer": "sgd"}, 20.0),
        ({"optimizer": "momentum"}, 38.0),
        ({"optimizer": "torch:SGD", "momentum": 0.5}, 30.0),
        ({"optimizer": "adam"}, None),
        ({"optimizer": "schedule-free-sgd"}, None),
    ],
)
def test_the_limit_is_where_a_quadratic_diverges(settings: dict, limit: float | None) -> None:
    recipe = Recipe.parse(settings)
    assert stability_limit(recipe, 0.1) == (None if limit is None else pytest.approx(limit))
    if limit is None:
        return
    for curvature, stable in ((0.99 * limit, True), (1.01 * limit, False)):
        w, v = 1.0, 0.0
        for _ in range(3000):
            momentum = 0.0 if recipe.optimizer == "sgd" else recipe.momentum
            v = momentum * v - 0.1 * curvature * w
            w += v
        assert (abs(w) < 1) == stable


def test_measures_and_figures_read_the_measured_epochs_alone(small: Recipe) -> None:
    records = train_pack(runs_of(small), load(small))
    by_hand = [[r.history["sharpness"][i] for i in (0, 1, 3)] for r in records]
    curve = sharpness_curve(records)
    assert curve is not None
    assert curve.epochs.tolist() == [1, 2, 4]
    assert np.allclose(curve.values, by_hand)
    rates = records[0].history["learning_rate"][[0, 1, 3]]
    assert np.allclose(curve.limits, 2 / rates)
    one = sharpness(records)
    assert one is not None
    mean = np.mean(by_hand, axis=0)
    assert (one.first, one.last, one.epoch, one.n) == (pytest.approx(mean[0]), pytest.approx(mean[2]), 4, 3)
    assert one.ratio == pytest.approx(mean[2] * rates[2] / 2)
    assert one.largest_ratio == pytest.approx((mean * rates / 2).max())
    rows = measure(records, "sharpness")
    assert [row["scale"] for row in rows] == list(SCALES)
    assert [row["last"] for row in rows] == pytest.approx([values[2] for values in by_hand])
    (panel,) = sharpness_plot(records).panels
    assert list(panel.series[0].y) == pytest.approx(mean.tolist())
    assert list(panel.guides[0].y) == pytest.approx((2 / rates).tolist())
    scale_plot(records, "sharpness")  # a metric as any other: it may remember, too


def test_without_measurements_there_is_nothing_to_draw(tiny: Recipe) -> None:
    records = train_pack(runs_of(tiny), load(tiny))
    assert measure(records, "sharpness") == []
    with pytest.raises(ConfigError, match="sharpness_every"):
        sharpness_plot(records)
