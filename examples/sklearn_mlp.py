# /// script
# requires-python = ">=3.11"
# dependencies = ["initmem", "numpy", "scikit-learn"]
#
# [tool.uv.sources]
# initmem = { path = ".." }
# ///
"""scikit-learn's MLPClassifier draws its weights in `partial_fit`: let it, then put others in their place.

python examples/sklearn_mlp.py [--quick]
"""

import sys

import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier

import initmem

X, X_TEST, Y, Y_TEST = train_test_split(*load_digits(return_X_y=True), random_state=0)


def train(init, tracker):
    model = MLPClassifier(
        (32,), solver="sgd", learning_rate_init=0.01, batch_size=32, alpha=0, random_state=init.seed
    )
    model.partial_fit(X / 16, Y, classes=np.unique(Y))  # makes the arrays
    model.coefs_ = [init.kernel(*w.shape, fan_in=w.shape[0]) for w in model.coefs_]
    model.intercepts_ = [init.bias(*b.shape) for b in model.intercepts_]
    del model._optimizer  # the momentum of that pass
    tracker.attach(batch_size=32)
    for _ in range(init.recipe["epochs"]):
        model.partial_fit(X / 16, Y)  # one pass over the data
        tracker.step(np.full(int(np.ceil(len(X) / 32)), 0.01), momentum=0.9)
        tracker.end_epoch(
            train_loss=model.loss_,
            train_accuracy=model.score(X / 16, Y),
            test_accuracy=model.score(X_TEST / 16, Y_TEST),
        )


if __name__ == "__main__":
    quick = "--quick" in sys.argv
    result = initmem.run(
        train,
        scales=[0.1, 2.5] if quick else [0.1, 1.0, 2.5],
        seeds=range(2 if quick else 5),
        name="sklearn_mlp",
        recipe={"epochs": 2 if quick else 10},
    )
    print(result)
