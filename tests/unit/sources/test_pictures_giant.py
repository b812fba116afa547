"""Pictures whose decoding cannot fit are refused by name, before memory is taken."""

from __future__ import annotations

import io
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import penstock as ps
from penstock.core.errors import TooLarge
from penstock.core.source import NEW_MEMORY
from penstock.memory.meter import Meter
from penstock.sources.images.giant import decoding, decoding_nbytes
from penstock.sources.images.header import read_header

KINDS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "png": ("RGB", "PNG", {"compress_level": 1}),
    "progressive jpeg": ("L", "JPEG", {"progressive": True}),
    "jpeg of inks": ("CMYK", "JPEG", {}),
    "tiff": ("RGB", "TIFF", {"compression": "tiff_lzw"}),
    "gif": ("L", "GIF", {}),
    "bmp": ("L", "BMP", {}),
    "webp": ("RGB", "WEBP", {"method": 0}),
}


def written(path: Path, kind: str, side: int) -> Path:
    mode, form, how = KINDS[kind]
    Image.new(mode, (side, side), 90 if mode == "L" else None).save(path, form, **how)
    return path


@pytest.mark.parametrize("kind", KINDS)
def test_a_picture_that_cannot_be_decoded_in_the_limit_is_refused_by_name(tmp_path, kind):
    path = written(tmp_path / "a.img", kind, 6000)
    before = Meter().read().nbytes
    with ps.limit("100MB"), pytest.raises(TooLarge, match=r"a\.img: decoding this \w+ of 6000 x 6000 pixels") as caught:
        ps.read_images([path], label=None, size=(8, 8)).node.step.source.decode(
            ps.read_images([path], label=None, size=(8, 8)).node.step.source.fetch(np.array([0]))
        )
    assert len(str(caught.value)) < 500
    assert Meter().read().nbytes - before < 60_000_000  # a file of up to 36 MB, and no pixels


@pytest.mark.parametrize("kind", KINDS)
def test_it_is_decoded_where_there_is_room(tmp_path, kind):
    path = written(tmp_path / "a.img", kind, 3000)
    (found,) = list(ps.read_images([path], label=None, size=(8, 8)))
    assert found.shape == (8, 8, 3)


def test_what_decoding_takes_is_told_by_the_header():
    def told(image: Image.Image, form: str, **how: Any) -> float:
        out = io.BytesIO()
        image.save(out, form, **how)
        data = out.getvalue()
        return decoding_nbytes(data, read_header(data), 3) / (image.width * image.height)

    rgb, gray = Image.new("RGB", (40, 30)), Image.new("L", (40, 30))
    assert told(rgb, "JPEG") == 3 and told(rgb, "JPEG", progressive=True) == 9
    assert told(gray, "JPEG", progressive=True) == 5 and told(rgb.convert("CMYK"), "JPEG") == 8
    assert told(rgb, "PNG") == 8 and told(Image.new("I;16", (40, 30)), "PNG") == 16
    assert told(rgb, "TIFF") == 8 and told(Image.new("I;16", (40, 30)), "TIFF") == 16


def test_large_pictures_take_turns_where_they_do_not_fit_together(tmp_path):
    """Six threads decode 30 megapixels each, 240 MB by reckoning: under 400 MB one at a time."""
    data = written(tmp_path / "a.img", "png", 5500).read_bytes()
    header, at_once, most = read_header(data), 0, 0
    lock = threading.Lock()

    def decode() -> None:
        nonlocal at_once, most
        with decoding(data, header, 3, "a.img", NEW_MEMORY):
            with lock:
                at_once += 1
                most = max(most, at_once)
            time.sleep(0.02)
            with lock:
                at_once -= 1

    for limit, wanted in (("400MB", 1), ("1GB", 3)):
        most = 0
        with ps.limit(limit), ThreadPoolExecutor(6) as pool:
            for done in [pool.submit(decode) for _ in range(6)]:
                done.result(timeout=10)
        assert most == wanted
