"""A Dataset that holds a list of Python objects, read by forked workers."""

import torch
from torch.utils.data import DataLoader, Dataset


class Numbers(Dataset):
    def __init__(self):
        self.items = [float(i) for i in range(6_000_000)]

    def __len__(self):
        return len(self.items) // 1_000

    def __getitem__(self, place):
        return torch.tensor(sum(self.items[place * 1_000 : (place + 1) * 1_000]))


if __name__ == "__main__":
    loader = DataLoader(Numbers(), batch_size=20, num_workers=2, shuffle=True, persistent_workers=True)
    total = 0.0
    for epoch in range(3):
        for batch in loader:
            total += float(batch.sum())
    print("total", total)
