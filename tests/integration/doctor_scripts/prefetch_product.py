"""Many workers that read far ahead."""

import time

import torch
from torch.utils.data import DataLoader, Dataset


class Large(Dataset):
    def __len__(self):
        return 400

    def __getitem__(self, place):
        return torch.full((1_000_000,), float(place))


if __name__ == "__main__":
    loader = DataLoader(Large(), batch_size=4, num_workers=2, prefetch_factor=16)
    for step, batch in enumerate(loader):
        time.sleep(0.15)
        if step > 30:
            break
    print("steps", step, batch.shape)
