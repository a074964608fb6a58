"""As in REINFORCE examples: a reward is all there is, episodes end when they like, and so does training."""

import torch
from torch import nn
from torch.distributions import Categorical

ARMS = torch.tensor([0.1, 0.3, 0.5, 0.9])  # the chance of a reward; an episode ends with the first failure
SOLVED = 3.0


def episode(policy):
    """Log-probabilities of what was done, and how often it was rewarded."""
    logs, rewards = [], 0
    while rewards < 30:
        choice = Categorical(logits=policy(torch.ones(1, 2)))
        arm = choice.sample()
        logs.append(choice.log_prob(arm))
        if torch.rand(()) > ARMS[arm]:
            break
        rewards += 1
    return torch.cat(logs), rewards


def train(init, tracker):
    policy = init.apply(nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 4)))
    optimizer = torch.optim.Adam(policy.parameters(), lr=0.05)
    tracker.attach(policy, optimizer, batch_size=1)
    running = 0.0
    for update in range(1, 121):
        logs, rewards = episode(policy)
        optimizer.zero_grad()
        (-logs.sum() * (rewards - running)).backward()
        optimizer.step()
        running = 0.95 * running + 0.05 * rewards
        if update % 20 == 0:
            tracker.end_epoch(mean_reward=running)
            if running > SOLVED:
                break
