"""A sampler over very many samples."""

import torch
from torch.utils.data import DataLoader, Dataset


class Many(Dataset):
    def __len__(self):
        return 20_000_000

    def __getitem__(self, place):
        return torch.tensor([place])


for batch in DataLoader(Many(), batch_size=4, shuffle=True):
    print("first", batch.shape)
    break
