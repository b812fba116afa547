"""What a first notebook does: read everything, then `fit`. Run by the demonstration inside a memory limit.

Covers: python -m penstock.demo.naive images|table PATH, with the models that `penstock train` builds.
Does not cover: doing it well (penstock.train).
"""

from __future__ import annotations

import sys
from pathlib import Path

IMAGE_SIDE = 128
IMAGE_BATCH = 64
TABLE_BATCH = 4096


def main(kind: str, path: str) -> None:
    """Load the whole dataset into arrays and hand them to Keras."""
    import numpy as np  # here: the command's help shows the constants above

    from penstock.train.keras.models import compile_model, small_model
    from penstock.train.recipe import InputSpec, Target

    target = Target("label", "classes", ("0", "1"))
    if kind == "images":
        import cv2

        files = sorted(Path(path).rglob("*.jpg"))
        pictures = [cv2.resize(np.asarray(cv2.imread(str(f))), (IMAGE_SIDE, IMAGE_SIDE)) for f in files]
        x = np.stack(pictures).astype(np.float32) / 255
        y = np.array([f.parent.name == "down" for f in files])
        model, batch = small_model("cnn", {"image": InputSpec(x.shape[1:], "float32")}, 2), IMAGE_BATCH
    else:
        import pandas as pd

        frame = pd.read_csv(path)
        y = frame.pop("label").to_numpy()
        x = frame.to_numpy()
        x = (x - x.mean(axis=0)) / x.std(axis=0)
        model, batch = small_model("mlp", {"numbers": InputSpec(x.shape[1:], "float32")}, 2), TABLE_BATCH
    compile_model(model, target, 1e-3)
    model.fit(x, y, batch_size=batch)


if __name__ == "__main__":
    main(*sys.argv[1:])
