# /// script
# requires-python = ">=3.11"
# dependencies = ["initmem", "numpy"]
#
# [tool.uv.sources]
# initmem = { path = ".." }
# ///
"""Training code without a framework: a network on two spirals, with gradients written by hand.

A grid of two recipes: at a learning rate of 0.1 the network remembers the scale of its initialization; at 0.5
it forgets, since every run gets every point right.

    python examples/numpy_loop.py [--quick]
"""

import sys

import numpy as np

import initmem

HIDDEN, BATCH = 64, 20


def spirals(n, seed):
    """Points on two spirals that wind around each other once, with a little noise, and on which they are."""
    rng = np.random.default_rng(seed)
    side = rng.integers(0, 2, n)
    way = np.sqrt(rng.uniform(0.05, 1, n))
    angle = 2 * np.pi * way + np.pi * side
    points = way[:, None] * np.stack([np.cos(angle), np.sin(angle)], 1)
    return points + rng.normal(0, 0.03, points.shape), side


def forward(weights, x):
    w1, b1, w2, b2 = weights
    hidden = np.maximum(x @ w1 + b1, 0)
    return hidden, 1 / (1 + np.exp(-(hidden @ w2 + b2)))


def evaluate(weights, x, y):
    p = np.clip(forward(weights, x)[1], 1e-9, 1 - 1e-9)
    return -np.mean(np.where(y == 1, np.log(p), np.log(1 - p))), np.mean((p > 0.5) == y)


def train(init, tracker):
    (x, y), validation, test = spirals(400, 1), spirals(400, 2), spirals(1000, 3)
    weights = [init.kernel(2, HIDDEN, fan_in=2), init.bias(HIDDEN)]
    weights += [init.kernel(HIDDEN, fan_in=HIDDEN), init.bias()]
    rate = init.recipe["learning_rate"]
    tracker.attach(batch_size=BATCH)
    for epoch in range(init.recipe["epochs"]):
        correct = 0
        for index in init.generator("order", epoch).permutation(len(x)).reshape(-1, BATCH):
            hidden, p = forward(weights, x[index])
            error = (p - y[index]) / BATCH
            back = np.outer(error, weights[2]) * (hidden > 0)
            grads = [x[index].T @ back, back.sum(0), hidden.T @ error, error.sum()]
            weights = [weight - rate * grad for weight, grad in zip(weights, grads, strict=True)]
            tracker.step(rate)
            correct += np.sum((p > 0.5) == y[index])
        val_loss, val_accuracy = evaluate(weights, *validation)
        tracker.end_epoch(
            train_accuracy=correct / len(x),
            val_loss=val_loss,
            val_accuracy=val_accuracy,
            test_accuracy=evaluate(weights, *test)[1],
        )


if __name__ == "__main__":
    quick = "--quick" in sys.argv
    result = initmem.run(
        train,
        scales=[0.1, 1.0] if quick else [0.1, 0.5, 1.0, 1.8, 2.5],
        seeds=range(2 if quick else 5),
        name="numpy_loop",
        recipe={"optimizer": "sgd", "epochs": 5 if quick else 200},
        grid={"learning_rate": [0.1, 0.5]},
    )
    print(result)
