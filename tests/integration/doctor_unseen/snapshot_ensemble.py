"""A snapshot of the network is kept after each cycle, for an ensemble."""

import copy

import torch
from torch import nn


def make():
    return nn.Sequential(nn.Linear(1000, 3000), nn.GELU(), nn.Linear(3000, 1000))


net = make()
opt = torch.optim.SGD(net.parameters(), lr=0.1)
sched = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(opt, T_0=5)
ensemble = []
for step in range(1, 400):
    x = torch.randn(8, 1000)
    loss = (net(x) - x).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    sched.step()
    if step % 5 == 0:
        ensemble.append(copy.deepcopy(net).eval())
print(len(ensemble))
