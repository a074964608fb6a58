# /// script
# requires-python = ">=3.11"
# dependencies = ["initmem", "hydra-core", "omegaconf", "scikit-learn", "torch"]
#
# [tool.uv.sources]
# initmem = { path = ".." }
# ///
"""A program with a Hydra configuration (examples/hydra_app.yaml), measured in both ways.

    python examples/hydra_app.py                                             # the study, through initmem.run
    python examples/hydra_app.py --multirun train.learning_rate=0.01,0.3     # two recipes, in one store

    initmem run --store runs/hydra-command --set learning_rate=0.01 --command \\
        "python examples/hydra_app.py scale={scale} seed={seed} history={history} \\
            train.learning_rate={learning_rate}"
"""

from functools import partial

import hydra
import torch
from omegaconf import DictConfig, OmegaConf
from sklearn.datasets import load_iris
from torch import nn
from torch.nn.functional import cross_entropy

import initmem

X, Y = (torch.tensor(part) for part in load_iris(return_X_y=True))
X = (X.float() - X.float().mean(0)) / X.float().std(0)
SPLIT = torch.randperm(len(Y), generator=torch.Generator().manual_seed(0))
TRAINING, TEST = SPLIT[:100], SPLIT[100:]


def train(init, tracker, settings):
    width = settings["hidden"]
    model = init.apply(nn.Sequential(nn.Linear(4, width), nn.Tanh(), nn.Linear(width, 3)))
    optimizer = torch.optim.SGD(model.parameters(), lr=settings["learning_rate"])
    tracker.attach(model, optimizer, batch_size=10)
    for _ in range(settings["epochs"]):
        correct = 0
        for index in TRAINING[torch.randperm(len(TRAINING))].split(10):
            out = model(X[index])
            optimizer.zero_grad()
            cross_entropy(out, Y[index]).backward()
            optimizer.step()
            correct += int((out.argmax(1) == Y[index]).sum())
        out = model(X[TEST])
        tracker.end_epoch(
            train_accuracy=correct / len(TRAINING),
            test_loss=cross_entropy(out, Y[TEST]),
            test_accuracy=(out.argmax(1) == Y[TEST]).float().mean(),
        )


@hydra.main(version_base="1.3", config_path=".", config_name="hydra_app")
def main(config: DictConfig) -> None:
    settings = OmegaConf.to_container(
        config.train, resolve=True
    )  # plain values: they become part of a run's id
    if config.history is not None:  # one run, asked for by `initmem run --command`
        torch.manual_seed(config.seed)
        train(initmem.Init(config.scale, config.seed), initmem.Tracker(out=config.history), settings)
        return
    result = initmem.run(
        partial(train, settings=settings),
        scales=list(config.scales),
        seeds=range(config.seeds),
        store=config.store,
        workers=config.workers,
        name="hydra_app",
        recipe=settings,
    )
    print(result)


if __name__ == "__main__":
    main()
