# /// script
# requires-python = ">=3.11"
# dependencies = []
# ///
"""A program that knows nothing of initmem: it takes a scale and a seed, and writes one JSON line per epoch.

It could be written in any language. This one is pure Python: a network with 8 hidden units learns which
points lie inside a circle. `initmem` runs it once for every scale and seed:

    initmem run --store runs/plain --command \\
        "python examples/plain_program.py --scale {scale} --seed {seed} --out {history} --epochs 30"
"""

import argparse
import json
import math
import random
from pathlib import Path

UNITS, RATE = 8, 0.2


def points(n, seed):
    rng = random.Random(seed)
    found = [(rng.uniform(-1, 1), rng.uniform(-1, 1)) for _ in range(n)]
    return [(x, y, float(x * x + y * y < 0.6)) for x, y in found]


def predict(net, x, y):
    hidden = [math.tanh(a * x + b * y + c) for a, b, c, _ in net["units"]]
    out = net["bias"] + sum(unit[3] * value for unit, value in zip(net["units"], hidden, strict=True))
    return hidden, 1 / (1 + math.exp(-max(-30.0, min(30.0, out))))


def step(net, x, y, label):
    hidden, p = predict(net, x, y)
    error = p - label
    for unit, value in zip(net["units"], hidden, strict=True):
        back = error * unit[3] * (1 - value * value)
        unit[3] -= RATE * error * value
        unit[0] -= RATE * back * x
        unit[1] -= RATE * back * y
        unit[2] -= RATE * back
    net["bias"] -= RATE * error
    return (p > 0.5) == bool(label)


def evaluate(net, data):
    ps = [(predict(net, x, y)[1], label) for x, y, label in data]
    loss = -sum(math.log(max(p if label else 1 - p, 1e-12)) for p, label in ps) / len(ps)
    return loss, sum((p > 0.5) == bool(label) for p, label in ps) / len(ps)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--scale", type=float, required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--epochs", type=int, default=30)
    asked = parser.parse_args()
    training, validation, test = points(200, -1), points(200, -2), points(400, -3)

    rng = random.Random(asked.seed)
    sizes = [asked.scale / math.sqrt(n) for n in (2, 2, 1, UNITS)]
    units = [[rng.gauss(0, 1) * size for size in sizes] for _ in range(UNITS)]
    net = {"units": units, "bias": 0.0}
    with Path(asked.out).open("a") as out:
        for _ in range(asked.epochs):
            rng.shuffle(training)
            correct = sum(step(net, *point) for point in training)
            val_loss, val_accuracy = evaluate(net, validation)
            row = {"train_accuracy": correct / len(training), "val_loss": val_loss}
            row |= {"val_accuracy": val_accuracy, "test_accuracy": evaluate(net, test)[1]}
            print(json.dumps(row), file=out, flush=True)


if __name__ == "__main__":
    main()
