"""The eight propositions on random networks, and controls that must be rejected."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from initmem.errors import ConfigError
from initmem.theory import gradient_flow, imbalances, network, propositions, square
from initmem.theory.propositions import EXACT, FLOW, PROPOSITIONS, Proposition, Sides, check_all

SEEDS = st.integers(0, 2**31)
CHECKS = [(p, check) for p in PROPOSITIONS for check in p.checks]
NAMES = [check.__name__ for _, check in CHECKS]


@pytest.mark.parametrize(("proposition", "check"), CHECKS, ids=NAMES)
def test_both_sides_agree_on_random_networks(proposition, check):
    @settings(max_examples=25 if proposition.tolerance == EXACT else 5, deadline=None)
    @given(SEEDS)
    def holds(seed):
        sides = check(seed=seed)
        assert sides.size > 0
        assert sides.discrepancy <= proposition.tolerance

    holds()


@pytest.mark.parametrize(("proposition", "check"), CHECKS, ids=NAMES)
def test_the_two_sides_are_not_trivial(proposition, check):
    """A side of zeros, or a statement blind to its seed, would agree for the wrong reason."""
    sides = check(seed=1)
    if check is not propositions.euclidean_bracket:
        assert all(np.abs(side).max() > 1e-6 for side in sides.right)
    other = check(seed=2)
    assert sides.size != other.size
    again = check(seed=1)
    np.testing.assert_array_equal(sides.left[0], again.left[0])


def test_all_are_reported_with_their_worst_draw():
    verdicts = check_all(seed=0, trials=4)
    assert [v.proposition for v in verdicts] == list(range(1, 9))
    assert all(v.holds and v.trials == 4 for v in verdicts)
    assert {v.tolerance for v in verdicts if v.kind == "exact"} == {1e-10}
    assert {v.tolerance for v in verdicts if v.kind == "flow"} == {1e-8}
    seventh = verdicts[6]
    again = getattr(propositions, seventh.check)(seed=seventh.seed)
    assert again.discrepancy == seventh.discrepancy
    assert propositions.rows(verdicts)[6]["discrepancy"] == seventh.discrepancy


def test_a_false_statement_is_rejected():
    def decays_at_half_the_rate(*, seed):
        rng = np.random.default_rng(seed)
        start = network([[rng.normal()]], [[rng.normal()]])
        path = gradient_flow(start, square([[1.0]]), [1.0], decay=0.5)
        (d,) = imbalances(start)
        return Sides((path.imbalances[0][0],), (np.exp(-0.5) * d,), float(np.abs(d).max()))

    verdict = propositions._worst(Proposition(3, "", (decays_at_half_the_rate,), FLOW), [0, 1])
    assert not verdict.holds
    assert verdict.discrepancy == pytest.approx(np.exp(-0.5) - np.exp(-1.0), rel=1e-6)


def test_a_preconditioned_step_has_a_first_order_bracket():
    sides = propositions.preconditioned_step(seed=0)
    plain = propositions.deep_step(seed=0)
    assert sides.discrepancy < EXACT
    assert plain.discrepancy < EXACT
    rng = np.random.default_rng(0)
    w = tuple(rng.normal(size=(3, 3)) for _ in range(3))
    q = tuple(rng.normal(size=(3, 3)) for _ in range(3))
    first, second = propositions.first_order_bracket(w, q)
    np.testing.assert_allclose(first, q[0] @ w[0].T + w[0] @ q[0].T - q[1].T @ w[1] - w[1].T @ q[1])
    assert np.abs(second).max() > 0.1


def test_sides_measure_their_gap():
    sides = Sides((np.array([1.0, 2.0]), np.array([3.0])), (np.array([1.0, 2.5]), np.zeros(1)), 10)
    np.testing.assert_allclose(sides.difference[0], [0, -0.5])
    assert sides.discrepancy == pytest.approx(0.3)


def test_trials_are_checked():
    with pytest.raises(ConfigError, match="trials: 0"):
        check_all(seed=0, trials=0)
