"""As in airbench94: a frozen whitening layer, weights in half precision, a compiled model, a summed loss."""

import torch
from sklearn.datasets import load_digits
from torch import nn

X, Y = (torch.tensor(part) for part in load_digits(return_X_y=True))
X = (X.bfloat16() / 16).reshape(-1, 1, 8, 8)
BATCH = 64


def whitening(images):
    """The eigenvectors of 2 x 2 patches, as the weights of a convolution."""
    patches = images.unfold(2, 2, 1).unfold(3, 2, 1).reshape(-1, 4).float()
    values, vectors = torch.linalg.eigh(patches.T @ patches / len(patches))
    return (vectors.T / (values + 1e-2).sqrt()[:, None]).reshape(4, 1, 2, 2)


def make_net():
    net = nn.Sequential(
        *(nn.Conv2d(1, 4, 2, bias=False), nn.GELU(), nn.Conv2d(4, 8, 3), nn.BatchNorm2d(8), nn.GELU()),
        *(nn.Flatten(), nn.Linear(200, 10, bias=False)),
    )
    net[0].weight.data = whitening(X[:1000])
    net[0].weight.requires_grad = False
    return net.bfloat16()


def train(init, tracker):
    net = init.apply(make_net())
    loss_of = nn.CrossEntropyLoss(label_smoothing=0.2, reduction="sum")
    trained = [p for p in net.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(trained, lr=0.05 / BATCH, momentum=0.85, nesterov=True)
    tracker.attach(net, optimizer, BATCH, reduction="sum")
    compiled = torch.compile(net, backend="eager")
    for _ in range(2):
        correct = 0
        net.train()
        for index in torch.randperm(512).split(BATCH):
            outputs = compiled(X[index])
            loss_of(outputs.float(), Y[index]).backward()
            optimizer.step()
            optimizer.zero_grad()
            correct += int((outputs.argmax(1) == Y[index]).sum())
        net.eval()
        with torch.no_grad():
            right = compiled(X[1200:]).argmax(1) == Y[1200:]
        tracker.end_epoch(train_acc=correct / 512, val_acc=right.float().mean())
