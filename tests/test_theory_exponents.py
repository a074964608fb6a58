"""Measured exponents, and the fit behind them against scipy and planted noise."""

import json
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import linregress

from initmem.errors import ConfigError
from initmem.theory import exponents


@pytest.fixture(scope="module")
def found():
    return exponents.measure_all(seed=0)


def test_every_exponent_is_what_the_theory_says(found):
    assert [(e.name, e.against, e.expected) for e in found] == [
        ("leakage", "eta", 2.0),
        ("batch", "b", -1.0),
        ("adaptive", "eta", 1.0),
        ("decay", "lambda eta", 2.0),
        ("decay power", "lambda", 1.0),
        ("decay power", "eta", 1.0),
    ]
    for e in found:
        assert e.low < e.value < e.high
        assert e.high - e.low < 0.1 * abs(e.expected)
        assert e.agrees
    assert exponents.rows(found)[0]["agrees"] is True


def test_the_page_shows_the_exponents_of_today(found):
    known = json.loads((Path(__file__).parent.parent / "docs" / "theory.json").read_text())["exponents"]
    for row, old in zip(exponents.rows(found), known, strict=True):
        assert row == old | {key: pytest.approx(old[key], rel=1e-3) for key in ("value", "low", "high")}


def test_each_optimizer_fails_the_others_exponent():
    wrong = exponents.movement("leakage", "adam", 2.0, seed=0, networks=30)
    assert wrong.value == pytest.approx(1.0, abs=0.1)
    assert not wrong.agrees
    wrong = exponents.movement("adaptive", "sgd", 1.0, seed=0, networks=30)
    assert wrong.value == pytest.approx(2.0, abs=0.2)
    assert not wrong.agrees


def test_a_narrow_interval_beside_the_truth_does_not_agree():
    close = exponents.Exponent("x", "y", 2.0, 2.04, 2.03, 2.05, 10)
    far = exponents.Exponent("x", "y", 2.0, 2.4, 1.0, 4.0, 10)
    assert not close.agrees
    assert not far.agrees


def test_the_fit_is_least_squares():
    rng = np.random.default_rng(0)
    x = rng.normal(size=40)
    y = 3 * x - 1 + rng.normal(size=40)
    found = exponents.fit(np.stack([np.ones(40), x], axis=1), y)
    known = linregress(x, y)
    np.testing.assert_allclose(found[:, 0], [known.intercept, known.slope])
    # Under even noise the robust interval is close to the classical one.
    assert found[1, 2] - found[1, 1] == pytest.approx(2 * 2.71 * known.stderr, rel=0.3)


def test_intervals_cover_the_truth_as_often_as_they_claim_under_uneven_noise():
    rng = np.random.default_rng(1)
    x = np.linspace(1, 5, 200)
    terms = np.stack([np.ones_like(x), x], axis=1)
    hits, naive = 0, 0
    for _ in range(400):
        y = 2 * x + np.exp(x - 3) * rng.normal(size=x.size)
        found = exponents.fit(terms, y, confidence=0.9)
        hits += found[1, 1] <= 2 <= found[1, 2]
        known = linregress(x, y)
        naive += abs(known.slope - 2) <= 1.653 * known.stderr
    assert 0.86 <= hits / 400 <= 0.94
    assert naive / 400 < 0.83  # the control: intervals that assume even noise are too narrow here


def test_too_few_points_are_refused():
    with pytest.raises(ConfigError, match="2 points for 2 terms"):
        exponents.fit(np.ones((2, 2)), np.ones(2))
