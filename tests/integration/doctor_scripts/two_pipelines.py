"""Training and validation loaders keep their workers, and each worker keeps what augmentation needs."""

import torch
from torch.utils.data import DataLoader, Dataset


class Scans(Dataset):
    def __init__(self, count):
        self.count, self.bank = count, None

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        if self.bank is None:  # textures that are blended into scans
            self.bank = torch.rand(30, 1_000, 1_000)
        return self.bank[index % 30, :64, :64] + index


if __name__ == "__main__":
    options = {"batch_size": 16, "num_workers": 2}
    train = DataLoader(Scans(800), shuffle=True, persistent_workers=True, **options)
    valid = DataLoader(Scans(400), persistent_workers=True, **options)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64 * 64, 1))
    optimizer = torch.optim.SGD(model.parameters(), 1e-6)
    for epoch in range(3):
        model.train()
        for batch in train:
            optimizer.zero_grad()
            model(batch).square().mean().backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            total = sum(model(batch).mean().item() for batch in valid)
        print(epoch, total, flush=True)
