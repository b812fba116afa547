"""Mutated images: pixels, or an error that names the file; never a crash or a wild allocation.

They are decoded in a child process, because a crash inside a codec could not be survived.
"""

from __future__ import annotations

import os
import random
import resource
import sys
from pathlib import Path

import cv2
import numpy as np
import pytest
import simplejpeg

sys.path.insert(0, str(Path(__file__).parent))
from mutations import GROWTH, ROUNDS, TIMEOUT_S, in_child, mutated, outcome, peak, start_peak

from penstock.native import jpeg as own
from penstock.sources.images.decode import ImageOptions, decode_image_into
from penstock.sources.images.header import read_header

ROOM = 6_000_000_000


def pictures() -> list[bytes]:
    """Every format that is read, small, with noise so that all of a codec is used."""
    noise = np.random.default_rng(0).integers(0, 256, (24, 20, 3), np.uint8)
    made = [cv2.imencode(f".{kind}", noise)[1].tobytes() for kind in ("jpg", "png", "webp", "bmp", "tiff")]
    return [*made, cv2.imencode(".jpg", noise, [cv2.IMWRITE_JPEG_PROGRESSIVE, 1])[1].tobytes(),
            cv2.imencode(".png", noise[..., 0])[1].tobytes()]  # fmt: skip


def main(count: int) -> None:
    """The child: decode mutations under an address-space limit."""
    if "libasan" not in os.environ.get("LD_PRELOAD", ""):  # its shadow alone takes terabytes of addresses
        resource.setrlimit(resource.RLIMIT_AS, (ROOM, ROOM))
    good, chance, seen = pictures(), random.Random(1), {"rows": 0, "BadData": 0}
    options = ImageOptions(size=(8, 8), max_pixels=1_000_000)
    out = np.empty((8, 8, 3), np.uint8)
    for data in good:
        decode_image_into(data, out, options, where="good.img")
    before = start_peak()
    for number in range(count):
        data = mutated(chance.choice(good), chance)

        def read(data: bytes = data) -> int:
            decode_image_into(data, out, options, where=f"{number}.img")
            return 1

        told = outcome(read, f"{number}.img")
        seen[told] = seen.get(told, 0) + 1
    assert set(seen) == {"rows", "BadData"} and min(seen.values()) > count // 20, seen
    assert peak() - before < GROWTH


@pytest.mark.timeout(TIMEOUT_S)
def test_mutated_images_are_decoded_or_refused() -> None:
    done = in_child(__file__, str(ROUNDS))
    assert done.returncode == 0, f"rc {done.returncode}\n{done.stdout}\n{done.stderr[-3000:]}"


def jpegs() -> list[bytes]:
    """Files that penstock's own kernels decode, in all their layouts."""
    noise = np.random.default_rng(0).integers(0, 256, (40, 52, 3), np.uint8)
    soft = cv2.GaussianBlur(noise, (9, 9), 0)
    layouts = (cv2.IMWRITE_JPEG_SAMPLING_FACTOR_420, cv2.IMWRITE_JPEG_SAMPLING_FACTOR_422,
               cv2.IMWRITE_JPEG_SAMPLING_FACTOR_444)  # fmt: skip
    settings = [(cv2.IMWRITE_JPEG_QUALITY, 60), (cv2.IMWRITE_JPEG_RST_INTERVAL, 2, cv2.IMWRITE_JPEG_OPTIMIZE, 1)]
    return [
        cv2.imencode(".jpg", soft, (cv2.IMWRITE_JPEG_SAMPLING_FACTOR, layout, *more))[1].tobytes()
        for layout in layouts
        for more in settings
    ]


def compare(count: int) -> None:
    """The child: whatever the kernels accept, libjpeg-turbo accepts without a warning, and to the same pixels."""
    good, chance, accepted = jpegs(), random.Random(2), 0
    recycled: dict[str, np.ndarray] = {}

    def room(purpose: str, nbytes: int) -> np.ndarray:
        if len(recycled.get(purpose, b"")) < nbytes:
            recycled[purpose] = np.zeros(nbytes, np.uint8)
        return recycled[purpose][:nbytes]

    for number in range(count):
        data, fast = mutated(chance.choice(good), chance), bool(number % 2)
        try:
            header = read_header(data)
        except ValueError:
            continue
        if header.kind != "JPEG" or header.height * header.width > 1_000_000:
            continue
        out = np.empty(header.height * header.width * 3, np.uint8)
        if own.decode(data, "rgb", fast, out, room):
            want = simplejpeg.decode_jpeg(data, "RGB", fastdct=fast, fastupsample=fast)
            assert np.array_equal(out, want.reshape(-1)), number
            accepted += 1
    assert accepted > count // 20, accepted


@pytest.mark.timeout(TIMEOUT_S)
def test_mutated_jpegs_are_decoded_as_by_the_library_or_not_at_all() -> None:
    done = in_child(__file__, str(ROUNDS), "compare")
    assert done.returncode == 0, f"rc {done.returncode}\n{done.stdout}\n{done.stderr[-3000:]}"


if __name__ == "__main__":
    (compare if sys.argv[2:] else main)(int(sys.argv[1]))
