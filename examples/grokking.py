# /// script
# requires-python = ">=3.11"
# dependencies = ["initmem", "polars", "torch"]
#
# [tool.uv.sources]
# initmem = { path = ".." }
# ///
"""Modular addition: does the initialization scale decide when a network generalizes?

A network learns a + b mod 31 from four fifths of all pairs. It memorizes those long before it gets the others
right ("grokking"), if it ever does. The metric is the number of updates until 90% of the unseen pairs are
right. A run that never gets there counts with all its updates, so the measured range is an underestimate.

    python examples/grokking.py [--quick]
"""

import sys

import polars
import torch
from torch import nn
from torch.nn.functional import cross_entropy, one_hot

import initmem

P, EPOCH = 31, 25  # the modulus; updates between two looks
A, B = torch.cartesian_prod(torch.arange(P), torch.arange(P)).T
X, Y = torch.cat([one_hot(A, P), one_hot(B, P)], 1).float(), (A + B) % P
ORDER = torch.randperm(P * P, generator=torch.Generator().manual_seed(0))
SEEN, UNSEEN = ORDER.tensor_split([P * P * 8 // 10])


def accuracy(model, pairs):
    with torch.no_grad():
        return float((model(X[pairs]).argmax(1) == Y[pairs]).float().mean())


def train(init, tracker):
    model = nn.Sequential(nn.Linear(2 * P, 128, bias=False), nn.ReLU(), nn.Linear(128, P, bias=False))
    init.apply(model)
    decay = init.recipe["weight_decay"]
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=decay)
    tracker.attach(model, optimizer, batch_size=len(SEEN))
    updates = 0
    generalised = None
    for _ in range(init.recipe["epochs"]):
        for _ in range(EPOCH):
            loss = cross_entropy(model(X[SEEN]), Y[SEEN])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        updates += EPOCH
        unseen = accuracy(model, UNSEEN)
        tracker.end_epoch(train_loss=loss, train_accuracy=accuracy(model, SEEN), unseen_accuracy=unseen)
        if generalised is None and unseen >= 0.9:
            generalised = updates
    return {"updates_to_90": generalised or updates}


if __name__ == "__main__":
    quick = "--quick" in sys.argv
    for decay in (0.0, 1.0):
        result = initmem.run(
            train,
            scales=[0.5, 4.0] if quick else [0.5, 1.0, 2.0, 4.0, 8.0],
            seeds=range(2 if quick else 4),
            store="runs/grokking",
            name="grokking",
            recipe={"optimizer": "adamw", "weight_decay": decay, "epochs": 4 if quick else 40},
        )
        print(f"\nweight decay {decay:g}: unseen pairs right at the end, and updates to 90%, by scale")
        columns = ["unseen_accuracy", "updates_to_90"]
        print(result.frame.group_by("scale").agg(polars.col(columns).mean()).sort("scale"))
        print(result.explain("updates_to_90"))
