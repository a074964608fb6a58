"""Linear networks: algebra against autograd, gradient flow against closed forms."""

import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from initmem.errors import ConfigError
from initmem.theory import (
    Loss,
    gradient_flow,
    imbalance,
    imbalances,
    layer_gradients,
    network,
    product,
    random_network,
    regression,
    square,
)

DIMS = st.lists(st.integers(1, 5), min_size=3, max_size=6)
SEEDS = st.integers(0, 2**31)


@settings(max_examples=30, deadline=None)
@given(DIMS, SEEDS, st.sampled_from([(), (3,), (2, 3)]))
def test_layer_gradients_are_those_of_autograd(dims, seed, lead):
    rng = np.random.default_rng(seed)
    factors = random_network(dims, rng=rng, lead=lead)
    g = rng.normal(size=(*lead, dims[-1], dims[0]))
    leaves = [torch.tensor(w, requires_grad=True) for w in factors]
    w = leaves[0]
    for leaf in leaves[1:]:
        w = leaf @ w
    expected = torch.autograd.grad((w * torch.tensor(g)).sum(), leaves)
    found = layer_gradients(factors, g)
    assert len(found) == len(dims) - 1
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, theirs.numpy(), rtol=1e-10, atol=1e-12)


def test_product_and_imbalances_of_every_trajectory():
    factors = random_network((4, 3, 5, 2), rng=np.random.default_rng(0), lead=(2, 3))
    a, b, c = (w[1, 2] for w in factors)
    np.testing.assert_allclose(product(factors)[1, 2], np.linalg.multi_dot([c, b, a]))
    first, second = (d[1, 2] for d in imbalances(factors))
    np.testing.assert_allclose(first, a @ a.T - b.T @ b)
    np.testing.assert_allclose(second, b @ b.T - c.T @ c)


def test_two_factor_imbalance_is_minus_the_deep_one():
    v, u = random_network((3, 4, 2), rng=np.random.default_rng(1))
    np.testing.assert_allclose(imbalance(u, v), -imbalances((v, u))[0])


def test_scale_multiplies_one_and_the_same_draw():
    plain = random_network((3, 4, 2), rng=np.random.default_rng(2), lead=(2,))
    scaled = random_network((3, 4, 2), rng=np.random.default_rng(2), lead=(2,), scale=[1.0, 2.5])
    for a, b in zip(plain, scaled, strict=True):
        np.testing.assert_allclose(b[0], a[0])
        np.testing.assert_allclose(b[1], 2.5 * a[1])


def test_random_factors_have_fan_in_variance():
    w, _ = random_network((25, 400, 1), rng=np.random.default_rng(3))
    assert w.var() == pytest.approx(1 / 25, rel=0.05)


def test_balanced_scalar_flow_follows_the_logistic_curve():
    # From a = b the product obeys dp/dt = -4 p (p - goal).
    goal, p0, times = 2.0, 0.25, np.array([0.1, 0.3, 1.0])
    start = network([[np.sqrt(p0)]], [[np.sqrt(p0)]])
    path = gradient_flow(start, square([[goal]]), times)
    expected = goal / (1 + (goal / p0 - 1) * np.exp(-4 * goal * times))
    np.testing.assert_allclose(path.product[:, 0, 0], expected, rtol=1e-10)


def test_flow_without_a_loss_only_decays():
    factors = random_network((3, 2, 4), rng=np.random.default_rng(4))
    nothing = Loss(lambda w: np.zeros(w.shape[:-2]), np.zeros_like)
    path = gradient_flow(factors, nothing, [0.5, 2.0], decay=0.7)
    for w, start in zip(path.factors, factors, strict=True):
        np.testing.assert_allclose(w[0], np.exp(-0.35) * start, rtol=1e-10)
        np.testing.assert_allclose(w[1], np.exp(-1.4) * start, rtol=1e-10)


def test_trajectories_flow_as_they_do_alone():
    rng = np.random.default_rng(5)
    factors = random_network((3, 4, 2), rng=rng, lead=(3,))
    loss = regression(rng.normal(size=(6, 3)), rng.normal(size=(6, 2)))
    together = gradient_flow(factors, loss, [1.0])
    alone = gradient_flow(tuple(w[1] for w in factors), loss, [1.0])
    for a, b in zip(together.final, alone.final, strict=True):
        np.testing.assert_allclose(a[1], b, rtol=1e-9, atol=1e-10)


def test_a_flow_that_blows_up_is_marked_and_silent():
    away = Loss(lambda w: -np.sum(w * w, axis=(-2, -1)), lambda w: -2 * w)
    path = gradient_flow(network([[1.0]], [[1.0]]), away, [0.01, 10.0])
    assert path.diverged
    assert np.isfinite(path.product[0]).all()
    assert np.isnan(path.product[1]).all()
    assert np.isnan(path.imbalances[0][1]).all()


@pytest.mark.parametrize(
    ("factors", "message"),
    [
        (([[1.0]],), r"shapes \[\(1, 1\)\]; allowed: two or more"),
        (([[1.0]], [1.0]), r"shapes \[\(1, 1\), \(1,\)\]"),
        ((np.ones((3, 2)), np.ones((2, 4))), "as many columns as rows below"),
        ((np.ones((2, 1, 1)), np.ones((3, 1, 1))), "leading axes"),
    ],
)
def test_wrong_shapes_are_named(factors, message):
    with pytest.raises(ConfigError, match=message):
        network(*factors)


def test_wrong_arguments_are_named():
    start = network([[1.0]], [[1.0]])
    with pytest.raises(ConfigError, match="dims"):
        random_network((2, 3), rng=np.random.default_rng(0))
    with pytest.raises(ConfigError, match="times"):
        gradient_flow(start, square([[1.0]]), [1.0, 0.5])
    with pytest.raises(ConfigError, match="times"):
        gradient_flow(start, square([[1.0]]), [])
    with pytest.raises(ConfigError, match="decay"):
        gradient_flow(start, square([[1.0]]), [1.0], decay=-1.0)
    wide = Loss(lambda w: w[..., 0, 0], lambda w: np.ones((2, 2)))
    with pytest.raises(ConfigError, match=r"gradient: shape \(2, 2\); allowed: \(1, 1\)"):
        gradient_flow(start, wide, [1.0])


def test_importing_the_package_stays_light():
    code = (
        "import sys, initmem.theory; "
        "heavy = {'scipy', 'torch', 'matplotlib'} & set(sys.modules); assert not heavy, heavy"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
