"""Resetting against ridge, flow against the matrix exponential, with a control that must fail."""

import numpy as np
import pytest
from scipy.linalg import expm

from initmem.theory import resetting

X, Y = resetting.example(seed=0)


def test_ridge_is_least_squares_with_rows_that_pull_to_zero():
    pulled = np.vstack([X, np.sqrt(0.3 * len(X)) * np.eye(6)])
    known = np.linalg.lstsq(pulled, np.concatenate([Y, np.zeros(6)]))[0]
    np.testing.assert_allclose(resetting.ridge(X, Y, 0.3), known, rtol=1e-8)


def test_flow_is_the_matrix_exponential():
    a, c = X.T @ X / len(X), X.T @ Y / len(X)
    best = np.linalg.solve(a, c)
    start = np.arange(12.0).reshape(2, 6)
    found = resetting.flow(X, Y, start, [0.5, 4.0])
    for w, w0, t in zip(found, start, (0.5, 4.0), strict=True):
        np.testing.assert_allclose(w, best + expm(-a * t) @ (w0 - best), rtol=1e-7, atol=1e-9)


def test_flow_never_moves_what_the_data_do_not_reach():
    x, y = X[:3], Y[:3]
    silent = np.linalg.svd(x)[2][3:]
    start = np.ones((1, 6))
    late = resetting.flow(x, y, start, [1e6])
    np.testing.assert_allclose(silent @ late[0], silent @ start[0], atol=1e-8)
    np.testing.assert_allclose(x @ late[0], y, atol=1e-8)


def test_the_stationary_mean_is_ridge_and_no_other_penalty():
    found = resetting.stationary_mean(X, Y, [0.05, 0.5], seed=1)
    assert np.abs(found.z).max() < 4.5
    for r, mean, error in zip(found.rates, found.mean, found.error, strict=True):
        wrong = resetting.ridge(X, Y, 1.2 * r)
        assert np.abs((mean - wrong) / error).max() > 8


def test_errors_are_those_of_repeated_experiments():
    z = np.stack([resetting.stationary_mean(X, Y, [0.3], seed=s, runs=500).z[0, 0] for s in range(200)])
    assert abs(z.mean()) < 0.25
    assert z.std() == pytest.approx(1, abs=0.15)


def test_the_start_is_forgotten_at_the_rate_of_resetting():
    x, y, r, time = X[:3], Y[:3], 0.4, 5.0
    silent = np.linalg.svd(x)[2][-1]
    runs = 40_000
    ends = [
        resetting.simulate(x, y, r, time, rng=np.random.default_rng(0), runs=runs, start=s * silent).mean(
            axis=0
        )
        for s in (0.0, 1.0)
    ]
    share = np.exp(-r * time)
    kept = silent @ (ends[1] - ends[0])
    assert kept == pytest.approx(share, abs=4.5 * np.sqrt(share * (1 - share) / runs))
    assert kept < 0.2  # without resetting all of it stays


def test_rows_carry_the_monte_carlo_error():
    rows = resetting.rows(resetting.stationary_mean(X, Y, [0.1, 1.0], seed=0, runs=4000))
    assert [row["r"] for row in rows] == [0.1, 1.0]
    for row in rows:
        assert 0 < row["distance"] < 5 * row["error"]
        assert row["error"] < 0.1 * row["ridge_norm"]
    more = resetting.rows(resetting.stationary_mean(X, Y, [0.1], seed=0, runs=64_000))
    assert more[0]["error"] == pytest.approx(rows[0]["error"] / 4, rel=0.1)
