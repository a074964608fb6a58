# /// script
# requires-python = ">=3.11"
# dependencies = ["initmem", "scikit-learn", "torch"]
#
# [tool.uv.sources]
# initmem = { path = ".." }
# ///
"""An MLP on tabular data: scikit-learn's breast cancer dataset, 569 rows of 30 features.

A grid of two recipes: with SGD test accuracy depends on the scale of the initialization, because the smallest
scale is not fitted after 30 epochs; with AdamW at the same learning rate the scale is forgotten.

    python examples/table_mlp.py [--quick]
"""

import sys

import torch
from sklearn.datasets import load_breast_cancer
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler
from torch import nn
from torch.nn.functional import cross_entropy

import initmem

OPTIMIZERS = {"sgd": torch.optim.SGD, "adamw": torch.optim.AdamW}


def table():
    x, y = load_breast_cancer(return_X_y=True)
    x, x_test, y, y_test = train_test_split(x, y, test_size=0.2, random_state=0, stratify=y)
    x, x_val, y, y_val = train_test_split(x, y, test_size=0.25, random_state=0, stratify=y)
    scaler = StandardScaler().fit(x)
    parts = ((x, y), (x_val, y_val), (x_test, y_test))
    return [(torch.tensor(scaler.transform(a)).float(), torch.tensor(b)) for a, b in parts]


def evaluate(model, part):
    with torch.no_grad():
        out = model(part[0])
    return float(cross_entropy(out, part[1])), float((out.argmax(1) == part[1]).float().mean())


def train(init, tracker):
    training, validation, test = table()
    batch = 32
    model = nn.Sequential(nn.Linear(30, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))
    init.apply(model)
    make = OPTIMIZERS[init.recipe["optimizer"]]
    optimizer = make(model.parameters(), lr=init.recipe["learning_rate"])
    tracker.attach(model, optimizer, batch)
    for _ in range(init.recipe["epochs"]):
        correct = 0
        for index in torch.randperm(len(training[0])).split(batch):
            out, labels = model(training[0][index]), training[1][index]
            loss = cross_entropy(out, labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            correct += int((out.argmax(1) == labels).sum())
        val_loss, val_accuracy = evaluate(model, validation)
        tracker.end_epoch(
            train_accuracy=correct / len(training[0]),
            val_loss=val_loss,
            val_accuracy=val_accuracy,
            test_accuracy=evaluate(model, test)[1],
        )


if __name__ == "__main__":
    quick = "--quick" in sys.argv
    result = initmem.run(
        train,
        scales=[0.1, 2.5] if quick else [0.1, 0.5, 1.0, 1.8, 2.5],
        seeds=range(2 if quick else 8),
        name="table_mlp",
        recipe={"learning_rate": 0.01, "epochs": 5 if quick else 30},
        grid={"optimizer": ["sgd", "adamw"]},
    )
    print(result)
