"""Cells are cut from an HDF5 file that the Dataset opens when it is made, with a large chunk cache."""

import os

import h5py
import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset


def make(path):
    with h5py.File(path, "w") as file:
        cells = file.create_dataset("cells", (4_000, 128, 128), dtype="f4", chunks=(8, 128, 128))
        for at in range(0, 4_000, 200):
            cells[at : at + 200] = np.float32(at)


class Cells(Dataset):
    def __init__(self, path):
        self.file = h5py.File(path, "r", rdcc_nbytes=400_000_000, rdcc_nslots=20_011)
        self.cells = self.file["cells"]

    def __len__(self):
        return len(self.cells)

    def __getitem__(self, index):
        return torch.from_numpy(self.cells[index])


if __name__ == "__main__":
    if not os.path.exists("cells.h5"):
        make("cells.h5")
    torch.multiprocessing.set_start_method("fork")
    model = torch.nn.Conv2d(1, 4, 5, stride=4)
    loader = DataLoader(Cells("cells.h5"), batch_size=8, shuffle=True, num_workers=3)
    for batch in loader:
        model(batch.unsqueeze(1)).square().mean().backward()
    print("done")
