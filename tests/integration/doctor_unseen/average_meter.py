"""The meter that everyone copies adds up losses, and they are tensors."""

import torch
from torch import nn


class AverageMeter:
    """Computes and stores the average and current value"""

    def __init__(self, name):
        self.name = name
        self.reset()

    def reset(self):
        self.val = self.avg = self.sum = self.count = 0

    def update(self, val, n=1):
        self.val = val
        self.sum += val * n
        self.count += n
        self.avg = self.sum / self.count


def train_one_epoch(net_g, net_d, opt, meters, iters):
    for _ in range(iters):
        z = torch.randn(128, 64)
        fake = net_g(z)
        adv = nn.functional.softplus(-net_d(fake)).mean()
        opt.zero_grad()
        adv.backward(retain_graph=True)
        opt.step()
        meters["adv"].update(adv, z.size(0))
        meters["l1"].update(fake.abs().mean(), z.size(0))


if __name__ == "__main__":
    net_g = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 784), nn.Tanh())
    net_d = nn.Sequential(nn.Linear(784, 256), nn.LeakyReLU(0.2), nn.Linear(256, 1))
    opt = torch.optim.SGD(net_g.parameters(), lr=1e-3)
    meters = {k: AverageMeter(k) for k in ("adv", "l1")}
    for epoch in range(5):
        train_one_epoch(net_g, net_d, opt, meters, 400)
        print(epoch, float(meters["adv"].avg), flush=True)
