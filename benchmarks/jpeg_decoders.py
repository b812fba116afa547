"""How far a JPEG loader can be ahead of another: decoding and resizing alone, by library, in one thread.

Covers: processor time of decode and resize in a bare loop, without a loader around it; the room that this leaves.
Does not cover: loaders (images.py).

The libraries are all libjpeg-turbo inside; penstock's kernels give the same pixels. A decode to grey leaves out what
a better pixel stage alone could at most save: the chroma planes' transform, upsampling and colour conversion.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

PICTURES, ROUNDS = 64, 15
SIZE = (224, 224)


def decoders() -> dict[str, Callable[[bytes], Any]]:
    """What can be done with a picture's bytes, each up to 224 x 224 pixels."""
    import cv2
    import simplejpeg

    from penstock.sources.images.decode import ImageOptions, decode_image_into

    cv2.setNumThreads(0)
    plain, quick = ImageOptions(size=SIZE), ImageOptions(size=SIZE, fast=True)
    pixels, out = np.empty((375, 500, 3), np.uint8), np.empty((*SIZE, 3), np.uint8)
    grey, grey_out = np.empty((375, 500, 1), np.uint8), np.empty(SIZE, np.uint8)

    def accurate(data: bytes) -> Any:
        return cv2.resize(simplejpeg.decode_jpeg(data, "RGB", buffer=pixels), SIZE, dst=out)

    def fast(data: bytes) -> Any:
        found = simplejpeg.decode_jpeg(data, "RGB", fastdct=True, fastupsample=True, buffer=pixels)
        return cv2.resize(found, SIZE, dst=out)

    def opencv(data: bytes) -> Any:
        picture = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR_RGB)
        assert picture is not None
        return cv2.resize(picture, SIZE, dst=out)

    def luma(data: bytes) -> Any:
        return cv2.resize(simplejpeg.decode_jpeg(data, "GRAY", buffer=grey), SIZE, dst=grey_out)

    return {
        "OpenCV": opencv,
        "simplejpeg": accurate,
        "penstock": lambda data: decode_image_into(data, out, plain),
        "simplejpeg fast DCT": fast,
        "penstock fast DCT": lambda data: decode_image_into(data, out, quick),
        "simplejpeg grey only": luma,
    }


def rounds(turns: int, count: int) -> dict[str, list[float]]:
    """Microseconds of processor time a picture, every library once a round."""
    from benchmarks.data import photo

    photos, ways = [photo(seed) for seed in range(count)], decoders()
    found: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(turns):
        for name, decode in ways.items():
            began = time.thread_time()
            for data in photos:
                decode(data)
            found[name].append((time.thread_time() - began) / count * 1e6)
    return found


def run(options: Any) -> None:
    """Measure, compare, write."""
    from benchmarks import report

    where = report.machine()
    found = rounds(options.turns(ROUNDS), 8 if options.quick else PICTURES)
    middle = {name: statistics.median(values) for name, values in found.items()}
    ratios = {name: statistics.median(a / b for a, b in zip(found["OpenCV"], values)) for name, values in found.items()}
    rows = [
        [name, f"{middle[name]:,.0f}", f"{min(values):,.0f}-{max(values):,.0f}", f"{ratios[name]:.2f}x"]
        for name, values in found.items()
    ]
    about = (
        "Decode and resize of the pictures of the images benchmark in a bare loop of one thread, processor time. "
        "Loaders that cost nothing themselves would differ by the last column; the grey row is the limit for any "
        "change behind entropy decoding. penstock's rows include reading the file's header, and its pixels are "
        "simplejpeg's."
    )
    title = "JPEG: the room between decoders"
    columns = ("decoder", "us a picture, median", "min-max", "against OpenCV")
    report.Paper(
        "jpeg_decoders", title, about, where, columns, rows, (), {"rounds": found}, {}, options.quick
    ).write()  # fmt: skip
    plt = report.plotter()
    figure, axis = plt.subplots(figsize=(7, 2.4))
    axis.barh(list(middle), list(middle.values()), color="#1f6feb")
    axis.set(xlabel="microseconds of processor time a picture (median)", title=title)
    report.save(figure, "jpeg_decoders", options.quick)
