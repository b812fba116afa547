"""Pictures of rarer kinds: the pixels that Pillow gives, or a clear error where Pillow is not installed."""

from __future__ import annotations

import io
import struct
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageOps

from penstock.core.errors import BadData
from penstock.sources.images import pillow
from penstock.sources.images.decode import ImageOptions, decode_image, decode_image_into
from penstock.sources.images.header import read_header

RNG = np.random.default_rng(5)
RGBA = Image.fromarray(RNG.integers(0, 255, (12, 16, 4), np.uint8))
RGB = RGBA.convert("RGB")
PALETTE = RGB.quantize(16)
XMP = b'<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:Description tiff:Orientation="6"/></x:xmpmeta>'
MODES = {"rgb": "RGB", "rgba": "RGBA", "gray": "L"}


def saved(image: Image.Image, kind: str, **how: Any) -> bytes:
    out = io.BytesIO()
    image.save(out, kind, **how)
    return out.getvalue()


def frames(kind: str, **how: Any) -> bytes:
    others = [Image.fromarray(RNG.integers(0, 255, (12, 16, 3), np.uint8)) for _ in range(2)]
    return saved(RGB, kind, save_all=True, append_images=others, **how)


def jpeg_with(before: bytes, marker: bytes) -> bytes:
    data = saved(RGB, "JPEG")
    at = data.index(marker)
    return data[:at] + before + data[at:]


def odd_cmyk() -> bytes:
    data = bytearray(saved(RGBA.convert("CMYK"), "JPEG", subsampling=0))
    data[data.index(b"\xff\xc0") + 11] = 0x22
    return bytes(data)


def bmp_565() -> bytes:
    pixels = RNG.integers(0, 65535, (4, 6), np.uint16)
    head = struct.pack("<IiiHHIIiiII", 40, 6, -4, 1, 16, 3, pixels.nbytes, 0, 0, 0, 0)
    masks = struct.pack("<III", 0xF800, 0x07E0, 0x001F)
    start = 14 + len(head) + len(masks)
    return b"BM" + struct.pack("<IHHI", start + pixels.nbytes, 0, 0, start) + head + masks + pixels.tobytes()


def bmp_32(masks: tuple[int, int, int]) -> bytes:
    pixels = RNG.integers(0, 255, (4, 6, 4), np.uint8)
    head = struct.pack("<IiiHHIIiiII", 40, 6, -4, 1, 32, 3, pixels.nbytes, 0, 0, 0, 0) + struct.pack("<III", *masks)
    start = 14 + len(head)
    return b"BM" + struct.pack("<IHHI", start + pixels.nbytes, 0, 0, start) + head + pixels.tobytes()


def bmp_without_its_palette_counted() -> bytes:
    data = bytearray(saved(PALETTE, "BMP"))
    data[10:14] = struct.pack("<I", 54)
    return bytes(data)


def gif_of_a_larger_screen() -> bytes:
    data = bytearray(saved(PALETTE, "GIF"))
    data[6:10] = struct.pack("<HH", 24, 20)
    return bytes(data)


def tiff_2_bit() -> bytes:
    rows = bytes(RNG.integers(0, 255, 12 * 4, np.uint8))
    tags = [(256, 3, 1, 16), (257, 3, 1, 12), (258, 3, 1, 2), (259, 3, 1, 1), (262, 3, 1, 1), (273, 4, 1, 8)]
    tags += [(277, 3, 1, 1), (278, 3, 1, 12), (279, 4, 1, len(rows))]
    folder = struct.pack("<H", len(tags)) + b"".join(struct.pack("<HHII", *tag) for tag in tags) + b"\0" * 4
    return b"II*\0" + struct.pack("<I", 8 + len(rows)) + rows + folder


def with_gamma(image: Image.Image) -> bytes:
    from PIL.PngImagePlugin import PngInfo

    info = PngInfo()
    info.add(b"gAMA", struct.pack(">I", 45455))
    return saved(image, "PNG", pnginfo=info)


ODD = {
    "tiff of a palette": saved(PALETTE, "TIFF"),
    "png with gamma": with_gamma(RGB),
    "png of a palette with gamma": with_gamma(PALETTE),
    "png with gamma and alpha": with_gamma(RGBA),
    "tiff with alpha": saved(RGBA, "TIFF"),
    "tiff with alpha, lzw": saved(RGBA, "TIFF", compression="tiff_lzw"),
    "tiff of inks": saved(RGBA.convert("CMYK"), "TIFF"),
    "tiff of lzma": saved(RGB, "TIFF", compression="tiff_lzma"),
    "tiff gray with alpha": saved(RGBA.convert("LA"), "TIFF"),
    "tiff of 2 bits": tiff_2_bit(),
    "gif, transparent": saved(PALETTE, "GIF", transparency=3),
    "gif, frame smaller than its screen": gif_of_a_larger_screen(),
    "gif, animated": frames("GIF"),
    "png, palette with transparency": saved(PALETTE, "PNG", transparency=3),
    "apng": frames("PNG"),
    "apng whose own image is apart": frames("PNG", default_image=True),
    "webp, animated": frames("WEBP", lossless=True),
    "bmp 565": bmp_565(),
    "bmp of 32 bits, usual masks": bmp_32((0xFF0000, 0xFF00, 0xFF)),
    "bmp with alpha": saved(RGBA, "BMP"),
    "bmp of a palette": saved(PALETTE, "BMP"),
    "bmp of a palette that its offset leaves out": bmp_without_its_palette_counted(),
    "bmp of 32 bits, shifted masks": bmp_32((0xFF000000, 0xFF0000, 0xFF00)),
    "jpeg, bytes before a marker": jpeg_with(b"abc", b"\xff\xdb"),
    "jpeg, icc out of place": jpeg_with(b"\xff\xe2\x00\x20ICC_PROFILE\0\x02\x01" + b"x" * 16, b"\xff\xda"),
    "jpeg, odd subsampling of inks": odd_cmyk(),
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ODD)
def test_pixels_are_pillows(name: str, mode: Any) -> None:
    data = ODD[name]
    with Image.open(io.BytesIO(data)) as image:
        wanted = np.asarray(image.convert(MODES[mode]))
    wanted = wanted.reshape(*wanted.shape[:2], -1)
    found = decode_image(data, ImageOptions(mode=mode))
    # Inks go through another formula in libjpeg-turbo, and grays are rounded otherwise by OpenCV: by one or two.
    assert np.abs(found.astype(int) - wanted).max() <= 2
    sized = np.empty_like(wanted)
    decode_image_into(data, sized, ImageOptions(mode=mode, size=wanted.shape[:2]))
    np.testing.assert_array_equal(sized, found)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
def test_xmp_turns_where_exif_says_nothing(kind: str) -> None:
    how: dict[str, Any] = {"xmp": XMP}
    if kind == "PNG":
        from PIL.PngImagePlugin import PngInfo

        info = PngInfo()
        info.add_itxt("XML:com.adobe.xmp", XMP.decode())
        how = {"pnginfo": info}
    data = saved(RGB, kind, **how)
    with Image.open(io.BytesIO(data)) as image:
        wanted = np.asarray(ImageOps.exif_transpose(image).convert("RGB"))
    assert wanted.shape == (16, 12, 3)
    assert read_header(data).orientation == 6
    assert np.abs(decode_image(data, ImageOptions()).astype(int) - wanted).max() <= 1
    exif = Image.Exif()
    exif[0x0112] = 3
    both = saved(RGB, kind, exif=exif, **how)
    assert read_header(both).orientation == 3


@pytest.mark.parametrize("packed", [False, True])
def test_exif_in_the_notes_of_imagemagick_turns(packed: bool) -> None:
    from PIL.PngImagePlugin import PngInfo

    exif = Image.Exif()
    exif[0x0112] = 6
    info, text = PngInfo(), exif.tobytes()
    info.add_text("Raw profile type exif", f"\nexif\n{len(text):8}\n{text.hex()}\n", zip=packed)
    data = saved(RGB, "PNG", pnginfo=info)
    with Image.open(io.BytesIO(data)) as image:
        wanted = np.asarray(ImageOps.exif_transpose(image))
    assert wanted.shape == (16, 12, 3)
    np.testing.assert_array_equal(decode_image(data, ImageOptions()), wanted)


def test_a_turned_tiff_of_pillows_is_turned_once() -> None:
    data = saved(RGBA, "TIFF", tiffinfo={274: 6})
    with Image.open(io.BytesIO(data)) as image:
        wanted = np.asarray(ImageOps.exif_transpose(image).convert("RGB"))
    np.testing.assert_array_equal(decode_image(data, ImageOptions()), wanted)


def test_a_bmp_of_masks_that_pillow_does_not_know_is_refused() -> None:
    with pytest.raises(BadData, match=r"OpenCV does not read this kind of BMP \(Pillow"):
        decode_image(bmp_32((0x3FF00000, 0xFFC00, 0x3FF)), ImageOptions())


@pytest.mark.parametrize("mode", MODES)
def test_a_bmp_that_ends_anywhere_in_its_head_is_refused(mode: Any) -> None:
    for data in (bmp_565(), bmp_32((0xFF, 0xFF00, 0xFF0000)), saved(RGB, "BMP")):
        for length in range(2, 70):
            with pytest.raises(BadData):
                decode_image(data[:length], ImageOptions(mode=mode))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("image", [RGB, PALETTE, RGB.convert("L")], ids=["rgb", "palette", "gray"])
def test_a_turned_tiff_of_opencvs_is_turned_once(image: Image.Image, mode: Any) -> None:
    data = saved(image, "TIFF", tiffinfo={274: 6})
    with Image.open(io.BytesIO(data)) as there:
        wanted = np.asarray(ImageOps.exif_transpose(there).convert(MODES[mode]))
    found = decode_image(data, ImageOptions(mode=mode))
    assert np.abs(found.astype(int) - wanted.reshape(found.shape)).max() <= 2


@pytest.mark.parametrize("mode", MODES)
def test_signed_and_fractional_pixels_have_no_8_bits(mode: Any) -> None:
    """OpenCV shows them anyhow, in some modes, as numbers of its own making."""
    signed = saved(Image.fromarray(np.arange(-96, 96, dtype=np.int32).reshape(12, 16)), "TIFF")
    floats = saved(Image.fromarray(RNG.random((12, 16), np.float32)), "TIFF")
    for data in (signed, floats):
        with pytest.raises(BadData, match="no meaning in 8 bits"):
            decode_image(data, ImageOptions(mode=mode))


@pytest.mark.parametrize("name", ["tiff with alpha", "gif, transparent", "tiff of 2 bits"])
def test_without_pillow_the_error_says_what_to_install(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pillow, "_pillow", lambda: None)
    with pytest.raises(BadData, match=r"somewhere: .*penstock\[pillow\]"):
        decode_image(ODD[name], ImageOptions(), where="somewhere")


def test_lost_pixels_stay_damage() -> None:
    data = saved(Image.fromarray(RNG.integers(0, 255, (64, 64, 3), np.uint8)), "JPEG")
    with pytest.raises(BadData, match="somewhere"):
        decode_image(data[: len(data) * 2 // 3], ImageOptions(), where="somewhere")
