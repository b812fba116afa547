"""The job that `penstock train` is compared with: everything is read into memory, prepared there, and fitted.

Covers: python -m benchmarks.train_accuracy_job images|table|text TRAIN TEST SEEDS -> a line "RESULT accuracy" a seed.
Does not cover: limits and the comparison (train_accuracy.py).
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

BATCH = {"images": 128, "table": 1024, "text": 256}
EPOCHS = {"images": 1, "table": 2, "text": 1}
_WORD = re.compile(r"[^\W_]+(?:'[^\W_]+)*")

Arrays = tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]


def load_images(folder: str) -> Arrays:
    """Pictures as float32 between 0 and 1, and the number of their folder."""
    import cv2

    files = sorted(Path(folder).glob("*/*.png"))
    names = sorted({file.parent.name for file in files})
    x = np.stack([np.asarray(cv2.imread(str(file))) for file in files]).astype(np.float32) / 255
    return x, np.array([names.index(file.parent.name) for file in files])


def load_table(path: str) -> Arrays:
    """Columns as they are, and the label."""
    import pandas as pd

    frame = pd.read_csv(path)
    y = frame.pop("label").to_numpy()
    return frame.to_numpy(), y


def load_text(path: str) -> tuple[list[list[str]], np.ndarray[Any, Any]]:
    """Words of each text, and the label."""
    with open(path, encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    words = [_WORD.findall(row["text"].lower()) for row in rows]
    return words, np.array([row["label"] for row in rows])


def numbered(texts: list[list[str]], words: list[str], length: int) -> np.ndarray[Any, Any]:
    """Texts as numbers of words, cut and filled."""
    known = {word: place + 2 for place, word in enumerate(words)}
    out = np.zeros((len(texts), length), np.int32)
    for row, text in enumerate(texts):
        ids = [known.get(word, 1) for word in text[:length]]
        out[row, : len(ids)] = ids
    return out


def load(kind: str, train: str, test: str) -> tuple[Arrays, Arrays, dict[str, Any]]:
    """Training and test arrays, prepared, and the specification of the model's input."""
    from penstock.train.recipe import InputSpec

    if kind == "images":
        (x, y), (tx, ty) = load_images(train), load_images(test)
        return (x, y), (tx, ty), {"image": InputSpec(x.shape[1:], "float32")}
    if kind == "table":
        (x, y), (tx, ty) = load_table(train), load_table(test)
        mean, std = x.mean(axis=0), x.std(axis=0)
        x, tx = ((x - mean) / std).astype(np.float32), ((tx - mean) / std).astype(np.float32)
        return (x, y), (tx, ty), {"numbers": InputSpec(x.shape[1:], "float32")}
    texts, y = load_text(train)
    held, ty = load_text(test)
    counts = Counter(word for text in texts for word in text)
    words = sorted(counts, key=lambda word: (-counts[word], word))[:20_000]
    length = min(256, max(8, int(np.quantile([len(text) for text in texts], 0.95))))
    spec = {"text": InputSpec((length,), "int32", (2 + len(words),))}
    return (numbered(texts, words, length), y), (numbered(held, words, length), ty), spec


def main(kind: str, train: str, test: str, seeds: str) -> None:
    """Load, fit once for each seed, and tell the accuracies on the test rows."""
    (x, y), (tx, ty), spec = load(kind, train, test)
    import keras

    from penstock.train.keras.models import compile_model, small_model
    from penstock.train.recipe import Target

    classes = tuple(str(n) for n in sorted(set(y.tolist())))
    for seed in range(int(seeds)):
        keras.utils.set_random_seed(seed)
        model = small_model("auto", spec, len(classes))
        compile_model(model, Target("label", "classes", classes), 1e-3)
        model.fit(x, y, batch_size=BATCH[kind], epochs=EPOCHS[kind], verbose=0)
        found = model.evaluate(tx, ty, batch_size=1024, verbose=0, return_dict=True)
        print("RESULT", found["accuracy"], flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
