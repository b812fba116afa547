"""From a CSV file to a model and predictions with two commands, under a memory limit.

python examples/train_table.py
"""

from __future__ import annotations

import random
import subprocess
import sys
import tempfile
from pathlib import Path

import pyarrow.csv
import pyarrow.parquet as pq

REMARKS = ("a bright flat near the lake", "an old house with a dark garden", "new and close to the station")


def make_houses(path: Path, rows: int = 5000) -> None:
    """Numbers with gaps, a category, some text, and whether the house was sold."""
    random.seed(0)
    with path.open("w") as file:
        print("rooms,size,town,remark,sold", file=file)
        for _ in range(rows):
            rooms, area, town = random.randint(1, 7), random.uniform(20, 200), random.choice(["Bern", "Chur", "Thun"])
            remark = random.choice(REMARKS)
            sold = area / rooms + 10 * (town == "Bern") + 8 * ("lake" in remark) > 32
            known = f"{area:.1f}" if random.random() > 0.02 else ""
            print(f"{rooms},{known},{town},{remark},{'yes' if sold else 'no'}", file=file)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        data, run, out = Path(folder, "houses.csv"), Path(folder, "run"), Path(folder, "predictions.parquet")
        make_houses(data)
        penstock = [sys.executable, "-m", "penstock"]
        options = ["--target", "sold", "--memory", "1GB", "--batch", "64", "--epochs", "8", "--no-forecast"]
        subprocess.run([*penstock, "train", str(data), *options, "--out", str(run)], check=True)
        subprocess.run([*penstock, "predict", str(run), str(data), "--out", str(out)], check=True)
        truth = pyarrow.csv.read_csv(data)["sold"].to_pylist()
        found = pq.read_table(out)["prediction"].to_pylist()
        right = sum(a == b for a, b in zip(truth, found, strict=True)) / len(truth)
        print(f"{len(found)} predictions, accuracy {right:.3f}")


if __name__ == "__main__":
    main()
