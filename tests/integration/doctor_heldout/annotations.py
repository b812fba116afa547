"""Annotations are dictionaries in a list; every worker touches them and so copies them."""

import torch
from torch.utils.data import DataLoader, Dataset


class Boxes(Dataset):
    def __init__(self):
        self.annotations = [
            {"id": n, "file": f"image_{n:09d}.jpg", "box": [n, n + 1, n + 2, n + 3], "tag": f"class-{n % 91}"}
            for n in range(260_000)
        ]

    def __len__(self):
        return len(self.annotations)

    def __getitem__(self, n):
        item = self.annotations[n]
        return torch.tensor(item["box"], dtype=torch.float32)


if __name__ == "__main__":
    total = 0.0
    for boxes in DataLoader(Boxes(), batch_size=256, shuffle=True, num_workers=3, multiprocessing_context="fork"):
        total += float(boxes.sum())
    print("total", total)
