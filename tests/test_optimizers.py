"""Optimizers against the arithmetic of their published implementations, written out in NumPy."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from initmem.catalog import OPTIMIZERS as CATALOG
from initmem.clocks import epoch_rates, family_of, horizon_sums, is_adaptive, step_momentum
from initmem.data.sources import load
from initmem.engines.packs import packs
from initmem.errors import ConfigError
from initmem.recipe import Recipe
from initmem.record import RunRecord
from initmem.study import Run, Study
from initmem.study_file import load_study
from initmem.train.layers import by_replica
from initmem.train.loop import train_epoch, train_pack
from initmem.train.optimizers import optimizer_for
from initmem.train.pack import Pack

Arrays = list[np.ndarray]
Step = Callable[[Arrays, float, int], Arrays]  # gradients, rate, update k from 0; the variables after it

TORCH_OPTIMIZERS = [name for name, row in CATALOG.items() if row.rule == "torch"]
OPTIMIZERS = [name for name in CATALOG if name not in TORCH_OPTIMIZERS]
NEW = ("lion", "normuon", "schedule-free-sgd", "schedule-free-adamw", "sf-normuon")
SHAPES = ((4, 2, 3, 3), (3, 5), (6,))  # a conv kernel, a dense kernel, a bias
RATES = (0.01, 0.02, 0.03, 0.03, 0.02, 0.01)  # up and down, as in a warmup and a decay
REPLICAS = 2


def newton_schulz(g: np.ndarray) -> np.ndarray:
    x = g.T if g.shape[0] > g.shape[1] else g
    x = x / (np.sqrt((x**2).sum()) + 1e-7)
    for _ in range(5):
        a = x @ x.T
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
    return x.T if g.shape[0] > g.shape[1] else x


def lion(recipe: Recipe, start: Arrays) -> Step:
    w, m = [a.copy() for a in start], [np.zeros_like(a) for a in start]

    def step(gradients: Arrays, rate: float, k: int) -> Arrays:
        for i, g in enumerate(gradients):
            u = np.sign(0.9 * m[i] + 0.1 * g)
            w[i] = w[i] - rate * (u + recipe.weight_decay * w[i])
            m[i] = 0.99 * m[i] + 0.01 * g
        return w

    return step


def normuon(recipe: Recipe, start: Arrays) -> Step:
    """`normuon_update` of the authors with rows of the flattened matrix; Adam of Keras 3 for vectors."""
    w = [a.copy() for a in start]
    m, v = [np.zeros_like(a) for a in start], [np.zeros(len(a)) for a in start]

    def matrix(i: int, g: np.ndarray) -> np.ndarray:
        m[i] = 0.95 * m[i] + 0.05 * g
        o = newton_schulz((0.05 * g + 0.95 * m[i]).reshape(len(g), -1))
        before = np.linalg.norm(o)
        v[i] = 0.95 * v[i] + 0.05 * (o * o).mean(1)
        o = o / (np.sqrt(v[i]) + 1e-10)[:, None]
        o = o * before / (np.linalg.norm(o) + 1e-10)
        return 0.2 * math.sqrt(max(o.shape)) * o.reshape(g.shape)

    def vector(i: int, g: np.ndarray, k: int) -> np.ndarray:
        m[i] = 0.9 * m[i] + 0.1 * g
        v[i] = 0.95 * v[i] + 0.05 * g * g
        return np.sqrt(1 - 0.95 ** (k + 1)) / (1 - 0.9 ** (k + 1)) * m[i] / (np.sqrt(v[i]) + 1e-7)

    def step(gradients: Arrays, rate: float, k: int) -> Arrays:
        for i, g in enumerate(gradients):
            update = matrix(i, g) if g.ndim > 1 else vector(i, g, k)
            w[i] = w[i] * (1 - rate * recipe.weight_decay) - rate * update
        return w

    return step


def schedule_free(recipe: Recipe, start: Arrays) -> Step:
    """`sgd_schedulefree_reference.py`, `adamw_schedulefree_reference.py`, and SF-NorMuon on top of them."""
    x, y, z = ([a.copy() for a in start] for _ in range(3))
    m, v = [np.zeros_like(a) for a in start], [np.zeros_like(a) for a in start]
    total, largest = 0.0, 0.0

    def adamw(i: int, g: np.ndarray, k: int, beta2: float, eps: float) -> np.ndarray:
        v[i] = beta2 * v[i] + (1 - beta2) * g * g
        return g / (np.sqrt(v[i] / (1 - beta2 ** (k + 1))) + eps)

    def muon(i: int, g: np.ndarray) -> np.ndarray:
        m[i] = 0.95 * m[i] + 0.05 * g
        p = newton_schulz(m[i].reshape(len(g), -1))
        rows = v[i].reshape(len(g), -1)
        rows[:] = 0.95 * rows + 0.05 * (p * p).mean(1, keepdims=True)
        p = p / (np.sqrt(rows) + 1e-10)
        return (0.2 * math.sqrt(p.size) / np.linalg.norm(p) * p).reshape(g.shape)

    def step(gradients: Arrays, rate: float, k: int) -> Arrays:
        nonlocal total, largest
        largest = max(largest, rate)
        weight = (rate if recipe.optimizer == "sf-normuon" else largest) ** 2
        total += weight
        c = weight / total
        for i, g in enumerate(gradients):
            if recipe.optimizer == "schedule-free-sgd":
                z[i] = z[i] - rate * (g + recipe.weight_decay * y[i])
            elif recipe.optimizer == "schedule-free-adamw":
                z[i] = z[i] - rate * (adamw(i, g, k, 0.999, 1e-8) + recipe.weight_decay * y[i])
            else:
                u = muon(i, g) if g.ndim > 1 else adamw(i, g, k, 0.95, 1e-7)
                z[i] = z[i] - rate * recipe.weight_decay * z[i] - rate * u
            x[i] = (1 - c) * x[i] + c * z[i]
            y[i] = 0.9 * x[i] + 0.1 * z[i]
        return [*y, *x]

    return step


REFERENCES = {"lion": lion, "normuon": normuon} | dict.fromkeys(NEW[2:], schedule_free)


@pytest.mark.parametrize("name", NEW)
def test_updates_are_those_of_the_published_implementation(name: str) -> None:
    rng = np.random.default_rng(1)
    recipe = Recipe(optimizer=name, weight_decay=0.1)
    starts = [[rng.standard_normal(shape) for shape in SHAPES] for _ in range(REPLICAS)]
    variables = [torch.from_numpy(np.concatenate(each)) for each in zip(*starts, strict=True)]
    optimizer = optimizer_for(recipe, variables, REPLICAS)
    references = [REFERENCES[name](recipe, start) for start in starts]
    # The authors average the momentum (lerp) where Muon of Keras 3 sums it: the same direction, but for the
    # 1e-7 that guards the division by its norm.
    tolerance = 1e-7 if name == "normuon" else 1e-12
    for k, rate in enumerate(RATES):
        gradients = [[rng.standard_normal(shape) for shape in SHAPES] for _ in range(REPLICAS)]
        packed = [torch.from_numpy(np.concatenate(each)) for each in zip(*gradients, strict=True)]
        optimizer.step(packed, rate, k + 1)
        shown = [by_replica(t, REPLICAS).numpy() for t in (*variables, *optimizer.average)]
        for r, reference in enumerate(references):
            expected = reference(gradients[r], rate, k)
            assert len(shown) == len(expected)
            for mine, theirs in zip(shown, expected, strict=True):
                assert np.abs(mine[r] - theirs).max() < tolerance


@pytest.mark.parametrize("name", TORCH_OPTIMIZERS)
def test_torch_optimizers_have_the_defaults_of_their_signatures(name: str) -> None:
    signature = inspect.signature(getattr(torch.optim, name.removeprefix("torch:"))).parameters
    defaults = {key: signature[key].default for key in ("weight_decay", "momentum") if key in signature}
    if "betas" in signature:
        defaults |= dict(zip(("beta1", "beta2"), signature["betas"].default, strict=True))
    if isinstance(eps := getattr(signature.get("eps"), "default", None), float):
        defaults["epsilon"] = eps
    assert defaults == CATALOG[name].fields
    recipe = Recipe(optimizer=name)
    assert {key: getattr(recipe, key) for key in defaults} == defaults
    assert recipe.changes() == {"optimizer": name}


def test_every_optimizer_of_torch_is_known_or_left_out_on_purpose() -> None:
    kinds = [
        name
        for name, kind in vars(torch.optim).items()
        if inspect.isclass(kind) and issubclass(kind, torch.optim.Optimizer) and name != "Optimizer"
    ]
    assert {f"torch:{name}" for name in kinds} - {"torch:LBFGS", "torch:SparseAdam", "torch:Muon"} == set(
        TORCH_OPTIMIZERS
    )


def test_a_torch_optimizer_is_torch_itself(tiny: Recipe) -> None:
    """Against torch.optim.AdamW on tensors of its own, with its own decay of kernels alone."""
    recipe = Recipe.parse(tiny.changes() | {"optimizer": "torch:AdamW", "decay_on": "kernels"})
    variables = [torch.ones(3, 2), torch.ones(3)]
    theirs = [torch.nn.Parameter(v.clone()) for v in variables]
    optimizer = optimizer_for(recipe, variables, 1, [0])
    groups = [{"params": theirs[:1]}, {"params": theirs[1:], "weight_decay": 0.0}]
    other = torch.optim.AdamW(groups, lr=0.5)
    for k in (1, 2, 3):
        gradients = [torch.full_like(v, 0.1 * k) for v in variables]
        for parameter, gradient in zip(theirs, gradients, strict=True):
            parameter.grad = gradient.clone()
        optimizer.step(gradients, 0.5, k)
        other.step()
    assert all(torch.equal(a, b) for a, b in zip(variables, theirs, strict=True))
    assert not torch.equal(variables[0][0, 0], variables[1][0])  # decay makes the difference


def runs_of(recipe: Recipe) -> list[Run]:
    return [Run(recipe, scale, seed) for seed, scale in enumerate((0.3, 1.0, 2.5))]


def differences(one: RunRecord, other: RunRecord) -> float:
    """The largest relative difference between two histories."""
    return max(
        float(np.max(np.abs(column - other.history[name]) / (1e-12 + np.abs(other.history[name]))))
        for name, column in one.history.items()
        if name != "seconds"
    )


@pytest.mark.parametrize("name", [*NEW, *(name for name in TORCH_OPTIMIZERS if CATALOG[name].packed)])
def test_a_replica_of_a_pack_follows_the_trajectory_it_follows_alone(tiny: Recipe, name: str) -> None:
    # Lion and Rprop take the sign of a gradient, so a bias before a batch normalization, whose gradient is
    # rounding noise, walks at random there: only layer normalization lets the two be compared.
    signs = name in ("lion", "torch:Rprop")
    changes = {"optimizer": name, "model": "mlp", "width": 3, "norm": "layer" if signs else "batch"}
    recipe = Recipe.parse(tiny.changes() | changes | {"decay_on": "no-norm"})
    data = load(recipe)
    packed = train_pack(runs_of(recipe), data, dtype=torch.float64)
    for run, record in zip(runs_of(recipe), packed, strict=True):
        (alone,) = train_pack([run], data, dtype=torch.float64)
        assert differences(record, alone) < 1e-4
        assert record.summary.tau_best == alone.summary.tau_best
    assert differences(packed[0], packed[1]) > 0.01  # or the comparison would see nothing


@pytest.mark.parametrize("name", [*NEW, *TORCH_OPTIMIZERS])
def test_a_pack_saved_inside_an_epoch_continues_bit_by_bit(tiny: Recipe, name: str) -> None:
    recipe = Recipe.parse(tiny.changes() | {"optimizer": name, "model": "mlp", "width": 3, "warmup": 9})
    data, runs = load(recipe), runs_of(recipe)[: 3 if CATALOG[name].packed else 1]
    whole = train_pack(runs, data)
    for batches in (1, 6):
        asked = iter([False] * (batches - 1) + [True])
        pack = Pack(runs, data)
        while train_epoch(pack, lambda asked=asked: next(asked, False)):
            pass
        resumed = train_pack(runs, data, resume=pack.checkpoint())
        assert all(a.same_result(b) for a, b in zip(whole, resumed, strict=True))


def test_an_optimizer_that_sees_whole_variables_trains_alone(tiny: Recipe) -> None:
    recipe = Recipe.parse(tiny.changes() | {"optimizer": "torch:Adafactor"})
    with pytest.raises(ValueError, match="one replica at a time"):
        Pack(runs_of(recipe), load(recipe))
    study = Study("s", "s", "full", "", (recipe,), (0.5, 1.0), (0, 1))
    assert [len(runs) for runs in packs(study, size=4, workers=1)] == [1] * 4


@pytest.mark.parametrize(("name", "allowed"), [("sdg", "torch:NAME"), ("torch:LBFGS", "torch:AdamW")])
def test_unknown_optimizers_are_refused(name: str, allowed: str) -> None:
    with pytest.raises(ConfigError, match=f"optimizer = '{name}' .*{allowed}"):
        Recipe.parse({"optimizer": name})


def test_the_study_of_the_page_loads(tmp_path: Path) -> None:
    page = (Path(__file__).parents[1] / "docs" / "optimizers.md").read_text()
    (text,) = re.findall(r"^```toml\n(.*?)^```", page, flags=re.M | re.S)
    (tmp_path / "study.toml").write_text(text)
    assert len(load_study(str(tmp_path / "study.toml")).recipes) == 2 + 4 + 3
    table = page.partition("| name | rule |")[2].partition("\n\n")[0]
    assert set(OPTIMIZERS) == set(re.findall(r"`([a-z-]{3,})`(?=[,| ])", table)) - {"-conv"}


# -- evaluation at the average ------------------------------------------------------------------------------


def test_schedule_free_is_evaluated_at_the_average_with_statistics_of_its_own(tiny: Recipe) -> None:
    recipe = Recipe.parse(tiny.changes() | {"optimizer": "schedule-free-adamw", "epochs": 1})
    pack = Pack(runs_of(recipe), load(recipe), dtype=torch.float64)
    train_epoch(pack)
    names = [name for name, _ in pack.network.named_parameters()]
    iterate = {name: value.clone() for name, value in pack.network.state_dict().items()}
    state = pack.optimizer.state(names)
    for name in names:
        assert torch.equal(pack.best[name], state[f"average/{name}"])  # what was validated and kept
        expected = 0.9 * state[f"average/{name}"] + 0.1 * state[f"fast/{name}"]
        assert torch.allclose(iterate[name], expected, rtol=1e-12, atol=1e-14)  # what training resumes with

    # Statistics: means over the epoch's batches at the average, by their size; the variance the biased one.
    pack.network.load_state_dict(pack.best)
    pack.network.train()
    first, seen = pack.network.stem.conv, []
    first.register_forward_hook(lambda module, inputs, output: seen.append(output))
    for batch in pack.order(1).split(recipe.batch_size):
        pack.logits(pack.train.packed(batch)[0])
    shares = torch.tensor([len(each) for each in seen], dtype=torch.float64)[:, None] / len(pack.train)
    means = (shares * torch.stack([each.mean((0, 2, 3)) for each in seen])).sum(0)
    variances = (shares * torch.stack([each.var((0, 2, 3), correction=0) for each in seen])).sum(0)
    assert torch.allclose(pack.best["stem.norm.moving_mean"], means, rtol=1e-10)
    assert torch.allclose(pack.best["stem.norm.moving_variance"], variances, rtol=1e-10)


# -- decay --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["sgd", "schedule-free-sgd", "torch:SGD"])
@pytest.mark.parametrize(
    ("on", "spared"),
    [("all", ()), ("no-norm", ("gamma", "beta")), ("kernels", ("gamma", "beta", "bias"))],
)
def test_decay_acts_on_what_decay_on_says(tiny: Recipe, name: str, on: str, spared: Sequence[str]) -> None:
    settings = {"optimizer": name, "weight_decay": 0.5, "decay_on": on}
    pack = Pack([Run(Recipe.parse(tiny.changes() | settings), 1.0, 0)], load(tiny))
    before = {key: value.detach().clone() for key, value in pack.network.named_parameters()}
    pack.optimizer.step([torch.zeros_like(p) for p in pack.parameters], 0.1, 1)
    for key, value in pack.network.named_parameters():
        factor = 1.0 if key.endswith(tuple(spared)) else 0.95
        assert torch.allclose(value, factor * before[key], rtol=1e-6), key


def test_defaults_mean_what_they_meant() -> None:
    assert Recipe(decay_on="all").changes() == {}
    assert Recipe.parse({"optimizer": "schedule-free-sgd"}).schedule == "constant"
    assert Recipe.parse({"optimizer": "schedule-free-sgd", "schedule": "cosine"}).changes() == {
        "optimizer": "schedule-free-sgd",
        "schedule": "cosine",
    }


# -- clocks -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*OPTIMIZERS, *TORCH_OPTIMIZERS])
def test_every_optimizer_has_its_clock(name: str) -> None:
    recipe = Recipe.parse({"optimizer": name})
    gradient_steps = name in ("sgd", "momentum", "schedule-free-sgd", "torch:SGD", "torch:ASGD")
    assert is_adaptive(name) != gradient_steps
    assert family_of(recipe) == ("sgd" if gradient_steps else "adaptive")
    assert family_of(recipe.replace(l2=0.01)) == "l2"


def test_momentum_of_torch_sgd_counts() -> None:
    recipe = Recipe.parse({"optimizer": "torch:SGD", "momentum": 0.8})
    assert step_momentum(recipe) == 0.8
    assert step_momentum(Recipe.parse({"optimizer": "torch:SGD"})) == 0.0
    assert step_momentum(Recipe.parse({"optimizer": "torch:RMSprop", "momentum": 0.8})) == 0.0


@pytest.mark.parametrize("schedule", ["cosine", "constant"])
def test_every_schedule_has_a_warmup(schedule: str) -> None:
    settings = {"schedule": schedule, "batch_size": 10, "epochs": 2, "learning_rate": 0.4}
    cold, warm = (Recipe.parse(settings | {"warmup": n}) for n in (0, 8))
    rates = np.concatenate([epoch_rates(warm, 100, epoch) for epoch in (1, 2)])
    without = np.concatenate([epoch_rates(cold, 100, epoch) for epoch in (1, 2)])
    assert np.allclose(rates, without * np.minimum(1, np.arange(1, 21) / 8))
    assert horizon_sums(warm, 100).eta == pytest.approx(rates.sum())
