"""The exponents behind the clocks, measured by log-log fits over sweeps of fresh networks.

Every point of a sweep is a different random network, so the scatter about the line and the confidence
intervals reflect the variation between networks. Four numbers are measured:

- `leakage`: plain gradient steps change the imbalance as eta^2;
- `batch`: the contribution of minibatch noise scales as b^-1;
- `adaptive`: Adam changes the imbalance as eta^1;
- `decay`: with decay lambda, the imbalance shrinks at the rate 2 lambda eta per update; the coefficient 2 is
  measured, and the powers of lambda and eta are fitted as well.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import partial

import numpy as np
from numpy.typing import ArrayLike

from initmem.theory import (
    Array,
    Factors,
    Rule,
    descend,
    imbalance,
    minibatch,
    optimizer,
    random_network,
    regression,
    require,
    square,
)

DIMS = (3, 4, 3)
norm = partial(np.linalg.norm, axis=(-2, -1))  # Frobenius


@dataclass(frozen=True)
class Exponent:
    """A fitted value with its confidence interval, and the value that theory predicts."""

    name: str
    against: str
    expected: float
    value: float
    low: float
    high: float
    n: int

    @property
    def agrees(self) -> bool:
        """Whether the interval contains the expected value, and the fitted value is within 5% of it."""
        near = abs(self.value - self.expected) <= 0.05 * abs(self.expected)
        return near and self.low <= self.expected <= self.high


def fit(terms: Array, y: Array, *, confidence: float = 0.99) -> Array:
    """Ordinary least squares of y, (point,), on the columns of `terms`, (point, term).

    The result is (term, 3): the coefficient and the limits of its confidence interval.

    The intervals are robust to heteroscedasticity: leakage grows with eta, and so does its scatter. At 99%
    each, six of them hold simultaneously about 95% of the time.
    """
    from scipy.special import stdtrit

    n, p = terms.shape
    require(n > p and y.shape == (n,), f"fit: {n} points for {p} terms; allowed: more than terms")
    solve = np.linalg.pinv(terms)
    values = solve @ y
    residual = (y - terms @ values) * np.sqrt(n / (n - p))
    half = float(stdtrit(n - p, 0.5 + confidence / 2)) * np.sqrt((solve * residual) ** 2 @ np.ones(n))
    return np.stack([values, values - half, values + half], axis=1)


def measure_all(*, seed: int) -> list[Exponent]:
    """All exponents, each from its own networks: leakage, batch, adaptive, and three for decay."""
    first, second, third, fourth = (int(s) for s in np.random.SeedSequence(seed).generate_state(4))
    return [
        movement("leakage", "sgd", 2.0, seed=first),
        batch_part(seed=second),
        movement("adaptive", "adam", 1.0, seed=third),
        *decay_rate(seed=fourth),
    ]


def rows(exponents: list[Exponent]) -> list[dict[str, object]]:
    """The exponents as plain rows, for a table or JSON."""
    return [asdict(exponent) | {"agrees": exponent.agrees} for exponent in exponents]


def batch_part(*, seed: int, networks: int = 80, draws: int = 400) -> Exponent:
    """The exponent of b in the change of D over one minibatch step from a minimum, averaged over draws.

    At the minimum of the full loss the full gradient is zero, so the change is due to minibatch noise alone.
    """
    rng = np.random.default_rng(seed)
    sizes = 2 ** np.arange(7)
    moved = np.stack([_minibatch_movement(int(b), networks, draws, rng) for b in sizes])
    x, y = np.repeat(np.log(sizes), networks), np.log(moved).ravel()
    return _power("batch", "b", -1.0, x, y)


def decay_rate(*, seed: int, networks: int = 20) -> tuple[Exponent, Exponent, Exponent]:
    """The rate at which decay shrinks D: the coefficient of lambda eta, and the powers of lambda and eta.

    The rate is -log(|D_K| / |D_0|) / K over K updates. Leakage adds a term proportional to eta^2, a fraction
    eta / lambda of the decay; both fits include that term.
    """
    rng = np.random.default_rng(seed)
    rates, decays, steps = np.geomspace(1e-6, 1e-4, 5), np.geomspace(0.03, 0.3, 4), 20
    start, goal = _networks((len(rates), len(decays), networks), rng)
    before, after = _before_and_after(optimizer("sgd"), rates, start, goal, steps, decay=decays[:, None])
    speed = (-np.log(norm(after) / norm(before)) / steps).ravel()
    eta, lam = (np.repeat(g, networks) for g in np.meshgrid(rates, decays, indexing="ij"))
    one, leak = np.ones_like(eta), eta / lam
    scale = fit(np.stack([one, leak], axis=1), speed / (lam * eta))
    powers = fit(np.stack([one, np.log(lam), np.log(eta), leak], axis=1), np.log(speed))
    return (
        _exponent("decay", "lambda eta", 2.0, scale[0], len(speed)),
        _exponent("decay power", "lambda", 1.0, powers[1], len(speed)),
        _exponent("decay power", "eta", 1.0, powers[2], len(speed)),
    )


def movement(name: str, rule: str, expected: float, *, seed: int, networks: int = 150) -> Exponent:
    """The exponent of the learning rate in the change of D over five updates, fitted over two decades."""
    rng = np.random.default_rng(seed)
    rates = np.geomspace(1e-6, 1e-4, 9)
    start, goal = _networks((len(rates), networks), rng)
    before, after = _before_and_after(optimizer(rule), rates, start, goal, steps=5)
    x, y = np.repeat(np.log(rates), networks), np.log(norm(after - before)).ravel()
    return _power(name, "eta", expected, x, y)


def _before_and_after(
    rule: Rule, rates: Array, start: Factors, goal: Array, steps: int, decay: ArrayLike = 0.0
) -> tuple[Array, Array]:
    """D before and after some updates of networks at each learning rate, (rate, ...)."""
    ends = []
    for i, rate in enumerate(rates):
        factors = tuple(layer[i] for layer in start)
        ends.append(
            descend(factors, square(goal[i]), rule, rate, steps, decay=decay, every=steps).imbalances[0]
        )
    return np.stack([d[0] for d in ends]), np.stack([d[-1] for d in ends])


def _minibatch_movement(b: int, networks: int, draws: int, rng: np.random.Generator) -> Array:
    """|mean over draws of D+ - D| for fresh networks at a minimum: (network,)."""
    n = 32
    (v, u), _ = _networks((networks, 1), rng)
    x = rng.normal(size=(networks, n, DIMS[0]))
    noise = rng.normal(size=(networks, n, DIMS[-1]))
    # Noise orthogonal to the inputs does not change the optimal W, so the network is already at the minimum
    # of the full loss.
    q = np.linalg.qr(x).Q
    y = x @ (u @ v)[:, 0].mT + noise - q @ (q.mT @ noise)
    picked, which = rng.integers(n, size=(networks, draws, b)), np.arange(networks)[:, None, None]
    estimate = minibatch(lambda rows: regression(x[which, rows], y[which, rows]), [picked])
    fan = tuple(np.broadcast_to(w, (networks, draws, *w.shape[-2:])) for w in (v, u))
    v_next, u_next = descend(fan, estimate, optimizer("sgd"), 0.01, 1).final
    return np.asarray(norm((imbalance(u_next, v_next) - imbalance(u, v)).mean(axis=1)))


def _networks(lead: tuple[int, ...], rng: np.random.Generator) -> tuple[Factors, Array]:
    """Random networks and targets, one of each per entry of `lead`."""
    factors = random_network(DIMS, rng=rng, lead=lead)
    return factors, rng.normal(size=(*lead, DIMS[-1], DIMS[0]))


def _power(name: str, against: str, expected: float, x: Array, y: Array) -> Exponent:
    """The slope of y on x, both logarithms, (point,)."""
    _, slope = fit(np.stack([np.ones_like(x), x], axis=1), y)
    return _exponent(name, against, expected, slope, len(x))


def _exponent(name: str, against: str, expected: float, fitted: Array, n: int) -> Exponent:
    value, low, high = fitted.tolist()
    return Exponent(name, against, expected, value, low, high, n)
