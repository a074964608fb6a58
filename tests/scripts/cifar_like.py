"""As in pytorch-cifar: argparse, a cosine schedule, the best checkpoint in a fixed path."""

import argparse
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import initmem

parser = argparse.ArgumentParser()
parser.add_argument("--lr", default=0.1, type=float)
parser.add_argument("--epochs", default=3, type=int)
parser.add_argument("--scale", default=1.0, type=float)
parser.add_argument("--seed", default=0, type=int)
parser.add_argument("--history", default="history.jsonl")
args = parser.parse_args()

torch.manual_seed(args.seed)
x, y = (torch.tensor(part) for part in load_digits(return_X_y=True))
data = TensorDataset(x.float().div(16).reshape(-1, 1, 8, 8), y)
trainloader = DataLoader(torch.utils.data.Subset(data, range(320)), batch_size=32, shuffle=True)
testloader = DataLoader(torch.utils.data.Subset(data, range(1500, 1700)), batch_size=100)
net = nn.Sequential(
    *(nn.Conv2d(1, 8, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(288, 10))
)
initmem.Init(args.scale, args.seed).apply(net)
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(net.parameters(), lr=args.lr, momentum=0.9, weight_decay=5e-4)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=args.epochs)
tracker = initmem.Tracker(out=args.history)
tracker.attach(net, optimizer, batch_size=32)


def epoch_of(loader):
    total = correct = 0
    for inputs, targets in loader:
        with torch.set_grad_enabled(net.training):
            outputs = net(inputs)
            loss = criterion(outputs, targets)
        if net.training:
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        total, correct = total + len(targets), correct + int((outputs.argmax(1) == targets).sum())
    return correct / total


best_acc = 0.0
for epoch in range(args.epochs):
    net.train()
    train_acc = epoch_of(trainloader)
    net.eval()
    acc = epoch_of(testloader)
    if acc > best_acc:
        Path("checkpoint").mkdir(exist_ok=True)
        torch.save({"net": net.state_dict(), "acc": acc, "epoch": epoch}, "checkpoint/ckpt.pth")
        best_acc = acc
    tracker.end_epoch(train_acc=train_acc, val_acc=acc)
    scheduler.step()
tracker.finish(test_acc=torch.load("checkpoint/ckpt.pth")["acc"])
