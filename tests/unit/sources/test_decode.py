"""Pixels come out right, turned right and in the right place; hostile bytes come out as BadData."""

from __future__ import annotations

import io
import struct
import threading
import zlib

import cv2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.core.errors import BadData, InvalidInput
from penstock.sources.images import decode
from penstock.sources.images.decode import ImageOptions, decode_image, decode_image_into
from penstock.sources.images.header import read_header

Image = pytest.importorskip("PIL.Image")

HEIGHT, WIDTH = 60, 96


def picture(height: int = HEIGHT, width: int = WIDTH) -> np.ndarray:
    """A smooth picture without any symmetry, which survives JPEG well."""
    y, x = np.mgrid[0:height, 0:width]
    return np.stack([x * 255 // width, y * 255 // height, (2 * x + y) * 255 // (2 * width + height)], -1).astype(
        np.uint8
    )


def encoded(kind: str, pixels: np.ndarray | None = None, *, mode: str | None = None, **options: object) -> bytes:
    image = Image.fromarray(picture() if pixels is None else pixels)
    out = io.BytesIO()
    (image.convert(mode) if mode else image).save(out, kind, **options)
    return out.getvalue()


def near(a: np.ndarray, b: np.ndarray, *, levels: float) -> bool:
    return a.shape == b.shape and float(np.abs(a.astype(int) - b.astype(int)).mean()) <= levels


LOSSLESS = {
    "png": encoded("PNG"),
    "webp": encoded("WEBP", lossless=True),
    "bmp": encoded("BMP"),
    "tiff": encoded("TIFF"),
    "tiff-lzw": encoded("TIFF", compression="tiff_lzw"),
    "png-16": cv2.imencode(".png", picture()[:, :, ::-1].astype(np.uint16) * 257)[1].tobytes(),
    "tiff-16": cv2.imencode(".tiff", picture()[:, :, ::-1].astype(np.uint16) * 257)[1].tobytes(),
    "png-alpha": encoded("PNG", np.dstack([picture(), np.full((HEIGHT, WIDTH), 255, np.uint8)])),
}
LOSSY = {
    "jpeg": encoded("JPEG", quality=95),
    "jpeg-progressive": encoded("JPEG", quality=95, progressive=True),
    "jpeg-444": encoded("JPEG", quality=95, subsampling=0),
    "jpeg-cmyk": encoded("JPEG", mode="CMYK", quality=95),
    "webp-lossy": encoded("WEBP", quality=95),
}
ALL = {**LOSSLESS, **LOSSY, "gif": encoded("GIF"), "png-palette": encoded("PNG", mode="P")}


@pytest.mark.parametrize("name", LOSSLESS)
def test_lossless_formats_give_the_exact_pixels(name):
    assert np.array_equal(decode_image(LOSSLESS[name], ImageOptions()), picture())


@pytest.mark.parametrize("name", LOSSY)
def test_lossy_formats_give_nearly_the_pixels(name):
    assert near(decode_image(LOSSY[name], ImageOptions()), picture(), levels=4)


@pytest.mark.parametrize("name", ["gif", "png-palette"])
def test_palettes_give_what_another_reader_sees(name):
    expected = np.asarray(Image.open(io.BytesIO(ALL[name])).convert("RGB"))
    assert near(decode_image(ALL[name], ImageOptions()), expected, levels=0.01)


def test_only_the_first_frame_of_a_gif_is_read():
    frames = [Image.fromarray(picture()), Image.fromarray(255 - picture())]
    out = io.BytesIO()
    frames[0].save(out, "GIF", save_all=True, append_images=frames[1:])
    assert near(decode_image(out.getvalue(), ImageOptions()), picture(), levels=25)


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("mode", ["rgb", "bgr", "gray", "rgba"])
def test_every_format_in_every_mode_fills_its_slot(name, mode):
    options = ImageOptions(size=(20, 30), mode=mode)
    batch = np.full((3, 20, 30, options.channels), 77, np.uint8)
    decode_image_into(ALL[name], batch[1], options)
    assert (batch[0] == 77).all() and (batch[2] == 77).all(), "a neighbour was written to"
    small = cv2.resize(picture(), (30, 20))
    expected = {
        "rgb": small,
        "bgr": small[:, :, ::-1],
        "gray": cv2.cvtColor(small, cv2.COLOR_RGB2GRAY)[:, :, None],
        "rgba": np.dstack([small, np.full((20, 30), 255, np.uint8)]),
    }[mode]
    assert near(batch[1], expected, levels=16 if name in ("gif", "png-palette") else 4)


def test_alpha_is_kept_in_rgba_and_dropped_in_rgb():
    data = encoded("PNG", np.dstack([picture(), np.full((HEIGHT, WIDTH), 100, np.uint8)]))
    assert (decode_image(data, ImageOptions(mode="rgba"))[:, :, 3] == 100).all()
    assert np.array_equal(decode_image(data, ImageOptions()), picture())


def test_sixteen_bits_become_eight_in_rgba_too():
    pixels = decode_image(LOSSLESS["png-16"], ImageOptions(mode="rgba"))
    assert np.array_equal(pixels[:, :, :3], picture()) and (pixels[:, :, 3] == 255).all()


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF"])
@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("mode", ["rgb", "rgba"])
def test_exif_orientation_is_applied(kind, orientation, mode):
    from PIL import ImageOps

    image = Image.fromarray(picture())
    exif = image.getexif()
    exif[0x0112] = orientation
    out = io.BytesIO()
    image.save(
        out, kind, exif=exif, **({"quality": 95} if kind == "JPEG" else {"lossless": True} if kind == "WEBP" else {})
    )
    expected = np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(out.getvalue()))))
    found = decode_image(out.getvalue(), ImageOptions(mode=mode))[:, :, :3]
    assert near(found, expected, levels=1)
    slot = np.zeros((*expected.shape[:2], ImageOptions(mode=mode).channels), np.uint8)
    decode_image_into(out.getvalue(), slot, ImageOptions(size=expected.shape[:2], mode=mode))
    assert np.array_equal(slot[:, :, :3], found)


def test_resizing_equals_opencv():
    data = encoded("JPEG", picture(300, 400), quality=90)
    full = decode_image(data, ImageOptions())
    found = decode_image(data, ImageOptions(size=(64, 80)))
    assert np.array_equal(found, cv2.resize(full, (80, 64), interpolation=cv2.INTER_LINEAR))


def test_center_crop_takes_the_middle_of_the_right_shape():
    data = encoded("PNG", picture(100, 200))
    found = decode_image(data, ImageOptions(size=(50, 50), crop="center"))
    assert np.array_equal(found, cv2.resize(picture(100, 200)[:, 50:150], (50, 50)))


def test_pad_keeps_the_whole_image_between_black_borders():
    data = encoded("PNG", np.full((100, 200, 3), 200, np.uint8))
    found = decode_image(data, ImageOptions(size=(50, 50), crop="pad"))
    assert (found[13:37] == 200).all() and (found[:12] == 0).all() and (found[38:] == 0).all()


def test_scaled_decoding_is_near_the_full_one_and_only_when_asked():
    data = encoded("JPEG", picture(800, 1200), quality=92)
    full = decode_image(data, ImageOptions(size=(100, 150)))
    scaled = decode_image(data, ImageOptions(size=(100, 150), scaled=True))
    assert near(full, scaled, levels=2)


def test_fast_decoding_is_near_the_exact_one():
    assert near(
        decode_image(LOSSY["jpeg"], ImageOptions(fast=True)), decode_image(LOSSY["jpeg"], ImageOptions()), levels=3
    )


# Hostile and damaged input


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("part", [0.02, 0.3, 0.6, 0.97])
def test_a_truncated_image_is_an_error_not_grey_pixels(name, part):
    with pytest.raises(BadData, match="broken.img"):
        decode_image(ALL[name][: int(len(ALL[name]) * part)], ImageOptions(), where="broken.img")


@pytest.mark.parametrize("data", [b"", b"\0", b"hello, this is text", b"\xff\xd8", b"\x89PNG", b"RIFF\0\0\0\0WAVEfmt "])
def test_what_is_not_an_image_is_named(data):
    with pytest.raises(BadData, match=r"^x\.jpg: "):
        decode_image(data, ImageOptions(), where="x.jpg")


def huge_png(width: int, height: int) -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


HUGE = {
    "png": huge_png(60_000, 60_000),
    "jpeg": LOSSY["jpeg"].replace(struct.pack(">HH", HEIGHT, WIDTH), struct.pack(">HH", 60_000, 60_000), 1),
    "gif": b"GIF89a" + struct.pack("<HH", 60_000, 60_000) + ALL["gif"][10:],
    "bmp": LOSSLESS["bmp"][:18] + struct.pack("<ii", 60_000, -60_000) + LOSSLESS["bmp"][26:],
    "webp": b"RIFF\x1e\0\0\0WEBPVP8X\x0a\0\0\0\0\0\0\0" + (59_999).to_bytes(3, "little") * 2,
    "tiff": b"II*\0\x08\0\0\0\x02\0" + struct.pack("<HHIIHHIII", 256, 4, 1, 60_000, 257, 4, 1, 60_000, 0),
}


@pytest.mark.parametrize("name", HUGE)
def test_a_huge_header_is_refused_by_name_before_anything_is_allocated(name):
    before = decode.scratch_nbytes()
    with pytest.raises(BadData, match=r"huge\.img.*60000 x 60000 pixels.*max_pixels"):
        decode_image(HUGE[name], ImageOptions(), where="huge.img")
    assert decode.scratch_nbytes() == before


def test_max_pixels_is_a_limit_that_can_be_moved():
    with pytest.raises(BadData, match="max_pixels=100"):
        decode_image(LOSSLESS["png"], ImageOptions(max_pixels=100))
    assert decode_image(LOSSLESS["png"], ImageOptions(max_pixels=HEIGHT * WIDTH)).shape == (HEIGHT, WIDTH, 3)


def test_bytes_after_the_end_of_a_jpeg_do_no_harm():
    assert np.array_equal(
        decode_image(LOSSY["jpeg"] + b"junk", ImageOptions()), decode_image(LOSSY["jpeg"], ImageOptions())
    )


def test_extraneous_bytes_before_a_marker_are_repaired_as_elsewhere():
    data = LOSSY["jpeg-progressive"]
    scan = data.rfind(b"\xff\xda")
    mended = decode_image(data[:scan] + b"\x12\x34" + data[scan:], ImageOptions())
    assert np.array_equal(mended, decode_image(data, ImageOptions()))


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(sorted(ALL)), st.lists(st.tuples(st.floats(0, 1), st.integers(1, 255)), min_size=1, max_size=6))
def test_flipped_bits_give_an_image_or_bad_data_and_nothing_else(name, flips):
    data = bytearray(ALL[name])
    for place, mask in flips:
        data[int(place * (len(data) - 1))] ^= mask
    options = ImageOptions(size=(16, 16), max_pixels=1_000_000)
    try:
        assert decode_image(bytes(data), options).shape == (16, 16, 3)
    except BadData:
        assert True


@settings(max_examples=200, deadline=None)
@given(
    st.sampled_from([b"\xff\xd8", b"\x89PNG\r\n\x1a\n", b"RIFF1234WEBP", b"BM", b"GIF89a", b"II*\0", b"MM\0+"]),
    st.binary(max_size=200),
)
def test_a_header_of_random_bytes_is_read_or_refused(magic, rest):
    try:
        header = read_header(magic + rest)
    except ValueError as error:
        assert str(error)
    else:
        assert header.height > 0 and header.width > 0 and 1 <= header.orientation <= 8


# Buffers


def clear_scratch() -> None:
    for scratch in tuple(decode._all):
        scratch.clear()


def test_the_decode_buffer_is_recycled_bounded_and_given_back(monkeypatch):
    monkeypatch.setattr(decode.own, "decode", lambda *_: False)  # the library's buffer alone
    clear_scratch()
    assert decode.scratch_nbytes() == 0
    options = ImageOptions(size=(8, 8))
    data = encoded("JPEG", picture(500, 400))
    decode_image(data, options)
    held = decode.scratch_nbytes()
    assert 500 * 400 * 3 <= held <= 500 * 400 * 3 + 262144
    for _ in range(5):
        decode_image(data, options)
    assert decode.scratch_nbytes() == held
    decode_image(encoded("JPEG", np.zeros((4100, 4100, 3), np.uint8)), options)
    assert decode.scratch_nbytes() <= decode.SCRATCH_NBYTES
    clear_scratch()
    assert decode.scratch_nbytes() == 0


def test_a_thread_that_ends_gives_its_buffer_back():
    clear_scratch()
    thread = threading.Thread(target=decode_image, args=(LOSSY["jpeg"], ImageOptions(size=(8, 8))))
    thread.start()
    thread.join()
    assert decode.scratch_nbytes() == 0


def test_threads_do_not_share_a_buffer():
    pictures = [np.full((64 + 8 * i, 96, 3), 40 * i + 20, np.uint8) for i in range(4)]
    wrong: list[int] = []

    def work(i: int) -> None:
        data = encoded("JPEG", pictures[i], quality=95)
        for _ in range(100):
            if not near(decode_image(data, ImageOptions(size=(16, 16))), np.full((16, 16, 3), 40 * i + 20), levels=3):
                wrong.append(i)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


@pytest.mark.parametrize(
    "wrong",
    [
        {"mode": "cmyk"},
        {"crop": "left"},
        {"interpolation": "magic"},
        {"crop": "center"},
        {"scaled": True},
        {"max_pixels": 0},
    ],
)
def test_wrong_options_are_refused(wrong):
    with pytest.raises(InvalidInput):
        ImageOptions(**wrong)
