"""A thread reads ahead into a queue without a bound, faster than the network takes."""

import queue
import threading

import numpy as np
import torch

SENTINEL = object()


class BackgroundGenerator(threading.Thread):
    def __init__(self, generator):
        super().__init__(daemon=True)
        self.queue = queue.Queue()
        self.generator = generator
        self.start()

    def run(self):
        for item in self.generator:
            self.queue.put(item)
        self.queue.put(SENTINEL)

    def __iter__(self):
        while (item := self.queue.get()) is not SENTINEL:
            yield item


def batches(n):
    for i in range(n):
        yield np.full((32, 3, 96, 96), i % 255, dtype=np.float32), np.zeros(32, dtype=np.int64)


net = torch.nn.Sequential(
    torch.nn.Conv2d(3, 32, 5),
    torch.nn.ReLU(),
    torch.nn.Conv2d(32, 32, 5),
    torch.nn.AdaptiveAvgPool2d(1),
    torch.nn.Flatten(),
    torch.nn.Linear(32, 10),
)
opt = torch.optim.SGD(net.parameters(), lr=0.01)
for x, y in BackgroundGenerator(batches(4_000)):
    loss = torch.nn.functional.cross_entropy(net(torch.from_numpy(x)), torch.from_numpy(y))
    opt.zero_grad()
    loss.backward()
    opt.step()
print("done", loss.item())
