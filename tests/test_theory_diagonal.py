"""Diagonal networks: the hypentropy closed form, its limits, and what shrinks the scale."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import solve_ivp
from scipy.optimize import minimize

from initmem.errors import ConfigError, InitmemError
from initmem.theory import diagonal
from initmem.theory.diagonal import Problem, closed_form, flow, sgd, sparse_problem

PROBLEM = sparse_problem(seed=0)


def hypentropy(w, scale):
    """The potential sum_i s q(w_i / s) with s = scale^2 and q' = arcsinh(z / 2)."""
    s = scale**2
    z = w / s
    return np.sum(s * (2 - np.sqrt(4 + z * z) + z * np.arcsinh(z / 2)))


def _from(scale, problem=PROBLEM, **options):
    start = np.full(problem.x.shape[1], scale)
    u, v = flow(problem, start, start, **options)
    return u * u - v * v


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**31), st.floats(-4, 1), st.integers(1, 6), st.integers(1, 6))
def test_the_closed_form_fits_and_is_optimal(seed, log_scale, samples, more):
    rng = np.random.default_rng(seed)
    problem = Problem(rng.normal(size=(samples, samples + more)), rng.normal(size=samples))
    scale = 10**log_scale
    w = closed_form(problem, scale)
    np.testing.assert_allclose(problem.x @ w, problem.y, atol=1e-9 * max(1, np.abs(w).max()))
    # Optimality: the potential's gradient is a combination of the rows of X.
    slope = np.arcsinh(w / (2 * scale**2))
    left = slope - np.linalg.pinv(problem.x) @ problem.x @ slope
    assert np.abs(left).max() < 1e-7 * max(1, np.abs(slope).max())


def test_the_closed_form_is_what_a_general_optimizer_finds():
    problem = sparse_problem(seed=3, samples=3, features=6)
    found = minimize(
        lambda w: hypentropy(w, 0.3),
        diagonal.least_l2(problem),
        jac=lambda w: np.arcsinh(w / (2 * 0.09)),
        constraints={"type": "eq", "fun": lambda w: problem.x @ w - problem.y},
        options={"ftol": 1e-14, "maxiter": 500},
    )
    np.testing.assert_allclose(closed_form(problem, 0.3), found.x, atol=1e-5)


def test_small_scales_are_least_l1_and_large_ones_least_l2():
    l1, l2 = diagonal.least_l1(PROBLEM), diagonal.least_l2(PROBLEM)
    np.testing.assert_allclose(l1[:3], [1, -1, 0.5], atol=1e-9)
    np.testing.assert_allclose(PROBLEM.x @ l1, PROBLEM.y, atol=1e-9)
    assert np.abs(closed_form(PROBLEM, 1e-6) - l1).max() < 1e-4
    assert np.abs(closed_form(PROBLEM, 30.0) - l2).max() < 1e-6
    assert np.abs(l1 - l2).max() > 0.3
    norms = [np.abs(closed_form(PROBLEM, a)).sum() for a in (1e-3, 1e-2, 0.1, 1.0)]
    assert norms == sorted(norms)


def test_the_closed_form_is_as_exact_as_rounding_allows_in_an_ill_conditioned_problem():
    problem = sparse_problem(seed=5)
    w = closed_form(problem, 3e-6)
    np.testing.assert_allclose(problem.x @ w, problem.y, atol=1e-9)
    assert np.abs(w - diagonal.least_l1(problem)).max() < 1e-3


@pytest.mark.parametrize("scale", [1e-3, 0.3, 2.0])
def test_flow_ends_at_the_closed_form(scale):
    np.testing.assert_allclose(_from(scale), closed_form(PROBLEM, scale), atol=1e-7)
    assert np.abs(_from(scale) - closed_form(PROBLEM, 1.1 * scale)).max() > 1e-5


def test_large_outputs_are_fitted_as_well():
    big = Problem(PROBLEM.x, 1e4 * PROBLEM.y)
    np.testing.assert_allclose(_from(1.0, big), closed_form(big, 1.0), rtol=1e-6, atol=1e-3)


def test_flow_in_logarithms_is_flow_in_u_and_v():
    d = PROBLEM.x.shape[1]

    def velocity(_, state):
        u, v = state[:d], state[d:]
        g = 2 * PROBLEM.gradient(u * u - v * v)
        return np.concatenate([-g * u, g * v]) - 0.2 * state

    start = np.full(2 * d, 0.1)
    direct = solve_ivp(velocity, (0, 3), start, method="DOP853", rtol=1e-11, atol=1e-13).y[:, -1]
    u, v = flow(PROBLEM, start[:d], start[d:], decay=0.2, time=3.0)
    np.testing.assert_allclose(np.concatenate([u, v]), direct, rtol=1e-7)


def test_decay_for_a_while_is_a_smaller_scale():
    start = np.full(40, 0.5)
    u, v = flow(PROBLEM, start, start, decay=0.3, time=5.0)
    np.testing.assert_allclose(u * v, 0.25 * np.exp(-3.0), rtol=1e-7)
    a, b = flow(PROBLEM, u, v)
    expected = closed_form(PROBLEM, 0.5 * np.exp(-1.5))
    np.testing.assert_allclose(a * a - b * b, expected, atol=1e-7)


def test_decay_to_rest_is_the_lasso_from_any_scale():
    # |u|^2 + |v|^2 is least |w|_1 for a given w, so decay of both is an l1 penalty of half of it.
    small, large = (_from(scale, decay=0.1, time=1000.0) for scale in (0.01, 1.0))
    np.testing.assert_allclose(small, large, atol=1e-7)
    slope, active = PROBLEM.gradient(small), np.abs(small) > 1e-6
    np.testing.assert_allclose(slope[active], -0.05 * np.sign(small[active]), atol=1e-7)
    assert 0 < active.sum() < 20
    assert np.abs(slope[~active]).max() < 0.05


def test_a_step_shrinks_u_v_by_exactly_the_squared_gradient():
    rng = np.random.default_rng(0)
    rows = np.random.default_rng(0).integers(20, size=30)
    u = v = np.full(40, 0.3)
    expected = u * v
    for row in rows:
        x, y = PROBLEM.x[row], PROBLEM.y[row]
        g = x * ((u * u - v * v) @ x - y)
        expected = expected * (1 - 4 * 0.01**2 * g**2)
        u, v = u * (1 - 2 * 0.01 * g), v * (1 + 2 * 0.01 * g)
    start = np.full((2, 40), 0.3)
    a, b = sgd(PROBLEM, start, start, rate=0.01, steps=30, rng=rng)
    np.testing.assert_allclose(a[1], u, rtol=1e-12)
    np.testing.assert_allclose(a[0] * b[0], expected, rtol=1e-12)


@pytest.fixture(scope="module")
def reached():
    return diagonal.compute(0, (0.01, 1.0), steps=20_000)


def test_flow_and_sgd_remember_the_scale_and_decay_and_label_noise_erase_it(reached):
    positions = {o.method: reached.position(o.solution) for o in reached.outcomes}
    memory = {method: np.ptp(position) for method, position in positions.items()}
    assert memory["flow"] > 0.9
    assert memory["sgd"] > 0.9
    assert memory["decay"] < 0.1
    assert memory["sgd with label noise"] < 0.4


def test_every_solution_is_that_of_its_effective_scale(reached):
    for outcome in reached.outcomes:
        np.testing.assert_allclose(outcome.solution @ PROBLEM.x.T, [PROBLEM.y] * 2, atol=1e-8)
        assert np.abs(outcome.solution - outcome.predicted).max() < 2e-3
    noisy = reached.outcomes[-1]
    # The control: the scale of initialization no longer predicts it.
    assert np.abs(noisy.solution[1] - closed_form(PROBLEM, 1.0)).max() > 0.2
    assert noisy.effective.max() < 0.5


def test_rows(reached):
    rows = diagonal.rows(reached)
    assert [(r["method"], r["scale"]) for r in rows[:3]] == [("flow", 0.01), ("flow", 1.0), ("decay", 0.01)]
    large = rows[1]
    assert large["place"] == pytest.approx(0.996, abs=2e-3)
    assert large["effective_scale"] == pytest.approx(1.0)
    assert large["to_least_l2"] < 0.01 < 0.3 < large["to_least_l1"]
    assert large["l1_norm"] == pytest.approx(np.abs(reached.outcomes[0].solution[1]).sum())


def test_a_scale_at_which_sgd_diverges_is_nan_and_silent():
    found = diagonal.compute(0, (0.1, 20.0), steps=200)
    by_method = {o.method: o for o in found.outcomes}
    assert np.isnan(by_method["sgd"].solution[1]).all()
    assert np.isfinite(by_method["sgd"].solution[0]).all()
    assert np.isfinite(by_method["flow"].solution).all()
    assert [r["diverged"] for r in diagonal.rows(found) if r["method"] == "sgd"] == [False, True]


def test_a_flow_that_cannot_reach_its_goal_says_so(monkeypatch):
    monkeypatch.setattr(diagonal, "FIT", -1.0)
    with pytest.raises(InitmemError, match="flow: the solver stopped before the end"):
        _from(1.0)


def test_what_has_no_solution_is_refused():
    with pytest.raises(ConfigError, match="nonzero entries"):
        flow(PROBLEM, np.zeros(40), np.ones(40))
    rank_one = Problem(np.ones((2, 3)), np.array([1.0, 2.0]))
    with pytest.raises((InitmemError, np.linalg.LinAlgError)):
        closed_form(rank_one, 1.0)
    with pytest.raises(InitmemError, match="least l1: no solution"):
        diagonal.least_l1(rank_one)
