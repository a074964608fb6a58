"""As in edge-of-stability: gradient descent on all examples at once, too fast for a large scale."""

import torch
from torch import nn

X = torch.linspace(-1, 1, 40).reshape(20, 2)
Y = torch.sin(3 * X.sum(1, keepdim=True))


def train(init, tracker):
    model = init.apply(nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=init.recipe["lr"])
    tracker.attach(model, optimizer, batch_size=len(X))
    for _ in range(40):
        optimizer.zero_grad()
        loss = (model(X) - Y).square().mean() + 1e-3 * sum(p.pow(4).sum() for p in model.parameters())
        loss.backward()
        optimizer.step()
        tracker.end_epoch(train_loss=loss)
        if tracker.diverged:
            break
