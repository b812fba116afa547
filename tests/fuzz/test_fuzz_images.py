"""Mutated images: pixels, or an error that names the file; never a crash or a wild allocation.

They are decoded in a child process, because a crash inside a codec could not be survived.
"""

from __future__ import annotations

import random
import resource
import sys
from pathlib import Path

import cv2
import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))
from mutations import GROWTH, ROUNDS, TIMEOUT_S, in_child, mutated, outcome, peak, start_peak

from penstock.sources.decode import ImageOptions, decode_image_into

ROOM = 6_000_000_000


def pictures() -> list[bytes]:
    """Every format that is read, small, with noise so that all of a codec is used."""
    noise = np.random.default_rng(0).integers(0, 256, (24, 20, 3), np.uint8)
    made = [cv2.imencode(f".{kind}", noise)[1].tobytes() for kind in ("jpg", "png", "webp", "bmp", "tiff")]
    return [*made, cv2.imencode(".jpg", noise, [cv2.IMWRITE_JPEG_PROGRESSIVE, 1])[1].tobytes(),
            cv2.imencode(".png", noise[..., 0])[1].tobytes()]  # fmt: skip


def main(count: int) -> None:
    """The child: decode mutations under an address-space limit."""
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


if __name__ == "__main__":
    main(int(sys.argv[1]))
