"""Pictures in class folders, flipped at random, into a small PyTorch network: a DataLoader over OpenCV.

python examples/migrate/torch/before.py PHOTOS [EPOCHS]
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import cv2
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Pictures(Dataset):
    def __init__(self, folder):
        self.classes = sorted(path.name for path in Path(folder).iterdir())
        self.files = [(path, n) for n, name in enumerate(self.classes) for path in sorted(Path(folder, name).iterdir())]

    def __len__(self):
        return len(self.files)

    def __getitem__(self, index):
        path, label = self.files[index]
        image = cv2.resize(cv2.cvtColor(cv2.imread(str(path)), cv2.COLOR_BGR2RGB), (96, 96))
        if np.random.random() < 0.5:
            image = image[:, ::-1]
        image = image.astype(np.float32) / 255
        return torch.from_numpy(np.ascontiguousarray(image.transpose(2, 0, 1))), label


def main(folder, epochs):
    torch.manual_seed(0)
    batches = DataLoader(Pictures(folder), batch_size=32, shuffle=True, num_workers=2)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 5, stride=4), nn.ReLU(), nn.Conv2d(8, 16, 3, stride=2), nn.ReLU(), nn.AdaptiveAvgPool2d(1),
        nn.Flatten(), nn.Linear(16, 2),
    )  # fmt: skip
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    for epoch in range(epochs):
        began, total = time.perf_counter(), 0.0
        for x, y in batches:
            loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item() * len(y)
        print(
            f"epoch {epoch}: loss {total / len(batches.dataset):.3f}, {time.perf_counter() - began:.2f} s", flush=True
        )


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 3)
