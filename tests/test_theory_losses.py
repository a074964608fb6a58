"""Losses: gradients against differences, values against torch, minibatches against the full batch."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from initmem.errors import ConfigError
from initmem.theory import logistic, minibatch, regression, square

SIZES = st.integers(1, 4)
SEEDS = st.integers(0, 2**31)


def _losses(rng, d_out, d_in):
    x, y = rng.normal(size=(5, d_in)), rng.normal(size=(5, d_out))
    return {
        "square": square(rng.normal(size=(d_out, d_in))),
        "regression": regression(x, y),
        "logistic": logistic(x, np.sign(y)),
    }


@settings(max_examples=20, deadline=None)
@given(SIZES, SIZES, SEEDS, st.sampled_from(["square", "regression", "logistic"]))
def test_gradient_is_the_slope_of_the_value(d_out, d_in, seed, name):
    rng = np.random.default_rng(seed)
    loss = _losses(rng, d_out, d_in)[name]
    w, direction = rng.normal(size=(2, 3, d_out, d_in))
    h = 1e-5
    slope = (loss.value(w + h * direction) - loss.value(w - h * direction)) / (2 * h)
    assert slope.shape == (3,)
    along = np.sum(loss.gradient(w) * direction, axis=(-2, -1))
    np.testing.assert_allclose(along, slope, rtol=1e-6, atol=1e-7)


def test_values_are_those_of_torch():
    rng = np.random.default_rng(0)
    x, y, w = rng.normal(size=(7, 3)), rng.normal(size=(7, 2)), rng.normal(size=(2, 3))
    out = torch.tensor(x @ w.T)
    mse = torch.nn.functional.mse_loss(out, torch.tensor(y), reduction="sum").item()
    assert regression(x, y).value(w) == pytest.approx(mse / (2 * 7))
    likely = torch.tensor((np.sign(y) + 1) / 2)
    bce = torch.nn.functional.binary_cross_entropy_with_logits(out, likely, reduction="sum").item()
    assert logistic(x, np.sign(y)).value(w) == pytest.approx(bce / 7)
    assert square([[1.0]]).value(np.array([[3.0]])) == pytest.approx(4.0)


def test_logistic_keeps_its_head_at_large_margins():
    loss = logistic([[1.0], [1.0]], [[1.0], [-1.0]])
    w = np.array([[1e4]])
    assert loss.value(w) == pytest.approx(5e3)
    np.testing.assert_allclose(loss.gradient(w), [[0.5]])


def test_wrong_data_are_named():
    with pytest.raises(ConfigError, match=r"inputs \(4, 3\) and outputs \(5, 2\)"):
        regression(np.ones((4, 3)), np.ones((5, 2)))
    with pytest.raises(ConfigError, match=r"allowed: \(\.\.\., 2, 3\)"):
        regression(np.ones((4, 3)), np.ones((4, 2))).gradient(np.ones((3, 2)))
    with pytest.raises(ConfigError, match="labels"):
        logistic(np.ones((4, 3)), np.zeros((4, 2)))


def test_minibatch_gradients_average_to_the_full_one():
    rng = np.random.default_rng(1)
    x, y, w = rng.normal(size=(12, 3)), rng.normal(size=(12, 2)), rng.normal(size=(2, 3))
    batches = rng.permutation(12).reshape(3, 4)
    estimate = minibatch(lambda rows: regression(x[rows], y[rows]), batches)
    parts = [estimate(k, w) for k in range(3)]
    np.testing.assert_allclose(np.mean(parts, axis=0), regression(x, y).gradient(w))
    assert not np.allclose(parts[0], parts[1])
    with pytest.raises(ConfigError, match="update 3 has no minibatch"):
        estimate(3, w)
