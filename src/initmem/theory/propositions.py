"""Eight propositions about the imbalance of a linear network, each checked by computing both sides.

They are the calculations behind the clocks of "Do Deep Networks Forget Initialization?" (2026). Each function
draws a network, a loss and a step from `seed`, computes the two sides of its statement independently, and
returns them as `Sides`. `check_all` repeats every check on many draws and keeps the worst.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from itertools import pairwise
from itertools import product as all_tuples

import numpy as np

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
    minibatch,
    network,
    optimizer,
    preconditioned,
    product,
    random_network,
    regression,
    require,
    square,
)

# Tolerances: identities hold up to rounding, flows up to the error of the solver.
EXACT, FLOW = 1e-10, 1e-8


@dataclass(frozen=True)
class Sides:
    """Both sides of a statement, and the magnitude relative to which their difference is judged.

    `left` and `right` are tuples of arrays of equal shapes, one per hidden layer (and per case).
    """

    left: Factors
    right: Factors
    size: float

    @property
    def difference(self) -> Factors:
        """Left minus right, for each array."""
        return tuple(a - b for a, b in zip(self.left, self.right, strict=True))

    @property
    def discrepancy(self) -> float:
        """The largest absolute difference, relative to `size`."""
        return _largest(self.difference) / self.size


def flow_conserves(*, seed: int) -> Sides:
    """1: along gradient flow D(t) = D(0)."""
    return _flow(depths=(2,), decay=0.0, seed=seed)


def scalar_norm(*, seed: int) -> Sides:
    """2: scalar flow that ends at the product p has a^2 + b^2 = sqrt(D(0)^2 + 4 p^2)."""
    rng = np.random.default_rng(seed)
    a, b = rng.normal(scale=2.0, size=2)
    goal = rng.choice((-1, 1)) * rng.uniform(0.5, 2.0)
    # The slowest phase passes the saddle at the origin; thirty units of time are enough for it.
    path = gradient_flow(network([[b]], [[a]]), square([[goal]]), [30.0])
    end_b, end_a = path.final
    predicted = np.sqrt(np.array([[(a * a - b * b) ** 2 + 4 * goal**2]]))
    return Sides((end_a**2 + end_b**2,), (predicted,), _largest((predicted,)))


def decay_contracts(*, seed: int) -> Sides:
    """3: with coupled decay D(t) = exp(-2 lambda t) D(0)."""
    return _flow(depths=(2,), decay=0.5, seed=seed)


def step_with_decay(*, seed: int) -> Sides:
    """4: D+ = (1 - eta lambda)^2 D + eta^2 (V G'G V' - U'G G'U)."""
    return _two_factor_step(decay=0.3, seed=seed)


def step_without_decay(*, seed: int) -> Sides:
    """5: the same with lambda = 0. No first-order term in eta remains."""
    return _two_factor_step(decay=0.0, seed=seed)


def deep_flow_conserves(*, seed: int) -> Sides:
    """6: along deep flow D_j(t) = D_j(0) at every hidden layer."""
    return _flow(depths=(3, 4, 5), decay=0.0, seed=seed)


def deep_decay_contracts(*, seed: int) -> Sides:
    """6, with decay: D_j(t) = exp(-2 lambda t) D_j(0) at every hidden layer."""
    return _flow(depths=(3, 4, 5), decay=0.5, seed=seed)


def deep_step(*, seed: int) -> Sides:
    """7: D_j+ - D_j = eta^2 (H_j H_j' - H_{j+1}' H_{j+1})."""
    rng = np.random.default_rng(seed)
    factors, loss = _random_problem((3, 4, 5), rng)
    gradients = layer_gradients(factors, loss.gradient(product(factors)))
    rate = _large_rate(factors, gradients)
    path = descend(factors, loss, optimizer("sgd"), rate, 1)
    moved = tuple(d[1] - d[0] for d in path.imbalances)
    # The bracket has the form of an imbalance, with gradients instead of factors.
    return Sides(moved, tuple(rate**2 * d for d in imbalances(gradients)), _gram_size(factors))


def minibatch_step(*, seed: int) -> Sides:
    """7, averaged over minibatches: the full-batch bracket plus 1/b times a single-sample bracket.

    Left: the average over one update for each of the n^b minibatches of size b, drawn with replacement.
    Right: eta^2 times the bracket of the full gradient, plus eta^2 / b times the mean bracket of the
    deviations of single-sample gradients from it.
    """
    rng = np.random.default_rng(seed)
    dims = _random_dims((3, 4, 5), rng)
    factors, n, b = random_network(dims, rng=rng), 3, int(rng.integers(1, 4))
    x, y = rng.normal(size=(n, dims[0])), rng.normal(size=(n, dims[-1]))

    full = layer_gradients(factors, regression(x, y).gradient(product(factors)))
    single = regression(x[:, None], y[:, None]).gradient(_repeat((product(factors),), n)[0])
    alone = layer_gradients(_repeat(factors, n), single)
    deviations = tuple(h - mean for h, mean in zip(alone, full, strict=True))
    rate = _large_rate(factors, full)

    batches = np.array(list(all_tuples(range(n), repeat=b)))
    estimate = minibatch(lambda rows: regression(x[rows], y[rows]), [batches])
    path = descend(_repeat(factors, len(batches)), estimate, optimizer("sgd"), rate, 1)
    right = tuple(
        rate**2 * (of_mean + of_sample.mean(axis=0) / b)
        for of_mean, of_sample in zip(imbalances(full), imbalances(deviations), strict=True)
    )
    return Sides(
        tuple((d[1] - d[0]).mean(axis=0) for d in path.imbalances),
        right,
        max(_gram_size(factors), _largest(right)),
    )


def preconditioned_step(*, seed: int) -> Sides:
    """8: D_j+ - D_j = -eta (first-order bracket) + eta^2 (Q_j Q_j' - Q_{j+1}' Q_{j+1})."""
    rng = np.random.default_rng(seed)
    factors, loss = _random_problem((2, 3, 4), rng)
    gradients = layer_gradients(factors, loss.gradient(product(factors)))
    scales = [rng.uniform(0.1, 2.0, size=w.shape) for w in factors]
    steps = tuple(s * h for s, h in zip(scales, gradients, strict=True))
    rate = _large_rate(factors, steps)
    rule = preconditioned(lambda j, h: scales[j - 1] * h)
    path = descend(factors, loss, rule, rate, 1)
    first, second = first_order_bracket(factors, steps), imbalances(steps)
    right = tuple(-rate * a + rate**2 * b for a, b in zip(first, second, strict=True))
    return Sides(tuple(d[1] - d[0] for d in path.imbalances), right, _gram_size(factors))


def euclidean_bracket(*, seed: int) -> Sides:
    """8, for Q = H: eta times the first-order bracket is zero."""
    rng = np.random.default_rng(seed)
    factors, loss = _random_problem((2, 3, 4), rng)
    gradients = layer_gradients(factors, loss.gradient(product(factors)))
    rate = _large_rate(factors, gradients)
    left = tuple(rate * bracket for bracket in first_order_bracket(factors, gradients))
    return Sides(left, tuple(np.zeros_like(side) for side in left), _gram_size(factors))


def first_order_bracket(factors: Factors, steps: Factors) -> Factors:
    """Q_j W_j' + W_j Q_j' - Q_{j+1}' W_{j+1} - W_{j+1}' Q_{j+1} for every hidden layer j."""
    pairs = zip(pairwise(factors), pairwise(steps), strict=True)
    halves = [q @ w.mT - w_up.mT @ q_up for (w, w_up), (q, q_up) in pairs]
    return tuple(half + half.mT for half in halves)


@dataclass(frozen=True)
class Proposition:
    """A statement, the functions that check it for a seed, and the relative discrepancy they may show."""

    number: int
    statement: str
    checks: tuple[Callable[..., Sides], ...]
    tolerance: float


PROPOSITIONS = (
    Proposition(1, "flow: D(t) = D(0)", (flow_conserves,), FLOW),
    Proposition(2, "scalar flow: a^2 + b^2 = sqrt(D0^2 + 4 p^2)", (scalar_norm,), FLOW),
    Proposition(3, "flow with decay: D(t) = exp(-2 lambda t) D(0)", (decay_contracts,), FLOW),
    Proposition(
        4,
        "step with decay: D+ = (1 - eta lambda)^2 D + eta^2 (V G'G V' - U'G G'U)",
        (step_with_decay,),
        EXACT,
    ),
    Proposition(5, "step: D+ - D = eta^2 (V G'G V' - U'G G'U)", (step_without_decay,), EXACT),
    Proposition(
        6,
        "deep flow: D_j(t) = exp(-2 lambda t) D_j(0), conserved at lambda = 0",
        (deep_flow_conserves, deep_decay_contracts),
        FLOW,
    ),
    Proposition(
        7,
        "deep step: D_j+ - D_j = eta^2 (H_j H_j' - H_{j+1}' H_{j+1}), minibatch part ~ 1/b",
        (deep_step, minibatch_step),
        EXACT,
    ),
    Proposition(
        8,
        "preconditioned step: D_j moves at order eta, by a bracket that is zero for Q = H",
        (preconditioned_step, euclidean_bracket),
        EXACT,
    ),
)


@dataclass(frozen=True)
class Verdict:
    """The worst of many draws for one proposition; `check(seed=seed)` reproduces it."""

    proposition: int
    statement: str
    kind: str
    trials: int
    discrepancy: float
    tolerance: float
    holds: bool
    check: str
    seed: int


def check_all(*, seed: int, trials: int = 20) -> list[Verdict]:
    """Check every proposition on `trials` random networks and report the worst of each."""
    require(trials >= 1, f"trials: {trials}; allowed: 1 or more")
    seeds = [int(s) for s in np.random.default_rng(seed).integers(2**31, size=trials)]
    return [_worst(proposition, seeds) for proposition in PROPOSITIONS]


def rows(verdicts: list[Verdict]) -> list[dict[str, object]]:
    """The verdicts as plain rows, for a table or JSON."""
    return [asdict(verdict) for verdict in verdicts]


def _worst(p: Proposition, seeds: list[int]) -> Verdict:
    gap, name, seed = max((check(seed=s).discrepancy, check.__name__, s) for check in p.checks for s in seeds)
    kind = "exact" if p.tolerance == EXACT else "flow"
    holds = gap <= p.tolerance
    return Verdict(p.number, p.statement, kind, len(seeds), gap, p.tolerance, holds, name, seed)


def _flow(*, depths: tuple[int, ...], decay: float, seed: int) -> Sides:
    """D_j(t) along the flow, and exp(-2 lambda t) D_j(0), at three times."""
    rng = np.random.default_rng(seed)
    factors, loss = _random_problem(depths, rng)
    times = np.array([0.5, 1.0, 2.0])
    path = gradient_flow(factors, loss, times, decay=decay)
    start = imbalances(factors)
    shrunk = tuple(np.exp(-2 * decay * times)[:, None, None] * d for d in start)
    # Relative to D(0): once both sides have decayed, their ratio is meaningless.
    return Sides(path.imbalances, shrunk, _largest(start))


def _two_factor_step(*, decay: float, seed: int) -> Sides:
    rng = np.random.default_rng(seed)
    (v, u), loss = _random_problem((2,), rng)
    g = loss.gradient(u @ v)
    rate = _large_rate((v, u), (u.mT @ g, g @ v.mT))
    path = descend((v, u), loss, optimizer("sgd"), rate, 1, decay=decay)
    v_next, u_next = path.final
    leak = rate**2 * (v @ g.mT @ g @ v.mT - u.mT @ g @ g.mT @ u)
    right = (1 - rate * decay) ** 2 * imbalance(u, v) + leak
    size = max(_gram_size((v, u)), _largest((right,)))
    return Sides((imbalance(u_next, v_next),), (right,), size)


def _random_dims(depths: tuple[int, ...], rng: np.random.Generator) -> list[int]:
    """Sizes d_0 ... d_L from 1 to 5, with the depth L drawn from `depths`."""
    return [int(d) for d in rng.integers(1, 6, size=rng.choice(depths) + 1)]


def _random_problem(depths: tuple[int, ...], rng: np.random.Generator) -> tuple[Factors, Loss]:
    """A network of random shape, with a squared, logistic or log-cosh loss."""
    dims = _random_dims(depths, rng)
    x, y = rng.normal(size=(8, dims[0])), rng.normal(size=(8, dims[-1]))
    goal = rng.normal(size=(dims[-1], dims[0]))
    log_cosh = Loss(
        lambda w: np.asarray(np.log(np.cosh(w - goal)).sum(axis=(-2, -1))),
        lambda w: np.tanh(w - goal),
    )
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


def _repeat(factors: Factors, times: int) -> Factors:
    return tuple(np.broadcast_to(w, (times, *w.shape)) for w in factors)


def _largest(arrays: tuple[Array, ...]) -> float:
    return max(float(np.max(np.abs(array))) for array in arrays)
