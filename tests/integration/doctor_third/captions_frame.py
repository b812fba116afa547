"""Captions live in a DataFrame of Python strings and dicts; workers fork and read rows of it."""

import pandas as pd
import torch
from torch.utils.data import DataLoader, Dataset


class Captions(Dataset):
    def __init__(self, count):
        self.table = pd.DataFrame(
            {
                "file": pd.Series([f"train2017/{i:012d}.jpg" for i in range(count)], dtype=object),
                "caption": pd.Series([f"a photo of thing {i} beside a chair" for i in range(count)], dtype=object),
                "boxes": [[i, i + 1.5, i + 2.5, i + 3.5] for i in range(count)],
            }
        )

    def __len__(self):
        return len(self.table)

    def __getitem__(self, index):
        file, caption, boxes = self.table.iloc[index]
        return torch.tensor([len(file), len(caption), sum(boxes)])


if __name__ == "__main__":
    torch.multiprocessing.set_start_method("fork")
    loader = DataLoader(Captions(500_000), batch_size=256, shuffle=True, num_workers=4)
    layer = torch.nn.Linear(3, 1)
    for n, batch in enumerate(loader):
        layer(batch).mean().backward()
        if n % 200 == 0:
            print(n, flush=True)
