"""A sampler that computes its indexes."""

import torch
from torch.utils.data import DataLoader, Dataset, Sampler

COUNT = 20_000_000


class Many(Dataset):
    def __len__(self):
        return COUNT

    def __getitem__(self, place):
        return torch.tensor([place])


class Computed(Sampler):
    def __iter__(self):
        return ((index * 7_919 + 11) % COUNT for index in range(COUNT))

    def __len__(self):
        return COUNT


for batch in DataLoader(Many(), batch_size=4, sampler=Computed()):
    print("first", batch.shape)
    break
