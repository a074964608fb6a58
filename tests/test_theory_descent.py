"""Discrete dynamics: every rule against torch or a loop by hand, and many trajectories at once."""

import numpy as np
import pytest
import torch

from initmem.errors import ConfigError
from initmem.theory import (
    Loss,
    descend,
    layer_gradients,
    network,
    optimizer,
    preconditioned,
    product,
    random_network,
    regression,
    square,
)
from initmem.theory.propositions import first_order_bracket
from initmem.train.optimizers import orthogonalize

STILL = Loss(lambda w: np.zeros(w.shape[:-2]), np.zeros_like)


def _problem(seed=0, lead=()):
    rng = np.random.default_rng(seed)
    x, y = rng.normal(size=(6, 3)), rng.normal(size=(6, 2))
    return random_network((3, 4, 2), rng=rng, lead=lead), regression(x, y), (x, y)


@pytest.mark.parametrize(
    ("rule", "theirs"),
    [
        (optimizer("sgd"), lambda p: torch.optim.SGD(p, lr=0.05, weight_decay=0.1)),
        (optimizer("momentum", momentum=0.8), lambda p: torch.optim.SGD(p, 0.05, 0.8, weight_decay=0.1)),
        # As epsilon vanishes it does not matter where it is added.
        (optimizer("adam", epsilon=1e-200), lambda p: torch.optim.Adam(p, 0.05, eps=0.0, weight_decay=0.1)),
    ],
)
def test_rules_step_as_in_torch(rule, theirs):
    factors, loss, (x, y) = _problem()
    leaves = [torch.tensor(w, requires_grad=True) for w in factors]
    theirs = theirs(leaves)
    for _ in range(25):
        theirs.zero_grad()
        residual = torch.tensor(x) @ (leaves[1] @ leaves[0]).T - torch.tensor(y)
        (residual.square().sum() / 12).backward()
        theirs.step()
    ours = descend(factors, loss, rule, 0.05, 25, decay=0.1)
    for a, b in zip(ours.final, leaves, strict=True):
        np.testing.assert_allclose(a, b.detach().numpy(), rtol=1e-9)


def test_the_rate_is_inside_the_velocity_of_the_heavy_ball():
    rates = np.array([0.1, 0.01, 0.2])
    a, b, va, vb = 1.0, 2.0, 0.0, 0.0
    for rate in rates:
        g = 2 * (a * b - 1)
        va, vb = 0.9 * va - rate * g * b, 0.9 * vb - rate * g * a
        a, b = a + va, b + vb
    path = descend(network([[2.0]], [[1.0]]), square([[1.0]]), optimizer("momentum"), rates, 3)
    np.testing.assert_allclose([w.item() for w in path.final], [b, a])


def test_every_trajectory_has_a_matrix_of_its_own():
    factors, loss, _ = _problem(lead=(2, 3))
    gradients = layer_gradients(factors, loss.gradient(product(factors)))
    path = descend(factors, loss, optimizer("muon"), 0.1, 1)
    for before, after, h in zip(factors, path.final, gradients, strict=True):
        ahead = torch.from_numpy(h * 1.95)  # Nesterov: the gradient and 0.95 of the first momentum
        step = 0.1 * 0.2 * np.sqrt(4) * orthogonalize(ahead).numpy()
        np.testing.assert_allclose(before - after, step, atol=1e-12)


def test_weight_decay_is_decoupled_and_zero_unless_given():
    factors, _, _ = _problem()
    for settings, factor in (({}, 1.0), ({"weight_decay": 0.5}, 0.95**4)):
        path = descend(factors, STILL, optimizer("adamw", **settings), 0.1, 4)
        np.testing.assert_allclose(path.final[0], factor * factors[0])


@pytest.mark.parametrize("name", ["sgd", "momentum", "adam", "muon", "lion"])
def test_trajectories_move_as_they_do_alone_even_beside_one_that_diverges(name):
    factors, loss, _ = _problem(lead=(3,))
    for layer in factors:
        layer[1] *= 1e200
    together = descend(factors, loss, optimizer(name), 0.02, 12, decay=[0.1, 0.0, 0.2])
    assert list(together.diverged) == [False, True, False]
    assert np.isnan(together.final[0][1]).all()
    for i, decay in ((0, 0.1), (2, 0.2)):
        alone = descend(tuple(w[i] for w in factors), loss, optimizer(name), 0.02, 12, decay=decay)
        for a, b in zip(together.factors, alone.factors, strict=True):
            np.testing.assert_allclose(a[:, i], b, rtol=1e-12)


def test_numbers_beyond_any_sense_count_as_diverged_while_they_are_still_finite():
    path = descend(network([[2.0]], [[1.0]]), square([[1.0]]), optimizer("sgd"), 1e120, 1)
    assert path.diverged
    assert np.isnan(path.final[0])


def test_decay_alone_is_geometric():
    factors, _, _ = _problem()
    path = descend(factors, STILL, optimizer("sgd"), 0.1, 7, decay=0.5)
    np.testing.assert_allclose(path.final[0], 0.95**7 * factors[0])


def test_what_is_recorded():
    factors, loss, _ = _problem()
    path = descend(factors, loss, optimizer("sgd"), 0.01, 10, every=4)
    assert list(path.times) == [0, 4, 8, 10]
    whole = descend(factors, loss, optimizer("sgd"), 0.01, 10)
    np.testing.assert_array_equal(path.factors[1], whole.factors[1][[0, 4, 8, 10]])
    assert path.product.shape == (4, 2, 3)


def test_an_estimate_sees_the_number_of_the_update():
    seen = []
    descend(network([[1.0]], [[1.0]]), lambda k, w: seen.append(k) or 0 * w, optimizer("sgd"), 0.1, 3)
    assert seen == [0, 1, 2]


def test_euclidean_steps_move_the_imbalance_at_second_order_and_preconditioned_ones_at_first():
    factors, loss, _ = _problem()

    def moved(rule, rate):
        (d,) = descend(factors, loss, rule, rate, 1).imbalances
        return np.abs(d[1] - d[0]).max()

    for rule, ratio in (
        (optimizer("sgd"), 4),
        (optimizer("momentum"), 4),
        (optimizer("adam"), 2),
        (optimizer("muon"), 2),
        (preconditioned(lambda j, h: np.sign(h)), 2),
        (preconditioned(lambda j, h: j * h), 2),
    ):
        assert moved(rule, 2e-5) / moved(rule, 1e-5) == pytest.approx(ratio, rel=0.01)


def test_noise_of_each_layers_own_breaks_the_first_order_cancellation():
    factors, loss, _ = _problem()
    slopes = layer_gradients(factors, loss.gradient(product(factors)))
    rng = np.random.default_rng(1)
    noisy = tuple(h + 0.1 * rng.normal(size=h.shape) for h in slopes)
    shared = layer_gradients(factors, 0.1 * rng.normal(size=(2, 3)))
    together = tuple(h + n for h, n in zip(slopes, shared, strict=True))
    assert np.abs(first_order_bracket(factors, noisy)[0]).max() > 1e-2
    assert np.abs(first_order_bracket(factors, together)[0]).max() < 1e-14


def test_a_watcher_sees_every_state_before_its_update_and_may_end_it_all():
    factors, loss, _ = _problem()
    seen = []
    path = descend(
        factors, loss, optimizer("sgd"), 0.01, 4, watch=lambda k, w: seen.append((k, tuple(map(np.copy, w))))
    )
    assert [k for k, _ in seen] == [0, 1, 2, 3]
    for k, layers in seen:
        for layer, recorded in zip(layers, path.factors, strict=True):
            assert np.array_equal(layer, recorded[k])

    def stop(k, _):
        if k == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        descend(factors, loss, optimizer("sgd"), 0.01, 4, watch=stop)


def test_wrong_arguments_are_named():
    factors, loss, _ = _problem()
    go = optimizer("sgd")
    with pytest.raises(ConfigError, match=r"rates: shape \(3,\); allowed: one number, or \(5,\)"):
        descend(factors, loss, go, np.ones(3), 5)
    with pytest.raises(ConfigError, match=r"rates: -0\.1; allowed: numbers >= 0"):
        descend(factors, loss, go, -0.1, 5)
    with pytest.raises(ConfigError, match="optimizer = 'adamm'"):
        optimizer("adamm")
    with pytest.raises(ConfigError, match=r"decay: \[nan\]"):
        descend(factors, loss, go, 0.1, 5, decay=[float("nan")])
    with pytest.raises(ConfigError, match="steps: 0"):
        descend(factors, loss, go, 0.1, 0)
    with pytest.raises(ConfigError, match=r"gradient: shape \(3, 2\); allowed: \(2, 3\)"):
        descend(factors, lambda k, w: w.T, go, 0.1, 5)
    with pytest.raises(ConfigError, match=r"precondition: shape \(3, 4\) for layer 1"):
        descend(factors, loss, preconditioned(lambda j, h: h.T), 0.1, 5)
