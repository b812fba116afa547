"""penstock's own JPEG kernels: the pixels of libjpeg-turbo bit for bit, or nothing."""

from __future__ import annotations

from collections.abc import Iterator

import cv2
import numpy as np
import pytest
import simplejpeg

from penstock.native import jpeg as own
from penstock.native.library import forced
from tests.unit.native.guarded import guarded
from tests.unit.native.levels import LEVELS

SIZES = [(375, 500), (16, 16), (17, 33), (31, 18), (101, 99), (100, 102), (240, 321)]


@pytest.fixture(params=LEVELS, autouse=True)
def level(request: pytest.FixtureRequest) -> Iterator[str]:
    with forced(request.param):
        yield request.param


def picture(height: int, width: int, noise: int = 20) -> np.ndarray:
    rng = np.random.default_rng(height * width)
    soft = cv2.resize(rng.integers(0, 256, (6, 6, 3), np.uint8), (width, height), interpolation=cv2.INTER_CUBIC)
    return np.clip(soft.astype(int) + rng.integers(-noise, noise + 1, soft.shape), 0, 255).astype(np.uint8)


def room(purpose: str, nbytes: int) -> np.ndarray:
    return np.zeros(nbytes, np.uint8)


def decoded(data: bytes, mode: str = "rgb", fast: bool = False) -> np.ndarray | None:
    """The kernels' pixels, or None where they leave the file to the library."""
    height, width, *_ = simplejpeg.decode_jpeg_header(data, strict=False)
    out = np.empty(height * width * 3, np.uint8)
    return out.reshape(height, width, 3) if own.decode(data, mode, fast, out, room) else None


def expected(data: bytes, mode: str = "rgb", fast: bool = False) -> np.ndarray:
    pixels: np.ndarray = simplejpeg.decode_jpeg(data, mode.upper(), fastdct=fast, fastupsample=fast)
    return pixels


def encoded(pixels: np.ndarray, *settings: int) -> bytes:
    return bytes(cv2.imencode(".jpg", pixels, settings)[1])


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("chroma", ["420", "422", "444"])
def test_pixels_are_those_of_libjpeg_turbo(size: tuple[int, int], chroma: str) -> None:
    for quality in (20, 75, 95, 100):
        data = simplejpeg.encode_jpeg(picture(*size), quality=quality, colorsubsampling=chroma)
        for mode, fast in (("rgb", False), ("rgb", True), ("bgr", False)):
            found = decoded(data, mode, fast)
            assert found is not None and np.array_equal(found, expected(data, mode, fast)), (quality, mode, fast)


def test_pure_noise_and_hard_edges_are_exact() -> None:
    rng = np.random.default_rng(0)
    for pixels in (rng.integers(0, 256, (64, 80, 3), np.uint8), rng.choice(np.uint8([0, 255]), (64, 80, 3))):
        data = encoded(pixels, cv2.IMWRITE_JPEG_QUALITY, 100)
        found = decoded(data)
        assert found is not None and np.array_equal(found, expected(data))


@pytest.mark.parametrize("interval", [1, 3, 100])
def test_restarts_and_tables_of_the_files_own(interval: int) -> None:
    data = encoded(picture(90, 130), cv2.IMWRITE_JPEG_RST_INTERVAL, interval, cv2.IMWRITE_JPEG_OPTIMIZE, 1)
    assert b"\xff\xdd" in data
    found = decoded(data)
    assert found is not None and np.array_equal(found, expected(data))


def test_tables_that_are_kept_are_never_taken_for_another_files() -> None:
    kept: dict[str, np.ndarray] = {}

    def keep(purpose: str, nbytes: int) -> np.ndarray:
        if len(kept.get(purpose, b"")) < nbytes:
            kept[purpose] = np.zeros(nbytes, np.uint8)
        return kept[purpose][:nbytes]

    files = [encoded(picture(40 + n, 60, noise=n), cv2.IMWRITE_JPEG_OPTIMIZE, n % 2) for n in range(12)]
    for data in [*files, *files[::-1], *files[::3]]:
        want = expected(data)
        out = np.empty(want.size, np.uint8)
        assert own.decode(data, "rgb", False, out, keep) and np.array_equal(out, want.reshape(-1))


def not_for_us() -> dict[str, bytes]:
    good = encoded(picture(40, 60))
    return {
        "progressive": encoded(picture(40, 60), cv2.IMWRITE_JPEG_PROGRESSIVE, 1),
        "grey": encoded(picture(40, 60)[..., 0]),
        "narrow": encoded(picture(40, 15)),
        "cut": good[: len(good) // 2],
        "no end": good[:-2],
        "more behind the last block": good[:-2] + b"\x55\x55" + good[-2:],
        "unknown version": good[:11] + b"\x07" + good[12:],
        "size of another": good.replace(b"\x00\x28\x00\x3c", b"\x00\x38\x00\x3c"),
        "half the chroma height": encoded(
            picture(40, 60), cv2.IMWRITE_JPEG_SAMPLING_FACTOR, cv2.IMWRITE_JPEG_SAMPLING_FACTOR_440
        ),
    }


@pytest.mark.parametrize("name", not_for_us())
def test_everything_else_is_left_to_the_library(name: str) -> None:
    assert decoded(not_for_us()[name]) is None


def test_modes_without_a_kernel_are_left_to_the_library() -> None:
    assert decoded(encoded(picture(40, 60)), "rgba") is None


def test_a_wrong_size_of_the_target_is_refused() -> None:
    assert not own.decode(encoded(picture(40, 60)), "rgb", False, np.empty(40 * 60 * 3 - 1, np.uint8), room)


def test_pictures_that_need_too_much_room_are_left_to_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    data = encoded(picture(240, 320))
    assert decoded(data) is not None
    monkeypatch.setattr(own, "MOST_ROOM", 100_000)
    assert decoded(data) is None


def with_codes_of_ones_only(data: bytes) -> bytes:
    """A Huffman table in which the last code of a length consists of ones only: one more symbol of 16 bits."""
    at = data.index(b"\xff\xc4")
    length = int.from_bytes(data[at + 2 : at + 4], "big")
    table = bytearray(data[at + 4 : at + 2 + length])
    assert table[0] == 0  # the DC table of luma: codes of 2 to 9 bits, then free
    full = bytes([0x00, 1, 2]) + bytes(14) + table[17:20]  # 0, 10, 11: every code is taken
    return data[:at] + b"\xff\xc4" + (2 + len(full)).to_bytes(2, "big") + full + data[at + 2 + length :]


def test_huffman_tables_that_libjpeg_refuses_are_refused() -> None:
    data = with_codes_of_ones_only(encoded(picture(40, 60)))
    with pytest.raises(ValueError, match="Huffman table"):
        expected(data)
    assert decoded(data) is None


@pytest.mark.parametrize("side", ["start", "end"])
@pytest.mark.parametrize("chroma", ["420", "422", "444"])
def test_nothing_outside_of_the_given_memory_is_touched(chroma: str, side: str) -> None:
    for size in SIZES[1:]:
        data = simplejpeg.encode_jpeg(picture(*size), quality=80, colorsubsampling=chroma)
        text, work = guarded(data, side), guarded(own.work_nbytes(), side)
        for fast in (False, True):
            room = guarded(own.survey(text, work), side)
            out = guarded(3 * size[0] * size[1], side)
            assert own.decode_surveyed(text, work, room, out, fast, "rgb") == own.OK
            assert np.array_equal(out, expected(data, fast=fast).reshape(-1))


def test_a_survey_of_other_data_or_too_little_room_is_refused() -> None:
    data, work = encoded(picture(40, 60)), np.zeros(own.work_nbytes(), np.uint8)
    nbytes, out = own.survey(data, work), np.zeros(40 * 60 * 3, np.uint8)
    assert own.decode_surveyed(data, work, np.zeros(nbytes - 1, np.uint8), out, False, "rgb") == own.OTHER
    assert own.decode_surveyed(data[:-1], work, np.zeros(nbytes, np.uint8), out, False, "rgb") == own.OTHER
    assert own.survey(data, work[:-8]) == 0
