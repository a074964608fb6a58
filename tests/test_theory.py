"""Linear networks: gradients against autograd, flow against closed forms, optimizers against torch."""

from itertools import repeat

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from initmem.errors import ConfigError
from initmem.theory import (
    descend,
    gradient_flow,
    imbalance,
    imbalances,
    layer_gradients,
    logistic,
    network,
    optimizer,
    product,
    random_network,
    regression,
    square,
)
from initmem.train.optimizers import orthogonalize

SGD = optimizer("sgd")


def _problem(seed=0, lead=()):
    rng = np.random.default_rng(seed)
    x, y = rng.normal(size=(6, 3)), rng.normal(size=(6, 2))
    return random_network((3, 4, 2), rng=rng, lead=lead), regression(x, y), (x, y)


# -- algebra --------------------------------------------------------------------------------------------


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.integers(1, 5), min_size=3, max_size=6),
    st.integers(0, 2**31),
    st.sampled_from([(), (3,), (2, 3)]),
)
def test_layer_gradients_are_those_of_autograd(dims, seed, lead):
    rng = np.random.default_rng(seed)
    factors = random_network(dims, rng=rng, lead=lead)
    g = rng.normal(size=(*lead, dims[-1], dims[0]))
    leaves = [torch.tensor(w, requires_grad=True) for w in factors]
    w = leaves[0]
    for leaf in leaves[1:]:
        w = leaf @ w
    expected = torch.autograd.grad((w * torch.tensor(g)).sum(), leaves)
    for ours, theirs in zip(layer_gradients(factors, g), expected, strict=True):
        np.testing.assert_allclose(ours, theirs.numpy(), rtol=1e-10, atol=1e-12)


def test_products_and_imbalances_of_every_trajectory():
    factors = random_network((4, 3, 5, 2), rng=np.random.default_rng(0), lead=(2, 3))
    a, b, c = (w[1, 2] for w in factors)
    np.testing.assert_allclose(product(factors)[1, 2], np.linalg.multi_dot([c, b, a]))
    first, second = (d[1, 2] for d in imbalances(factors))
    np.testing.assert_allclose(first, a @ a.T - b.T @ b)
    np.testing.assert_allclose(second, b @ b.T - c.T @ c)
    np.testing.assert_allclose(imbalance(b, a), -first)


def test_a_random_network_has_fan_in_variance_and_one_draw_at_every_scale():
    w, _ = random_network((25, 400, 1), rng=np.random.default_rng(3))
    assert w.var() == pytest.approx(1 / 25, rel=0.05)
    plain = random_network((3, 4, 2), rng=np.random.default_rng(2), lead=(2,))
    scaled = random_network((3, 4, 2), rng=np.random.default_rng(2), lead=(2,), scale=[1.0, 2.5])
    for a, b in zip(plain, scaled, strict=True):
        np.testing.assert_allclose(b, a * np.array([1.0, 2.5])[:, None, None])


def test_losses_are_those_of_torch():
    rng = np.random.default_rng(0)
    x, y, w = rng.normal(size=(7, 3)), rng.normal(size=(7, 2)), rng.normal(size=(2, 3))
    goal, leaf = rng.normal(size=(2, 3)), torch.tensor(w, requires_grad=True)
    out, target = torch.tensor(x) @ leaf.T, torch.tensor(y)
    likely = torch.tensor((np.sign(y) + 1) / 2)
    for loss, theirs in (
        (square(goal), (leaf - torch.tensor(goal)).square().sum()),
        (regression(x, y), F.mse_loss(out, target, reduction="sum") / (2 * 7)),
        (logistic(x, np.sign(y)), F.binary_cross_entropy_with_logits(out, likely, reduction="sum") / 7),
    ):
        (expected,) = torch.autograd.grad(theirs, leaf, retain_graph=True)
        np.testing.assert_allclose(loss(w), expected.numpy(), rtol=1e-12)
        np.testing.assert_allclose(loss(np.stack([w, 2 * w]))[0], loss(w))
    far = logistic(np.ones((2, 1)), np.array([[1.0], [-1.0]]))
    np.testing.assert_allclose(far(np.array([[1e4]])), [[0.5]])  # no overflow at large margins


# -- gradient flow --------------------------------------------------------------------------------------


def test_balanced_scalar_flow_follows_the_logistic_curve():
    # From a = b the product obeys dp/dt = -4 p (p - goal).
    goal, p0, times = 2.0, 0.25, np.array([0.1, 0.3, 1.0])
    start = network([[np.sqrt(p0)]], [[np.sqrt(p0)]])
    path = gradient_flow(start, square([[goal]]), times)
    expected = goal / (1 + (goal / p0 - 1) * np.exp(-4 * goal * times))
    np.testing.assert_allclose(product(path)[:, 0, 0], expected, rtol=1e-10)


def test_flow_without_a_loss_only_decays():
    factors, _, _ = _problem()
    path = gradient_flow(factors, np.zeros_like, [0.5, 2.0], decay=0.7)
    for w, start in zip(path, factors, strict=True):
        np.testing.assert_allclose(w, np.exp([-0.35, -1.4])[:, None, None] * start, rtol=1e-10)


def test_trajectories_flow_as_they_do_alone():
    factors, loss, _ = _problem(lead=(3,))
    together = gradient_flow(factors, loss, [1.0])
    alone = gradient_flow(tuple(w[1] for w in factors), loss, [1.0])
    for a, b in zip(together, alone, strict=True):
        np.testing.assert_allclose(a[:, 1], b, rtol=1e-9, atol=1e-10)


def test_a_flow_that_blows_up_is_nan_and_silent():
    path = gradient_flow(network([[1.0]], [[1.0]]), lambda w: -2 * w, [0.01, 10.0])
    assert np.isfinite(product(path)[0]).all()
    assert np.isnan(imbalances(path)[0][1]).all()


# -- descent --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rule", "theirs"),
    [
        (SGD, lambda p: torch.optim.SGD(p, lr=0.05, weight_decay=0.1)),
        (optimizer("momentum", momentum=0.8), lambda p: torch.optim.SGD(p, 0.05, 0.8, weight_decay=0.1)),
        # As epsilon vanishes it does not matter where it is added.
        (optimizer("adam", epsilon=1e-200), lambda p: torch.optim.Adam(p, 0.05, eps=0.0, weight_decay=0.1)),
    ],
)
def test_optimizers_step_as_in_torch(rule, theirs):
    factors, loss, (x, y) = _problem()
    leaves = [torch.tensor(w, requires_grad=True) for w in factors]
    theirs = theirs(leaves)
    for _ in range(25):
        theirs.zero_grad()
        residual = torch.tensor(x) @ (leaves[1] @ leaves[0]).T - torch.tensor(y)
        (residual.square().sum() / 12).backward()
        theirs.step()
    ours = descend(factors, repeat(loss), rule, 0.05, 25, decay=0.1)
    for a, b in zip(ours, leaves, strict=True):
        np.testing.assert_allclose(a[-1], b.detach().numpy(), rtol=1e-9)


def test_the_rate_is_inside_the_velocity_of_the_heavy_ball():
    rates = np.array([0.1, 0.01, 0.2])
    a, b, va, vb = 1.0, 2.0, 0.0, 0.0
    for rate in rates:
        g = 2 * (a * b - 1)
        va, vb = 0.9 * va - rate * g * b, 0.9 * vb - rate * g * a
        a, b = a + va, b + vb
    path = descend(network([[2.0]], [[1.0]]), repeat(square([[1.0]])), optimizer("momentum"), rates, 3)
    np.testing.assert_allclose([w[-1].item() for w in path], [b, a])


def test_every_trajectory_has_a_matrix_of_its_own():
    factors, loss, _ = _problem(lead=(2, 3))
    gradients = layer_gradients(factors, loss(product(factors)))
    path = descend(factors, [loss], optimizer("muon"), 0.1, 1)
    for layer, h in zip(path, gradients, strict=True):
        ahead = torch.from_numpy(h * 1.95)  # Nesterov: the gradient and 0.95 of the first momentum
        step = 0.1 * 0.2 * np.sqrt(4) * orthogonalize(ahead).numpy()
        np.testing.assert_allclose(layer[0] - layer[1], step, atol=1e-12)


def test_decay_is_geometric_coupled_or_decoupled():
    factors, _, _ = _problem()
    for rule, decay, factor in (
        (SGD, 0.5, 0.95),
        (optimizer("adamw"), 0.0, 1.0),
        (optimizer("adamw", weight_decay=0.5), 0.0, 0.95),
    ):
        path = descend(factors, repeat(np.zeros_like), rule, 0.1, 4, decay=decay)
        np.testing.assert_allclose(path[0][-1], factor**4 * factors[0])


@pytest.mark.parametrize("name", ["sgd", "momentum", "adam", "muon", "lion"])
def test_trajectories_move_as_they_do_alone_even_beside_one_that_diverges(name):
    factors, loss, _ = _problem(lead=(3,))
    for layer in factors:
        layer[1] *= 1e200
    together = descend(factors, repeat(loss), optimizer(name), 0.02, 12, decay=[0.1, 0.0, 0.2])
    assert np.isnan(together[0][-1, 1]).all()
    for i, decay in ((0, 0.1), (2, 0.2)):
        alone = descend(tuple(w[i] for w in factors), repeat(loss), optimizer(name), 0.02, 12, decay=decay)
        for a, b in zip(together, alone, strict=True):
            np.testing.assert_allclose(a[:, i], b, rtol=1e-12)


def test_numbers_beyond_any_sense_count_as_diverged_while_they_are_still_finite():
    path = descend(network([[2.0]], [[1.0]]), [square([[1.0]])], SGD, 1e120, 1)
    assert np.isnan(path[0][-1])


def test_what_is_recorded():
    factors, loss, _ = _problem()
    whole = descend(factors, repeat(loss), SGD, 0.01, 10)
    path = descend(factors, repeat(loss), SGD, 0.01, 10, every=4)
    np.testing.assert_array_equal(path[1], whole[1][[0, 4, 8, 10]])


def test_euclidean_steps_move_the_imbalance_at_second_order_and_others_at_first():
    factors, loss, _ = _problem()

    def moved(name, rate):
        (d,) = imbalances(descend(factors, [loss], optimizer(name), rate, 1))
        return np.abs(d[1] - d[0]).max()

    for name, ratio in (("sgd", 4), ("momentum", 4), ("adam", 2), ("muon", 2)):
        assert moved(name, 2e-5) / moved(name, 1e-5) == pytest.approx(ratio, rel=0.01)


def test_wrong_arguments_are_named():
    factors, loss, (x, y) = _problem()
    for message, call in (
        (r"shapes \[\(1, 1\)\]; allowed: two or more", lambda: network([[1.0]])),
        (r"shapes \[\(1, 1\), \(1,\)\]", lambda: network([[1.0]], [1.0])),
        ("as many columns as rows below", lambda: network(np.ones((3, 2)), np.ones((2, 4)))),
        ("labels", lambda: logistic(np.ones((4, 3)), np.zeros((4, 2)))),
        (r"outputs \(6, 1\) of the network and \(6, 2\)", lambda: regression(x, y)(np.ones((1, 3)))),
        ("times", lambda: gradient_flow(factors, loss, [1.0, 0.5])),
        ("times", lambda: gradient_flow(factors, loss, [])),
        (r"gradient: shape \(3, 2\); allowed: \(2, 3\)", lambda: gradient_flow(factors, np.transpose, [1.0])),
        (r"gradient: shape \(3, 2\)", lambda: descend(factors, [np.transpose], SGD, 0.1, 1)),
        (
            r"rates: shape \(3,\); allowed: one number, or \(5,\)",
            lambda: descend(factors, [], SGD, [1] * 3, 5),
        ),
        (r"rates: -0\.1; allowed: numbers >= 0", lambda: descend(factors, repeat(loss), SGD, -0.1, 5)),
        (r"decay: \[nan\]", lambda: descend(factors, repeat(loss), SGD, 0.1, 5, decay=[float("nan")])),
        ("steps: 0", lambda: descend(factors, repeat(loss), SGD, 0.1, 0)),
        (
            "losses: 2; allowed: one for each of the 3 steps",
            lambda: descend(factors, [loss] * 2, SGD, 0.1, 3),
        ),
        ("losses: 0", lambda: descend(factors, [], SGD, 0.1, 3)),
        ("optimizer = 'adamm'", lambda: optimizer("adamm")),
    ):
        with pytest.raises(ConfigError, match=message):
            call()
