"""What an image's first bytes say: its format, its size and how it is to be turned.

Covers: JPEG, PNG, WebP, BMP, GIF and TIFF headers, and the orientation that EXIF asks for.
Does not cover: decoding pixels (decode.py).

It is read before anything is allocated: a header may claim 60,000 x 60,000 pixels in a file of 40 bytes.
"""

from __future__ import annotations

import re
import struct
import zlib
from dataclasses import dataclass

_EXIF = b"Exif\0\0"
_RAW, _LONGEST_EXIF = b"Raw profile type exif\0", 1 << 18
_XMP = b"http://ns.adobe.com/xap/1.0/\0"
_XMP_ORIENTATION = re.compile(rb"tiff:Orientation(?:=[\"']|>)([1-8])")


@dataclass(frozen=True, slots=True)
class Header:
    """Size as stored (before turning), EXIF orientation 1 to 8, and for JPEG where the pixels start."""

    kind: str
    height: int
    width: int
    orientation: int = 1
    data_at: int = 0

    @property
    def size(self) -> tuple[int, int]:
        """Height and width as shown."""
        return (self.width, self.height) if self.orientation >= 5 else (self.height, self.width)


def read_header(data: bytes) -> Header:
    """The header of an image file. Raises ValueError with the reason, as a part of a sentence."""
    if not data:
        raise ValueError("the file is empty")
    for magic, read in _READERS:
        if data.startswith(magic):
            try:
                header = read(data)
            except (IndexError, struct.error):
                raise ValueError(f"the {_name(magic)} header is cut short") from None
            if header.height <= 0 or header.width <= 0:
                raise ValueError(f"the header gives a size of {header.width} x {header.height} pixels")
            return header
    raise ValueError("it is not an image of a known format (JPEG, PNG, WebP, BMP, GIF, TIFF)")


def _name(magic: bytes) -> str:
    return {b"\xff\xd8": "JPEG", b"\x89PNG": "PNG", b"RIFF": "WebP", b"BM": "BMP", b"GIF8": "GIF"}.get(magic, "TIFF")


def _jpeg(data: bytes) -> Header:
    exif, xmp, at = b"", b"", 2
    while True:
        at = data.find(b"\xff", at)
        if at < 0:
            raise ValueError("the JPEG header is cut short")
        marker = data[at + 1]
        if marker == 0xFF:
            at += 1
            continue
        if marker in (0x00, 0x01) or 0xD0 <= marker <= 0xD8:  # markers that stand alone
            at += 2
            continue
        if marker in (0xD9, 0xDA):
            raise ValueError("the JPEG has no size before its pixels")
        length = data[at + 2] << 8 | data[at + 3]
        if marker == 0xE1 and data[at + 4 : at + 10] == _EXIF:
            exif = data[at + 10 : at + 2 + length]
        elif marker == 0xE1 and data.startswith(_XMP, at + 4):
            xmp = data[at + 4 + len(_XMP) : at + 2 + length]
        elif 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            height, width = struct.unpack_from(">HH", data, at + 5)
            return Header("JPEG", height, width, orientation_of(exif, xmp), at + 2 + length)
        at += 2 + max(2, length)


def _png(data: bytes) -> Header:
    width, height = struct.unpack_from(">II", data, 16)
    at, exif, xmp = 8, b"", b""
    while at + 8 <= len(data):  # chunks are skipped, not read
        length, kind = struct.unpack_from(">I4s", data, at)
        if kind == b"IEND":
            break
        if at + 12 + length > len(data):  # a decoder would believe the length and allocate it
            raise ValueError(f"the PNG ends inside a chunk of {length} bytes at offset {at}")
        if kind == b"eXIf":
            exif = data[at + 8 : at + 8 + length]
        elif kind in (b"tEXt", b"zTXt") and data.startswith(_RAW, at + 8) and not exif:
            exif = _raw_exif(data[at + 8 + len(_RAW) : at + 8 + length], packed=kind == b"zTXt")
        elif kind == b"iTXt" and data.startswith(b"XML:com.adobe.xmp\0", at + 8):
            xmp = data[at + 8 : at + 8 + length]
        at += 12 + length
    return Header("PNG", height, width, orientation_of(exif, xmp))


def _raw_exif(text: bytes, packed: bool) -> bytes:
    """EXIF as ImageMagick writes it into a PNG's notes: its kind and length, then hexadecimal digits in lines."""
    try:
        text = zlib.decompressobj().decompress(text[1:], _LONGEST_EXIF) if packed else text
        return bytes.fromhex("".join(text.decode("ascii").split("\n")[3:])).removeprefix(_EXIF)
    except (ValueError, zlib.error):
        return b""  # as if it were not there: a note is no reason to refuse a picture


def png_without_animation(data: bytes) -> bytes:
    """A PNG whose own image is none of its animation's: without the animation, which decoders would show instead."""
    first = data.find(b"fcTL"), data.find(b"IDAT")
    if data.find(b"acTL", 0, max(first[1], 0)) < 0 or 0 <= first[0] < first[1]:
        return data
    at, kept = 8, [data[:8]]
    while at + 12 <= len(data):
        length, kind = struct.unpack_from(">I4s", data, at)
        if kind not in (b"acTL", b"fcTL", b"fdAT"):
            kept.append(data[at : at + 12 + length])
        at += 12 + length
    return b"".join(kept)


def bmp_has_masks(data: bytes) -> bool:
    """Whether the bits of a BMP's colours lie elsewhere than in whole bytes in the usual order.

    Of 16 bits OpenCV leaves the low ones of each colour 0, and of 32 it does not look at the masks.
    """
    if len(data) < 34 or struct.unpack_from("<I", data, 14)[0] < 40:  # cut short, or OS/2's, which has no masks
        return False
    bits, packing = struct.unpack_from("<HI", data, 28)
    return bits == 16 or (bits == 32 and packing == 3 and data[54:66] != _BYTES)


def bmp_begins_in_palette(data: bytes) -> bool:
    """Whether the pixels of a BMP are said to begin within its palette, which some writers leave out of the count."""
    if len(data) < 50:
        return False
    offset, size = struct.unpack_from("<II", data, 10)
    if size < 40:
        return False
    bits, used = struct.unpack_from("<H", data, 28)[0], struct.unpack_from("<I", data, 46)[0]
    return bits <= 8 and bool(offset < 14 + size + 4 * min(used or 1 << bits, 1 << bits))


def bmp_has_alpha(data: bytes) -> bool:
    """Whether a BMP says that some of its bits are alpha: in others the fourth byte means nothing."""
    if len(data) < 70:
        return False
    size, packing = struct.unpack_from("<I", data, 14)[0], struct.unpack_from("<I", data, 30)[0]
    return bool(size >= 56 and packing == 3 and struct.unpack_from("<I", data, 66)[0])


def png_is_coloured(data: bytes) -> bool:
    """Whether a PNG is of colours or a palette."""
    return data[25:26] in (b"\2", b"\3", b"\6")


def _webp(data: bytes) -> Header:
    if data[8:12] != b"WEBP":
        raise ValueError("it is a RIFF file but not a WebP image")
    kind = data[12:16]
    if kind == b"VP8X":
        width = 1 + int.from_bytes(data[24:27], "little")
        height = 1 + int.from_bytes(data[27:30], "little")
        return Header("WebP", height, width, _webp_orientation(data) if data[20] & 0x0C else 1)
    if kind == b"VP8L":
        bits = struct.unpack_from("<I", data, 21)[0]
        return Header("WebP", 1 + (bits >> 14 & 0x3FFF), 1 + (bits & 0x3FFF))
    width, height = struct.unpack_from("<HH", data, 26)
    return Header("WebP", height & 0x3FFF, width & 0x3FFF)


def _webp_orientation(data: bytes) -> int:
    at, exif, xmp = 12, b"", b""
    while at + 8 <= len(data):
        kind, length = struct.unpack_from("<4sI", data, at)
        if kind == b"EXIF":
            exif = data[at + 8 : at + 8 + length].removeprefix(_EXIF)
        elif kind == b"XMP ":
            xmp = data[at + 8 : at + 8 + length]
        at += 8 + length + (length & 1)
    return orientation_of(exif, xmp)


def _bmp(data: bytes) -> Header:
    if struct.unpack_from("<I", data, 14)[0] == 12:
        width, height = struct.unpack_from("<HH", data, 18)
    else:
        width, height = struct.unpack_from("<ii", data, 18)
    return Header("BMP", abs(height), width)  # a negative height means rows from top to bottom


def _gif(data: bytes) -> Header:
    width, height = struct.unpack_from("<HH", data, 6)
    return Header("GIF", height, width)


def gif_is_plain(data: bytes) -> bool:
    """Whether the first frame of a GIF has no transparent colour and fills the picture."""
    flags = data[10] if len(data) > 10 else 0
    at = 13 + (3 << (flags & 7) + 1 if flags & 0x80 else 0)
    while at + 4 <= len(data) and data[at] == 0x21:  # extensions stand before the frame
        if data[at + 1] == 0xF9 and data[at + 3] & 1:
            return False
        at += 2
        while at < len(data) and data[at]:
            at += 1 + data[at]
        at += 1
    frame = data[at + 1 : at + 9]
    return data[at : at + 1] != b"\x2c" or frame == b"\0\0\0\0" + data[6:10]


_BYTES = struct.pack("<III", 0xFF0000, 0xFF00, 0xFF)
_UNSIGNED, _UNDEFINED = 1, 4
_PLAIN_SPACES = (0, 1, 2, 3, 6)
"""White is zero, black is zero, RGB, palette, YCbCr."""


def tiff_is_plain(data: bytes) -> bool:
    """Whether a TIFF has one or three channels of unsigned numbers: no alpha, no inks, no signs, no other spaces."""
    tags = _tiff_tags(data)
    channels, sample, space = tags.get(277, 1), tags.get(339, _UNSIGNED), tags.get(262, 1)
    return channels in (1, 3) and sample in (_UNSIGNED, _UNDEFINED) and space in _PLAIN_SPACES


def is_deep(data: bytes) -> bool:
    """Whether a PNG or TIFF has more than 8 bits a channel."""
    return data[24] > 8 if data.startswith(b"\x89PNG") else _tiff_tags(data).get(258, 1) > 8


def jpeg_frame(data: bytes, header: Header) -> tuple[int, bool]:
    """How many components a JPEG has, and whether all of it is needed before there is a pixel (it is progressive)."""
    for components in (1, 3, 4):
        start = header.data_at - 10 - 3 * components
        if start > 0 and data[start] == 0xFF and data[start + 9] == components:
            return components, data[start + 1] in (0xC2, 0xC6, 0xCA, 0xCE)
    return 4, True


def _tiff(data: bytes) -> Header:
    tags = _tiff_tags(data)
    height, width = tags.get(257, 0), tags.get(256, 0)
    # A tile is decoded whole, so that a hostile tile size costs as much as a hostile image size.
    height, width = max(height, tags.get(323, 0) if height else 0), max(width, tags.get(322, 0) if width else 0)
    # OpenCV turns TIFFs by itself.
    return Header("TIFF", height, width)


def _tiff_tags(data: bytes) -> dict[int, int]:
    """Tags of the first directory that hold short or long numbers: the first of each."""
    order = "<" if data[:2] == b"II" else ">"
    big = struct.unpack_from(order + "H", data, 2)[0] == 43
    at = struct.unpack_from(order + ("Q" if big else "I"), data, 8 if big else 4)[0]
    if at > len(data):
        raise struct.error("the directory lies behind the end")
    count = struct.unpack_from(order + ("Q" if big else "H"), data, at)[0]
    at += 8 if big else 2
    step, value_at = (20, 12) if big else (12, 8)
    tags: dict[int, int] = {}
    for i in range(min(count, 4096)):
        tag, kind = struct.unpack_from(order + "HH", data, at + i * step)
        form = {3: "H", 4: "I", 16: "Q"}.get(kind)
        if form is None:
            continue
        place = at + i * step + value_at
        many = struct.unpack_from(order + ("Q" if big else "I"), data, at + i * step + 4)[0]
        if many * struct.calcsize(form) > step - value_at:  # they lie elsewhere
            place = struct.unpack_from(order + ("Q" if big else "I"), data, place)[0]
            if place + struct.calcsize(form) > len(data):
                continue
        tags[tag] = struct.unpack_from(order + form, data, place)[0]
    return tags


def exif_orientation(exif: bytes) -> int:
    """The orientation that an EXIF block asks for; 1 (as it is) where the block is damaged or says nothing."""
    orientation = _orientation_tag(exif) or 1
    return orientation if 1 <= orientation <= 8 else 1


def orientation_of(exif: bytes, xmp: bytes) -> int:
    """The orientation that EXIF asks for, or XMP where EXIF says nothing about it."""
    if exif and _orientation_tag(exif) is not None:
        return exif_orientation(exif)
    found = _XMP_ORIENTATION.search(xmp) if xmp else None
    return int(found[1]) if found else 1


def _orientation_tag(exif: bytes) -> int | None:
    if exif[:2] not in (b"II", b"MM"):
        return None
    try:
        return _tiff_tags(exif).get(0x0112)
    except struct.error:
        return None


_READERS = (
    (b"\xff\xd8", _jpeg),
    (b"\x89PNG", _png),
    (b"RIFF", _webp),
    (b"BM", _bmp),
    (b"GIF8", _gif),
    (b"II*\0", _tiff),
    (b"MM\0*", _tiff),
    (b"II+\0", _tiff),
    (b"MM\0+", _tiff),
)
