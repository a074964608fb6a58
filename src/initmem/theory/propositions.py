"""Eight propositions about the imbalance of a linear network, and the exponents that follow from them.

The propositions are the calculations behind the clocks of "Do Deep Networks Forget Initialization?" (2026).
Each check draws a network, a loss and a step from a seed, computes the two sides of its statement
independently, and returns them as `Sides`. `check_all` repeats every check on many draws and keeps the worst.

`measure_all` measures the exponents by log-log fits over sweeps. Every point of a sweep is a different random
network, so the scatter about the line and the confidence intervals reflect the variation between networks:

- `leakage`: plain gradient steps change the imbalance as eta^2;
- `batch`: the contribution of minibatch noise scales as b^-1;
- `adaptive`: Adam changes the imbalance as eta^1;
- `decay`: with decay lambda, the imbalance shrinks at the rate 2 lambda eta per update; the coefficient 2 is
  measured, and the powers of lambda and eta are fitted as well.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import pairwise, repeat
from itertools import product as all_tuples
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from initmem.theory import (
    Array,
    Factors,
    Loss,
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

# Tolerances: identities hold up to rounding, flows up to the error of the solver.
EXACT, FLOW = 1e-10, 1e-8
DIMS = (3, 4, 3)  # of the networks whose exponents are measured
norm = partial(np.linalg.norm, axis=(-2, -1))  # Frobenius
Row = dict[str, Any]


class Sides(NamedTuple):
    """Both sides of a statement, and the magnitude relative to which their difference is judged.

    `left` and `right` are tuples of arrays of equal shapes, one per hidden layer (and per case).
    """

    left: Factors
    right: Factors
    size: float

    @property
    def discrepancy(self) -> float:
        """The largest absolute difference, relative to `size`."""
        return _largest(_minus(self.left, self.right)) / self.size


def flow(seed: int, *, depths: tuple[int, ...], decay: float) -> Sides:
    """D_j(t) along the flow, and exp(-2 lambda t) D_j(0), at three times."""
    rng = np.random.default_rng(seed)
    factors, loss = _random_problem(depths, rng)
    times = np.array([0.5, 1.0, 2.0])
    path = gradient_flow(factors, loss, times, decay=decay)
    start = imbalances(factors)
    shrunk = tuple(np.exp(-2 * decay * times)[:, None, None] * d for d in start)
    # Relative to D(0): once both sides have decayed, their ratio is meaningless.
    return Sides(imbalances(path), shrunk, _largest(start))


def scalar_norm(seed: int) -> Sides:
    """a^2 + b^2 where a scalar flow ends, and what D(0) and the product p there predict."""
    rng = np.random.default_rng(seed)
    a, b = rng.normal(scale=2.0, size=2)
    goal = rng.choice((-1, 1)) * rng.uniform(0.5, 2.0)
    # The slowest phase passes the saddle at the origin; thirty units of time are enough for it.
    path = gradient_flow(network([[b]], [[a]]), square([[goal]]), [30.0])
    end_b, end_a = (w[-1] for w in path)
    predicted = np.sqrt(np.array([[(a * a - b * b) ** 2 + 4 * goal**2]]))
    return Sides((end_a**2 + end_b**2,), (predicted,), _largest((predicted,)))


def two_factor_step(seed: int, *, decay: float) -> Sides:
    """D after one step, and (1 - eta lambda)^2 D + eta^2 (V G'G V' - U'G G'U)."""
    rng = np.random.default_rng(seed)
    (v, u), loss = _random_problem((2,), rng)
    g = loss(u @ v)
    rate = _large_rate((v, u), (u.mT @ g, g @ v.mT))
    path = descend((v, u), [loss], optimizer("sgd"), rate, 1, decay=decay)
    v_next, u_next = (w[-1] for w in path)
    leak = rate**2 * (v @ g.mT @ g @ v.mT - u.mT @ g @ g.mT @ u)
    right = (1 - rate * decay) ** 2 * imbalance(u, v) + leak
    size = max(_gram_size((v, u)), _largest((right,)))
    return Sides((imbalance(u_next, v_next),), (right,), size)


def deep_step(seed: int) -> Sides:
    """The change of D_j over one step, and eta^2 (H_j H_j' - H_{j+1}' H_{j+1})."""
    factors, loss = _random_problem((3, 4, 5), np.random.default_rng(seed))
    gradients = layer_gradients(factors, loss(product(factors)))
    rate = _large_rate(factors, gradients)
    path = descend(factors, [loss], optimizer("sgd"), rate, 1)
    moved = tuple(d[1] - d[0] for d in imbalances(path))
    # The bracket has the form of an imbalance, with gradients instead of factors.
    return Sides(moved, tuple(rate**2 * d for d in imbalances(gradients)), _gram_size(factors))


def minibatch_step(seed: int) -> Sides:
    """`deep_step` averaged over minibatches: the full-batch bracket plus 1/b times a single-sample bracket.

    Left: the average over one update for each of the n^b minibatches of size b, drawn with replacement.
    Right: eta^2 times the bracket of the full gradient, plus eta^2 / b times the mean bracket of the
    deviations of single-sample gradients from it.
    """
    rng = np.random.default_rng(seed)
    dims = _random_dims((3, 4, 5), rng)
    factors, n, b = random_network(dims, rng=rng), 3, int(rng.integers(1, 4))
    x, y = rng.normal(size=(n, dims[0])), rng.normal(size=(n, dims[-1]))

    full = layer_gradients(factors, regression(x, y)(product(factors)))
    copies = _repeat(factors, n)
    alone = layer_gradients(copies, regression(x[:, None], y[:, None])(product(copies)))
    deviations = _minus(alone, full)
    rate = _large_rate(factors, full)

    batches = np.array(list(all_tuples(range(n), repeat=b)))
    loss = regression(x[batches], y[batches])  # every trajectory has a minibatch of its own
    path = descend(_repeat(factors, len(batches)), [loss], optimizer("sgd"), rate, 1)
    right = tuple(
        rate**2 * (of_mean + of_sample.mean(axis=0) / b)
        for of_mean, of_sample in zip(imbalances(full), imbalances(deviations), strict=True)
    )
    left = tuple((d[1] - d[0]).mean(axis=0) for d in imbalances(path))
    return Sides(left, right, max(_gram_size(factors), _largest(right)))


def preconditioned_step(seed: int) -> Sides:
    """The change of D_j over a step Q; -eta (first-order bracket) + eta^2 (Q_j Q_j' - Q_{j+1}' Q_{j+1})."""
    rng = np.random.default_rng(seed)
    factors, loss = _random_problem((2, 3, 4), rng)
    gradients = layer_gradients(factors, loss(product(factors)))
    steps = tuple(rng.uniform(0.1, 2.0, size=h.shape) * h for h in gradients)
    rate = _large_rate(factors, steps)
    moved = tuple(w - rate * q for w, q in zip(factors, steps, strict=True))
    left = _minus(imbalances(moved), imbalances(factors))
    brackets = zip(first_order_bracket(factors, steps), imbalances(steps), strict=True)
    return Sides(left, tuple(-rate * a + rate**2 * b for a, b in brackets), _gram_size(factors))


def euclidean_bracket(seed: int) -> Sides:
    """eta times the first-order bracket for Q = H, and zero."""
    factors, loss = _random_problem((2, 3, 4), np.random.default_rng(seed))
    gradients = layer_gradients(factors, loss(product(factors)))
    rate = _large_rate(factors, gradients)
    left = tuple(rate * bracket for bracket in first_order_bracket(factors, gradients))
    return Sides(left, tuple(np.zeros_like(side) for side in left), _gram_size(factors))


def first_order_bracket(factors: Factors, steps: Factors) -> Factors:
    """Q_j W_j' + W_j Q_j' - Q_{j+1}' W_{j+1} - W_{j+1}' Q_{j+1} for every hidden layer j."""
    pairs = zip(pairwise(factors), pairwise(steps), strict=True)
    halves = [q @ w.mT - w_up.mT @ q_up for (w, w_up), (q, q_up) in pairs]
    return tuple(half + half.mT for half in halves)


class Proposition(NamedTuple):
    """A statement, the relative discrepancy it may show, and the checks of it, by name."""

    statement: str
    tolerance: float
    checks: dict[str, Callable[[int], Sides]]


PROPOSITIONS = {
    1: Proposition("flow: D(t) = D(0)", FLOW, {"flow_conserves": partial(flow, depths=(2,), decay=0.0)}),
    2: Proposition("scalar flow: a^2 + b^2 = sqrt(D0^2 + 4 p^2)", FLOW, {"scalar_norm": scalar_norm}),
    3: Proposition(
        "flow with decay: D(t) = exp(-2 lambda t) D(0)",
        FLOW,
        {"decay_contracts": partial(flow, depths=(2,), decay=0.5)},
    ),
    4: Proposition(
        "step with decay: D+ = (1 - eta lambda)^2 D + eta^2 (V G'G V' - U'G G'U)",
        EXACT,
        {"step_with_decay": partial(two_factor_step, decay=0.3)},
    ),
    5: Proposition(
        "step: D+ - D = eta^2 (V G'G V' - U'G G'U)",
        EXACT,
        {"step_without_decay": partial(two_factor_step, decay=0.0)},
    ),
    6: Proposition(
        "deep flow: D_j(t) = exp(-2 lambda t) D_j(0), conserved at lambda = 0",
        FLOW,
        {
            "deep_flow_conserves": partial(flow, depths=(3, 4, 5), decay=0.0),
            "deep_decay_contracts": partial(flow, depths=(3, 4, 5), decay=0.5),
        },
    ),
    7: Proposition(
        "deep step: D_j+ - D_j = eta^2 (H_j H_j' - H_{j+1}' H_{j+1}), minibatch part ~ 1/b",
        EXACT,
        {"deep_step": deep_step, "minibatch_step": minibatch_step},
    ),
    8: Proposition(
        "preconditioned step: D_j moves at order eta, by a bracket that is zero for Q = H",
        EXACT,
        {"preconditioned_step": preconditioned_step, "euclidean_bracket": euclidean_bracket},
    ),
}


def check_all(seed: int, *, trials: int = 20) -> list[Row]:
    """Check every proposition on `trials` random networks: one row each, with its worst check and draw."""
    seeds = [int(s) for s in np.random.default_rng(seed).integers(2**31, size=trials)]
    return [{"proposition": number} | worst(one, seeds) for number, one in PROPOSITIONS.items()]


def worst(proposition: Proposition, seeds: list[int]) -> Row:
    """The largest discrepancy, and the check and the seed that reproduce it."""
    statement, tolerance, checks = proposition
    gap, name, seed = max((check(s).discrepancy, name, s) for name, check in checks.items() for s in seeds)
    return {
        "statement": statement,
        "kind": "exact" if tolerance == EXACT else "flow",
        "trials": len(seeds),
        "discrepancy": gap,
        "tolerance": tolerance,
        "holds": gap <= tolerance,
        "check": name,
        "seed": seed,
    }


def _random_dims(depths: tuple[int, ...], rng: np.random.Generator) -> list[int]:
    """Sizes d_0 ... d_L from 1 to 5, with the depth L drawn from `depths`."""
    return [int(d) for d in rng.integers(1, 6, size=rng.choice(depths) + 1)]


def _random_problem(depths: tuple[int, ...], rng: np.random.Generator) -> tuple[Factors, Loss]:
    """A network of random shape, with a squared, logistic or log-cosh loss."""
    dims = _random_dims(depths, rng)
    x, y = rng.normal(size=(8, dims[0])), rng.normal(size=(8, dims[-1]))
    goal = rng.normal(size=(dims[-1], dims[0]))

    def log_cosh(w: Array) -> Array:
        return np.tanh(w - goal)

    losses = (regression(x, y), logistic(x, np.sign(y)), log_cosh)
    return random_network(dims, rng=rng), losses[rng.integers(len(losses))]


def _large_rate(factors: Factors, steps: Factors) -> float:
    """The learning rate at which the norm of a step is half the norm of the factors.

    The identities hold at any learning rate; at this one the leakage is far above rounding.
    """
    length = sum(float(np.sum(w * w)) for w in factors)
    return 0.5 * float(np.sqrt(length / sum(float(np.sum(q * q)) for q in steps)))


def _gram_size(factors: Factors) -> float:
    """The largest entry of the Gram matrices whose differences are the imbalances."""
    return _largest(tuple(w @ w.mT for w in factors) + tuple(w.mT @ w for w in factors))


def _minus(left: Factors, right: Factors) -> Factors:
    return tuple(a - b for a, b in zip(left, right, strict=True))


def _repeat(factors: Factors, times: int) -> Factors:
    return tuple(np.broadcast_to(w, (times, *w.shape)) for w in factors)


def _largest(arrays: tuple[Array, ...]) -> float:
    return max(float(np.max(np.abs(array))) for array in arrays)


# -- exponents -------------------------------------------------------------------------------------------


def fit(terms: Array, y: Array, *, confidence: float = 0.99) -> Array:
    """Ordinary least squares of y, (point,), on the columns of `terms`, (point, term).

    The result is (term, 3): the coefficient and the limits of its confidence interval.

    The intervals are robust to heteroscedasticity: leakage grows with eta, and so does its scatter. At 99%
    each, six of them hold simultaneously about 95% of the time.
    """
    from scipy.special import stdtrit

    n, p = terms.shape
    solve = np.linalg.pinv(terms)
    values = solve @ y
    residual = (y - terms @ values) * np.sqrt(n / (n - p))
    half = float(stdtrit(n - p, 0.5 + confidence / 2)) * np.sqrt((solve * residual) ** 2 @ np.ones(n))
    return np.stack([values, values - half, values + half], axis=1)


def measure_all(seed: int) -> list[Row]:
    """All exponents, each from its own networks: leakage, batch, adaptive, and three for decay."""
    first, second, third, fourth = (int(s) for s in np.random.SeedSequence(seed).generate_state(4))
    return [
        movement("leakage", "sgd", 2.0, seed=first),
        batch_part(seed=second),
        movement("adaptive", "adam", 1.0, seed=third),
        *decay_rate(seed=fourth),
    ]


def batch_part(*, seed: int, networks: int = 80, draws: int = 400) -> Row:
    """The exponent of b in the change of D over one minibatch step from a minimum, averaged over draws.

    At the minimum of the full loss the full gradient is zero, so the change is due to minibatch noise alone.
    """
    rng = np.random.default_rng(seed)
    sizes = 2 ** np.arange(7)
    moved = np.stack([_minibatch_movement(int(b), networks, draws, rng) for b in sizes])
    x, y = np.repeat(np.log(sizes), networks), np.log(moved).ravel()
    return _power("batch", "b", -1.0, x, y)


def decay_rate(*, seed: int, networks: int = 20) -> list[Row]:
    """The rate at which decay shrinks D: the coefficient of lambda eta, and the powers of lambda and eta.

    The rate is -log(|D_K| / |D_0|) / K over K updates. Leakage adds a term proportional to eta^2, a fraction
    eta / lambda of the decay; both fits include that term.
    """
    rng = np.random.default_rng(seed)
    rates, decays, steps = np.geomspace(1e-6, 1e-4, 5), np.geomspace(0.03, 0.3, 4), 20
    start, goal = _networks((len(rates), len(decays), networks), rng)
    before, after = _before_and_after("sgd", rates, start, goal, steps, decay=decays[:, None])
    speed = (-np.log(norm(after) / norm(before)) / steps).ravel()
    eta, lam = (np.repeat(g, networks) for g in np.meshgrid(rates, decays, indexing="ij"))
    one, leak = np.ones_like(eta), eta / lam
    scale = fit(np.stack([one, leak], axis=1), speed / (lam * eta))
    powers = fit(np.stack([one, np.log(lam), np.log(eta), leak], axis=1), np.log(speed))
    return [
        row("decay", "lambda eta", 2.0, scale[0], len(speed)),
        row("decay power", "lambda", 1.0, powers[1], len(speed)),
        row("decay power", "eta", 1.0, powers[2], len(speed)),
    ]


def movement(name: str, rule: str, expected: float, *, seed: int, networks: int = 150) -> Row:
    """The exponent of the learning rate in the change of D over five updates, fitted over two decades."""
    rng = np.random.default_rng(seed)
    rates = np.geomspace(1e-6, 1e-4, 9)
    start, goal = _networks((len(rates), networks), rng)
    before, after = _before_and_after(rule, rates, start, goal, steps=5)
    x, y = np.repeat(np.log(rates), networks), np.log(norm(after - before)).ravel()
    return _power(name, "eta", expected, x, y)


def _before_and_after(
    rule: str, rates: Array, start: Factors, goal: Array, steps: int, decay: ArrayLike = 0.0
) -> tuple[Array, Array]:
    """D before and after some updates of networks at each learning rate, (rate, ...)."""
    ends: list[Array] = []
    for i, rate in enumerate(rates):
        factors = tuple(layer[i] for layer in start)
        losses = repeat(square(goal[i]))
        path = descend(factors, losses, optimizer(rule), rate, steps, decay=decay, every=steps)
        ends += imbalances(path)
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
    loss = regression(x[which, picked], y[which, picked])  # every draw is a trajectory
    fan = tuple(np.broadcast_to(w, (networks, draws, *w.shape[-2:])) for w in (v, u))
    (_, v_next), (_, u_next) = descend(fan, [loss], optimizer("sgd"), 0.01, 1)
    return np.asarray(norm((imbalance(u_next, v_next) - imbalance(u, v)).mean(axis=1)))


def _networks(lead: tuple[int, ...], rng: np.random.Generator) -> tuple[Factors, Array]:
    """Random networks and targets, one of each per entry of `lead`."""
    factors = random_network(DIMS, rng=rng, lead=lead)
    return factors, rng.normal(size=(*lead, DIMS[-1], DIMS[0]))


def _power(name: str, against: str, expected: float, x: Array, y: Array) -> Row:
    """The slope of y on x, both logarithms, (point,)."""
    _, slope = fit(np.stack([np.ones_like(x), x], axis=1), y)
    return row(name, against, expected, slope, len(x))


def row(name: str, against: str, expected: float, fitted: Array, n: int) -> Row:
    """A fitted value with the limits of its interval, (3,), and the value that theory predicts.

    They agree if the interval contains the expected value, and the fitted value is within 5% of it.
    """
    value, low, high = fitted.tolist()
    agrees = abs(value - expected) <= 0.05 * abs(expected) and low <= expected <= high
    return {
        "name": name,
        "against": against,
        "expected": expected,
        "value": value,
        "low": low,
        "high": high,
        "n": n,
        "agrees": agrees,
    }
