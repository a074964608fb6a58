"""As in Omnigrok: the script multiplies its parameters by alpha itself; squared loss on one-hot labels."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import mse_loss, one_hot

X, Y = (torch.tensor(part) for part in load_digits(return_X_y=True))
X = X.float() / 16


def accuracy(model, part):
    with torch.no_grad():
        return (model(X[part]).argmax(1) == Y[part]).float().mean()


def train(init, tracker):
    alpha = init.scale
    model = nn.Sequential(nn.Linear(64, 50), nn.ReLU(), nn.Linear(50, 10))
    with torch.no_grad():
        for p in model.parameters():
            p.data = alpha * p.data
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.01)
    tracker.attach(model, optimizer, batch_size=50)
    loader = torch.utils.data.DataLoader(range(200), batch_size=50, shuffle=True)
    for _ in range(8):
        for index in loader:
            optimizer.zero_grad()
            loss = mse_loss(model(X[index]), one_hot(Y[index], 10).float())
            loss.backward()
            optimizer.step()
        train, test = accuracy(model, slice(0, 200)), accuracy(model, slice(200, 1200))
        tracker.end_epoch(train_loss=loss, train_accuracy=train, test_accuracy=test)
