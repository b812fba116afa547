"""Pictures are decoded by penstock's own JPEG kernels from the first one on, whatever the limit."""

from __future__ import annotations

import threading
from pathlib import Path

import cv2
import numpy as np
import pytest
import simplejpeg

import penstock as ps
from penstock.memory.meter import Meter
from penstock.native import jpeg as own
from penstock.sources.images import decode
from penstock.sources.images.decode import ImageOptions, decode_image

LOW_NBYTES = 150_000_000
"""Memory left below a low limit, whatever other tests have loaded."""


def encoded(height: int, width: int) -> bytes:
    rng = np.random.default_rng(height * width)
    soft = cv2.resize(rng.integers(0, 256, (6, 6, 3), np.uint8), (width, height), interpolation=cv2.INTER_CUBIC)
    return bytes(cv2.imencode(".jpg", soft)[1])


@pytest.fixture
def done(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether the kernels decoded, picture by picture."""
    seen: list[bool] = []
    real = own.decode

    def noted(*args: object) -> bool:
        seen.append(real(*args))  # type: ignore[arg-type]
        return seen[-1]

    monkeypatch.setattr(own, "decode", noted)
    return seen


def test_readers_decode_with_the_kernels_and_lease_their_room(done: list[bool]) -> None:
    data = encoded(100, 120)
    before = decode.scratch_nbytes()
    threads = [threading.Thread(target=decode_image, args=(data, ImageOptions(size=(50, 50)))) for _ in range(2)]
    for thread in threads:
        thread.start()
        thread.join()
    found = decode_image(data, ImageOptions())
    assert done == [True] * 3 and np.array_equal(found, simplejpeg.decode_jpeg(data))
    assert decode.scratch_nbytes() >= before


def test_a_low_limit_uses_the_same_kernels(done: list[bool], tmp_path: Path) -> None:
    for n in range(8):
        (tmp_path / f"{n}.jpg").write_bytes(encoded(64, 80 + n))
    with ps.limit(Meter().read().nbytes + LOW_NBYTES):
        batches = list(ps.read_images(str(tmp_path / "*.jpg"), size=(32, 32)).batch(4))
    assert len(batches) == 2 and done == [True] * 8
