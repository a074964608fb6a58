# /// script
# requires-python = ">=3.11"
# dependencies = ["initmem", "lightning", "scikit-learn", "torch"]
#
# [tool.uv.sources]
# initmem = { path = ".." }
# ///
"""A PyTorch Lightning module: initmem adds two lines.

python examples/lightning_module.py [--quick]
"""

import logging
import sys
import warnings

import lightning.pytorch as pl
import torch
from sklearn.datasets import load_wine
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import initmem
from initmem.pipeline.lightning import LightningTracker


class Classifier(pl.LightningModule):
    """13 numbers about a wine in, which of three cultivars it is out."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(13, 32), nn.ReLU(), nn.Linear(32, 3))

    def _step(self, batch, stage):
        x, y = batch
        out = self.net(x)
        loss = cross_entropy(out, y)
        self.log(f"{stage}_loss", loss, on_step=False, on_epoch=True)
        self.log(f"{stage}_acc", (out.argmax(1) == y).float().mean(), on_step=False, on_epoch=True)
        return loss

    def training_step(self, batch, index):
        return self._step(batch, "train")

    def validation_step(self, batch, index):
        self._step(batch, "val")

    def test_step(self, batch, index):
        self._step(batch, "test")

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-2)


def loaders():
    x, y = (torch.tensor(part) for part in load_wine(return_X_y=True))
    data = TensorDataset(((x - x.mean(0)) / x.std(0)).float(), y)
    parts = torch.utils.data.random_split(data, [98, 40, 40], torch.Generator().manual_seed(42))
    return [DataLoader(part, batch_size=16, shuffle=part is parts[0]) for part in parts]


def train(init, tracker):
    warnings.filterwarnings("ignore", module="lightning")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    training, validation, test = loaders()
    module = init.apply(Classifier())  # the first line
    trainer = pl.Trainer(
        max_epochs=init.recipe["epochs"],
        callbacks=[LightningTracker(tracker)],  # the second
        accelerator="cpu",
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        logger=False,
    )
    trainer.fit(module, training, validation)
    trainer.test(module, test, verbose=False)


if __name__ == "__main__":
    quick = "--quick" in sys.argv
    result = initmem.run(
        train,
        scales=[0.1, 2.5] if quick else [0.1, 0.5, 1.0, 1.8, 2.5],
        seeds=range(2 if quick else 5),
        name="lightning_module",
        recipe={"optimizer": "adam", "epochs": 2 if quick else 15},
    )
    print(result)
