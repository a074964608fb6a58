# /// script
# requires-python = ">=3.11"
# dependencies = ["initmem", "scikit-learn", "torch"]
#
# [tool.uv.sources]
# initmem = { path = ".." }
# ///
"""A small vision transformer on 8x8 digits: does it remember the scale of its initial weights?

python examples/digits_vit.py            # 20 runs; their records go to runs/digits_vit
python examples/digits_vit.py --quick    # a few seconds, to see that it works
"""

import sys

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy

import initmem

X, Y = (torch.tensor(part) for part in load_digits(return_X_y=True))
X = X.float().reshape(-1, 8, 8) / 16
PARTS = torch.randperm(len(Y), generator=torch.Generator().manual_seed(42)).split([1078, 359, 360])
TRAIN, VALIDATION, TEST = ((X[part], Y[part]) for part in PARTS)


class VisionTransformer(nn.Module):
    """Sixteen patches of 2x2 pixels, two layers of attention, and the mean of what they say."""

    def __init__(self, width=32):
        super().__init__()
        self.patches = nn.Linear(4, width)
        self.places = nn.Embedding(16, width)
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0, batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, 10)

    def forward(self, images):
        patches = images.unfold(1, 2, 2).unfold(2, 2, 2).reshape(-1, 16, 4)
        return self.head(self.body(self.patches(patches) + self.places.weight).mean(1))


def evaluate(model, part):
    with torch.no_grad():
        out = model(part[0])
    return float(cross_entropy(out, part[1])), float((out.argmax(1) == part[1]).float().mean())


def train(init, tracker):
    batch = 64
    model = init.apply(VisionTransformer())
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    tracker.attach(model, optimizer, batch)
    for _ in range(init.recipe["epochs"]):
        correct = 0
        for index in torch.randperm(len(TRAIN[0])).split(batch):
            out, labels = model(TRAIN[0][index]), TRAIN[1][index]
            loss = cross_entropy(out, labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            correct += int((out.argmax(1) == labels).sum())
        val_loss, val_accuracy = evaluate(model, VALIDATION)
        tracker.end_epoch(
            train_accuracy=correct / len(TRAIN[0]),
            val_loss=val_loss,
            val_accuracy=val_accuracy,
            test_accuracy=evaluate(model, TEST)[1],
        )


if __name__ == "__main__":
    quick = "--quick" in sys.argv
    result = initmem.run(
        train,
        scales=[0.1, 1.0] if quick else [0.1, 0.5, 1.0, 1.8, 2.5],
        seeds=range(2 if quick else 4),
        name="digits_vit",
        recipe={"optimizer": "adam", "epochs": 2 if quick else 10},
    )
    print(result)
