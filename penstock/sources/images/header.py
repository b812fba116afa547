"""What an image's first bytes say: its format, its size and how it is to be turned.

Covers: JPEG, PNG, WebP, BMP, GIF and TIFF headers, and the orientation that EXIF asks for.
Does not cover: decoding pixels (sources/decode.py).

It is read before anything is allocated: a header may claim 60,000 x 60,000 pixels in a file of 40 bytes.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

_EXIF = b"Exif\0\0"


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
    orientation, at = 1, 2
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
            orientation = exif_orientation(data[at + 10 : at + 2 + length])
        elif 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            height, width = struct.unpack_from(">HH", data, at + 5)
            return Header("JPEG", height, width, orientation, at + 2 + length)
        at += 2 + max(2, length)


def _png(data: bytes) -> Header:
    width, height = struct.unpack_from(">II", data, 16)
    at, exif = 8, b""
    while at + 8 <= len(data):  # chunks are skipped, not read
        length, kind = struct.unpack_from(">I4s", data, at)
        if kind == b"IEND":
            break
        if at + 12 + length > len(data):  # a decoder would believe the length and allocate it
            raise ValueError(f"the PNG ends inside a chunk of {length} bytes at offset {at}")
        if kind == b"eXIf":
            exif = data[at + 8 : at + 8 + length]
        at += 12 + length
    return Header("PNG", height, width, exif_orientation(exif) if exif else 1)


def _webp(data: bytes) -> Header:
    if data[8:12] != b"WEBP":
        raise ValueError("it is a RIFF file but not a WebP image")
    kind = data[12:16]
    if kind == b"VP8X":
        width = 1 + int.from_bytes(data[24:27], "little")
        height = 1 + int.from_bytes(data[27:30], "little")
        return Header("WebP", height, width, _webp_orientation(data) if data[20] & 0x08 else 1)
    if kind == b"VP8L":
        bits = struct.unpack_from("<I", data, 21)[0]
        return Header("WebP", 1 + (bits >> 14 & 0x3FFF), 1 + (bits & 0x3FFF))
    width, height = struct.unpack_from("<HH", data, 26)
    return Header("WebP", height & 0x3FFF, width & 0x3FFF)


def _webp_orientation(data: bytes) -> int:
    at = 12
    while at + 8 <= len(data):
        kind, length = struct.unpack_from("<4sI", data, at)
        if kind == b"EXIF":
            exif = data[at + 8 : at + 8 + length]
            return exif_orientation(exif[6:] if exif.startswith(_EXIF) else exif)
        at += 8 + length + (length & 1)
    return 1


def _bmp(data: bytes) -> Header:
    if struct.unpack_from("<I", data, 14)[0] == 12:
        width, height = struct.unpack_from("<HH", data, 18)
    else:
        width, height = struct.unpack_from("<ii", data, 18)
    return Header("BMP", abs(height), width)  # a negative height means rows from top to bottom


def _gif(data: bytes) -> Header:
    width, height = struct.unpack_from("<HH", data, 6)
    return Header("GIF", height, width)


def _tiff(data: bytes) -> Header:
    tags = _tiff_tags(data)
    height, width = tags.get(257, 0), tags.get(256, 0)
    # A tile is decoded whole, so that a hostile tile size costs as much as a hostile image size.
    height, width = max(height, tags.get(323, 0) if height else 0), max(width, tags.get(322, 0) if width else 0)
    # OpenCV turns TIFFs by itself.
    return Header("TIFF", height, width)


def _tiff_tags(data: bytes) -> dict[int, int]:
    """Tags of the first directory that hold one short or long number."""
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
        if form is not None:
            tags[tag] = struct.unpack_from(order + form, data, at + i * step + value_at)[0]
    return tags


def exif_orientation(exif: bytes) -> int:
    """The orientation that an EXIF block asks for; 1 (as it is) where the block is damaged or says nothing."""
    if exif[:2] not in (b"II", b"MM"):
        return 1
    try:
        orientation = _tiff_tags(exif).get(0x0112, 1)
    except struct.error:
        return 1
    return orientation if 1 <= orientation <= 8 else 1


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
