"""Photographs in tar shards -> shuffled batches of 32 x 224 x 224 x 3 uint8.

Covers: penstock, WebDataset (OpenCV and PIL) behind one worker a core.
Does not cover: pictures as files (images.py), in TFRecord (tfrecord.py), remote shards (s3_latency.py).
"""

from __future__ import annotations

import io
import tarfile
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.child import Build
from benchmarks.images import BATCH, CORES, SIDE

SHARDS = 8
SHUFFLED = 1000


def tars(count: int) -> Path:
    """The pictures of the images benchmark in tar shards, as WebDataset lays them out."""
    from benchmarks import data

    def make(folder: Path) -> None:
        found = sorted(data.images(count).rglob("*.jpg"))
        for number in range(SHARDS):
            with tarfile.open(folder / f"part-{number:03d}.tar", "w") as tar:
                for path in found[number::SHARDS]:
                    label = path.parent.name.removeprefix("class").encode()
                    for suffix, content in (("jpg", path.read_bytes()), ("cls", label)):
                        entry = tarfile.TarInfo(f"{path.stem}.{suffix}")
                        entry.size = len(content)
                        tar.addfile(entry, io.BytesIO(content))

    return data.made(f"tars-{count}", make)


def penstock(path: str) -> Build:
    """The quick start; the index of the tar files makes the shuffle exact."""
    import cv2  # noqa: F401
    import simplejpeg  # noqa: F401

    import penstock as ps

    def build() -> Any:
        found = ps.read_webdataset(f"{path}/*.tar", sample=("jpg", "cls"), size=(SIDE, SIDE))
        return found.shuffle(seed=1).batch(BATCH, drop_last=True).repeat()

    return build


def _with_opencv(sample: dict[str, Any]) -> tuple[np.ndarray, int]:
    import cv2

    cv2.setNumThreads(0)
    picture = cv2.imdecode(np.frombuffer(sample["jpg"], np.uint8), cv2.IMREAD_COLOR_RGB)
    assert picture is not None
    return cv2.resize(picture, (SIDE, SIDE), interpolation=cv2.INTER_LINEAR), int(sample["cls"])


def _with_pil(sample: dict[str, Any]) -> tuple[np.ndarray, int]:
    from PIL import Image

    with Image.open(io.BytesIO(sample["jpg"])) as opened:
        resized = opened.convert("RGB").resize((SIDE, SIDE), Image.Resampling.BILINEAR)
    return np.asarray(resized), int(sample["cls"])


def _joined(rows: list[tuple[np.ndarray, int]]) -> tuple[np.ndarray, np.ndarray]:
    return np.stack([x for x, _ in rows]), np.array([y for _, y in rows])


def _web(path: str, decode: Any) -> Build:
    """Shards resampled for ever, a shuffle buffer, batches made in the workers, as its guide does for training."""
    import cv2  # noqa: F401
    import torch  # noqa: F401
    import webdataset as wds
    from PIL import Image  # noqa: F401

    files = sorted(str(p) for p in Path(path).glob("*.tar"))

    def build() -> Any:
        found = wds.WebDataset(files, resampled=True, shardshuffle=False).shuffle(SHUFFLED // CORES).map(decode)
        batches = found.batched(BATCH, partial=False, collation_fn=_joined)
        return wds.WebLoader(batches, batch_size=None, num_workers=CORES)

    return build


def web_opencv(path: str) -> Build:
    """WebDataset with the faster decoder."""
    return _web(path, _with_opencv)


def web_pil(path: str) -> Build:
    """WebDataset with its usual decoder."""
    return _web(path, _with_pil)


CONTESTANTS = {"tars": {"penstock": penstock, "WebDataset OpenCV": web_opencv, "WebDataset PIL": web_pil}}


def run(options: Any) -> None:
    """Race, judge, write."""
    from benchmarks import pictures, report
    from benchmarks.harness import Race, race

    where = report.machine()
    path = tars(64 if options.quick else 1000)
    names = list(CONTESTANTS["tars"])
    shape = (BATCH, SIDE, SIDE, 3)
    scores = race(Race(__name__, "tars", str(path), names, shape, "uint8", options.turns(4), **pictures.times(options)))
    verdicts = [
        report.at_least(scores, "penstock", names[1:2], 1.25, "WebDataset with OpenCV"),
        report.no_more_memory(scores, "penstock", names[1:]),
    ]
    about = (
        "The pictures of the images benchmark (JPEG 500 x 375) in 8 tar shards; shuffled batches of 32, resized to "
        "224 x 224, uint8; warm page cache. WebDataset shuffles 1,000 samples, penstock all of them."
    )
    report.write_race(
        "tar_images", "Tar shards of JPEG to batches", about, "images", scores, verdicts, where, quick=options.quick
    )
