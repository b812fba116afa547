"""Pictures in class folders, flipped at random, into a small PyTorch network: penstock reads, flips and batches.

python examples/migrate/torch/after.py PHOTOS [EPOCHS]
"""

from __future__ import annotations

import sys
import time

import penstock as ps  # before torch, whose threads then wait asleep for one another: docs/feeds.md

import torch  # isort: skip
from torch import nn  # isort: skip


def flipped(image, label, rng):
    if rng.random() < 0.5:
        image = image[:, ::-1]
    return image, label


def main(folder, epochs):
    torch.manual_seed(0)
    pictures = ps.read_images(folder, size=(96, 96))
    batches = pictures.shuffle(seed=0).map(flipped).batch(32).torch()
    model = nn.Sequential(
        nn.Conv2d(3, 8, 5, stride=4), nn.ReLU(), nn.Conv2d(8, 16, 3, stride=2), nn.ReLU(), nn.AdaptiveAvgPool2d(1),
        nn.Flatten(), nn.Linear(16, 2),
    )  # fmt: skip
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    for epoch in range(epochs):
        began, total = time.perf_counter(), 0.0
        for x, y in batches:
            x = x.permute(0, 3, 1, 2).float() / 255
            loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item() * len(y)
        print(f"epoch {epoch}: loss {total / len(pictures):.3f}, {time.perf_counter() - began:.2f} s", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 3)
