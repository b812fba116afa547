"""`penstock doctor --rehearse` on real scripts: DataLoader workers, and the same without them."""

from __future__ import annotations

import pytest

from penstock.doctor.rehearse.rehearse import rehearse

HEAVY_WORKERS = """
import torch
from torch.utils.data import DataLoader, Dataset

class Rows(Dataset):
    def __init__(self):
        self.tables = None
    def __len__(self):
        return 4_000
    def __getitem__(self, n):
        if self.tables is None:
            self.tables = bytearray(b"x") * 150_000_000  # each process that reads makes its own
        return torch.zeros(8)

if __name__ == "__main__":
    layer = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    for rows in DataLoader(Rows(), batch_size=8, num_workers=3):
        loss = layer(rows).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""


TABLES = """
import os, time
import numpy as np

def tables():
    return [np.ones(2_000_000) for _ in range({count})]

kept = tables()
time.sleep(1)
"""


@pytest.mark.parametrize(("count", "fits"), [(6, True), (40, False)])
def test_a_rehearsal_names_the_lines_that_had_allocated_the_peak(tmp_path, count, fits):
    """Also when it was killed: what memray had recorded until then is read."""
    pytest.importorskip("memray")
    script = tmp_path / "train.py"
    script.write_text(TABLES.format(count=count))
    found = rehearse(script, 300_000_000, 1.0)
    assert found.fits == fits, found.text
    told = [line for line in found.lines if line.startswith("memray: ")]
    assert told, found.lines
    assert f"{script}:6" in told[0]
    assert not list((found.folder / "inside").glob("errors.*")), "memray must not disturb the hooks"


@pytest.mark.slow
def test_a_rehearsal_is_repeated_without_the_workers_that_hold_the_memory(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(HEAVY_WORKERS)
    found = rehearse(script, 550_000_000, 2.0)
    assert not found.fits
    assert found.workers > 100_000_000
    assert found.without_workers is not None
    assert found.without_workers < found.outlook.peak
    assert any("With num_workers=0" in line and "it fits without them" in line for line in found.lines), found.lines
    assert found.as_json()["without_workers"] == found.without_workers
