"""An exponential mean of the loss is a tensor: each one refers to the one before, back to the first step."""

import torch

net = torch.nn.Sequential(torch.nn.Linear(512, 2048), torch.nn.Tanh(), torch.nn.Linear(2048, 1))
opt = torch.optim.SGD(net.parameters(), lr=1e-3)
smooth = 0.0
for i in range(3000):
    inputs = torch.randn(256, 512)
    objective = net(inputs).pow(2).mean()
    opt.zero_grad()
    objective.backward()
    opt.step()
    smooth = 0.98 * smooth + 0.02 * net(inputs).abs().mean()
print("smooth", float(smooth))
