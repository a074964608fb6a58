"""Pytrees of JAX, flax, equinox and plain dicts: initialization, norms and clocks."""

from __future__ import annotations

import functools
import runpy
from pathlib import Path

import equinox
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import initmem
from initmem.errors import ConfigError, ModelError
from initmem.pipeline.init import Init, UntouchedWarning
from initmem.pipeline.jax import learning_rate
from initmem.pipeline.tracker import Tracker
from initmem.recipe import PipelineRecipe
from initmem.study import Run

pytestmark = pytest.mark.usefixtures("empty_folder")

ONES = functools.partial(jnp.ones, dtype=jnp.float32)
PLAIN = {"hidden": {"w": ONES((3, 40)), "b": ONES(40)}, "out": {"w": ONES((40, 2)), "b": ONES(2)}, "step": 3}
FLAX = {
    "params": {
        "Conv_0": {"kernel": ONES((3, 3, 4, 8)), "bias": ONES(8)},
        "Embed_0": {"embedding": ONES((10, 6))},
        "LayerNorm_0": {"scale": ONES(8), "bias": ONES(8)},
        "Attention_0": {"query": {"kernel": ONES((8, 2, 4)), "bias": ONES((2, 4))}},
    }
}


def roles(tree: object, **how: object) -> dict[str, tuple[str, float | None]]:
    return {
        row["parameter"]: (row["role"], row["fan_in"])
        for row in Init().describe(tree, draw="fan-in", **how).rows()
    }


def test_roles_and_fan_ins_of_plain_dicts_and_flax() -> None:
    assert roles(PLAIN) == {
        "hidden.w": ("kernel", 3.0),
        "hidden.b": ("bias", None),
        "out.w": ("kernel", 40.0),
        "out.b": ("bias", None),
    }
    assert {name.removeprefix("params."): role for name, role in roles(FLAX).items()} == {
        "Conv_0.kernel": ("kernel", 36.0),
        "Conv_0.bias": ("bias", None),
        "Embed_0.embedding": ("kernel", 1.0),
        "LayerNorm_0.scale": ("norm", None),
        "LayerNorm_0.bias": ("norm", None),
        "Attention_0.query.kernel": ("kernel", 8.0),
        "Attention_0.query.bias": ("bias", None),
    }


def test_roles_and_fan_ins_of_equinox() -> None:
    class Net(equinox.Module):
        conv: equinox.nn.Conv2d
        norm: equinox.nn.LayerNorm
        words: equinox.nn.Embedding
        head: equinox.nn.Linear
        own: jax.Array

    keys = jax.random.split(jax.random.key(0), 3)
    net = Net(
        equinox.nn.Conv2d(4, 8, 3, key=keys[0]),
        equinox.nn.LayerNorm(8),
        equinox.nn.Embedding(10, 6, key=keys[1]),
        equinox.nn.Linear(5, 2, key=keys[2]),
        ONES((3, 3)),
    )
    assert roles(net) == {
        "conv.weight": ("kernel", 36.0),
        "conv.bias": ("bias", None),
        "norm.weight": ("norm", None),
        "norm.bias": ("norm", None),
        "words.weight": ("kernel", 1.0),
        "head.weight": ("kernel", 5.0),
        "head.bias": ("bias", None),
        "own": ("other", None),
    }
    assert roles(net, kernels={"own": 3})["own"] == ("kernel", 3.0)
    with pytest.raises(ModelError, match="own: its fan-in is not known"):
        roles(net, kernels=["own", equinox.nn.Linear])
    with pytest.warns(UntouchedWarning, match=r"left as they are: own \(3, 3\)"):
        drawn = Init(2.0, 1).apply(net, draw="fan-in")
    assert isinstance(drawn, Net) and drawn.head(ONES(5)).shape == (2,)
    assert float(jnp.std(drawn.words.weight)) == pytest.approx(2.0, rel=0.3)


class NormalizedLinear(equinox.nn.Linear):
    """A linear layer, whatever its name."""


class OwnNorm(equinox.Module):
    gain: jax.Array


def test_norm_layers_are_what_they_are_not_what_they_are_called() -> None:
    tree = [NormalizedLinear(3, 2, key=jax.random.key(0)), OwnNorm(ONES(3)), equinox.nn.RMSNorm(3)]
    assert {name: role for name, (role, _) in roles(tree).items()} == {
        "0.weight": "kernel",
        "0.bias": "bias",
        "1.gain": "norm",
        "2.weight": "norm",
        "2.bias": "norm",
    }


def test_at_scale_1_the_model_of_the_example_is_the_unwrapped_one_to_the_bit() -> None:
    example = runpy.run_path(str(Path(__file__).parents[1] / "examples" / "jax_optax.py"))

    def loss(init: Init | None) -> float:
        first, last = jax.random.split(jax.random.key(3))
        params = {"hidden": example["layer"](first, 64, 64), "out": example["layer"](last, 64, 10)}
        params = params if init is None else init.apply(params)
        return float(example["loss_of"](params, *example["TRAIN"])[0])

    assert loss(Init(1.0, 3)) == loss(None) != loss(Init(2.0, 3))


@pytest.mark.parametrize("draw", ["own", "fan-in"])
def test_a_perturbed_tree_differs_in_its_largest_weights(draw: str) -> None:
    tree = {"w": jax.random.normal(jax.random.key(0), (3, 4)), "b": ONES(4)}
    runs = [Run(PipelineRecipe.parse({"pipeline": "p"}), 2.0, 0, (), factor) for factor in (1.0, 1.5)]
    plain, perturbed = (np.asarray(Init.of(run).apply(tree, draw=draw)["w"]) for run in runs)
    expected = np.where(np.abs(plain) == np.abs(plain).max(), 1.5 * plain, plain)
    np.testing.assert_allclose(perturbed, expected, rtol=1e-6)


def test_lists_of_weights_and_biases_as_in_stax() -> None:
    from jax.example_libraries import stax

    layers = (stax.Conv(5, (3, 3)), stax.Relu, stax.Flatten, stax.Dense(1), stax.Relu, stax.Dense(4))
    _, params = stax.serial(*layers)[0](jax.random.key(0), (-1, 6, 6, 2))
    assert roles(params) == {
        "0.0": ("kernel", 18.0),
        "0.1": ("bias", None),  # of shape (1, 1, 1, 5)
        "3.0": ("kernel", 80.0),
        "3.1": ("bias", None),
        "5.0": ("kernel", 1.0),  # of shape (1, 4)
        "5.1": ("bias", None),
    }
    assert roles([ONES((3, 4)), ONES(4), ONES((4, 1))]) == {
        "0": ("kernel", 3.0),
        "1": ("bias", None),
        "2": ("kernel", 4.0),
    }


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("draw", ["own", "fan-in"])
def test_arrays_of_numpy_keep_their_precision_without_a_warning(draw: str) -> None:
    rng = np.random.default_rng(0)
    params = [
        (rng.normal(size=(3, 4)), np.zeros(4)),
        (jnp.asarray(rng.normal(size=(4, 2)), jnp.float32), ONES(2)),
    ]
    tracker = Tracker()
    (first, _), (second, _) = scaled = Init(2.0, 1).apply(params, draw=draw)
    tracker.attach(scaled, batch_size=1)
    tracker.step(0.1, model=scaled)
    tracker.end_epoch(loss=1.0)
    assert isinstance(first, np.ndarray) and first.dtype == np.float64 and second.dtype == jnp.float32
    if draw == "own":
        np.testing.assert_array_equal(first, 2 * params[0][0])


def test_a_new_tree_is_drawn_and_the_old_one_is_left() -> None:
    small, large = (Init(scale, 5).apply(PLAIN, draw="fan-in") for scale in (0.5, 2.0))
    assert (PLAIN["hidden"]["w"] == 1).all() and small["step"] == 3
    np.testing.assert_allclose(4 * small["hidden"]["w"], large["hidden"]["w"], rtol=1e-6)
    np.testing.assert_array_equal(small["hidden"]["b"], large["hidden"]["b"])
    assert float(jnp.std(large["hidden"]["w"])) == pytest.approx(2 / 3**0.5, rel=0.2)
    fresh = Init(0.5, 5)  # in the order of the tree: b before w
    fresh.bias(40)
    np.testing.assert_allclose(small["hidden"]["w"], fresh.kernel(3, 40, fan_in=3), rtol=1e-6)
    scaled = Init(3.0).apply(PLAIN)
    assert (scaled["out"]["w"] == 3).all() and (scaled["out"]["b"] == 1).all()
    half = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), {"w": ONES((2, 2))})
    assert Init().apply(half)["w"].dtype == jnp.bfloat16
    with pytest.raises(ModelError, match="no kernel among its parameters"):
        Init().apply({"b": ONES(3)})


def test_norms_and_clocks_with_optax() -> None:
    """Against sums by hand: a cosine schedule, three epochs of four updates."""
    schedule = optax.cosine_decay_schedule(0.2, 12)
    optimizer = optax.inject_hyperparams(optax.sgd)(learning_rate=schedule)
    params = Init(1.0, 0).apply(PLAIN["out"])
    state, tracker = optimizer.init(params), Tracker()
    tracker.attach(params, batch_size=10, norm_every=1)
    assert tracker.norm_init == pytest.approx(float(jnp.linalg.norm(params["w"])), rel=1e-6)

    @jax.jit
    def update(params, state):
        updates, state = optimizer.update(jax.tree.map(jnp.sign, params), state, params)
        return optax.apply_updates(params, updates), state

    norms, angular = [], 0.0
    for _ in range(3):
        for _ in range(4):
            before = float(jnp.sum(params["w"] ** 2))
            params, state = update(params, state)
            tracker.step(learning_rate(state), model=params)
            angular += learning_rate(state) / before
        tracker.end_epoch(val_loss=1.0)
        norms.append(float(jnp.linalg.norm(params["w"])))
    rates = np.array([float(schedule(k)) for k in range(12)])
    history = tracker.history
    np.testing.assert_allclose(history["norm"], norms, rtol=1e-5)
    np.testing.assert_allclose(history["clock_sgd"], np.cumsum(rates**2)[3::4] / 10, rtol=1e-5)
    np.testing.assert_allclose(history["clock_adaptive"], np.cumsum(rates)[3::4], rtol=1e-5)
    assert history["clock_angular"][-1] == pytest.approx(angular, rel=1e-4)


def test_several_updates_at_once() -> None:
    one, many = Tracker(), Tracker()
    for tracker in (one, many):
        tracker.attach(batch_size=4)
    for rate in (0.1, 0.2, 0.3):
        one.step(rate)
    many.step(jnp.array([0.1, 0.2, 0.3]))
    assert many.updates == 3
    assert many.clocks() == pytest.approx(one.clocks(), rel=1e-6)


def test_mistakes_are_explained() -> None:
    with pytest.raises(ConfigError, match="no learning rate in it"):
        learning_rate(optax.sgd(0.1).init({"w": ONES(2)}))
    tracker = Tracker()
    tracker.attach(PLAIN, batch_size=1)
    with pytest.raises(ConfigError, match=r"model: it has no hidden\.b"):
        tracker.step(0.1, model={"other": ONES((2, 2))})
        tracker.end_epoch(loss=1.0)


def test_a_pipeline_in_jax_is_measured(tmp_path: Path) -> None:
    def train(init, tracker):
        params = init.apply({"w": ONES((4, 4))})
        tracker.attach(params, batch_size=2)
        for _ in range(3):
            params = jax.tree.map(lambda leaf: 0.5 * leaf, params)
            tracker.step(0.5, model=params)
            tracker.end_epoch(val_loss=float(jnp.sum(params["w"] ** 2)))

    result = initmem.run(train, [0.5, 2.0], [0, 1], tmp_path, engine="inline", progress=False)
    assert result.verdict == "remembers" or result.memory().memory > 0
    assert result.records[0].provenance["scale_used"]
    assert set(result.clocks()) == {"sgd", "l2", "adaptive", "momentum", "angular"}
    assert result.records[0].provenance["fingerprint"]["package jax"] == jax.__version__
