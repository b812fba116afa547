"""Fashion-MNIST from Debian's package dataset-fashion-mnist.

Covers: installing the package where it is missing, reading its files.
Does not cover: what is done with the pictures.
"""

from __future__ import annotations

import gzip
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

FOLDER, PACKAGE = Path("/usr/share/datasets/fashion-mnist"), "dataset-fashion-mnist"


def fetch() -> None:
    """See to it that the data is there."""
    if (FOLDER / "train-images-idx3-ubyte.gz").exists():
        return
    if shutil.which("apt-get") is None:
        sys.exit(f"There is no {FOLDER}, and no apt-get to install Debian's {PACKAGE} with.")
    rise = [] if os.geteuid() == 0 else ["sudo", "-n"]
    install = [*rise, "apt-get", "install", "-y", "-qq", "--no-install-recommends", PACKAGE]
    print(f"installing {PACKAGE}", flush=True)
    if subprocess.run(install, stdout=subprocess.DEVNULL).returncode:
        subprocess.run([*rise, "apt-get", "update", "-qq"], check=True)
        subprocess.run(install, stdout=subprocess.DEVNULL, check=True)


def read_idx(name: str, header: int) -> np.ndarray[Any, Any]:
    """The values of an idx file."""
    with gzip.open(FOLDER / name) as file:
        return np.frombuffer(file.read(), dtype=np.uint8, offset=header)


class Rows:
    """Images and labels as batches, scaled when read. `part` is train or t10k."""

    def __init__(self, part: str, count: int, batch: int) -> None:
        self.images = read_idx(f"{part}-images-idx3-ubyte.gz", 16).reshape(-1, 28, 28, 1)[:count]
        self.labels = read_idx(f"{part}-labels-idx1-ubyte.gz", 8)[:count].astype(np.int64)
        self.batch = batch

    def __iter__(self) -> Iterator[tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]]:
        for start in range(0, len(self.labels), self.batch):
            images = self.images[start : start + self.batch].astype(np.float32) / 255
            yield images, self.labels[start : start + self.batch]
