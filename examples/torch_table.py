"""A table larger than the data budget, shuffled, into a plain PyTorch loop.

python examples/torch_table.py
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch

import penstock as ps
from penstock.demo.data import make_table


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "table.csv"
        make_table(path, 60_000_000, lambda written: None)
        ds = ps.read_csv(str(path), label="label").shuffle(seed=1).batch(1024)
        model = torch.nn.Sequential(torch.nn.Linear(40, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))
        optimizer = torch.optim.Adam(model.parameters(), 1e-2)
        right = seen = 0
        for x, y in ds.torch():
            logits = model(x).squeeze(1)
            loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, y.float())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            right, seen = right + int(((logits > 0) == (y > 0)).sum()), seen + len(y)
        print(f"{seen} rows, accuracy {right / seen:.3f}")
        print(ps.memory_report())


if __name__ == "__main__":
    main()
