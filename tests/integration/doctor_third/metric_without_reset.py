"""A torchmetrics metric that keeps all predictions is updated in training and computed now and then."""

import torch
from torchmetrics import CatMetric


class Trainer:
    def __init__(self):
        self.net = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.GELU(), torch.nn.Linear(64, 256))
        self.opt = torch.optim.AdamW(self.net.parameters())
        self.train_probs = CatMetric()

    def training_step(self, x, y):
        logits = self.net(x)
        loss = torch.nn.functional.cross_entropy(logits, y)
        self.train_probs.update(logits.detach().softmax(-1))
        return loss

    def fit(self, epochs):
        for epoch in range(epochs):
            for _ in range(300):
                loss = self.training_step(torch.randn(512, 32), torch.randint(0, 256, (512,)))
                self.opt.zero_grad()
                loss.backward()
                self.opt.step()
            print(epoch, loss.item(), flush=True)


Trainer().fit(20)
