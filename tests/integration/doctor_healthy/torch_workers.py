"""A loader with workers over packed arrays."""

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset


class Packed(Dataset):
    def __init__(self):
        self.values = np.arange(20_000, dtype=np.float32)

    def __len__(self):
        return len(self.values)

    def __getitem__(self, place):
        return torch.tensor(self.values[place])


if __name__ == "__main__":
    loader = DataLoader(Packed(), batch_size=256, num_workers=2, persistent_workers=True)
    for _ in range(2):
        print("sum", float(sum(batch.sum() for batch in loader)))
