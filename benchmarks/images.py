"""Photographs in class folders -> shuffled batches of 32 x 224 x 224 x 3 uint8.

Covers: penstock (accurate and fast DCT), tf.data, torch DataLoader (PIL, OpenCV), Grain, SPDL.
Does not cover: pictures in shards (tfrecord.py).
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.child import Again, Build

BATCH, SIDE = 32, 224
CORES = len(os.sched_getaffinity(0))


def penstock(path: str, *, fast: bool = False) -> Build:
    """The quick start of the README, repeated."""
    import cv2  # noqa: F401  (penstock imports both when a reader needs them; an import is not growth)
    import simplejpeg  # noqa: F401

    import penstock as ps

    return lambda: (
        ps.read_images(path, size=(SIDE, SIDE), fast=fast).shuffle(seed=1).batch(BATCH, drop_last=True).repeat()
    )


def penstock_fast(path: str) -> Build:
    """The same with the fast DCT."""
    return penstock(path, fast=True)


def tf_data(path: str) -> Build:
    """As the TensorFlow guide loads images from class folders, everything on AUTOTUNE."""
    import tensorflow as tf

    classes = sorted(os.listdir(path))

    def load(name: Any) -> tuple[Any, Any]:
        label = tf.argmax(tf.strings.split(name, os.sep)[-2] == tf.constant([c for c in classes if c[0] != "."]))
        picture = tf.io.decode_jpeg(tf.io.read_file(name), channels=3)
        return tf.cast(tf.image.resize(picture, (SIDE, SIDE)), tf.uint8), label

    def build() -> Any:
        found = tf.data.Dataset.list_files(f"{path}/*/*.jpg", shuffle=True).repeat()
        loaded = found.map(load, num_parallel_calls=tf.data.AUTOTUNE)
        return loaded.batch(BATCH, drop_remainder=True).prefetch(tf.data.AUTOTUNE)

    return build


def listed(path: str) -> tuple[list[str], np.ndarray]:
    """All files and their labels, for the peers that take a list."""
    files = sorted(str(p) for p in Path(path).glob("*/*.jpg"))
    classes = {name: number for number, name in enumerate(sorted({f.split(os.sep)[-2] for f in files}))}
    return files, np.array([classes[f.split(os.sep)[-2]] for f in files])


def decode(file: str, out: np.ndarray) -> None:
    """One picture with OpenCV, resized into `out`."""
    import cv2

    picture = cv2.imdecode(np.fromfile(file, np.uint8), cv2.IMREAD_COLOR_RGB)
    assert picture is not None
    cv2.resize(picture, (SIDE, SIDE), dst=out, interpolation=cv2.INTER_LINEAR)


class Pictures:
    """A map-style dataset for torch; as long as 1,000 epochs, so that workers never wait for the next one."""

    def __init__(self, path: str, kind: str) -> None:
        self.files, self.labels = listed(path)
        self.kind = kind

    def __len__(self) -> int:
        return len(self.files) * 1000

    def __getitem__(self, index: int) -> tuple[np.ndarray, int]:
        row = index % len(self.files)
        if self.kind == "PIL":
            from PIL import Image

            with Image.open(self.files[row]) as opened:
                resized = opened.convert("RGB").resize((SIDE, SIDE), Image.Resampling.BILINEAR)
            return np.asarray(resized), int(self.labels[row])
        out = np.empty((SIDE, SIDE, 3), np.uint8)
        decode(self.files[row], out)
        return out, int(self.labels[row])


def _one_thread(worker: int = 0) -> None:
    """OpenCV must not start threads of its own beside the loader's workers."""
    import cv2

    cv2.setNumThreads(0)


def torch_loader(path: str, kind: str) -> Build:
    """DataLoader with one worker a core."""
    import cv2  # noqa: F401
    import torch
    import torch.utils.data as data
    from PIL import Image  # noqa: F401

    def build() -> Any:
        pictures: Any = Pictures(path, kind)
        order = data.RandomSampler(range(len(pictures.files)), num_samples=len(pictures))
        return data.DataLoader(
            pictures, BATCH, sampler=order, num_workers=CORES, worker_init_fn=_one_thread, drop_last=True,
            generator=torch.Generator().manual_seed(1),
        )  # fmt: skip

    return build


def torch_pil(path: str) -> Build:
    """The form of torchvision's ImageFolder."""
    return torch_loader(path, "PIL")


def torch_opencv(path: str) -> Build:
    """The same with the faster decoder."""
    return torch_loader(path, "OpenCV")


def grain(path: str) -> Build:
    """Grain's threads; whole batches are made in them, so that stacking is parallel too."""
    import cv2  # noqa: F401
    import grain as gr

    def build() -> Any:
        _one_thread()
        pictures = Pictures(path, "OpenCV")
        rows = gr.MapDataset.range(len(pictures.files)).shuffle(seed=1).repeat()
        batches = rows.map(pictures.__getitem__).batch(BATCH, drop_remainder=True)
        return batches.to_iter_dataset(gr.ReadOptions(num_threads=CORES, prefetch_buffer_size=4))

    return build


def spdl(path: str) -> Build:
    """SPDL's thread pipeline; a task is a batch, decoded into one array."""
    import cv2  # noqa: F401
    from spdl.pipeline import PipelineBuilder

    files, labels = listed(path)

    def orders() -> Iterator[list[int]]:
        rng, rows = random.Random(1), list(range(len(files)))
        while True:
            rng.shuffle(rows)
            for start in range(0, len(rows) - BATCH + 1, BATCH):
                yield rows[start : start + BATCH]

    def load(rows: list[int]) -> tuple[np.ndarray, np.ndarray]:
        out = np.empty((BATCH, SIDE, SIDE, 3), np.uint8)
        for row, place in zip(rows, out):
            decode(files[row], place)
        return out, labels[rows]

    def passes() -> Iterator[Any]:
        empty: Any = PipelineBuilder()
        made = empty.add_source(orders()).pipe(load, concurrency=CORES).add_sink(3)
        pipeline = made.build(num_threads=CORES)
        with pipeline.auto_stop():
            yield from pipeline.get_iterator()

    def build() -> Any:
        _one_thread()
        return Again(passes)

    return build


CONTESTANTS = {
    "files": {
        "penstock": penstock,
        "penstock fast DCT": penstock_fast,
        "tf.data AUTOTUNE": tf_data,
        "torch DataLoader PIL": torch_pil,
        "torch DataLoader OpenCV": torch_opencv,
        "Grain OpenCV": grain,
        "SPDL OpenCV": spdl,
    }
}
OURS = ("penstock", "penstock fast DCT")


def run(options: Any) -> None:
    """Race, judge, write."""
    from benchmarks import data, pictures, report
    from benchmarks.harness import Race, race

    where = report.machine()
    path = data.images(64 if options.quick else 1000)
    names = list(CONTESTANTS["files"])
    plan = Race(
        __name__,
        "files",
        str(path),
        names,
        (BATCH, SIDE, SIDE, 3),
        "uint8",
        options.turns(4),
        **pictures.times(options),
    )
    scores = race(plan)
    peers = [n for n in names if n not in OURS]
    verdicts = [
        report.at_least(scores, OURS[0], peers, 1.25, "the best peer, accurate DCT"),
        report.at_least(scores, OURS[1], peers, 1.4, "the best peer, fast DCT"),
        report.no_more_memory(scores, OURS[0], peers),
    ]
    about = (
        "JPEG files of 500 x 375 pixels (about 83 KB) in 10 class folders, full decode, bilinear resize to 224 x 224, "
        "shuffled batches of 32, uint8, warm page cache."
    )
    report.write_race(
        "images", "Images: JPEG files to batches", about, "images", scores, verdicts, where, quick=options.quick
    )
