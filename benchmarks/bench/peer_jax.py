"""JAX as an expert would write it: many replicas at once, an epoch as one compiled `lax.scan`.

TASK["mode"]: `patches` (vmap, a convolution is a matrix product of shifted images), `convolution` (vmap over
`conv_general_dilated`), `map` (`lax.map`, one replica after the other).
Arrays: images (batch, height, width, channel), tokens (batch, token); states have a leading axis of replicas.
"""

from __future__ import annotations

import math
import os
import sys
from functools import partial
from typing import Any

from .peer import Laps, examples, start, task

TASK = task()
if TASK["threads"]:  # XLA's own pool of threads follows the cores that the process may use
    os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[int(sys.argv[2])]})
    os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"

import jax  # noqa: E402, after the threads are set
import jax.numpy as jnp  # noqa: E402
import optax  # noqa: E402
from jax import lax  # noqa: E402

RECIPE, SIZES = TASK["recipe"], TASK["sizes"]
MOMENTUM, EPS = 0.99, 1e-3


class Builder:
    """Passes through a network: draws its parameters the first time, then applies them.

    `train`: normalize by the batch and collect new moving statistics; otherwise by the moving ones.
    """

    def __init__(self, key: Any, params: dict[str, Any], stats: dict[str, Any], train: bool) -> None:
        self.key, self.params, self.stats, self.train = key, params, stats, train
        self.count, self.new_stats = 0, dict(stats)

    def param(self, make: Any) -> Any:
        """The next parameter; drawn by `make` where it is not there yet."""
        name = f"p{self.count}"
        self.count += 1
        if name not in self.params:
            self.key, key = jax.random.split(self.key)
            self.params[name] = make(key)
        return self.params[name]

    def kernel(self, *shape: int) -> Any:
        """A matrix or kernel with fan-in scaling."""
        return self.param(lambda key: jax.random.normal(key, shape) / math.sqrt(math.prod(shape[:-1])))

    def vector(self, n: int, value: float = 0.0) -> Any:
        """A vector of one value."""
        return self.param(lambda key: jnp.full(n, value, jnp.float32))

    def conv(self, x: Any, outputs: int, stride: int = 1, size: int = 3) -> Any:
        """A padded convolution with bias."""
        channels = x.shape[-1]
        kernel, bias = self.kernel(size, size, channels, outputs), self.vector(outputs)
        if size == 1:
            return x[:, ::stride, ::stride] @ kernel[0, 0] + bias
        if TASK["mode"] != "patches":
            numbers = ("NHWC", "HWIO", "NHWC")
            padding = ((1, 1), (1, 1))
            return lax.conv_general_dilated(x, kernel, (stride, stride), padding, None, None, numbers) + bias
        padded = jnp.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
        h, w = x.shape[1:3]
        shifted = [padded[:, i : i + h : stride, j : j + w : stride] for i in range(3) for j in range(3)]
        return jnp.concatenate(shifted, -1) @ kernel.reshape(9 * channels, outputs) + bias

    def norm(self, x: Any, kind: str = "") -> Any:
        """The recipe's normalization."""
        n = x.shape[-1]
        gamma, beta = self.vector(n, 1.0), self.vector(n)
        if (kind or RECIPE["norm"]) == "layer":
            mean, var = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
            return (x - mean) * lax.rsqrt(var + EPS) * gamma + beta
        name = f"s{self.count}"
        moving = self.stats.get(name, (jnp.zeros(n), jnp.ones(n)))
        mean, var = moving
        if self.train:
            mean = x.mean((0, 1, 2))
            var = (x * x).mean((0, 1, 2)) - mean * mean
            moving = jax.tree.map(lambda old, new: MOMENTUM * old + (1 - MOMENTUM) * new, moving, (mean, var))
        self.new_stats[name] = moving
        factor = gamma * lax.rsqrt(var + EPS)
        return x * factor + (beta - mean * factor)

    def block(self, x: Any, outputs: int, stride: int = 1) -> Any:
        """Convolution, normalization, ReLU."""
        return jax.nn.relu(self.norm(self.conv(x, outputs, stride)))

    def dense(self, x: Any, outputs: int, bias: bool = True) -> Any:
        """A linear layer."""
        y = x @ self.kernel(x.shape[-1], outputs)
        return y + self.vector(outputs) if bias else y


def pool(x: Any) -> Any:
    """Max pooling by 2."""
    n, h, w, c = x.shape
    return x.reshape(n, h // 2, 2, w // 2, 2, c).max((2, 4))


def resnet9(net: Builder, x: Any) -> Any:
    """The nine-layer network."""
    w = RECIPE["width"]
    x = pool(net.block(net.block(x, w), 2 * w))
    x = x + net.block(net.block(x, 2 * w), 2 * w)
    x = pool(net.block(pool(net.block(x, 4 * w)), 8 * w))
    x = x + net.block(net.block(x, 8 * w), 8 * w)
    return net.dense(x.max((1, 2)), SIZES["classes"])


def resnet56(net: Builder, x: Any) -> Any:
    """The CIFAR ResNet of 56 layers."""
    x = net.block(x, RECIPE["width"])
    for stage in range(3):
        outputs = RECIPE["width"] * 2**stage
        for i in range(9):
            stride = 2 if stage > 0 and i == 0 else 1
            y = net.norm(net.conv(net.block(x, outputs, stride), outputs))
            x = jax.nn.relu(y + (net.conv(x, outputs, stride, size=1) if stride > 1 else x))
    return net.dense(x.mean((1, 2)), SIZES["classes"])


def transformer(net: Builder, x: Any) -> Any:
    """A pre-norm transformer of patches, or a causal one of tokens."""
    w, heads, causal = RECIPE["width"], RECIPE["heads"], RECIPE["model"] == "gpt"
    if causal:
        x = net.param(lambda key: 0.02 * jax.random.normal(key, (SIZES["vocabulary"], w)))[x]
    else:
        n, p, side = x.shape[0], RECIPE["patch"], x.shape[1] // RECIPE["patch"]
        x = x.reshape(n, side, p, side, p, -1).swapaxes(2, 3).reshape(n, side * side, -1)
        x = net.dense(x, w)
    length = x.shape[1]
    x = x + net.param(lambda key: 0.02 * jax.random.normal(key, (length, w)))
    mask = jnp.tril(jnp.ones((length, length), bool)) if causal else None
    for _ in range(RECIPE["depth"]):
        q, k, v = jnp.split(net.dense(net.norm(x, "layer"), 3 * w), 3, -1)
        q, k, v = (part.reshape(*part.shape[:2], heads, w // heads) for part in (q, k, v))
        scores = jnp.einsum("nqhd,nkhd->nhqk", q, k) / math.sqrt(w // heads)
        scores = scores if mask is None else jnp.where(mask, scores, -jnp.inf)
        y = jnp.einsum("nhqk,nkhd->nqhd", jax.nn.softmax(scores), v)
        x = x + net.dense(y.reshape(x.shape), w)
        x = x + net.dense(jax.nn.gelu(net.dense(net.norm(x, "layer"), 4 * w), approximate=False), w)
    x = net.norm(x, "layer")
    return net.dense(x if causal else x.mean(1), SIZES["classes"], bias=not causal)


NETWORKS = {"resnet9": resnet9, "resnet56": resnet56, "vit": transformer, "gpt": transformer}
FORWARD = NETWORKS[RECIPE["model"]]


def objective(params: Any, stats: Any, x: Any, y: Any) -> tuple[Any, Any]:
    """Mean loss of a training batch; beside it the new statistics and the number of correct answers."""
    net = Builder(None, params, stats, train=True)
    logits = FORWARD(net, x)
    loss = optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()
    return loss, (net.new_stats, (logits.argmax(-1) == y).sum())


def rule(updates: int) -> Any:
    """The recipe's optimizer with its cosine schedule."""
    schedule = optax.cosine_decay_schedule(RECIPE["learning_rate"], updates, 0.01)
    if RECIPE["optimizer"] == "sgd":
        return optax.sgd(schedule)
    if RECIPE["optimizer"] == "adam":
        return optax.adam(schedule)
    raise SystemExit(f"{RECIPE['optimizer']}: not written for this peer")


def main() -> None:
    """Train the replicas of one process and tell the times of its epochs."""
    n, b = SIZES["n_train"], RECIPE["batch_size"]
    (x, y), val, test = (tuple(map(jnp.asarray, part)) for part in examples(SIZES))
    start()
    laps = Laps()
    optimizer = rule(RECIPE["epochs"] * math.ceil(n / b))

    def initial(key: Any) -> Any:
        net = Builder(key, {}, {}, train=False)
        FORWARD(net, x[:2])
        return net.params, net.new_stats, optimizer.init(net.params)

    def step(state: Any, batch: Any) -> Any:
        params, stats, moments = state
        (loss, (stats, correct)), grad = jax.value_and_grad(objective, has_aux=True)(
            params, stats, x[batch], y[batch]
        )
        updates, moments = optimizer.update(grad, moments, params)
        return (optax.apply_updates(params, updates), stats, moments), (loss * len(batch), correct)

    def evaluate(params: Any, stats: Any, part: Any) -> Any:
        """Mean loss and accuracy, in batches of 256."""

        def one(batch: Any, labels: Any) -> Any:
            logits = FORWARD(Builder(None, params, stats, train=False), batch)
            loss = optax.softmax_cross_entropy_with_integer_labels(logits, labels).sum()
            return jnp.stack([loss, (logits.argmax(-1) == labels).sum().astype(jnp.float32)])

        images, labels = part
        whole = len(images) // 256 * 256
        sums = jnp.zeros(2)
        if whole:
            batches = [a[:whole].reshape(-1, 256, *a.shape[1:]) for a in part]
            sums = lax.map(lambda batch: one(*batch), tuple(batches)).sum(0)
        if whole < len(images):
            sums = sums + one(images[whole:], labels[whole:])
        return sums / labels.size

    def epoch(state: Any, best: Any, key: Any) -> Any:
        order = jax.random.permutation(key, n)
        whole = n // b * b
        state, (losses, correct) = lax.scan(step, state, order[:whole].reshape(-1, b))
        train = jnp.stack([losses.sum(), correct.sum().astype(jnp.float32)])
        if whole < n:
            state, (loss, right) = step(state, order[whole:])
            train = train + jnp.stack([loss, right.astype(jnp.float32)])
        measured = evaluate(*state[:2], val)
        better = measured[0] < best[0]
        kept = jax.tree.map(lambda new, old: jnp.where(better, new, old), state[:2], best[1])
        return state, (jnp.minimum(measured[0], best[0]), kept), (train / n, measured)

    def each(function: Any) -> Any:
        """For every replica: at once, or one after the other."""
        return (lambda *args: lax.map(lambda a: function(*a), args)) if TASK["mode"] == "map" else (
            jax.vmap(function)
        )  # fmt: skip

    keys = jax.random.split(jax.random.key(0), TASK["replicas"])
    state = jax.jit(jax.vmap(initial))(keys)
    best = (jnp.full(TASK["replicas"], jnp.inf, jnp.float32), jax.tree.map(jnp.copy, state[:2]))
    run = jax.jit(each(epoch), donate_argnums=(0, 1))
    for i in range(TASK["epochs"]):
        keys = jax.vmap(partial(jax.random.fold_in, data=i))(keys)
        state, best, history = run(state, best, keys)
        jax.block_until_ready(history)
        laps.lap()
    tested = jax.jit(each(lambda params, stats: evaluate(params, stats, test)))
    laps.tell(lambda: jax.block_until_ready(tested(*best[1])))


if __name__ == "__main__":
    main()
